"""The rows about rebuilding: Spark rebuilds the base table from a stored log, as `cdc-platform rebuild` stores it."""

from __future__ import annotations

import os
from itertools import count as turns_of
from statistics import median
from typing import TYPE_CHECKING

from bench.base_writes import GENERATIONS, five_generations
from bench.log import COLLECTIONS, PLAIN, register, typed_writes
from bench.measure import Result, cpu_seconds, paired, tree
from bench.session import QUICK, Bench
from cdc_platform.cdclog import append_batch, log_table, rebuild_table
from cdc_platform.clock import HOUR_US, SECOND_US, Clock, Microseconds, us_from_ms
from cdc_platform.cql import TableSchema
from cdc_platform.delta import Lake, TaskRunner
from cdc_platform.timeline import Timeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_WRITES, _QUICK_WRITES = 500_000, 20_000
_WARM_UPS = 2
"""The JVM compiles its code in the first runs."""


def log_replay(bench: Bench) -> list[Result]:
    """Measure the CPU of the driver, the JVM and its Python per log row, for plain columns and for collections.

    Each run rebuilds and stores the base table as of another time. The floor brings the rows together as rows.
    """
    count = _QUICK_WRITES if bench.sizes is QUICK else _WRITES
    with bench.scratch() as folder:
        lake = five_generations(bench, folder / "lake")
        start_us = us_from_ms(Timeline.read(lake).known[0].time_ms)
        end_us = Microseconds(start_us + HOUR_US * GENERATIONS)
        results = []
        for row, schema in (("log-replay", PLAIN), ("log-replay-collections", COLLECTIONS)):
            path = str(folder / row)
            typed_writes(bench, start_us, end_us - start_us, schema, count).write.format("delta").save(path)
            register(lake, schema)
            append_batch(lake, schema.keyspace, schema.name, path, "bench", bench.workers)
            results.append(_result(bench, row, lake, schema, end_us))
    return results


def _result(bench: Bench, row: str, lake: Lake, schema: TableSchema, end_us: Microseconds) -> Result:
    read, path = bench.spark.read.format("delta"), lake.path(log_table(schema))
    rows, cores = read.load(path).count(), bench.spark.sparkContext.defaultParallelism
    workers, turns = TaskRunner(lambda: bench.spark, in_process=0), turns_of()

    def sorted_rows() -> DataFrame:
        return read.load(path).repartition("pk").sortWithinPartitions("pk")

    spent: list[float] = []

    def rebuild() -> None:
        as_of = Microseconds(end_us + next(turns))
        before = cpu_seconds(tree(os.getpid()))
        rebuild_table(lake, Clock(as_of), schema.keyspace, schema.name, workers)
        after = cpu_seconds(tree(os.getpid()))
        spent.append(sum(after.values()) - sum(before.values()))

    pairs = paired(rebuild, lambda: _spend(sorted_rows()), repeats=bench.sizes.repeats, warm_ups=_WARM_UPS)
    micros = median(spent[_WARM_UPS:]) / rows * SECOND_US
    details = {"log_rows": rows, "of_the_floor": pairs.ratio, "cores_taken": pairs.seconds * cores / rows * SECOND_US}
    at = f"{rows:,} log rows, rebuilt and stored; µs of a core a row"
    floor = "bringing the same rows together by key"
    return Result(row, at, pairs.seconds, floor, pairs.floor_seconds, micros, 10, details=details)


def _spend(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()
