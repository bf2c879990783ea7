"""The rows about what is small: a join of one node's tokens, and the size from which on Spark is worth its while."""

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
"""4.1 million streams: of a million or less a description is one task, and four of them are done without Spark."""
_APPENDS = 8
_WARM_UPS, _TURNS = 2, 20


def small_join(bench: Bench) -> list[Result]:
    """A warm join of 256 tokens and 8 shards, against as many appends of one row as the join has steps and marks.

    Until its timestamp is published, which is the join; and until all that comes behind it is done as well: the mark in
    the ledger, the audit of what was published, and the verdict on it.
    """
    published, judged = Pairs([], []), Pairs([], [])
    with bench.scratch() as folder:
        joins, appends = _Watched(Joins(TaskRunner.alone(), _SMALL, folder / "joins")), _appends(folder)
        for turn in range(_WARM_UPS + (_TURNS if bench.sizes.repeats > 1 else 1)):
            floor = seconds(appends)
            took = joins.seconds()
            for pairs, mine in zip((published, judged), took, strict=True) if turn >= _WARM_UPS else ():
                pairs.floor.append(floor)
                pairs.subject.append(mine)
    against = f"{_APPENDS} appends of one row to open tables by deltalake"
    rows = ("small-join", published, 4.0), ("small-join-judged", judged, 5.0)
    return [
        Result(row, str(_SMALL), pairs.seconds, against, pairs.floor_seconds, pairs.ratio, bound)
        for row, pairs, bound in rows
    ]


class _Watched:
    """Joins of which is noted when their timestamp is published."""

    def __init__(self, joins: Joins) -> None:
        self._joins = joins

    def seconds(self) -> tuple[float, float]:
        """How long the next one takes, until its timestamp is published and until it is done."""
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
    """A join of as many streams as the process takes by itself, against the same on a warm session of Spark."""
    size = _FEW_TASKS if bench.sizes.repeats > 1 else Size(2, 16, 8)
    with bench.scratch() as folder:
        here = Joins(TaskRunner.alone(), size, folder / "here")
        there = Joins(bench.workers, size, folder / "spark")
        pairs = by_turns(here, there, repeats=bench.sizes.repeats)
    return [Result("few-tasks", str(size), pairs.seconds, "on a warm Spark", pairs.floor_seconds, pairs.ratio, 1.5)]


def _appends(folder: Path) -> Callable[[], object]:
    lakes = [Lake(folder / str(number)) for number in range(_APPENDS)]
    for lake in lakes:
        lake.ensure(GENERATION_TIMESTAMPS)
    opened = [DeltaTable(lake.path(GENERATION_TIMESTAMPS)) for lake in lakes]
    row = {"key": "timestamps", "time": datetime_from_us(CLOCK.now_us()), "expired": None}
    whole = pa.Table.from_pylist([row], schema=GENERATION_TIMESTAMPS.schema)
    return lambda: [write_deltalake(table, whole, mode="append") for table in opened]
