"""The page about simulations, and the table about protocols, show the output of the commands."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from support.command_line import run

from cdc_platform.cli.simulate import simulate
from cdc_platform.simulation import Property

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "simulate.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^\$ cdc-platform (simulate .*)\n((?:.*\n)*?)```", PAGE, flags=re.MULTILINE)


@pytest.mark.long("each runs 50 histories or more")
@pytest.mark.parametrize(("command", "shown"), EXAMPLES, ids=[command for command, _ in EXAMPLES])
def test_an_example(command: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines of the page are printed in that order; `...` matches other lines, or the rest of a line."""
    monkeypatch.chdir(tmp_path)
    command, _, comment = command.partition("    # exit code ")
    result = run("--home", tmp_path / "none", *shlex.split(command))
    assert result.exit_code == int(comment or 0), result.stderr
    pattern = "".join(
        r"(?:.*\n)*?" if line == "..." else f"{re.escape(line).replace(re.escape('...'), '.*')} *\n"
        for line in shown.splitlines()
    )
    assert re.fullmatch(pattern + r"\s*", result.stdout) or re.match(pattern, result.stdout), result.stdout
    assert ("history.png" in command) == (tmp_path / "history.png").exists()


def test_the_page_has_examples() -> None:
    """The page has an example of each kind of question."""
    assert len(EXAMPLES) >= 5


def test_every_property_is_explained() -> None:
    """The page lists every property with its meaning."""
    for property in Property:
        assert re.search(rf"^\| `{property.value}` \| .+\. \|$", PAGE, flags=re.MULTILINE), property


def test_the_documented_scenario_is_valid(tmp_path: Path) -> None:
    """The keys of the documented scenario are options of the command."""
    block = re.search(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)
    assert block is not None
    names = {name.removeprefix("--").replace("-", "_") for param in simulate.params for name in param.opts}
    assert set(tomllib.loads(block[1])) <= names


@pytest.mark.long("400 histories of five nodes")
def test_the_table_of_both_protocols() -> None:
    """The rows of docs/switch.md match the output of the commands that it names."""
    page = (DOCS / "switch.md").read_text(encoding="utf-8")
    options = re.findall(r"`cdc-platform (simulate [^`]*)--protocol gossip`", page)[0]
    faults = re.findall(r"`(--outages [^`]*)`", page)[0]
    for protocol, name in (("gossip", "gossip"), ("two-phase", "two phases")):
        for extra, condition in (("", "all is well"), (faults, "nodes fail")):
            result = run("--home", "none", *f"{options} --protocol {protocol} {extra} --json".split())
            document = json.loads(result.stdout)
            undecided = sum(row["writes"] for row in document["refused"] if row["verdict"] == "UNDECIDED")
            figures = [
                *(document[key] for key in ("generations", "accepted_writes", "rows_in_wrong_generation")),
                document["rows_apart"],
                undecided,
            ]
            row = f"| {name}, {condition} | " + " | ".join(f"{figure:,}" for figure in figures) + " |"
            assert row in page, row
