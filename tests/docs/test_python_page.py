"""The examples of the page for Python users run in order, on one home, and print the documented output."""

from __future__ import annotations

import doctest
import json
from pathlib import Path

import pytest
from support.command_line import run
from support.files.export_files import ID, LATER_MS, OTHER_ID, SNAPSHOT, TIME_MS
from support.homes.imported import home_with_generations

from cdc_platform import Home

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "python.md"


def test_every_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples run in the order of the page, in a folder with the home that it describes."""
    home = home_with_generations(tmp_path, {ID: TIME_MS, OTHER_ID: LATER_MS}, ring=json.dumps(SNAPSHOT))
    home.rename(tmp_path / ".cdc-platform")
    script = ROOT / "docs" / "examples" / "statements.cql"
    monkeypatch.chdir(tmp_path)
    applied = run("--clock", "2026-02-01T00:00:00Z", "cql", "run", script, "--apply")
    assert applied.exit_code == 0, applied.stderr
    examples = doctest.DocTestParser().get_doctest(PAGE.read_text(encoding="utf-8"), {}, PAGE.name, str(PAGE), 0)
    runner, report = doctest.DocTestRunner(), []
    runner.run(examples, out=report.append)
    assert runner.failures == 0, "".join(report)
    assert runner.tries > 25


@pytest.mark.parametrize("name", [name for name, value in vars(Home).items() if callable(value) and name[0] != "_"])
def test_every_method_is_documented(name: str) -> None:
    """A new method must be explained on the page, or be listed here as internal."""
    others = {"one_version", "resolve_generation", "stream_source", "token", "lake"}
    assert name in others or f"home.{name}(" in PAGE.read_text(encoding="utf-8") or name == "close"
