"""Queries in this process: names, the past, missing tables, damage, values, and more rows than memory."""

from __future__ import annotations

import resource
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from support.files.bad_input import listing
from support.read_logs import START_US, SWITCH_US, home_with_log, schema, times_of, write

from cdc_platform.cdclog import WRITTEN_AT, log_table
from cdc_platform.cdclog.consumer.hourly import copy_hour
from cdc_platform.clock import (
    HOUR_US,
    MILLISECOND_US,
    SECOND_US,
    Clock,
    Microseconds,
    datetime_from_us,
    format_us,
    us_from_ms,
)
from cdc_platform.delta import Lake
from cdc_platform.errors import EnvironmentProblem, InputError, NotFound, StateError
from cdc_platform.metastore import cdc_tables
from cdc_platform.query import TimeTravel
from cdc_platform.query.duckdb import run_duckdb_query
from cdc_platform.tables import CDC_LOCAL, GENERATION_TIMESTAMPS, NODES, STREAMS_DESCRIPTIONS_V2, TABLES

HOUR = START_US - START_US % HOUR_US
TIMES = [START_US, START_US + MILLISECOND_US, START_US + SECOND_US * 2]


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Two generations, a log of three rows, its hourly copy, and an empty log."""
    home = home_with_log(tmp_path_factory.mktemp("queried"))
    lake = Lake(home / "lake")
    write(lake, TIMES)
    copy_hour(lake, Clock(Microseconds(SWITCH_US + 2 * HOUR_US)), [schema(lake)], HOUR)
    cdc_tables.add_cdc_table(
        lake,
        Clock(START_US),
        "ks",
        "Carts",
        ttl_seconds=0,
        ddl="CREATE TABLE ks.\"Carts\" (p int, \"Item\" int, PRIMARY KEY (p)) WITH cdc = {'enabled': 'true'};",
    )
    return lake


def rows(lake: Lake, query: str, **options: Any) -> list[tuple[Any, ...]]:
    """Return the rows of a query."""
    with run_duckdb_query(lake, query, **options) as result:
        return list(result.values())


@pytest.mark.parametrize(
    "name",
    ["ks.t_scylla_cdc_log", "KS.T_scylla_cdc_log", '"ks"."t_scylla_cdc_log"', "t_scylla_cdc_log", "T_SCYLLA_CDC_LOG"],
)
def test_a_log_is_found_by_its_names(logged: Lake, name: str) -> None:
    """With and without its keyspace, in any case, quoted or not; the columns have ScyllaDB's names."""
    query = f'SELECT "cdc$operation", count(*), min("cdc$timestamp") FROM {name} GROUP BY ALL'
    assert rows(logged, query) == [(2, 3, datetime_from_us(START_US))]


def test_a_consumers_copy_is_a_table(logged: Lake) -> None:
    """The sink of the hourly copy has the rows of the log."""
    sink = rows(logged, 'SELECT "cdc$stream_id", "cdc$time" FROM ks.t_scylla_cdc_log_hourly ORDER BY ALL')
    assert sink == rows(logged, 'SELECT "cdc$stream_id", "cdc$time" FROM ks.t_scylla_cdc_log ORDER BY ALL')
    assert len(sink) == len(TIMES)


def test_every_declared_table_can_be_queried(logged: Lake) -> None:
    """The rows equal the lake's; a table that was never created has its columns and no rows."""
    before = listing(logged.root)
    for table in TABLES.values():
        with run_duckdb_query(logged, f"SELECT * FROM {table.full_name}") as result:
            assert result.schema.names == table.schema.names
            assert len(list(result.values())) == logged.read(table).num_rows, table
    assert not logged.exists(CDC_LOCAL)
    assert listing(logged.root) == before


def test_partitions_are_columns_and_filters(logged: Lake) -> None:
    """A generation's partition is found by its time, which no data file has, and its streams are bytes in order."""
    whole = {
        (row["time"], row["range_end"]): row["streams"] for row in logged.read(STREAMS_DESCRIPTIONS_V2).to_pylist()
    }
    query = f"SELECT time, range_end, streams FROM {STREAMS_DESCRIPTIONS_V2.full_name} WHERE time > '2026-01-31 12:30'"
    by_key = {(time, end): streams for time, end, streams in rows(logged, query)}
    assert by_key == {key: streams for key, streams in whole.items() if key[0] == datetime_from_us(SWITCH_US)}
    assert by_key


def test_names_of_the_engine_can_be_keyspaces(logged: Lake) -> None:
    """`system` is the engine's catalog, but in a query it is ScyllaDB's keyspace, and still any alias."""
    assert rows(logged, "SELECT system.cdc_local.key FROM /* ü */ system.cdc_local WHERE 'ü' = 'ü'") == []
    assert rows(logged, 'SELECT count(*) FROM "system"."cdc_local" AS system WHERE system.key IS NULL') == [(0,)]
    assert rows(logged, "PIVOT system.cdc_local ON key USING count(*)") == []


def test_an_unwritten_log_has_columns_and_no_rows(logged: Lake) -> None:
    """A registered table has a log, empty before the first write; capitals are retained."""
    with run_duckdb_query(logged, 'SELECT * FROM ks."Carts_scylla_cdc_log"') as result:
        assert list(result.values()) == []
        assert {"Item", "cdc$deleted_Item"} <= set(result.schema.names)
    assert rows(logged, 'SELECT "Item", item FROM carts_scylla_cdc_log') == []


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("SELECT * FROM nowhere.t", "there is no table nowhere.t in this home"),
        ("SELECT * FROM cdc_lokal", r"there is no table cdc_lokal .*; did you mean system.cdc_local\?"),
        ("SELECT nothing FROM system.cdc_local", '"nothing" not found'),
        ("SELECT CAST('x' AS INT)", "Could not convert"),
        ("SELECT no_such_function(1)", "no_such_function does not exist"),
        ("SELECT 'infinity'::TIMESTAMPTZ AS late", "late has a time outside the years"),
    ],
)
def test_a_wrong_query_is_reported_in_one_line(logged: Lake, query: str, told: str) -> None:
    """The message has the query's words, without the engine's markers."""
    with pytest.raises(InputError, match=told) as refused:
        rows(logged, query)
    assert "LINE" not in str(refused.value)
    assert "Error:" not in str(refused.value)


def test_tables_can_be_listed(logged: Lake) -> None:
    """SHOW, DESCRIBE, SUMMARIZE, PIVOT and EXPLAIN succeed; a listed table need not exist."""
    listed = {(keyspace, name) for _, keyspace, name, *_ in rows(logged, "SHOW ALL TABLES")}
    declared = {(table.keyspace, table.name) for table in TABLES.values()}
    assert listed == declared | {("ks", "t_scylla_cdc_log"), ("ks", "t_scylla_cdc_log_hourly")}
    assert {name for (name,) in rows(logged, "SHOW TABLES")} == {name for _, name in listed}
    assert [name for name, *_ in rows(logged, "DESCRIBE nodes")] == NODES.schema.names
    assert rows(logged, "SUMMARIZE cdc_generation_timestamps")[1][0] == "time"
    assert rows(logged, 'PIVOT ks.t_scylla_cdc_log ON "cdc$operation" USING count(*) GROUP BY k') == [(0, 3)]
    assert rows(logged, "SELECT * FROM (PIVOT ks.t_scylla_cdc_log ON k IN (0) USING count(*) GROUP BY v)")
    assert "ARROW_SCAN" in rows(logged, "EXPLAIN SELECT time FROM cdc_generation_timestamps")[0][1]
    assert rows(logged, "EXPLAIN ANALYZE (SELECT 1)")
    assert rows(logged, "SELECT count(*) FROM information_schema.tables WHERE table_schema = 'ks'") == [(2,)]


def test_values_are_those_of_the_platform(logged: Lake) -> None:
    """Sums are integers, maps lists in key order at any depth, intervals text, and times always UTC."""
    query = (
        "SELECT sum(9007199254740993) AS s, map {'b': 1, 'a': 2} AS m, [map {2: 'x', 1: 'y'}] AS ms, "
        "{'d': INTERVAL 26 HOUR, 'n': NULL} AS st, '101'::BIT AS b, TIMESTAMPTZ '2026-01-31 12:00:00+02' AS t, "
        "TIMESTAMP_NS '2026-01-31 12:00:00.123456789' AS ns, 1 AS n, 2 AS n, 3 AS n_2"
    )
    with run_duckdb_query(logged, query) as result:
        (row,) = result.values()
        assert result.names == ["s", "m", "ms", "st", "b", "t", "ns", "n", "n_2", "n_2_2"]
    ten = datetime(2026, 1, 31, 10, tzinfo=UTC)
    nanos = datetime(2026, 1, 31, 12, 0, 0, 123456)
    struct = {"d": "26h", "n": None}
    assert row == (9007199254740993, [["a", 2], ["b", 1]], [[[1, "y"], [2, "x"]]], struct, "101", ten, nanos, 1, 2, 3)


@pytest.fixture
def aged(lake: Lake) -> tuple[Lake, list[int]]:
    """A table with a row in version 1 and two in version 2, and the times of its commits (µs)."""
    for key in ("a", "b"):
        row = {"host_id": key, "key": "cdc_local", "streams_timestamp": None, "uuid": None}
        lake.merge(CDC_LOCAL, pa.Table.from_pylist([row], schema=CDC_LOCAL.schema), update=False)
    return lake, [us_from_ms(commit.at_ms) for commit in reversed(lake.commits(CDC_LOCAL)) if commit.at_ms is not None]


def test_the_past_is_read_by_version_and_by_time(aged: tuple[Lake, list[int]]) -> None:
    """A version of one table, or all tables at a time; before its first commit a table has no rows."""
    lake, times = aged
    newest = len(times) - 1
    query = "SELECT host_id FROM system.cdc_local ORDER BY 1"
    assert rows(lake, query, at=TimeTravel(version=newest)) == [("a",), ("b",)]
    assert rows(lake, query, at=TimeTravel(version=newest - 1)) == [("a",)]
    assert rows(lake, query, at=TimeTravel(time_us=Microseconds(times[-1] + 1))) == [("a",), ("b",)]
    if times[-2] < times[-1]:  # commits differ by milliseconds
        assert rows(lake, query, at=TimeTravel(time_us=Microseconds(times[-1] - 1))) == [("a",)]
    assert rows(lake, query, at=TimeTravel(time_us=Microseconds(times[0] - 1))) == []
    both = "SELECT count(*) FROM system.cdc_local, platform.nodes"
    assert rows(lake, both, at=TimeTravel(time_us=Microseconds(times[-1]))) == [(0,)]
    with pytest.raises(InputError, match=r"names 2 .*give --at a time"):
        rows(lake, both, at=TimeTravel(version=1))
    with pytest.raises(InputError, match=r"names 0 \(none\)"):
        rows(lake, "SELECT 1", at=TimeTravel(version=1))
    with pytest.raises(NotFound, match=f"has no version 99; its newest is {newest}"):
        rows(lake, query, at=TimeTravel(version=99))
    with pytest.raises(NotFound, match=r"platform.nodes does not exist in this home, so it has no version 0"):
        rows(lake, "SELECT * FROM nodes", at=TimeTravel(version=0))


def test_a_removed_past_is_reported(aged: tuple[Lake, list[int]]) -> None:
    """The commits were removed by a cleanup, or the files by a vacuum."""
    lake, times = aged
    query = "SELECT host_id FROM system.cdc_local"
    folder = Path(lake.path(CDC_LOCAL))
    first_files = set(folder.glob("*.parquet"))
    opened = DeltaTable(folder)
    opened.delete("host_id = 'a'")
    opened.create_checkpoint()
    for path in first_files:
        path.unlink()
    with pytest.raises(NotFound, match=r"cannot be read any more: .*\.parquet is gone"):
        rows(lake, query, at=TimeTravel(version=len(times) - 1))
    for log in sorted((folder / "_delta_log").glob("*.json"))[:-1]:
        log.unlink()
    with pytest.raises(NotFound, match=f"no longer goes back to {format_us(Microseconds(times[0]))}"):
        rows(lake, query, at=TimeTravel(time_us=Microseconds(times[0])))


@pytest.mark.parametrize("harm", ["missing", "cut", "flipped"])
def test_a_damaged_file_is_named(aged: tuple[Lake, list[int]], harm: str) -> None:
    """One line has the table and the file; queries of other tables, and of versions without the file, succeed."""
    lake, _ = aged
    bad = Path(lake.data_files(CDC_LOCAL)[0].path)
    content = bad.read_bytes()
    if harm == "missing":
        bad.unlink()
    else:
        bad.write_bytes(content[:-10] if harm == "cut" else b"\xff" * 60 + content[60:])
    with pytest.raises(StateError, match=rf"^system.cdc_local: .*{bad.name} is (missing|damaged)"):
        rows(lake, "SELECT * FROM system.cdc_local")
    assert rows(lake, "SELECT count(*) FROM nodes") == [(0,)]
    assert rows(lake, "SELECT * FROM system.cdc_local", at=TimeTravel(version=0)) == []


def test_a_table_with_an_unsupported_feature_is_refused(lake: Lake) -> None:
    """Deletion vectors mark removed rows of a file; without them the answer would be wrong."""
    lake.ensure(CDC_LOCAL)
    DeltaTable(lake.path(CDC_LOCAL)).alter.set_table_properties({"delta.enableDeletionVectors": "true"})
    assert "deletionVectors" in (DeltaTable(lake.path(CDC_LOCAL)).protocol().reader_features or ())
    with pytest.raises(StateError, match=r"system.cdc_local has the Delta feature deletionVectors"):
        rows(lake, "SELECT * FROM system.cdc_local")


def write_table(lake: Lake, keyspace: str, name: str, value: int) -> None:
    """Write a table of one row that the platform did not declare."""
    write_deltalake(str(lake.root / keyspace / name), pa.table({"v": [value]}))


def test_names_that_differ_in_case_are_distinct(lake: Lake) -> None:
    """The written case decides; a query with both, and an ambiguous name without a keyspace, is refused."""
    for number, (keyspace, name) in enumerate([("ks", "t_log"), ("ks", "T_log"), ("other", "t_log")]):
        write_table(lake, keyspace, name, number)
    assert rows(lake, "SELECT v FROM ks.t_log") == [(0,)]
    assert rows(lake, 'SELECT v FROM ks."T_log"') == [(1,)]
    assert rows(lake, "SELECT v FROM other.T_LOG") == [(2,)]
    with pytest.raises(InputError, match=r"t_log can be ks.t_log, other.t_log; write the one that is meant"):
        rows(lake, "SELECT v FROM t_log")
    with pytest.raises(InputError, match="differ in capitals alone"):
        rows(lake, 'SELECT * FROM ks.t_log, ks."T_log" AS u')
    assert rows(lake, "WITH t_log AS (SELECT 7 AS v) SELECT t_log.v FROM t_log JOIN other.t_log AS o ON true") == [(7,)]


def test_columns_added_later_are_null_in_older_files(lake: Lake) -> None:
    """The query returns all columns of the table."""
    write_table(lake, "ks", "grown", 1)
    write_deltalake(
        str(lake.root / "ks" / "grown"), pa.table({"v": [2], "w": ["x"]}), mode="append", schema_mode="merge"
    )
    assert rows(lake, "SELECT v, w FROM ks.grown ORDER BY v") == [(1, None), (2, "x")]


def test_more_rows_than_memory_are_sorted_and_streamed(lake: Lake) -> None:
    """A sort beyond its memory spills; a query that cannot spill raises an error with a remedy."""
    rows_a_file = 200_000
    for part in range(4):
        text = [f"{(number * 7919) % 1_000_003:07d}{'x' * 300}" for number in range(rows_a_file)]
        write_deltalake(
            str(lake.root / "ks" / "wide"), pa.table({"part": [part] * rows_a_file, "text": text}), mode="append"
        )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    query, count, last = "SELECT text, part FROM ks.wide ORDER BY text, part", 0, ""
    with run_duckdb_query(lake, query, memory="120MB") as result:
        for batch in result.batches:
            first, final = batch["text"][0].as_py(), batch["text"][-1].as_py()
            assert last <= first <= final
            last, count = final, count + batch.num_rows
    assert count == 4 * rows_a_file
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < 700 << 20
    with pytest.raises(EnvironmentProblem, match="needs more memory"):
        rows(lake, "SELECT list(text) FROM ks.wide", memory="60MB")


def test_no_jvm_and_no_pandas(logged: Lake) -> None:
    """A query loads neither Spark, pandas, the parser for Spark, nor the CQL grammar."""
    code = (
        "import sys\n"
        "from cdc_platform.cli.main import program\n"
        "try: program.main(sys.argv[1:])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "print(sorted({'pyspark', 'py4j', 'pandas', 'sqlglot', 'lark', 'dagster'} & set(sys.modules)))"
    )
    query = 'SELECT count(*) AS n, max("cdc$timestamp") AS t FROM ks.t_scylla_cdc_log JOIN nodes ON true'
    home = str(logged.root.parent)
    command = [sys.executable, "-c", code, "--home", home, "sql", query, "--json"]
    ran = subprocess.run(
        command, capture_output=True, text=True, check=False, env={"JAVA_HOME": "/nowhere", "PATH": ""}
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines()[-1] == "[]"


def test_a_join_covers_all_rows(logged: Lake) -> None:
    """The rows of a log with their operating generation equal a join by hand over the lake's rows."""
    query = f"""
        SELECT l."{WRITTEN_AT}", max(g.time)
        FROM ks.t_scylla_cdc_log AS l JOIN cdc_generation_timestamps AS g ON g.time <= l."{WRITTEN_AT}"
        GROUP BY 1 ORDER BY 1
    """
    times = times_of(logged.read(log_table(schema(logged))))
    start_times = sorted(logged.read(GENERATION_TIMESTAMPS)["time"].to_pylist())
    assert rows(logged, query) == [
        (datetime_from_us(Microseconds(us)), max(t for t in start_times if t <= datetime_from_us(Microseconds(us))))
        for us in times
    ]


def test_a_limit_applies_to_the_whole_result(logged: Lake) -> None:
    """The first rows are those in the query's order."""
    query = f'SELECT "{WRITTEN_AT}" FROM ks.t_scylla_cdc_log ORDER BY 1 DESC'
    assert rows(logged, query, limit=2) == [(datetime_from_us(us),) for us in sorted(TIMES, reverse=True)[:2]]
    after_last = datetime_from_us(max(TIMES)) + timedelta(hours=1)
    assert rows(logged, f"SELECT 1 FROM ks.t_scylla_cdc_log WHERE \"{WRITTEN_AT}\" > '{after_last}'", limit=5) == []


def test_two_tables_of_one_name_need_their_keyspace(lake: Lake) -> None:
    """Also in a PIVOT, for which the engine shows no tree."""
    for number, keyspace in enumerate(("one", "two")):
        write_table(lake, keyspace, "twice", number)
    assert rows(lake, "PIVOT one.twice ON v USING count(*)") == [(1,)]
    with pytest.raises(InputError, match=r"twice can be one.twice, two.twice"):
        rows(lake, "PIVOT twice ON v USING count(*)")
