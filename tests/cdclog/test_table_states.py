"""The audit of kept states: what is kept beside a log is what the log tells, or is found, named and mended."""

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


def written(lake: Lake, text: str, second: int = 0) -> None:
    """Keep a script, some seconds later."""
    result = commit_script(text, lake, Clock(Microseconds(NOW_US + second * 1_000_000)), Settings())
    assert [str(each.error) for each in result.outcomes if each.error] == []


@pytest.fixture(scope="module")
def template(streams_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a state that has rows of every kind, from two scripts."""
    home = tmp_path_factory.mktemp("states") / "home"
    shutil.copytree(streams_home, home)
    lake = Lake(home / "lake")
    written(
        lake,
        TABLE.format("t") + "INSERT INTO ks.t (p, c, v, m) VALUES (1, 1, 1, {1: 'a'}); DELETE FROM ks.t WHERE p = 2;",
    )
    written(lake, "UPDATE ks.t SET v = 2, m[2] = 'b' WHERE p = 1 AND c = 1; DELETE FROM ks.t WHERE p = 1 AND c > 3;", 1)
    return home


@pytest.fixture
def lake(template: Path, tmp_path: Path) -> Lake:
    """A lake of a copy of it."""
    shutil.copytree(template, tmp_path / "home")
    return Lake(tmp_path / "home" / "lake")


def damage(lake: Lake, change: Callable[[pa.Table], pa.Table]) -> None:
    """Put other rows in the place of the kept state's, which goes on saying that it has the whole log."""
    table = state_table(read_table_schema(lake, "ks", "t"))
    number = lake.transaction(table, "cdc-platform/state")
    assert number is not None
    rows = change(lake.read(table))
    part = TaskRows(1, lambda _: iter(rows.to_batches()))
    frames.replace_all_rows(TaskRunner.alone(), lake, table, part, ("cdc-platform/state", number + 1), {})


def of_cell(rows: pa.Table) -> pa.Array:
    """Which rows are the last value of the column v."""
    return compute.equal(compute.fill_null(rows["column"], ""), "v")


def later(rows: pa.Table) -> pa.Table:
    """The cell was written a microsecond later."""
    times = compute.if_else(of_cell(rows), compute.add(rows["timestamp"], 1), rows["timestamp"])
    return rows.set_column(rows.schema.get_field_index("timestamp"), rows.schema.field("timestamp"), times)


def elsewhere(rows: pa.Table) -> pa.Table:
    """The partition is another one."""
    keys = pa.array([(9).to_bytes(4, "big")] * rows.num_rows, rows.schema.field("partition").type)
    return rows.set_column(rows.schema.get_field_index("partition"), rows.schema.field("partition"), keys)


def test_what_scripts_left_is_what_their_logs_tell(lake: Lake) -> None:
    """Also with rows behind it, one state for each log; nothing is written, and nothing is said where none is kept."""
    assert audit_states(lake) == [GOOD]
    written(lake, TABLE.format("u") + "INSERT INTO ks.u (p, c) VALUES (1, 1);", 2)
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
        (lambda rows: rows.filter(compute.invert(of_cell(rows))), "0 of 6 rows are not in the log, 1 rows of the log"),
        (later, "1 of 7 rows are not in the log, 1 rows of the log are missing"),
        (elsewhere, "7 of 7 rows are not in the log, 7 rows of the log are missing"),
        (lambda rows: rows.slice(0, 0), "0 of 0 rows are not in the log, 7 rows of the log are missing"),
    ],
    ids=["lost", "later", "elsewhere", "empty"],
)
def test_a_state_that_is_not_the_logs_is_found(lake: Lake, change: Callable[[pa.Table], pa.Table], said: str) -> None:
    """One row less or other, or none: counted, with the partition and the mend; removed it is made anew, and good."""
    damage(lake, change)
    (found,) = audit_states(lake)
    assert (found.population, found.violations) == (1, 1)
    folder = lake.path(state_table(read_table_schema(lake, "ks", "t")))
    assert said in found.sample
    assert "the first in the partition p = 1" in found.sample
    assert f"remove the folder {folder}" in found.sample
    shutil.rmtree(folder)
    written(lake, "UPDATE ks.t SET v = 3 WHERE p = 1 AND c = 1;", 3)
    assert audit_states(lake) == [GOOD]


def test_a_state_that_cannot_be_read_is_found(lake: Lake) -> None:
    """A file that is gone, and a commit that is none, of the hidden table alone."""
    table = state_table(read_table_schema(lake, "ks", "t"))
    Path(lake.data_files(table)[0].path).unlink()
    (found,) = audit_states(lake)
    assert (found.population, found.violations) == (1, 1)
    assert "cannot be read" in found.sample
    for entry in Path(lake.path(table), "_delta_log").glob("*.json"):
        entry.write_text("{")
    (found,) = audit_states(lake)
    assert (found.population, found.violations) == (1, 1)
    assert "cannot be read" in found.sample


def test_a_state_that_nobody_goes_on_from_is_none(lake: Lake) -> None:
    """One of a table of that name that was dropped, and one that says it has more of the log than there is."""
    other = lake.root.parent / "other"
    shutil.copytree(lake.path(state_table(read_table_schema(lake, "ks", "t"))), other)
    written(lake, "DROP TABLE ks.t; " + TABLE.format("t") + "INSERT INTO ks.t (p, c) VALUES (3, 3);", 2)
    assert audit_states(lake) == [GOOD]
    table = state_table(read_table_schema(lake, "ks", "t"))
    shutil.rmtree(lake.path(table))
    shutil.copytree(other, lake.path(table))
    assert audit_states(lake) == []
    written(lake, "INSERT INTO ks.t (p, c) VALUES (4, 4);", 3)
    assert audit_states(lake) == [GOOD]


def test_what_is_too_large_or_damaged_is_not_judged(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named and not counted, and alone it is not good; a bad state beside it is found all the same."""
    written(lake, TABLE.format("u") + "INSERT INTO ks.u (p, c) VALUES (1, 1);", 2)
    monkeypatch.setattr(table_states, "MAX_ROWS_IN_MEMORY", 1)
    (found,) = audit_states(lake)
    assert (found.population, found.violations) == (1, 0)
    assert found.sample.startswith("the state of ks.t is not judged: its log has ")
    (alone,) = audit_states(lake, read_table_schema(lake, "ks", "t"))
    assert (alone.population, alone.violations) == (0, 0)
    monkeypatch.undo()
    log = log_table(read_table_schema(lake, "ks", "u"))
    rows = lake.read_version(log, lake.version(log) or 0)
    one = rows.set_column(rows.schema.get_field_index("cdc$operation"), "cdc$operation", pa.array([77], pa.int8()))
    part = TaskRows(1, lambda _: iter(one.to_batches()))
    frames.replace_all_rows(TaskRunner.alone(), lake, log, part, ("x", 1), {})
    damage(lake, later)
    (found,) = audit_states(lake)
    assert (found.population, found.violations) == (2, 2)
    assert "the state of ks.t differs from its log" in found.sample
    (alone,) = audit_states(lake, read_table_schema(lake, "ks", "u"))
    assert (alone.population, alone.violations) == (1, 1)
    assert alone.sample.startswith("the state of ks.u cannot be judged: ")


def test_check_tells_of_it(lake: Lake) -> None:
    """A line of its own with the page that explains it, and the exit code of what it says."""
    home = str(lake.root.parent)
    told = ("--home", home, "--clock", "2026-02-02T00:00:00Z", "check", "--json")
    damage(lake, later)
    answer = run(*told)
    (line,) = [each for each in answer.rows if each["invariant"] == STATE_MATCHES_LOG]
    assert (answer.exit_code, line["passed"], line["violations"], line["page"]) == (1, False, 1, "docs/log.md")
