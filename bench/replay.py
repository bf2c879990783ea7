"""The row about replaying: a log on disk becomes the rows of its base table on Spark, of which nothing is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.base_writes import GENERATIONS, five_generations
from bench.log import COLLECTIONS, PLAIN, typed_writes
from bench.measure import Result, paired
from bench.session import QUICK, Bench
from cdc_platform.clock import HOUR_US, SECOND_US, us_of
from cdc_platform.cql.schema import TableSchema
from cdc_platform.log.replay.on_spark import replayed
from cdc_platform.log.volume import log_rows
from cdc_platform.timeline import Timeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ROWS = 500_000
_QUICK_ROWS = 20_000


def log_replay(bench: Bench) -> list[Result]:
    """Microseconds of a core for each row of the log, of plain columns and of collections; the floor sorts the rows."""
    count = _QUICK_ROWS if bench.sizes is QUICK else _ROWS
    with bench.scratch() as folder:
        lake = five_generations(bench, folder / "lake")
        start_us = us_of(Timeline.read(lake).known[0].time_ms)
        found = []
        for row, schema, writes in (("log-replay", PLAIN, count), ("log-replay-collections", COLLECTIONS, count // 5)):
            path = str(folder / row)
            given = typed_writes(bench, start_us, HOUR_US * GENERATIONS, schema, writes)
            log_rows(lake, schema, given).write.format("delta").save(path)
            found.append(_result(bench, row, schema, path))
    return found


def _result(bench: Bench, row: str, schema: TableSchema, path: str) -> Result:
    read = bench.spark.read.format("delta")
    rows, cores = read.load(path).count(), bench.spark.sparkContext.defaultParallelism

    def sorted_rows() -> DataFrame:
        return read.load(path).repartition("pk").sortWithinPartitions("pk")

    pairs = paired(
        lambda: _spend(replayed(schema, read.load(path))), lambda: _spend(sorted_rows()), repeats=bench.sizes.repeats
    )
    micros = pairs.seconds * cores / rows * SECOND_US
    details = {"log_rows": rows, "of_the_floor": pairs.ratio}
    at = f"{rows:,} log rows; µs of a core a row"
    floor = "bringing the same rows together by key"
    return Result(row, at, pairs.seconds, floor, pairs.floor_seconds, micros, 10, details=details)


def _spend(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()
