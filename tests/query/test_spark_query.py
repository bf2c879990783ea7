"""Queries on Spark have the names and answers of DuckDB, and leave the session and the lake unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from support.files.bad_input import listing
from support.homes.changed import ALTERNATOR, ITEMS, VIEW, home_with_changes, with_alternator_replica
from support.read_logs import START_US, home_with_log, write
from support.substitutions import VARIABLES

from cdc_platform.clock import Microseconds, datetime_from_us
from cdc_platform.delta import Lake
from cdc_platform.errors import InputError
from cdc_platform.query import TimeTravel, duckdb
from cdc_platform.query import spark as on_spark
from cdc_platform.tables import CDC_LOCAL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Two generations, and a log of forty rows."""
    home = home_with_log(tmp_path_factory.mktemp("on_spark"))
    lake = Lake(home / "lake")
    write(lake, [Microseconds(START_US + 1000 * number) for number in range(40)])
    return lake


def rows(lake: Lake, query: str, **options: Any) -> list[tuple[Any, ...]]:
    """Return the rows of a query on Spark."""
    with on_spark.run_spark_query(lake, query, **options) as result:
        return list(result.values())


BOTH = [
    'SELECT "cdc$operation", count(*), min("cdc$timestamp") FROM KS.T_scylla_cdc_log GROUP BY 1',
    'SELECT ks.t_scylla_cdc_log.p, "cdc$stream_id" FROM ks.t_scylla_cdc_log WHERE p < 5 ORDER BY p',
    "SELECT time, count(*), max(range_end) FROM cdc_streams_descriptions_v2 GROUP BY time ORDER BY time",
    "SELECT streams FROM cdc_streams_descriptions_v2 WHERE time > '2026-01-31 12:30:00' ORDER BY range_end LIMIT 2",
    "SELECT host_id FROM system.cdc_local",
    "WITH g AS (SELECT max(time) AS t FROM cdc_generation_timestamps) SELECT l.v FROM g, t_scylla_cdc_log AS l LIMIT 1",
    "SELECT p FROM t_scylla_cdc_log WHERE p IN (SELECT max(p) FROM t_scylla_cdc_log) UNION ALL SELECT 7",
    "SELECT 'it''s' AS t, CAST('12' AS INT) AS i, row_number() OVER (ORDER BY 1) AS r",
]


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A table with full images and a write of each kind."""
    return Lake(home_with_changes(tmp_path_factory.mktemp("changed")) / "lake")


@pytest.mark.parametrize(
    "columns",
    [
        "op, kind, ts, before_state, after_state, before_columns, ttl, cdc$batch_seq_no",
        "before.count, after.count, after.tags, changes.tags.removed, changes.notes.deleted, key.item",
        "range.start.item, range.start_inclusive, range.end_inclusive, kind",
        "*",
    ],
)
def test_changes_are_joined_like_in_duckdb(changed: Lake, columns: str) -> None:
    """Spark's tasks join the log by the rule of DuckDB's views."""
    query = f"SELECT {columns} FROM {VIEW} ORDER BY ts".replace("cdc$batch_seq_no", '"cdc$batch_seq_no"')
    query = query.replace("range.start", '"range".start')
    with duckdb.run_duckdb_query(changed, query) as result:
        assert rows(changed, query) == list(result.values())


def test_items_of_alternator_equal_those_of_duckdb(tmp_path: Path) -> None:
    """Columns of all types, JSON and changes, with dots and hyphens in names."""
    lake = Lake(home_with_changes(tmp_path, ALTERNATOR) / "lake")
    with_alternator_replica(lake)
    changes = ITEMS.replace("$items", "$changes")
    for query in (f"SELECT * FROM {ITEMS} ORDER BY p", f"SELECT old_item, new_item, removed_attributes FROM {changes}"):
        with duckdb.run_duckdb_query(lake, query) as result:
            assert rows(lake, query) == list(result.values())


@pytest.mark.parametrize("query", BOTH)
def test_both_engines_have_equal_answers(logged: Lake, query: str) -> None:
    """Each query has one answer, and no query creates a table."""
    before = listing(logged.root)
    with duckdb.run_duckdb_query(logged, query) as result:
        assert rows(logged, query) == list(result.values())
    assert listing(logged.root) == before
    assert not logged.exists(CDC_LOCAL)


def test_rows_are_in_order_and_limits_apply_to_the_whole_result(logged: Lake) -> None:
    """Rows are read partition by partition, in the query's order."""
    query = "SELECT id, repeat('x', 100) AS s, map('b', 1, 'a', 2) AS m FROM range(100000) ORDER BY id DESC"
    with on_spark.run_spark_query(logged, query) as result:
        ids = [row[0] for row in result.values()]
    assert ids == list(range(99_999, -1, -1))
    assert rows(logged, query, limit=1) == [(99_999, "x" * 100, [["a", 2], ["b", 1]])]


def test_the_past_and_capitals(lake: Lake) -> None:
    """A version, a time before the table's creation, and two names that differ in capitals in one query."""
    for name, value in (("t_log", 1), ("T_log", 2), ("t_log", 3)):
        write_deltalake(str(lake.root / "ks" / name), pa.table({"v": [value]}), mode="append")
    assert sorted(rows(lake, "SELECT v FROM ks.t_log")) == [(1,), (3,)]
    assert rows(lake, "SELECT v FROM ks.t_log", at=TimeTravel(version=0)) == [(1,)]
    assert rows(lake, 'SELECT a.v, b.v FROM ks.t_log AS a, ks."T_log" AS b WHERE a.v = 3') == [(3, 2)]
    assert rows(lake, "SELECT * FROM nodes", at=TimeTravel(time_us=Microseconds(1))) == []
    with pytest.raises(InputError, match="names 2"):
        rows(lake, "SELECT * FROM nodes, cdc_local", at=TimeTravel(version=1))


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("SELECT nothing FROM system.cdc_local", "`nothing` cannot be resolved"),
        ("SELECT 1/0", "Division by zero"),
        ("SELECT named_struct('a', 1).b", "No such struct field `b`"),
        ("SELECT abs(1, 2)", "abs"),
        ("SELECT (SELECT 1 UNION ALL SELECT 2)", "More than one row returned by a subquery"),
        ("SELECT 1 UNION SELECT 1, 2", "same number of columns"),
        ("SELECT CAST('x' AS INT)", "'x'"),
        ("SELECT 9223372036854775807 + 1", "overflow"),
        ("SELECT time, count(*) FROM cdc_generation_timestamps", "(?i)group by|aggregat"),
        ("SELECT * FROM cdc_lokal", r"did you mean system.cdc_local\?"),
    ],
)
def test_wrong_queries_are_reported_in_one_line(logged: Lake, query: str, told: str) -> None:
    """The message has the query's words."""
    with pytest.raises(InputError, match=told) as refused:
        rows(logged, query)
    assert "\n" not in str(refused.value)


def test_nothing_remains_in_the_session(spark: SparkSession, logged: Lake, tmp_path: Path) -> None:
    """During a query files cannot be read by path, and afterwards the platform can; no view or setting remains."""
    seen = []
    with on_spark.run_spark_query(logged, "SELECT time FROM cdc_generation_timestamps") as result:
        seen = [spark.conf.get("spark.sql.runSQLOnFiles"), spark.conf.get("spark.sql.ansi.doubleQuotedIdentifiers")]
        assert len(spark.catalog.listTables()) == 1
        assert len(list(result.values())) == 2
    assert seen == ["false", "true"]
    assert spark.catalog.listTables() == []
    assert spark.sql(f"SELECT count(*) FROM delta.`{logged.root}/ks/t_scylla_cdc_log`").collect()[0][0] == 40
    assert spark.sql('SELECT "text" AS t').collect()[0][0] == "text"


def test_times_are_utc_in_any_session(spark: SparkSession, logged: Lake) -> None:
    """Text without a zone is read as UTC, and times are returned in UTC."""
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        query = "SELECT time, TIMESTAMP '2026-01-31 12:10:00' = time FROM cdc_generation_timestamps ORDER BY 1 LIMIT 1"
        assert rows(logged, query) == [(datetime_from_us(START_US), True)]
        assert spark.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.mark.parametrize("variable", VARIABLES)
def test_spark_itself_substitutes_nothing(spark: SparkSession, variable: str) -> None:
    """In the platform's session a variable is an ordinary text, even if the check before it fails."""
    assert spark.sql(f"SELECT '{variable}' AS a").collect()[0][0] == variable
    assert on_spark._SETTINGS["spark.sql.variable.substitute"] == "false"
