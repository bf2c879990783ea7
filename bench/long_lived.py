"""The rows about a home's long life: a small join and a tick of the sensor after 2,000 generations.

Both homes were imported from files; the small one has three generations, and one more after each measured join.
"""

from __future__ import annotations

from statistics import median

from bench.cluster import Size
from bench.life import Joins, by_turns
from bench.many import ANOTHER_RING, FEW, MANY, SOME, imported
from bench.measure import Pairs, Result
from bench.sensor_tick import ticks
from bench.session import Bench
from cdc_platform.delta import TaskRunner

_SIZE = Size(1, 256, 8)
_JOINS = 10
_TARGET = 2.0


def join_of_many(bench: Bench) -> list[Result]:
    """Measure a warm small join, alternating between the homes, and ticks of code servers that find it queued."""
    count, turns = (MANY, _JOINS) if bench.sizes.repeats > 1 else (SOME, 1)
    with bench.scratch() as folder:
        large, small = (
            imported(str(folder / f"home{number}"), number, folder / f"exports{number}", ANOTHER_RING)
            for number in (count, FEW)
        )
        many, few = (Joins(TaskRunner.alone(), _SIZE, home.lake) for home in (large, small))
        joined = by_turns(many, few, repeats=turns, warm_ups=2)
        for joins in (many, few):
            joins.prepare()
        ticked, firsts = Pairs([], []), Pairs([], [])
        for repeat in range(bench.sizes.repeats):
            for home, into, first in (
                (small, ticked.floor, firsts.floor),
                (large, ticked.subject, firsts.subject),
            ):
                took = ticks(home, folder / f"dagster{repeat}-{home.path.name}", 1 + 2 * bench.sizes.repeats)
                first.append(took[0])
                into.append(median(took))
    return [
        Result(row, f"{what}, {count:,} generations", pairs.seconds, floor, pairs.floor_seconds, pairs.ratio, _TARGET)
        for row, what, pairs, floor in (
            ("join-of-many", f"{_SIZE} join 2 nodes", joined, f"the same with {FEW} to {FEW + 2 + turns}"),
            ("tick-of-many", "a tick of the sensor", ticked, "the same in that home"),
            ("tick-of-many", "the first tick", firsts, "the same in that home"),
        )
    ]
