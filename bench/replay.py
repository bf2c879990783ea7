"""The row about replaying: a log on disk becomes the rows of its base table on Spark, of which nothing is written."""

from __future__ import annotations

import os
from statistics import median
from typing import TYPE_CHECKING

from bench.base_writes import GENERATIONS, five_generations
from bench.log import COLLECTIONS, PLAIN, typed_writes
from bench.measure import Result, cpu_seconds, paired, tree
from bench.session import QUICK, Bench
from cdc_platform.cdclog.dataframe import encode_dataframe
from cdc_platform.cdclog.replay import replay_dataframe
from cdc_platform.clock import HOUR_US, SECOND_US, us_from_ms
from cdc_platform.cql import TableSchema
from cdc_platform.timeline import Timeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_WRITES, _QUICK_WRITES = 500_000, 20_000
_WARM_UPS = 2
"""The JVM compiles what it meets in the first ones."""


def log_replay(bench: Bench) -> list[Result]:
    """CPU of the driver, the JVM and its Python for each row of the log, of plain columns and of collections.

    The floor brings the rows together as rows.
    """
    count = _QUICK_WRITES if bench.sizes is QUICK else _WRITES
    with bench.scratch() as folder:
        lake = five_generations(bench, folder / "lake")
        start_us = us_from_ms(Timeline.read(lake).known[0].time_ms)
        found = []
        for row, schema in (("log-replay", PLAIN), ("log-replay-collections", COLLECTIONS)):
            path = str(folder / row)
            given = typed_writes(bench, start_us, HOUR_US * GENERATIONS, schema, count)
            encode_dataframe(lake, schema, given).write.format("delta").save(path)
            found.append(_result(bench, row, schema, path))
    return found


def _result(bench: Bench, row: str, schema: TableSchema, path: str) -> Result:
    read = bench.spark.read.format("delta")
    rows, cores = read.load(path).count(), bench.spark.sparkContext.defaultParallelism

    def sorted_rows() -> DataFrame:
        return read.load(path).repartition("pk").sortWithinPartitions("pk")

    spent: list[float] = []

    def replay() -> None:
        before = cpu_seconds(tree(os.getpid()))
        _spend(replay_dataframe(schema, read.load(path)))
        after = cpu_seconds(tree(os.getpid()))
        spent.append(sum(after.values()) - sum(before.values()))

    pairs = paired(replay, lambda: _spend(sorted_rows()), repeats=bench.sizes.repeats, warm_ups=_WARM_UPS)
    micros = median(spent[_WARM_UPS:]) / rows * SECOND_US
    details = {"log_rows": rows, "of_the_floor": pairs.ratio, "cores_taken": pairs.seconds * cores / rows * SECOND_US}
    at = f"{rows:,} log rows; µs of a core a row"
    floor = "bringing the same rows together by key"
    return Result(row, at, pairs.seconds, floor, pairs.floor_seconds, micros, 10, details=details)


def _spend(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()
