"""The stored state of an applied log equals the replay of the log; a script reads it with the later log rows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.drawing import examples
from support.files.cql_scripts import NOW_US
from support.histories.log_histories import schemas
from support.histories.log_statements import OPTIONS, Written, definition, scripts

from cdc_platform.cdclog import (
    Script,
    commit_script,
    dry_run_on_stored_tables,
    log_table,
    merge_states,
    read_table_schema,
    state_from_log,
)
from cdc_platform.cdclog.dataframe import append_log_parts
from cdc_platform.cdclog.gaps import find_table_gaps
from cdc_platform.cdclog.state import store as kept_module
from cdc_platform.cdclog.state.store import read_state, state_table
from cdc_platform.clock import Clock, Microseconds
from cdc_platform.cql import INT, Column, TableSchema, parse_statements
from cdc_platform.delta import Lake
from cdc_platform.metastore import cdc_tables
from cdc_platform.settings import Settings

TABLE = "CREATE TABLE ks.t (p int, c int, v int, m map<int, text>, PRIMARY KEY (p, c)) WITH cdc = {'enabled': true};"
LOOK = "DELETE FROM ks.t WHERE p = 99;"


def copy_home(home: Path, other: Path) -> Lake:
    """Return the lake of a copy of a home."""
    shutil.copytree(home, other)
    return Lake(other / "lake")


def apply_script(lake: Lake, text: str, second: int = 0) -> None:
    """Apply a script, some seconds later."""
    result = commit_script(text, lake, Clock(Microseconds(NOW_US + second * 1_000_000)), Settings())
    assert [str(outcome.error) for outcome in result.outcomes if outcome.error] == []


def rows(lake: Lake) -> list[dict[str, object]]:
    """Return the rows of the table, as the next script reads them."""
    result = dry_run_on_stored_tables(LOOK, lake, Clock(Microseconds(NOW_US + 99_000_000)), Settings())
    (table,) = result.tables
    assert table.base == table.replayed
    return table.base


def sorted_rows(state: pa.Table) -> list[str]:
    """Return the rows of a state in an order that depends on the rows alone."""
    return sorted(map(repr, state.to_pylist()))


def assert_state_equals_log(lake: Lake) -> TableSchema:
    """Assert that the stored state covers the whole log and equals its replay; return the table's schema."""
    schema = read_table_schema(lake, "ks", "t")
    log = log_table(schema)
    version = lake.version(log)
    assert version is not None
    assert lake.transaction(state_table(schema), "cdc-platform/state/log") == version
    expected = merge_states(schema, [state_from_log(schema, lake.read_version(log, version))])
    assert sorted_rows(read_state(lake, schema, version).whole(schema)) == sorted_rows(expected)
    return schema


@pytest.fixture
def lake(streams_home: Path, tmp_path: Path) -> Lake:
    """Create a lake in which two scripts wrote to a table."""
    lake = copy_home(streams_home, tmp_path / "home")
    apply_script(
        lake, f"{TABLE} INSERT INTO ks.t (p, c, v, m) VALUES (1, 1, 1, {{1: 'a'}}); DELETE FROM ks.t WHERE p = 2;"
    )
    apply_script(
        lake, "UPDATE ks.t SET v = 2, m[2] = 'b' WHERE p = 1 AND c = 1; DELETE FROM ks.t WHERE p = 1 AND c > 3;", 1
    )
    return lake


def test_a_script_does_not_read_the_log(lake: Lake) -> None:
    """Without the log files that the state covers, the next script reads the same rows."""
    schema = assert_state_equals_log(lake)
    expected = rows(lake)
    assert expected == [{"p": 1, "c": 1, "v": 2, "m": [[1, "a"], [2, "b"]]}]
    for file in lake.data_files(log_table(schema)):
        Path(file.path).unlink()
    assert rows(lake) == expected
    apply_script(lake, "UPDATE ks.t SET v = 3 WHERE p = 1 AND c = 1;", 2)
    assert rows(lake) == [expected[0] | {"v": 3}]


def test_rows_appended_by_others_are_read_after_the_state(lake: Lake, tmp_path: Path) -> None:
    """Every script reads rows that another writer appended to the log; the next applied one adds them to the state."""
    schema = read_table_schema(lake, "ks", "t")
    other = copy_home(lake.root.parent, tmp_path / "other")
    before = lake.read(log_table(schema))
    apply_script(other, "INSERT INTO ks.t (p, c, v) VALUES (7, 7, 7); DELETE FROM ks.t WHERE p = 1;", 3)
    other_rows = other.read(log_table(schema))
    times = set(before["cdc$time"].to_pylist())
    new_rows = other_rows.filter(pa.array([time not in times for time in other_rows["cdc$time"].to_pylist()]))
    append_log_parts(lake, schema, 1, lambda _: new_rows, ("x", 1))
    assert rows(lake) == rows(other) == [{"p": 7, "c": 7, "v": 7, "m": None}]
    apply_script(lake, "UPDATE ks.t SET v = 8 WHERE p = 7 AND c = 7;", 4)
    assert_state_equals_log(lake)


def test_a_home_without_states_gets_them_once(lake: Lake) -> None:
    """A home of an earlier version has the same rows, and the next applied script stores the state."""
    expected, schema = rows(lake), read_table_schema(lake, "ks", "t")
    shutil.rmtree(lake.path(state_table(schema)))
    assert rows(lake) == expected
    assert not lake.exists(state_table(schema))
    apply_script(lake, "UPDATE ks.t SET v = 5 WHERE p = 5 AND c = 5;", 5)
    assert_state_equals_log(lake)


def test_a_rewritten_log_has_a_new_state(lake: Lake) -> None:
    """ALTER changes the log's columns, RENAME their names; a table dropped and created again begins empty."""
    apply_script(lake, "ALTER TABLE ks.t ADD w text; UPDATE ks.t SET w = 'w' WHERE p = 1 AND c = 1;", 2)
    assert_state_equals_log(lake)
    apply_script(lake, "ALTER TABLE ks.t RENAME p TO q;", 3)
    assert_state_equals_log(lake)
    apply_script(lake, f"DROP TABLE ks.t; {TABLE} INSERT INTO ks.t (p, c) VALUES (1, 2);", 4)
    assert_state_equals_log(lake)
    assert rows(lake) == [{"p": 1, "c": 2, "m": None, "v": None}]


def test_a_truncated_table_has_an_empty_state(lake: Lake) -> None:
    """The log and its version do not change, but the state does."""
    apply_script(lake, "TRUNCATE ks.t;", 2)
    schema = read_table_schema(lake, "ks", "t")
    assert read_state(lake, schema, lake.version(log_table(schema))).whole(schema).num_rows == 0
    apply_script(lake, "INSERT INTO ks.t (p, c, v) VALUES (3, 3, 3);", 3)
    result = dry_run_on_stored_tables(LOOK, lake, Clock(Microseconds(NOW_US + 9_000_000)), Settings())
    assert result.tables[0].base == [{"p": 3, "c": 3, "v": 3, "m": None}]
    # The replay of its log differs, which is reported.
    assert len(result.tables[0].replayed or []) == 2


def test_many_files_are_merged(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every script adds a file until there are too many and the whole state is rewritten."""
    monkeypatch.setattr(kept_module, "_MAX_FILES", 2)
    counts = []
    for second in range(2, 6):
        apply_script(lake, f"UPDATE ks.t SET v = {second} WHERE p = {second} AND c = 1;", second)
        counts.append(len(lake.data_files(state_table(assert_state_equals_log(lake)))))
    assert counts == [1, 2, 1, 2]


tables = st.sampled_from([each for each in OPTIONS if each.delta == "full"]).flatmap(schemas)
histories = tables.flatmap(lambda schema: st.tuples(st.just(schema), scripts(schema, Microseconds(NOW_US - 3), NOW_US)))

# The last write, which has no time of its own, follows the first by at most the time that two writes take.
AT_ONE_MOMENT = (
    TableSchema(
        "ks",
        "t",
        (Column("p0", INT, "partition"), Column("k0", INT, "clustering"), Column("v0", INT)),
        OPTIONS[0],
    ),
    [
        Written(f"DELETE FROM ks.t USING TIMESTAMP {NOW_US} WHERE p0 = 0;", ()),
        Written("DELETE v0 FROM ks.t WHERE p0 = 0 AND k0 = 0 IF EXISTS;", ()),
        Written(f"INSERT INTO ks.t (p0, k0) VALUES (0, 0) USING TIMESTAMP {NOW_US - 3};", ()),
        Written("INSERT INTO ks.t (p0, k0) VALUES (0, 0) IF NOT EXISTS;", ()),
    ],
)
# Writes while CDC was off are in no log, so the condition is false if only the log is known.
OFF_AND_ON = (
    AT_ONE_MOMENT[0],
    [
        Written("ALTER TABLE ks.t WITH cdc = {'enabled': false};", ()),
        Written("INSERT INTO ks.t (p0, k0) VALUES (0, 0);", ()),
        Written("ALTER TABLE ks.t WITH cdc = {'enabled': true};", ()),
        Written("DELETE FROM ks.t WHERE p0 = 0 AND k0 = 0 IF EXISTS;", ()),
        Written("INSERT INTO ks.t (p0, k0) VALUES (1, 1);", ()),
        Written("INSERT INTO ks.t (p0, k0) VALUES (2, 2);", ()),
    ],
)


# Nothing was written while CDC was off, but another client may have written between the two scripts.
OFF_BEFORE_AND_ON_BEHIND = (AT_ONE_MOMENT[0], [OFF_AND_ON[1][0], *OFF_AND_ON[1][2:4]])


@settings(max_examples=examples(6), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@example(history=AT_ONE_MOMENT)
@example(history=OFF_AND_ON)
@example(history=OFF_BEFORE_AND_ON_BEHIND)
@given(history=histories)
def test_a_history_in_parts_is_what_it_is_at_once(
    streams_home: Path, tmp_path_factory: pytest.TempPathFactory, history: tuple[TableSchema, list[Written]]
) -> None:
    """A table applied script by script ends as after one script, except for what its log does not contain."""
    schema, statements = history
    whole = Script(Lake(streams_home / "lake"), Settings(), NOW_US)
    whole.run(parse_statements(definition(schema)))
    lake = copy_home(streams_home, tmp_path_factory.mktemp("parts") / "home")
    commit_script(definition(schema), lake, Clock(NOW_US), Settings())
    half, missing = len(statements) // 2, list[str]()
    for part in (statements[:half], statements[half:]):
        text = "\n".join(item.text.rstrip(";") + ";" for item in part)
        clock = Clock(whole.at_us)
        result = whole.run(parse_statements(text))
        applied = commit_script(text, lake, clock, Settings())
        if not {"all writes", "values"} & set(missing):
            assert [item.became for item in applied.outcomes] == [item.became for item in result.outcomes]
        missing = [gap.what for item in result.tables for gap in item.missing]
        assert [
            gap.what for gap in find_table_gaps(read_table_schema(lake, "ks", "t"), cdc_tables.read_table_changes(lake))
        ] == missing
    if result.tables and applied.tables and not {"all writes", "values"} & set(missing):
        assert applied.tables[0].base == result.tables[0].base
