"""The rows about what is small: a join of one node's tokens, and the size from which on Spark is worth its while."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from bench.cluster import Size
from bench.life import Joins, by_turns
from bench.measure import Result, paired
from bench.session import CLOCK, Bench
from cdc_platform.clock import to_datetime
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import GENERATION_TIMESTAMPS
from cdc_platform.lake.volume import Workers

_SMALL = Size(1, 256, 8)
_FEW_TASKS = Size(252, 256, 64)
"""4.1 million streams: of a million or less a description is one task, and four of them are done without Spark."""
_APPENDS = 8
_TURNS = 20


def small_join(bench: Bench) -> list[Result]:
    """A warm join of 256 tokens and 8 shards, against as many appends of one row as the join has steps and marks."""
    with bench.scratch() as folder:
        joins = Joins(Workers.alone(), _SMALL, folder / "joins")
        turns = _TURNS if bench.sizes.repeats > 1 else 1
        pairs = paired(joins.run, _appends(folder), repeats=turns, warm_ups=2, prepare=joins.prepare)
    against = f"{_APPENDS} appends of one row to open tables by deltalake"
    return [Result("small-join", str(_SMALL), pairs.seconds, against, pairs.floor_seconds, pairs.ratio, 4.0)]


def few_tasks(bench: Bench) -> list[Result]:
    """A join of as many streams as the process takes by itself, against the same on a warm session of Spark."""
    size = _FEW_TASKS if bench.sizes.repeats > 1 else Size(2, 16, 8)
    with bench.scratch() as folder:
        here = Joins(Workers.alone(), size, folder / "here")
        there = Joins(bench.workers, size, folder / "spark")
        pairs = by_turns(here, there, repeats=bench.sizes.repeats)
    return [Result("few-tasks", str(size), pairs.seconds, "on a warm Spark", pairs.floor_seconds, pairs.ratio, 1.5)]


def _appends(folder: Path) -> Callable[[], object]:
    lakes = [Lake(folder / str(number)) for number in range(_APPENDS)]
    for lake in lakes:
        lake.ensure(GENERATION_TIMESTAMPS)
    opened = [DeltaTable(lake.path(GENERATION_TIMESTAMPS)) for lake in lakes]
    row = {"key": "timestamps", "time": to_datetime(CLOCK.now_us()), "expired": None}
    whole = pa.Table.from_pylist([row], schema=GENERATION_TIMESTAMPS.schema)
    return lambda: [write_deltalake(table, whole, mode="append") for table in opened]
