"""Foreign commits that somebody accepts: kept with who, when and why, told by `check` from then on, never silently."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from support.command_line import Answer, run
from support.homes.every_table import every_table

from cdc_platform.delta import Lake, TableVerification, accept_commit, verify_tables
from cdc_platform.errors import InputError, NotFound, StateError
from cdc_platform.tables import NODES, STREAMS_DESCRIPTIONS_V2, Table


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with rows in every table, which nobody but the platform has written."""
    return every_table(tmp_path_factory.mktemp("every"))


@pytest.fixture
def home(packed: Path, tmp_path: Path) -> Path:
    """A copy, to be changed by strangers."""
    return shutil.copytree(packed, tmp_path / "home")


@pytest.fixture
def lake(home: Path) -> Lake:
    """Its lake."""
    return Lake(home / "lake")


def change(lake: Lake, table: Table, predicate: str) -> int:
    """A stranger takes rows out; answers with the version in which they are gone."""
    opened = DeltaTable(lake.path(table))
    assert opened.delete(predicate)["num_deleted_rows"] > 0
    return opened.version()


def put(lake: Lake, table: Table, rows: pa.Table) -> int:
    """A stranger puts rows in."""
    opened = DeltaTable(lake.path(table))
    write_deltalake(opened, rows, mode="append")
    return DeltaTable(lake.path(table)).version()


def of(lake: Lake, table: Table) -> TableVerification:
    """What is wrong with one table."""
    (found,) = verify_tables(lake, deep=True, names=[table.full_name])
    return found


def one_node(lake: Lake) -> str:
    """SQL that finds the first node."""
    return f"host_id = '{min(lake.read(NODES)['host_id'].to_pylist())}'"


def test_an_accepted_commit_is_told_and_no_complaint(lake: Lake) -> None:
    """Rows, files and commits are content again; the line says what, who, when and why; no row has changed by it."""
    version = change(lake, NODES, one_node(lake))
    assert len(of(lake, NODES).foreign) == len(of(lake, NODES).unexpected) == 1
    rows = lake.read(NODES)
    done = accept_commit(lake, NODES.full_name, version, "the node is scrap")
    assert (done.version, done.recorded_in, done.partitions, done.is_new) == (version, version + 1, ("",), True)
    assert lake.read(NODES).sort_by("host_id") == rows.sort_by("host_id")
    found = of(lake, NODES)
    assert (found.damage, found.unexpected, found.foreign) == ([], [], [])
    (told,) = found.accepted
    envelope = lake.commits(NODES)[0].info
    assert envelope is not None
    assert told.startswith(f"{NODES.full_name} version {version}: DELETE by ")
    assert told.endswith(f" by {envelope.user}: the node is scrap")
    assert envelope.accepts == {version: "the node is scrap"}


def test_what_comes_after_is_judged_as_ever(lake: Lake) -> None:
    """The platform goes on writing, and its digests are right; the next stranger is found again."""
    version = change(lake, NODES, one_node(lake))
    accept_commit(lake, NODES.full_name, version, "scrap")
    row = lake.read(NODES).slice(0, 1).to_pylist()[0] | {"rack": "another"}
    lake.merge(NODES, pa.Table.from_pylist([row], schema=NODES.schema), update=True)
    found = of(lake, NODES)
    assert (found.unexpected, found.foreign, len(found.accepted)) == ([], [], 1)
    change(lake, NODES, one_node(lake))
    found = of(lake, NODES)
    assert (len(found.unexpected), len(found.foreign), len(found.accepted)) == (1, 1, 1)


def test_twice_is_once(lake: Lake) -> None:
    """Said again, with whatever reason, it stays as it was said first."""
    version = change(lake, NODES, one_node(lake))
    accept_commit(lake, NODES.full_name, version, "first")
    newest = lake.version(NODES)
    again = accept_commit(lake, NODES.full_name, version, "second")
    assert (again.is_new, again.recorded_in, lake.version(NODES)) == (False, newest, newest)
    assert of(lake, NODES).accepted[0].endswith("first")


def test_one_of_two_leaves_the_other(lake: Lake) -> None:
    """A slice that another stranger has changed too is only taken as it is when both are accepted."""
    row = lake.read(NODES).slice(0, 1)
    first = change(lake, NODES, one_node(lake))
    second = put(lake, NODES, row)
    accept_commit(lake, NODES.full_name, first, "meant")
    lake.merge(NODES, row, update=False)
    version = change(lake, NODES, one_node(lake))
    found = of(lake, NODES)
    assert (len(found.foreign), len(found.accepted), len(found.unexpected)) == (2, 1, 1)
    accept_commit(lake, NODES.full_name, second, "meant too")
    accept_commit(lake, NODES.full_name, version, "and this")
    found = of(lake, NODES)
    assert (found.foreign, len(found.accepted), found.unexpected) == ([], 3, [])


def test_only_the_slices_that_it_changed_are_taken(lake: Lake) -> None:
    """What somebody has done to files of another slice, past Delta's log, is found still."""
    table = STREAMS_DESCRIPTIONS_V2
    times = sorted(set(lake.read(table)["time"].to_pylist()))
    tampered, removed = lake.data_files(table, [("time", "=", times[0])])[0].path, times[1]
    literal = f"arrow_cast('{removed.isoformat()}', 'Timestamp(Microsecond, Some(\"UTC\"))')"
    version = change(lake, table, f"time = {literal}")
    Path(tampered).write_bytes(Path(tampered).read_bytes()[:-1])
    done = accept_commit(lake, table.full_name, version, "a test of the cluster's")
    assert len(done.partitions) == 1
    found = of(lake, table)
    assert (found.foreign, len(found.damage)) == ([], 1)
    assert Path(tampered).name in found.damage[0]


def test_a_damaged_table_is_not_accepted(lake: Lake) -> None:
    """Nothing can be said of rows that cannot be read; nothing is written."""
    row = lake.read(NODES).slice(0, 1)
    version = put(lake, NODES, row)
    Path(lake.data_files(NODES)[0].path).write_bytes(b"PAR1")
    with pytest.raises(StateError, match="damaged table cannot be accepted"):
        accept_commit(lake, NODES.full_name, version, "meant")
    assert DeltaTable(lake.path(NODES)).version() == version


@pytest.mark.parametrize(
    ("name", "version", "because", "error", "says"),
    [
        ("platform.nothing", 1, "why", NotFound, "no table platform.nothing"),
        ("../lake/platform.nodes", 1, "why", NotFound, "no table"),
        (NODES.full_name, 1, "why", InputError, "version 1 of platform.nodes is the platform's own"),
        (NODES.full_name, 999, "why", NotFound, "no commit 999"),
        (NODES.full_name, 1, " ", InputError, "a reason is one line"),
        (NODES.full_name, 1, "x" * 501, InputError, "a reason is one line"),
        (NODES.full_name, 1, "a\x1b[2Jb", InputError, "a reason is one line"),
    ],
)
def test_what_is_no_foreign_commit_is_refused(
    lake: Lake, name: str, version: int, because: str, error: Any, says: str
) -> None:
    """In one line; the table stays as it was."""
    before = lake.version(NODES)
    with pytest.raises(error, match=says):
        accept_commit(lake, name, version, because)
    assert lake.version(NODES) == before


def _checked(home: Path) -> dict[str, Any]:
    answer = run("--home", home, "--clock", "2026-11-01T14:00:15Z", "check", "--json")
    return {line["invariant"]: line for line in answer.rows}


def test_check_accepts_and_tells(home: Path) -> None:
    """By the command line: found, accepted, told as accepted; what the command refuses exits with 2."""
    lake = Lake(home / "lake")

    def check(*arguments: str) -> Answer:
        return run("--home", home, "check", *arguments)

    version = change(lake, NODES, one_node(lake))
    before = _checked(home)
    assert not before["commits_known"]["passed"]
    answer = check("--accept", f"{NODES.full_name}@{version}", "--reason", "ticket 4711", "--json")
    assert answer.exit_code == 0, answer.stderr
    assert answer.json["accepted"] == "now"
    after = _checked(home)
    assert after["commits_known"]["passed"]
    assert after["rows_as_committed"]["passed"]
    assert after["commits_known"]["sample"].endswith(": ticket 4711")
    assert f"{NODES.full_name} version {version}" in after["commits_known"]["sample"]
    for wrong in (
        ("--accept", "platform.nodes"),
        ("--accept", "platform.nodes@x", "--reason", "y"),
        ("--reason", "y"),
        ("--accept", f"platform.nodes@{version}", "--reason", "y", "--deep"),
        ("--accept", f"platform.nodes@{version - 1}"),
    ):
        assert check(*wrong).exit_code == 2, wrong
