"""The rows about CDC logs: typed writes become log rows in their streams, and a window of a log is read."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from itertools import count as turns_of
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable

from bench.base_writes import GENERATIONS, five_generations, throughput
from bench.measure import Pairs, Result, paired, seconds
from bench.session import QUICK, Bench
from cdc_platform.cdclog import WRITTEN_AT, append_batch, log_table
from cdc_platform.cdclog.dataframe import ROWS_PER_FILE, append_writes, encode_dataframe, partition_by_time
from cdc_platform.clock import HOUR_US, Clock, Microseconds, us_from_ms
from cdc_platform.cql import (
    INT,
    TEXT,
    Catalog,
    CdcOptions,
    Column,
    ListType,
    MapType,
    SetType,
    TableSchema,
    UserType,
    format_ddl,
)
from cdc_platform.delta import Lake, TaskRunner
from cdc_platform.metastore import cdc_tables
from cdc_platform.timeline import Timeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_KEYS = (Column("pk", INT, "partition"), Column("ck", INT, "clustering"))
PLAIN = TableSchema(
    "bench",
    "plain",
    (*_KEYS, *(Column(name, kind) for name, kind in (("a", INT), ("b", INT), ("c", TEXT), ("d", TEXT)))),
    CdcOptions(enabled=True),
)
COLLECTIONS = TableSchema(
    "bench",
    "collections",
    (
        *_KEYS,
        Column("m", MapType(INT, TEXT)),
        Column("s", SetType(INT)),
        Column("l", ListType(INT)),
        Column("u", UserType("bench", "ut", (("x", INT), ("y", TEXT)))),
    ),
    CdcOptions(enabled=True),
)
IMAGED = TableSchema("bench", "imaged", PLAIN.columns, CdcOptions(enabled=True, preimage="full", postimage=True))
_LIST_KEY = "'db3214f0-2fe9-11eb-af55-00000000000'"


@dataclass(frozen=True)
class LogSizes:
    """Rows of each part; `collections` and `small` are separate tables, and a window of `large` is read."""

    writes: int
    collections: int
    small: int
    large: int
    ranged: int
    imaged: int


_FULL = LogSizes(
    writes=5_000_000, collections=1_000_000, small=500_000, large=50_000_000, ranged=1_000_000, imaged=100_000
)
_QUICK = LogSizes(writes=20_000, collections=5_000, small=2_000, large=40_000, ranged=5_000, imaged=1_024)


def log_volume(bench: Bench) -> list[Result]:
    """Append writes in random order over five generations to the log, by time, and as a DataFrame in random order.

    There are rows for plain columns, for collections, and for a tenth of the plain ones.
    """
    sizes = _sizes(bench)
    with bench.scratch() as folder:
        lake = five_generations(bench, folder / "lake")
        appended = _appending(bench, lake, folder / "appended", PLAIN, sizes.writes)
        plain = _against_rewriting(bench, lake, folder / "plain", PLAIN, sizes.writes)
        collections = _against_rewriting(bench, lake, folder / "collections", COLLECTIONS, sizes.collections)
        small = _appending(bench, lake, folder / "small", PLAIN, sizes.small)
    floor = "rewriting the finished log rows to the same sink"
    grown = appended.seconds / small.seconds
    at = f"{sizes.writes:,} writes by time against {sizes.small:,}"
    return [
        _result("log-rows", sizes.writes, appended, f"{floor}, by time", 0.85),
        _result("log-rows-frame", sizes.writes, plain, floor, 0.85),
        _result("log-rows-collections", sizes.collections, collections, floor, 0.25),
        Result("log-rows-growth", at, appended.seconds, "a tenth of the writes", small.seconds, grown, 11),
    ]


def log_deletions(bench: Bench) -> list[Result]:
    """Log writes without images and with both images. Every tenth write deletes a range of rows."""
    sizes = _sizes(bench)
    with bench.scratch() as folder:
        lake = five_generations(bench, folder / "lake")
        ranged = _against_rewriting(bench, lake, folder / "ranged", PLAIN, sizes.ranged, ranged=True)
        imaged = _against_rewriting(bench, lake, folder / "imaged", IMAGED, sizes.imaged, ranged=True)
    floor = "rewriting the finished log rows to the same sink"
    return [
        _result("log-rows-ranges", sizes.ranged, ranged, floor, 0.3),
        _result("log-rows-images", sizes.imaged, imaged, floor, 0.05),
    ]


def log_window(bench: Bench) -> list[Result]:
    """Measure the bytes of the files that a window of 1 % of a log's time touches, in a log appended in ten parts."""
    size = _sizes(bench).large
    with bench.scratch() as folder:
        lake = five_generations(bench, folder / "lake")
        start_us = us_from_ms(Timeline.read(lake).known[0].time_ms)
        spent = 0.0
        for part in range(10):
            writes = typed_writes(bench, start_us + HOUR_US * part // 2, HOUR_US // 2, PLAIN, size // 10)
            files = max(1, size // 10 // ROWS_PER_FILE)
            spent += seconds(lambda writes=writes, files=files: append_writes(lake, PLAIN, writes, files=files))
        path = lake.path(log_table(PLAIN))
        actions = pa.table(DeltaTable(path).get_add_actions(flatten=True)).to_pylist()
        window = HOUR_US * 5 // 100
        shares = [_touched(actions, start_us + window * percent, window) for percent in range(0, 100, 7)]
    details = {"files": len(actions), "bytes": sum(file["size_bytes"] for file in actions)}
    at = f"{size:,} rows; the worst of {len(shares)} windows of 1 %"
    return [Result("log-window", at, spent, "writing the log", 0.0, max(shares), 0.03, details=details)]


def _sizes(bench: Bench) -> LogSizes:
    return _QUICK if bench.sizes is QUICK else _FULL


def _result(row: str, count: int, pairs: Pairs, floor: str, target: float) -> Result:
    return throughput(row, f"{count:,} writes over {GENERATIONS} generations", count, pairs, floor, target)


def _appending(bench: Bench, lake: Lake, folder: Path, schema: TableSchema, count: int) -> Pairs:
    """Append a table of writes to a log as a validated batch, relative to writing the finished rows by Spark, by time.

    Each time the log belongs to a new table.
    """
    writes, finished, sink = (str(folder / name) for name in ("writes", "finished", "sink"))
    files = max(2, count // ROWS_PER_FILE)
    read, turns = bench.spark.read.format("delta"), turns_of()
    _save(_spread_writes(bench, lake, schema, count), writes)
    _save(encode_dataframe(lake, schema, read.load(writes)), finished)
    workers = TaskRunner(lambda: bench.spark, in_process=0)

    def appended() -> None:
        name = f"{folder.name}_{next(turns)}"
        register(lake, replace(schema, name=name))
        append_batch(lake, schema.keyspace, name, writes, "bench", workers)

    return paired(
        appended, lambda: _save(partition_by_time(read.load(finished), files), sink), repeats=bench.sizes.repeats
    )


def register(lake: Lake, schema: TableSchema) -> None:
    """Create a table of the lake with an empty log."""
    catalog = Catalog()
    catalog.put(schema)
    for column in schema.columns:
        for used in column.type.user_types():
            catalog.making(schema.keyspace).types[used.name] = used
    created = Clock(us_from_ms(Timeline.read(lake).known[0].time_ms))
    ddl = format_ddl(catalog, schema)
    cdc_tables.add_cdc_table(lake, created, schema.keyspace, schema.name, ttl_seconds=0, created_now=True, ddl=ddl)
    lake.ensure(log_table(schema))


def _against_rewriting(
    bench: Bench, lake: Lake, folder: Path, schema: TableSchema, count: int, *, ranged: bool = False
) -> Pairs:
    """Encode writes as a DataFrame of log rows that Spark writes, relative to writing the finished rows."""
    writes, finished, sink = (str(folder / name) for name in ("writes", "finished", "sink"))
    read = bench.spark.read.format("delta")

    def logged() -> DataFrame:
        return encode_dataframe(lake, schema, read.load(writes))

    spread = _spread_writes(bench, lake, schema, count)
    _save(_with_ranges(spread) if ranged else spread, writes)
    _save(logged(), finished)
    return paired(lambda: _save(logged(), sink), lambda: _save(read.load(finished), sink), repeats=bench.sizes.repeats)


def _spread_writes(bench: Bench, lake: Lake, schema: TableSchema, count: int) -> DataFrame:
    """Return `count` writes over all generations of the lake."""
    start_us = us_from_ms(Timeline.read(lake).known[0].time_ms)
    return typed_writes(bench, start_us, HOUR_US * GENERATIONS, schema, count)


def typed_writes(
    bench: Bench, start_us: Microseconds, span_us: Microseconds, schema: TableSchema, count: int
) -> DataFrame:
    """Return typed writes at times in random order, half of them inserts."""
    from pyspark.sql import functions as F

    spread = F.pmod(F.xxhash64("id"), F.lit(span_us))
    columns = {
        "operation": (F.col("id") % 2 + 1).cast("tinyint"),
        "timestamp": F.lit(start_us) + spread,
        "pk": (F.col("id") % 1_000_003).cast("int"),
        "ck": (F.col("id") % 97).cast("int"),
        **(_collection_columns() if schema is COLLECTIONS else _plain_columns()),
    }
    rows = bench.spark.range(0, count, 1, 2 * (os.cpu_count() or 1))
    return rows.select(*(value.alias(name) for name, value in columns.items()))


def _with_ranges(writes: DataFrame) -> DataFrame:
    """Let every tenth write delete the next ten rows of its partition, which has a thousand."""
    from pyspark.sql import functions as F

    chosen = F.col("a") % 10 == 0
    written = ("a", "b", "c", "d", "cdc$deleted_b")
    columns = {
        "pk": F.col("a") % 1_024,
        "operation": F.when(chosen, F.lit(5).cast("tinyint")).otherwise(F.col("operation")),
        "cdc$range_end_ck": F.when(chosen, F.col("ck") + 10),
        **{name: F.when(~chosen, F.col(f"`{name}`")) for name in written},
    }
    return writes.withColumns(columns)


def _plain_columns() -> dict[str, Any]:
    from pyspark.sql import functions as F

    return {
        "a": F.col("id").cast("int"),
        "b": F.when(F.col("id") % 3 == 0, F.col("id").cast("int")),
        "c": F.concat(F.lit("value-"), F.col("id").cast("string")),
        "d": F.when(F.col("id") % 5 != 0, F.lit("some text of a row")),
        "cdc$deleted_b": F.when(F.col("id") % 3 == 1, F.lit(True)),
    }


def _collection_columns() -> dict[str, Any]:
    """Return overwrites and additions of two or three elements, and removals of one."""
    from pyspark.sql import functions as F

    number = F.col("id").cast("int")
    text = F.concat(F.lit("v"), F.col("id").cast("string"))
    keys = F.array(*(F.expr(f"concat({_LIST_KEY}, '{place}')") for place in (1, 2)))
    return {
        "m": F.map_from_arrays(F.array(number, number + 1), F.array(text, text)),
        "cdc$deleted_m": F.when(F.col("id") % 2 == 0, F.lit(True)),
        "s": F.array(number, number + 1, number + 2),
        "cdc$deleted_elements_s": F.array(number + 3),
        "l": F.map_from_arrays(keys, F.array(number, number)),
        "u": F.struct(number.alias("x"), text.alias("y")),
    }


def _touched(files: list[dict[str, Any]], start_us: Microseconds, window_us: Microseconds) -> float:
    """Return the share of the bytes in files with rows of a window."""
    low, high = f"min.{WRITTEN_AT}", f"max.{WRITTEN_AT}"
    end_us = start_us + window_us
    touched = [file for file in files if _us_of_bound(file[high]) >= start_us and _us_of_bound(file[low]) < end_us]
    return sum(file["size_bytes"] for file in touched) / sum(file["size_bytes"] for file in files)


def _us_of_bound(value: Any) -> Microseconds:
    return pa.scalar(value, pa.timestamp("us", "UTC")).cast(pa.int64()).as_py()


def _save(rows: DataFrame, path: str) -> None:
    rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(path)
