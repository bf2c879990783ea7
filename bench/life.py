"""The rows about a generation's life: generation, the whole join, the audit, and how all of them grow."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any, Protocol
from unittest.mock import patch

import pandas as pd

from bench.cluster import Size, grow, lake_before_join, lake_before_next_join, nodes_of, queue
from bench.measure import Pairs, Result, paired, seconds, watched_memory
from bench.session import CLOCK, FLOOR, Bench, v2_rows
from cdc_platform.checks import audit_lake, judge, judge_findings
from cdc_platform.checks.judge import ModelFailure
from cdc_platform.clock import HOUR_US, Clock
from cdc_platform.delta import Lake, TaskRunner
from cdc_platform.lifecycle import run_join
from cdc_platform.settings import Settings
from cdc_platform.spark import frames
from cdc_platform.tables import GENERATION_DESCRIPTIONS_V2

_ONCE = 10_000_000
"""Sizes with at least this many streams are measured once: they take long enough to be steady."""
_GROWN = 5
"""Nodes that joined, an hour apart, before the measured join: their generations are in the home."""


def generate_and_write(bench: Bench) -> list[Result]:
    """Generate the V2 descriptions of a whole generation and write them as the platform does."""
    size = bench.sizes.cluster
    with bench.scratch() as folder, bench.floor_write(size) as floor:
        lake = Lake(folder)
        lake.ensure(GENERATION_DESCRIPTIONS_V2)

        def work() -> None:
            generation_id = str(uuid.uuid4())
            rows = v2_rows(size, generation_id)
            frames.replace_partition(bench.workers, lake, GENERATION_DESCRIPTIONS_V2, rows, {"id": generation_id})

        pairs = paired(work, floor, repeats=bench.sizes.repeats, warm_ups=3)
    return [Result("generate-and-write", str(size), pairs.seconds, FLOOR, pairs.floor_seconds, pairs.ratio, 1.5)]


def whole_life(bench: Bench) -> list[Result]:
    """Let the last node join: describe, audit, insert, choose the timestamp, publish, audit again.

    First with Spark alone, which also warms its JVM for the other floor, then as the platform does it, in this
    process.
    """
    size, results = bench.sizes.cluster, []
    for row, workers in (("whole-life-spark", bench.workers), ("whole-life", bench.default_workers)):
        with bench.scratch() as folder, bench.floor_write(size) as floor:
            joins = Joins(workers, size, folder)
            pairs = paired(joins.run, floor, repeats=bench.sizes.repeats, warm_ups=2, prepare=joins.prepare)
        results.append(Result(row, str(size), pairs.seconds, FLOOR, pairs.floor_seconds, pairs.ratio, 3.0))
    return results


def growing(bench: Bench) -> list[Result]:
    """Measure the same in a growing cluster, in this process: each of the last nodes joined the ring before it."""
    size = bench.sizes.cluster
    with bench.scratch() as folder, bench.floor_write(size) as floor:
        grown = _Grown(bench.default_workers, size, folder)
        pairs = paired(grown.run, floor, repeats=bench.sizes.repeats, warm_ups=2, prepare=grown.prepare)
    at = f"{size}, {_GROWN} joined before it"
    return [Result("whole-life-growing", at, pairs.seconds, FLOOR, pairs.floor_seconds, pairs.ratio, 3.0)]


def audit_alone(bench: Bench) -> list[Result]:
    """Measure the check of every invariant of a finished generation, and the number of its Spark jobs."""
    size = bench.sizes.cluster
    with bench.scratch() as folder, bench.floor_write(size) as floor:
        joins = Joins(bench.workers, size, folder)
        joins.prepare()
        joins.run()
        pairs = paired(
            lambda: audit_lake(bench.workers, joins.lake, joins.generation_id), floor, repeats=bench.sizes.repeats
        )
        with bench.counted_jobs() as jobs:
            summary = audit_lake(bench.workers, joins.lake, joins.generation_id)
        validation = _validation(joins, bench.sizes.repeats)
    at = f"{size}, {len(summary)} invariants"
    rules = "the same rules on the same columns, without pandera"
    return [
        Result("audit-alone", at, pairs.seconds, FLOOR, pairs.floor_seconds, pairs.ratio, 0.75),
        Result("audit-jobs", at, pairs.seconds, "none: a count of Spark jobs", 0.0, float(len(jobs)), 3.0),
        Result("audit-pandera", at, validation.seconds, rules, validation.floor_seconds, validation.ratio, 2.0),
    ]


def _validation(joins: Joins, repeats: int) -> Pairs:
    """Validate all frames of an audit in this process by pandera, and run the same rules without it."""
    took: list[tuple[float, float]] = []
    find_failures = judge.find_failures

    def timed(model: Any, columns: Mapping[str, Any]) -> list[ModelFailure]:
        start = time.perf_counter()
        failures = find_failures(model, columns)
        validated = time.perf_counter()
        if hasattr(model, "to_schema"):  # a model of rows, not that of the summary
            frame = pd.DataFrame(dict(columns), copy=False)
            for check in model.to_schema().checks:
                assert getattr(model, check.name)(frame).all()
            took.append((validated - start, time.perf_counter() - validated))
        return failures

    pairs = Pairs([], [])
    for number in range(1 + repeats):
        took.clear()
        with patch.object(judge, "find_failures", timed):
            judge_findings(audit_lake(TaskRunner.alone(), joins.lake, joins.generation_id))
        if number:
            pairs.subject.append(sum(validated for validated, _ in took))
            pairs.floor.append(sum(rules for _, rules in took))
    return pairs


def growth(bench: Bench) -> list[Result]:
    """Measure the whole life at growing sizes: seconds per stream relative to the size before; the driver's memory."""
    results: list[Result] = []
    before: float | None = None
    processes = bench.driver_processes()
    for size in bench.sizes.growth:
        repeats = 1 if size.streams >= _ONCE else bench.sizes.repeats
        with watched_memory(*processes) as memory, bench.scratch() as folder:
            joins = Joins(bench.workers, size, folder)
            took = [joins.seconds() for _ in range(1 + repeats)][1:]
        typical = median(took)
        details = {"peak_memory_bytes": memory.peak, "seconds": took}
        if before is not None:
            ratio = typical / size.streams / before
            floor_seconds = before * size.streams
            results.append(
                Result(
                    "growth",
                    str(size),
                    typical,
                    "the size before, stream by stream",
                    floor_seconds,
                    ratio,
                    1.1,
                    details=details,
                )
            )
        before = typical / size.streams
        if size is bench.sizes.growth[-1]:
            peak = memory.peak / 1e9
            results.append(
                Result("growth-memory", str(size), typical, "none: GB of JVM and Python driver", 0.0, peak, 1.5)
            )
    return results


class Joins:
    """Joins of one size, one after another in one lake: of the cluster's last node or a replacement."""

    def __init__(self, workers: TaskRunner, size: Size, folder: Path | str) -> None:
        self._workers, self._size, self._turn = workers, size, 0
        self._clock = CLOCK
        self.lake, self.generation_id = lake_before_join(folder, size, CLOCK)

    def prepare(self) -> None:
        """Queue the next node, an hour after the one before."""
        if self._turn:
            self._clock = Clock(CLOCK.now_us() + HOUR_US * self._turn)
            self.generation_id = lake_before_next_join(self.lake, self._size, self._turn, self._clock)
        self._turn += 1

    def run(self) -> None:
        """Run the join as the platform does, with every step and every audit."""
        run_join(self._workers, self.lake, self._clock, Settings(), self.generation_id)

    def seconds(self) -> float:
        """Return the seconds of the next join."""
        self.prepare()
        return seconds(self.run)


class _Grown:
    """Repeated joins of a cluster's last node in copies of the home in which the others have joined."""

    def __init__(self, workers: TaskRunner, size: Size, folder: Path) -> None:
        self._workers, self._folder, self._turn = workers, folder, 0
        *members, last = nodes_of(size)
        lake = Lake(folder / "0")
        self._clock = grow(workers, lake, members, _GROWN, CLOCK)
        self._generation_id = queue(lake, self._clock, last)

    def prepare(self) -> None:
        """Replace the last copy of the home by a new one."""
        if self._turn:
            shutil.rmtree(self._folder / str(self._turn))
        self._turn += 1
        shutil.copytree(self._folder / "0", self._folder / str(self._turn))

    def run(self) -> None:
        """Run the join as the platform does, with every step and every audit."""
        lake = Lake(self._folder / str(self._turn))
        run_join(self._workers, lake, self._clock, Settings(), self._generation_id)


class Timed(Protocol):
    """A source of joins that reports the seconds of the next one."""

    def seconds(self) -> float: ...


def by_turns(subject: Timed, floor: Timed, *, repeats: int, warm_ups: int = 1) -> Pairs:
    """Run the same joins in two lakes alternately; queueing the next nodes is not measured."""
    pairs = Pairs([], [])
    for number in range(warm_ups + repeats):
        floor_seconds, subject_seconds = floor.seconds(), subject.seconds()
        if number >= warm_ups:
            pairs.floor.append(floor_seconds)
            pairs.subject.append(subject_seconds)
    return pairs
