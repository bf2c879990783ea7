"""Values and names that no Delta column supports are stored, read back exactly, and open to any reader."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from support.files.cql_scripts import NOW_US

from cdc_platform.cdclog import commit_script, dry_run_on_stored_tables, log_table, read_table_schema
from cdc_platform.clock import Clock, Microseconds
from cdc_platform.delta import Lake
from cdc_platform.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DIGITS = "9" * 5_000
TABLES = {
    "far": f"""CREATE TABLE ks.far (p int PRIMARY KEY, t timestamp, d date, i varint, e decimal, u duration,
            l list<timestamp>, m map<date, timestamp>, f frozen<tuple<date, varint>>) WITH cdc = {{'enabled': true}};
        INSERT INTO ks.far (p, t, d, i, e, u, l, m, f) VALUES (0, 9223372036854775807, 4294967295, {DIGITS},
            1e2147483647, 2147483647mo2147483647d9223372036854775807ns, [-9223372036854775808, 0],
            {{0: 9223372036854775807, 4294967295: 1}}, (0, -{DIGITS}));
        INSERT INTO ks.far (p, t, d, i, e, u) VALUES (1, -9223372036854775808, 0, -{DIGITS}, -1.{DIGITS}e-99999,
            -2147483648mo2147483648d9223372036854775808ns);
        INSERT INTO ks.far (p, t, d) VALUES (2, '9999-12-31T23:59:59.999Z', '0001-01-01');
        INSERT INTO ks.far (p, t, d) VALUES (3, '1677-09-22', '9999-12-31');""",
    "keys": f"""CREATE TABLE ks.keys (p timestamp, k date, i varint, v int, PRIMARY KEY ((p, i), k))
            WITH cdc = {{'enabled': true, 'preimage': 'full', 'postimage': true}};
        INSERT INTO ks.keys (p, i, k, v) VALUES (9223372036854775807, {DIGITS}, 0, 1);
        UPDATE ks.keys SET v = 2 WHERE p = 9223372036854775807 AND i = {DIGITS} AND k = 0;
        DELETE FROM ks.keys WHERE p = 9223372036854775807 AND i = {DIGITS} AND k < 5;""",
    "vectors": """CREATE TABLE ks.vectors (p int PRIMARY KEY, v vector<float, 2>, l list<frozen<vector<float, 2>>>)
            WITH cdc = {'enabled': true, 'postimage': true};
        INSERT INTO ks.vectors (p, v, l) VALUES (0, [1, -0.5], [[1, 2]]);
        UPDATE ks.vectors SET v = null, l = l + [[3, 4]] WHERE p = 0;""",
    "cases": """CREATE TYPE ks.ut (a int, "A" int);
        CREATE TABLE ks.cases (p int, "P" int, v int, "V" int, "cDc" ut, cdc ut, PRIMARY KEY (p, "P"))
            WITH cdc = {'enabled': true};
        INSERT INTO ks.cases (p, "P", v, "V", "cDc") VALUES (1, 2, 3, 4, {a: 5, "A": 6});
        UPDATE ks.cases SET "cDc"."A" = null, cdc = {"A": 7} WHERE p = 1 AND "P" = 2;""",
}


@pytest.mark.parametrize("name", TABLES)
def test_stored_values_are_read_back(streams_home: Path, tmp_path: Path, spark: SparkSession, name: str) -> None:
    """This covers the whole range of each type, as keys and nested; Spark and deltalake open the log."""
    shutil.copytree(streams_home, tmp_path / "home")
    lake = Lake(tmp_path / "home/lake")
    result = commit_script(TABLES[name], lake, Clock(NOW_US), Settings())
    assert [str(outcome.error)[:200] for outcome in result.outcomes if outcome.error] == []
    (expected,) = (table.base for table in result.tables)
    key = "p = 99 AND i = 99" if name == "keys" else "p = 99"
    rerun = dry_run_on_stored_tables(
        f"DELETE FROM ks.{name} WHERE {key};", lake, Clock(Microseconds(NOW_US + 1)), Settings()
    )
    assert next(table.base for table in rerun.tables) == expected
    path = lake.path(log_table(read_table_schema(lake, "ks", name)))
    rows = sum(len(outcome.rows) for outcome in result.outcomes)
    assert DeltaTable(path).to_pyarrow_table().num_rows == rows
    assert len(spark.read.format("delta").load(path).collect()) == rows
