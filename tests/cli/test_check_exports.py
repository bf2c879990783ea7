"""`check` on a home with part of a cluster's tables: what was not exported is unknown, not wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import Answer, run
from support.files.export_files import ID, TIME_MS, generation, streams_csv, timestamps_csv, v2_csv

OF_THE_RING = {"refines_vnodes"}
OF_DESCRIPTIONS = {"shard_colocation", "row_count", "published_equals_description"}
FILES = {
    "t.csv": timestamps_csv({TIME_MS: None}),
    "s.csv": streams_csv({TIME_MS: generation()}),
    "v2.csv": v2_csv({ID: generation()}),
    "no v2.csv": "id,range_end,ignore_msb,num_ranges,streams\r\n",
}


def check_import(folder: Path, *names: str) -> Answer:
    """Return the results of `check` for a home with these imported files."""
    paths = []
    for name in names:
        (folder / name).write_text(FILES[name], newline="")
        paths.append(folder / name)
    options = ("--home", folder / "home", "--clock", "2026-02-01T00:00:00Z")
    assert run(*options, "import", *paths).exit_code == 0
    return run(*options, "check", "--json")


def get_invariants(answer: Answer, passed: bool | None) -> set[str]:
    """Return the invariants with this result."""
    return {line["invariant"] for line in answer.rows if line["passed"] is passed}


def test_tables_for_clients_pass_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four invariants are not checked and count as no failure, also in `status`; the text output reports them."""
    monkeypatch.setenv("COLUMNS", "160")
    answer = check_import(tmp_path, "t.csv", "s.csv")
    assert (answer.exit_code, get_invariants(answer, False)) == (0, set())
    assert get_invariants(answer, None) == OF_THE_RING | OF_DESCRIPTIONS
    assert answer.stderr == ""
    for words in (("check",), ("check", "latest")):
        printed = run("--home", tmp_path / "home", *words)
        assert (printed.exit_code, "\n4 not checked, because" in printed.stdout) == (0, True)
    status = run("--home", tmp_path / "home", "status", "--json")
    assert status.json["errors"] == 0


def test_an_invariant_is_checked_once_its_tables_exist(tmp_path: Path) -> None:
    """With the descriptions imported, only the ring is missing."""
    answer = check_import(tmp_path, "t.csv", "s.csv", "v2.csv")
    assert (answer.exit_code, get_invariants(answer, False), get_invariants(answer, None)) == (0, set(), OF_THE_RING)


def test_a_table_exported_without_rows_is_known_empty(tmp_path: Path) -> None:
    """An empty table is wrong if clients see streams."""
    answer = check_import(tmp_path, "t.csv", "s.csv", "no v2.csv")
    assert answer.exit_code == 1
    assert "row_count" in get_invariants(answer, False)


@pytest.mark.parametrize("lost", ["s.csv", "t.csv"])
def test_an_incomplete_export_hides_no_violation(tmp_path: Path, lost: str) -> None:
    """A missing table hides no violation in the others."""
    names = ["t.csv", "s.csv"]
    for name in names:
        (tmp_path / name).write_text(FILES[name], newline="")
    options = ("--home", tmp_path / "home")
    imported = [tmp_path / name for name in names if name != lost]
    assert run(*options, "import", "--allow-incomplete", *imported).exit_code == 0
    assert run(*options, "check").exit_code == 1
