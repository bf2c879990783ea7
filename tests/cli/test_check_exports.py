"""What `check` says of a home that has a part of a cluster's tables: what was not exported is unknown, not wrong."""

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


def checked(folder: Path, *names: str) -> Answer:
    """The judgement of a home that these files were imported into."""
    paths = []
    for name in names:
        (folder / name).write_text(FILES[name], newline="")
        paths.append(folder / name)
    at = ("--home", folder / "home", "--clock", "2026-02-01T00:00:00Z")
    assert run(*at, "import", *paths).exit_code == 0
    return run(*at, "check", "--json")


def judged(answer: Answer, passed: bool | None) -> set[str]:
    """The invariants of which this was said."""
    return {line["invariant"] for line in answer.rows if line["passed"] is passed}


def test_what_clients_read_is_sound_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four invariants are not judged; they are no failures, also not for `status`, and a table says so."""
    monkeypatch.setenv("COLUMNS", "160")
    answer = checked(tmp_path, "t.csv", "s.csv")
    assert (answer.exit_code, judged(answer, False)) == (0, set())
    assert judged(answer, None) == OF_THE_RING | OF_DESCRIPTIONS
    assert answer.stderr == ""
    for words in (("check",), ("check", "latest")):
        shown = run("--home", tmp_path / "home", *words)
        assert (shown.exit_code, "\n4 not checked, because" in shown.stdout) == (0, True)
    status = run("--home", tmp_path / "home", "status", "--json")
    assert status.json["errors"] == 0


def test_an_invariant_is_judged_as_soon_as_its_tables_are_there(tmp_path: Path) -> None:
    """The ring alone is missing then."""
    answer = checked(tmp_path, "t.csv", "s.csv", "v2.csv")
    assert (answer.exit_code, judged(answer, False), judged(answer, None)) == (0, set(), OF_THE_RING)


def test_a_table_that_was_exported_without_rows_is_not_unknown(tmp_path: Path) -> None:
    """It is known to hold nothing, which is wrong beside streams that clients see."""
    answer = checked(tmp_path, "t.csv", "s.csv", "no v2.csv")
    assert answer.exit_code == 1
    assert "row_count" in judged(answer, False)


@pytest.mark.parametrize("lost", ["s.csv", "t.csv"])
def test_wrong_rows_are_wrong_whatever_was_exported(tmp_path: Path, lost: str) -> None:
    """A part that is unknown hides no violation."""
    names = ["t.csv", "s.csv"]
    for name in names:
        (tmp_path / name).write_text(FILES[name], newline="")
    at = ("--home", tmp_path / "home")
    kept = [tmp_path / name for name in names if name != lost]
    assert run(*at, "import", "--allow-incomplete", *kept).exit_code == 0
    assert run(*at, "check").exit_code == 1
