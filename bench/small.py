"""The rows about small work: a join of one node's tokens, and the size from which Spark pays off."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from bench.cluster import Size
from bench.life import Joins, by_turns
from bench.measure import Pairs, Result, seconds
from bench.session import CLOCK, Bench
from cdc_platform.clock import Milliseconds, datetime_from_us
from cdc_platform.delta import Lake, TaskRunner
from cdc_platform.lifecycle.join import publish as join_publish
from cdc_platform.tables import GENERATION_TIMESTAMPS

_SMALL = Size(1, 256, 8)
_FEW_TASKS = Size(252, 256, 64)
"""4.1 million streams: a description of up to a million is one task, and four tasks run without Spark."""
_APPENDS = 8
_WARM_UPS, _TURNS = 2, 20


def small_join(bench: Bench) -> list[Result]:
    """Measure a warm join of 256 tokens and 8 shards, relative to one-row appends for its steps and marks.

    One result ends with the published timestamp, which is the join. The other also includes the subsequent work: the
    mark in the ledger, the audit of the published rows, and its verdict.
    """
    published, judged = Pairs([], []), Pairs([], [])
    with bench.scratch() as folder:
        joins, appends = _Watched(Joins(TaskRunner.alone(), _SMALL, folder / "joins")), _appends(folder)
        for number in range(_WARM_UPS + (_TURNS if bench.sizes.repeats > 1 else 1)):
            floor = seconds(appends)
            took = joins.seconds()
            for pairs, seconds_taken in zip((published, judged), took, strict=True) if number >= _WARM_UPS else ():
                pairs.floor.append(floor)
                pairs.subject.append(seconds_taken)
    against = f"{_APPENDS} appends of one row to open tables by deltalake"
    rows = ("small-join", published, 4.0), ("small-join-judged", judged, 5.0)
    return [
        Result(row, str(_SMALL), pairs.seconds, against, pairs.floor_seconds, pairs.ratio, bound)
        for row, pairs, bound in rows
    ]


class _Watched:
    """Joins that record when their timestamp is published."""

    def __init__(self, joins: Joins) -> None:
        self._joins = joins

    def seconds(self) -> tuple[float, float]:
        """Return the seconds of the next join until its timestamp is published and until it is done."""
        publish, published = join_publish.write_published_timestamp, list[float]()

        def noted(lake: Lake, time_ms: Milliseconds) -> None:
            publish(lake, time_ms)
            published.append(time.perf_counter())

        self._joins.prepare()
        with patch.object(join_publish, "write_published_timestamp", noted):
            start = time.perf_counter()
            self._joins.run()
            done = time.perf_counter()
        return published[0] - start, done - start


def few_tasks(bench: Bench) -> list[Result]:
    """Measure a join with as many streams as the process handles by itself, relative to a warm session of Spark."""
    size = _FEW_TASKS if bench.sizes.repeats > 1 else Size(2, 16, 8)
    with bench.scratch() as folder:
        here = Joins(TaskRunner.alone(), size, folder / "here")
        on_spark = Joins(bench.workers, size, folder / "spark")
        pairs = by_turns(here, on_spark, repeats=bench.sizes.repeats)
    return [Result("few-tasks", str(size), pairs.seconds, "on a warm Spark", pairs.floor_seconds, pairs.ratio, 1.5)]


def _appends(folder: Path) -> Callable[[], object]:
    lakes = [Lake(folder / str(number)) for number in range(_APPENDS)]
    for lake in lakes:
        lake.ensure(GENERATION_TIMESTAMPS)
    opened = [DeltaTable(lake.path(GENERATION_TIMESTAMPS)) for lake in lakes]
    row = {"key": "timestamps", "time": datetime_from_us(CLOCK.now_us()), "expired": None}
    whole = pa.Table.from_pylist([row], schema=GENERATION_TIMESTAMPS.schema)
    return lambda: [write_deltalake(table, whole, mode="append") for table in opened]
