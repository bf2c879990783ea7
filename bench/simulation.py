"""The rows about simulated histories: relative to the bare event loop, and per event in a large cluster."""

from __future__ import annotations

import random
from dataclasses import replace

from bench.measure import Result, paired
from bench.session import Bench
from cdc_platform.clock import MINUTE_US, Microseconds
from cdc_platform.simulation import Assumptions, draw_plan, judge_plan
from cdc_platform.simulation.scheduler import Scheduler

_HISTORIES = 20
_MOST_TIMES_THE_LOOP = 5.0
_MOST_PER_EVENT = 1.5
_LARGE_NODES = 1_000
_SMALL = Assumptions(nodes=5, joins=2, writes=200, duration_us=MINUTE_US * 6)
"""Together with the four minutes after the last fault this is ten minutes of simulated time."""


def histories(bench: Bench) -> list[Result]:
    """Measure histories of five nodes, two joins and 200 writes, relative to as many empty events."""
    plans = [draw_plan(_SMALL, seed) for seed in range(_HISTORIES)]
    steps = sum(judge_plan(plan).steps for plan in plans)

    def run() -> None:
        for plan in plans:
            judge_plan(plan)

    def bare() -> None:
        for _ in plans:
            _empty_events(steps // len(plans))

    pairs = paired(run, bare, repeats=bench.sizes.repeats)
    at = f"{_HISTORIES / pairs.seconds:.0f} histories a second, {steps // _HISTORIES:,} events each"
    loop = "the bare event loop"
    return [Result("simulate", at, pairs.seconds, loop, pairs.floor_seconds, pairs.ratio, _MOST_TIMES_THE_LOOP)]


def thousand_nodes(bench: Bench) -> list[Result]:
    """Measure one join to 1,000 nodes and one to 10, per event."""
    one_join = replace(_SMALL, joins=1, duration_us=MINUTE_US * 3)
    large, small = draw_plan(replace(one_join, nodes=_LARGE_NODES), 1), draw_plan(replace(one_join, nodes=10), 1)
    large_steps, small_steps = judge_plan(large).steps, judge_plan(small).steps
    times = max(large_steps // small_steps // 10, 1)

    def few() -> None:
        for _ in range(times):
            judge_plan(small)

    pairs = paired(lambda: judge_plan(large), few, repeats=bench.sizes.repeats)
    per_event = pairs.ratio * small_steps * times / large_steps
    at = f"1,000 nodes, {large_steps:,} events"
    return [Result("simulate-nodes", at, pairs.seconds, "10 nodes", pairs.floor_seconds, per_event, _MOST_PER_EVENT)]


def _empty_events(count: int) -> None:
    """Run as many events as a history has, at random times within ten minutes, which do nothing."""
    source = random.Random(count)
    scheduler = Scheduler(Microseconds(0))
    for _ in range(count):
        scheduler.at(Microseconds(int(source.random() * MINUTE_US * 10)), _nothing)
    scheduler.run(MINUTE_US * 10)


def _nothing() -> None:
    pass
