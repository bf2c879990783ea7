"""Accepted foreign commits: stored with user, time and reason, and reported by every later `check`."""

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
    """A home with rows in every table, written by the platform alone."""
    return every_table(tmp_path_factory.mktemp("every"))


@pytest.fixture
def home(packed: Path, tmp_path: Path) -> Path:
    """A copy that tests change with foreign commits."""
    return shutil.copytree(packed, tmp_path / "home")


@pytest.fixture
def lake(home: Path) -> Lake:
    """The lake of the home."""
    return Lake(home / "lake")


def change(lake: Lake, table: Table, predicate: str) -> int:
    """Delete rows in a foreign commit and return its version."""
    opened = DeltaTable(lake.path(table))
    assert opened.delete(predicate)["num_deleted_rows"] > 0
    return opened.version()


def put(lake: Lake, table: Table, rows: pa.Table) -> int:
    """Insert rows in a foreign commit and return its version."""
    opened = DeltaTable(lake.path(table))
    write_deltalake(opened, rows, mode="append")
    return DeltaTable(lake.path(table)).version()


def verify(lake: Lake, table: Table) -> TableVerification:
    """Return the verification of one table."""
    (result,) = verify_tables(lake, deep=True, names=[table.full_name])
    return result


def one_node(lake: Lake) -> str:
    """Return SQL that finds the first node."""
    return f"host_id = '{min(lake.read(NODES)['host_id'].to_pylist())}'"


def test_an_accepted_commit_is_listed_without_complaint(lake: Lake) -> None:
    """Acceptance clears the complaints and changes no row; the line has the commit, user and reason."""
    version = change(lake, NODES, one_node(lake))
    assert len(verify(lake, NODES).foreign) == len(verify(lake, NODES).unexpected) == 1
    rows = lake.read(NODES)
    acceptance = accept_commit(lake, NODES.full_name, version, "the node is scrap")
    assert (acceptance.version, acceptance.recorded_in, acceptance.partitions, acceptance.is_new) == (
        version,
        version + 1,
        ("",),
        True,
    )
    assert lake.read(NODES).sort_by("host_id") == rows.sort_by("host_id")
    result = verify(lake, NODES)
    assert (result.damage, result.unexpected, result.foreign) == ([], [], [])
    (message,) = result.accepted
    commit_info = lake.commits(NODES)[0].info
    assert commit_info is not None
    assert message.startswith(f"{NODES.full_name} version {version}: DELETE by ")
    assert message.endswith(f" by {commit_info.user}: the node is scrap")
    assert commit_info.accepts == {version: "the node is scrap"}


def test_later_foreign_commits_are_still_found(lake: Lake) -> None:
    """The platform's later commits have correct digests; the next foreign commit is found."""
    version = change(lake, NODES, one_node(lake))
    accept_commit(lake, NODES.full_name, version, "scrap")
    row = lake.read(NODES).slice(0, 1).to_pylist()[0] | {"rack": "another"}
    lake.merge(NODES, pa.Table.from_pylist([row], schema=NODES.schema), update=True)
    result = verify(lake, NODES)
    assert (result.unexpected, result.foreign, len(result.accepted)) == ([], [], 1)
    change(lake, NODES, one_node(lake))
    result = verify(lake, NODES)
    assert (len(result.unexpected), len(result.foreign), len(result.accepted)) == (1, 1, 1)


def test_a_second_acceptance_changes_nothing(lake: Lake) -> None:
    """A second acceptance, with any reason, leaves the first as it is."""
    version = change(lake, NODES, one_node(lake))
    accept_commit(lake, NODES.full_name, version, "first")
    newest = lake.version(NODES)
    again = accept_commit(lake, NODES.full_name, version, "second")
    assert (again.is_new, again.recorded_in, lake.version(NODES)) == (False, newest, newest)
    assert verify(lake, NODES).accepted[0].endswith("first")


def test_both_commits_of_a_partition_must_be_accepted(lake: Lake) -> None:
    """A partition that two foreign commits changed is accepted only after both are."""
    row = lake.read(NODES).slice(0, 1)
    first = change(lake, NODES, one_node(lake))
    second = put(lake, NODES, row)
    accept_commit(lake, NODES.full_name, first, "meant")
    lake.merge(NODES, row, update=False)
    version = change(lake, NODES, one_node(lake))
    result = verify(lake, NODES)
    assert (len(result.foreign), len(result.accepted), len(result.unexpected)) == (2, 1, 1)
    accept_commit(lake, NODES.full_name, second, "meant too")
    accept_commit(lake, NODES.full_name, version, "and this")
    result = verify(lake, NODES)
    assert (result.foreign, len(result.accepted), result.unexpected) == ([], 3, [])


def test_acceptance_covers_only_changed_partitions(lake: Lake) -> None:
    """Tampering with files of another partition outside Delta's log is still found."""
    table = STREAMS_DESCRIPTIONS_V2
    times = sorted(set(lake.read(table)["time"].to_pylist()))
    tampered, removed = lake.data_files(table, [("time", "=", times[0])])[0].path, times[1]
    literal = f"arrow_cast('{removed.isoformat()}', 'Timestamp(Microsecond, Some(\"UTC\"))')"
    version = change(lake, table, f"time = {literal}")
    Path(tampered).write_bytes(Path(tampered).read_bytes()[:-1])
    acceptance = accept_commit(lake, table.full_name, version, "a test of the cluster's")
    assert len(acceptance.partitions) == 1
    result = verify(lake, table)
    assert (result.foreign, len(result.damage)) == ([], 1)
    assert Path(tampered).name in result.damage[0]


def test_a_damaged_table_is_not_accepted(lake: Lake) -> None:
    """Rows that cannot be read cannot be accepted, and nothing is written."""
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
def test_acceptance_of_anything_else_is_refused(
    lake: Lake, name: str, version: int, because: str, error: Any, says: str
) -> None:
    """Refuse in one line and leave the table unchanged."""
    before = lake.version(NODES)
    with pytest.raises(error, match=says):
        accept_commit(lake, name, version, because)
    assert lake.version(NODES) == before


def _checked(home: Path) -> dict[str, Any]:
    answer = run("--home", home, "--clock", "2026-11-01T14:00:15Z", "check", "--json")
    return {line["invariant"]: line for line in answer.rows}


def test_check_accepts_and_reports(home: Path) -> None:
    """On the command line, `check` finds a commit, accepts it and reports it; invalid requests exit with code 2."""
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
