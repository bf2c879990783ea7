"""The audit of stored states: a state equals the replay of its log, or is found, named and rebuilt."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from support.command_line import run
from support.files.cql_scripts import NOW_US

from cdc_platform.cdclog import audit_states, commit_script, log_table, read_table_schema
from cdc_platform.cdclog.audit import table_states
from cdc_platform.cdclog.state.store import state_table
from cdc_platform.checks import STATE_MATCHES_LOG, Finding
from cdc_platform.clock import Clock, Microseconds
from cdc_platform.delta import Lake, TaskRows, TaskRunner, compute
from cdc_platform.settings import Settings
from cdc_platform.spark import frames

TABLE = "CREATE TABLE ks.{} (p int, c int, v int, m map<int, text>, PRIMARY KEY (p, c)) WITH cdc = {{'enabled': true}};"
GOOD = Finding(STATE_MATCHES_LOG, 1, 0)


def apply_script(lake: Lake, text: str, second: int = 0) -> None:
    """Apply a script, some seconds later."""
    result = commit_script(text, lake, Clock(Microseconds(NOW_US + second * 1_000_000)), Settings())
    assert [str(outcome.error) for outcome in result.outcomes if outcome.error] == []


@pytest.fixture(scope="module")
def template(streams_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a home with a state that has rows of every kind, from two scripts."""
    home = tmp_path_factory.mktemp("states") / "home"
    shutil.copytree(streams_home, home)
    lake = Lake(home / "lake")
    apply_script(
        lake,
        TABLE.format("t") + "INSERT INTO ks.t (p, c, v, m) VALUES (1, 1, 1, {1: 'a'}); DELETE FROM ks.t WHERE p = 2;",
    )
    apply_script(
        lake, "UPDATE ks.t SET v = 2, m[2] = 'b' WHERE p = 1 AND c = 1; DELETE FROM ks.t WHERE p = 1 AND c > 3;", 1
    )
    return home


@pytest.fixture
def lake(template: Path, tmp_path: Path) -> Lake:
    """Return the lake of a copy of that home."""
    shutil.copytree(template, tmp_path / "home")
    return Lake(tmp_path / "home" / "lake")


def damage(lake: Lake, change: Callable[[pa.Table], pa.Table]) -> None:
    """Replace the rows of the stored state, which still claims to cover the whole log."""
    table = state_table(read_table_schema(lake, "ks", "t"))
    number = lake.transaction(table, "cdc-platform/state")
    assert number is not None
    rows = change(lake.read(table))
    part = TaskRows(1, lambda _: iter(rows.to_batches()))
    frames.replace_all_rows(TaskRunner.alone(), lake, table, part, ("cdc-platform/state", number + 1), {})


def is_cell(rows: pa.Table) -> pa.Array:
    """Return a mask of the rows with the last value of column v."""
    return compute.equal(compute.fill_null(rows["column"], ""), "v")


def shift_cell_time(rows: pa.Table) -> pa.Table:
    """Move the cell's write a microsecond later."""
    times = compute.if_else(is_cell(rows), compute.add(rows["timestamp"], 1), rows["timestamp"])
    return rows.set_column(rows.schema.get_field_index("timestamp"), rows.schema.field("timestamp"), times)


def move_partition(rows: pa.Table) -> pa.Table:
    """Move the rows to another partition."""
    keys = pa.array([(9).to_bytes(4, "big")] * rows.num_rows, rows.schema.field("partition").type)
    return rows.set_column(rows.schema.get_field_index("partition"), rows.schema.field("partition"), keys)


def test_stored_states_equal_their_logs(lake: Lake) -> None:
    """This also holds with later log rows, for one state per log; nothing is written; no state means no finding."""
    assert audit_states(lake) == [GOOD]
    apply_script(lake, TABLE.format("u") + "INSERT INTO ks.u (p, c) VALUES (1, 1);", 2)
    schema = read_table_schema(lake, "ks", "t")
    tables = [state_table(schema), log_table(schema)]
    before = [lake.version(table) for table in tables]
    assert audit_states(lake) == [Finding(STATE_MATCHES_LOG, 2, 0)]
    assert audit_states(lake, schema) == [GOOD]
    assert [lake.version(table) for table in tables] == before
    shutil.rmtree(lake.path(tables[0]))
    assert audit_states(lake, schema) == []
    assert audit_states(lake) == [GOOD]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows: rows.filter(compute.invert(is_cell(rows))), "0 of 6 rows are not in the log, 1 rows of the log"),
        (shift_cell_time, "1 of 7 rows are not in the log, 1 rows of the log are missing"),
        (move_partition, "7 of 7 rows are not in the log, 7 rows of the log are missing"),
        (lambda rows: rows.slice(0, 0), "0 of 0 rows are not in the log, 7 rows of the log are missing"),
    ],
    ids=["lost", "later", "elsewhere", "empty"],
)
def test_a_state_that_differs_from_its_log_is_found(
    lake: Lake, change: Callable[[pa.Table], pa.Table], said: str
) -> None:
    """Missing or other rows are counted, with the partition and the repair; a removed state is rebuilt and passes."""
    damage(lake, change)
    (finding,) = audit_states(lake)
    assert (finding.population, finding.violations) == (1, 1)
    folder = lake.path(state_table(read_table_schema(lake, "ks", "t")))
    assert said in finding.sample
    assert "the first in the partition p = 1" in finding.sample
    assert f"remove the folder {folder}" in finding.sample
    shutil.rmtree(folder)
    apply_script(lake, "UPDATE ks.t SET v = 3 WHERE p = 1 AND c = 1;", 3)
    assert audit_states(lake) == [GOOD]


def test_an_unreadable_state_is_found(lake: Lake) -> None:
    """A missing file or a damaged commit of the hidden table is found."""
    table = state_table(read_table_schema(lake, "ks", "t"))
    Path(lake.data_files(table)[0].path).unlink()
    (finding,) = audit_states(lake)
    assert (finding.population, finding.violations) == (1, 1)
    assert "cannot be read" in finding.sample
    for entry in Path(lake.path(table), "_delta_log").glob("*.json"):
        entry.write_text("{")
    (finding,) = audit_states(lake)
    assert (finding.population, finding.violations) == (1, 1)
    assert "cannot be read" in finding.sample


def test_a_state_without_a_reader_is_not_judged(lake: Lake) -> None:
    """The state of a dropped table of the same name, and one that claims more of the log than exists, are ignored."""
    other = lake.root.parent / "other"
    shutil.copytree(lake.path(state_table(read_table_schema(lake, "ks", "t"))), other)
    apply_script(lake, "DROP TABLE ks.t; " + TABLE.format("t") + "INSERT INTO ks.t (p, c) VALUES (3, 3);", 2)
    assert audit_states(lake) == [GOOD]
    table = state_table(read_table_schema(lake, "ks", "t"))
    shutil.rmtree(lake.path(table))
    shutil.copytree(other, lake.path(table))
    assert audit_states(lake) == []
    apply_script(lake, "INSERT INTO ks.t (p, c) VALUES (4, 4);", 3)
    assert audit_states(lake) == [GOOD]


def test_a_state_that_is_too_large_or_damaged_is_not_judged(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named and not counted, and fails if it is the only one; a wrong state beside it is still found."""
    apply_script(lake, TABLE.format("u") + "INSERT INTO ks.u (p, c) VALUES (1, 1);", 2)
    monkeypatch.setattr(table_states, "MAX_ROWS_IN_MEMORY", 1)
    (finding,) = audit_states(lake)
    assert (finding.population, finding.violations) == (1, 0)
    assert finding.sample.startswith("the state of ks.t is not judged: its log has ")
    (single_finding,) = audit_states(lake, read_table_schema(lake, "ks", "t"))
    assert (single_finding.population, single_finding.violations) == (0, 0)
    monkeypatch.undo()
    log = log_table(read_table_schema(lake, "ks", "u"))
    rows = lake.read_version(log, lake.version(log) or 0)
    damaged_rows = rows.set_column(
        rows.schema.get_field_index("cdc$operation"), "cdc$operation", pa.array([77], pa.int8())
    )
    part = TaskRows(1, lambda _: iter(damaged_rows.to_batches()))
    frames.replace_all_rows(TaskRunner.alone(), lake, log, part, ("x", 1), {})
    damage(lake, shift_cell_time)
    (finding,) = audit_states(lake)
    assert (finding.population, finding.violations) == (2, 2)
    assert "the state of ks.t differs from its log" in finding.sample
    (single_finding,) = audit_states(lake, read_table_schema(lake, "ks", "u"))
    assert (single_finding.population, single_finding.violations) == (1, 1)
    assert single_finding.sample.startswith("the state of ks.u cannot be judged: ")


def test_check_reports_states(lake: Lake) -> None:
    """The command has a line for it, with the page that explains it, and a matching exit code."""
    home = str(lake.root.parent)
    command = ("--home", home, "--clock", "2026-02-02T00:00:00Z", "check", "--json")
    damage(lake, shift_cell_time)
    answer = run(*command)
    (line,) = [row for row in answer.rows if row["invariant"] == STATE_MATCHES_LOG]
    assert (answer.exit_code, line["passed"], line["violations"], line["page"]) == (1, False, 1, "docs/log.md")
