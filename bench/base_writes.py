"""The row about base writes: from key bytes and timestamp to a stream ID, relative to rewriting the finished result."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from bench.cluster import grow, nodes_of
from bench.measure import Pairs, Result, paired
from bench.session import CLOCK, Bench
from cdc_platform.clock import HOUR_US, us_from_ms
from cdc_platform.delta import Lake
from cdc_platform.timeline import Timeline
from cdc_platform.timeline.dataframe import append_with_streams, assign_streams

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

GENERATIONS = 5


def base_writes(bench: Bench) -> list[Result]:
    """Add streams to writes in random order over five generations, into a Delta table.

    Once the tasks that assign the streams append the writes in one commit, and once Spark writes a DataFrame.
    """
    with bench.scratch() as folder:
        lake = five_generations(bench, folder / "lake")
        writes, finished, sink = (str(folder / name) for name in ("writes", "finished", "sink"))
        _save(_writes(bench, lake), writes)
        read = bench.spark.read.format("delta")
        _save(assign_streams(lake, read.load(writes)), finished)
        turns = count()

        def appended() -> None:
            append_with_streams(lake, read.load(writes), f"bench.writes_{next(turns)}")

        def rewritten() -> None:
            _save(read.load(finished), sink)

        by_tasks = paired(appended, rewritten, repeats=bench.sizes.repeats)
        by_spark = paired(
            lambda: _save(assign_streams(lake, read.load(writes)), sink), rewritten, repeats=bench.sizes.repeats
        )
    at = f"{bench.sizes.writes:,} writes, {GENERATIONS} generations of up to {bench.sizes.cluster.streams:,} streams"
    floor = "rewriting the finished result to the same sink"
    return [
        throughput(row, at, bench.sizes.writes, pairs, floor, 0.85)
        for row, pairs in (("base-writes", by_tasks), ("base-writes-frame", by_spark))
    ]


def throughput(row: str, at: str, count: int, pairs: Pairs, floor: str, target: float) -> Result:
    """Return a result by throughput; the target is a share of the floor's writes per second."""
    details = {"writes_a_second": count / pairs.seconds}
    return Result(row, at, pairs.seconds, floor, pairs.floor_seconds, 1 / pairs.ratio, target, True, details=details)


def five_generations(bench: Bench, folder: Path) -> Lake:
    """Create a lake in which the last five nodes joined, an hour apart."""
    lake = Lake(folder)
    grow(bench.workers, lake, nodes_of(bench.sizes.cluster), GENERATIONS, CLOCK)
    return lake


def _writes(bench: Bench, lake: Lake) -> DataFrame:
    """Return text keys of 6 to 13 bytes with timestamps from the first generation's start on, in every generation."""
    from pyspark.sql import functions as F

    start_us = us_from_ms(Timeline.read(lake).known[0].time_ms)
    spread = F.pmod(F.xxhash64("id"), F.lit(HOUR_US * GENERATIONS))
    return bench.spark.range(0, bench.sizes.writes, 1, 2 * (os.cpu_count() or 1)).select(
        F.concat(F.lit("user-"), F.col("id").cast("string")).cast("binary").alias("key"),
        (F.lit(start_us) + spread).alias("timestamp"),
    )


def _save(rows: DataFrame, path: str) -> None:
    rows.write.format("delta").mode("overwrite").save(path)
