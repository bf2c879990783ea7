"""The rows about a home in an object store: requests of a small join and of a look-up, and look-ups relative to a disk.

The store is the S3 server of the tests, on loopback, which counts its requests.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from bench.cluster import Size
from bench.life import Joins
from bench.look_ups import COMMANDS, run
from bench.many import ANOTHER_RING, FEW, MANY, SOME, imported
from bench.measure import Result, paired, seconds
from bench.session import CLOCK, Bench
from cdc_platform.clock import format_us
from cdc_platform.delta import Lake, TaskRunner
from cdc_platform.home_location import STATE_VARIABLE, HomeLocation, open_home_location
from cdc_platform.tables import TABLES

if TYPE_CHECKING:
    from support.store.s3 import S3

_SIZE = Size(1, 256, 8)
_GENERATIONS = 3
_A_COMMIT, _A_TABLE = 6, 6
"""The expected numbers of requests."""


def requests(bench: Bench) -> list[Result]:
    """Count the requests of the fourth join, with a new lake, and of `generations` as a process."""
    with store() as s3:
        joins, address = _joined(f"{s3.bucket()}/home")
        joins.prepare()
        versions = _versions(joins.lake)
        joins.lake = Lake(str(joins.lake.location))
        joined = _requests(s3, joins.run)
        commits = sum(_versions(joins.lake).values()) - sum(versions.values())
        looked = _requests(s3, lambda: run(_command(address, ("generations",))))
    return [
        _counted(f"join of {_SIZE}", joined, _A_COMMIT * commits + _A_TABLE * len(versions), commits, len(versions)),
        _counted("generations", looked, _A_TABLE * len(versions), 0, len(versions)),
    ]


def requests_of_many(bench: Bench) -> list[Result]:
    """Count the requests of a small join in a home of thousands of imported generations, relative to one of three."""
    count = MANY if bench.sizes.repeats > 1 else SOME
    with store() as s3, bench.scratch() as folder:
        os.environ[STATE_VARIABLE] = str(folder / "state")
        large, small = (
            _second_join(s3, imported(f"{s3.bucket()}/home", number, folder / f"exports{number}", ANOTHER_RING))
            for number in (count, FEW)
        )
    most, fewest = (sum(counts.values()) for _, counts in (large, small))
    at = f"join of {_SIZE}, {count:,} generations: {most} ({_by_verb(large[1])})"
    floor = f"the same with {FEW}: {fewest} ({_by_verb(small[1])})"
    details = {"requests": large[1], "floor": small[1]}
    return [Result("requests-of-many", at, large[0], floor, small[0], most / fewest, 1.5, details=details)]


def _second_join(s3: S3, home: HomeLocation) -> tuple[float, dict[str, int]]:
    """Measure a second join with a lake that has opened nothing yet; the first join creates the tables."""
    joins = Joins(TaskRunner.alone(), _SIZE, home.lake)
    joins.seconds()
    joins.prepare()
    joins.lake = Lake(str(joins.lake.location))
    return _requests(s3, joins.run)


def look_ups(bench: Bench) -> list[Result]:
    """Measure each command as a whole process on a home in the store, relative to a home in a folder."""
    with store() as s3, bench.scratch() as folder:
        stored, here = (_joined(name)[1] for name in (f"{s3.bucket()}/home", str(folder / "home")))
        return [_row(command, stored, here, bench.sizes.repeats) for command in COMMANDS]


def _row(command: tuple[str, ...], stored: str, here: str, repeats: int) -> Result:
    pairs = paired(lambda: run(_command(stored, command)), lambda: run(_command(here, command)), repeats=repeats)
    at = f"{' '.join(command)}, {_GENERATIONS} generations"
    return Result("look-ups-stored", at, pairs.seconds, "the same in a folder", pairs.floor_seconds, pairs.ratio, 3.0)


def _counted(at: str, measured: tuple[float, Mapping[str, int]], due: int, commits: int, tables: int) -> Result:
    took, counts = measured
    total = sum(counts.values())
    floor = f"{due} requests: {_A_COMMIT} of each of {commits} commits, {_A_TABLE} of each of {tables} tables"
    details: dict[str, Any] = {"requests": dict(counts), "due": due}
    return Result(
        "requests", f"{at}: {total} ({_by_verb(counts)})", took, floor, 0.0, total / due, 1.0, details=details
    )


def _by_verb(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {verb}" for verb, count in sorted(counts.items()))


def _requests(s3: S3, work: Callable[[], object]) -> tuple[float, dict[str, int]]:
    before = s3.counts()
    took = seconds(work)
    more = {verb: count - before.get(verb, 0) for verb, count in s3.counts().items()}
    return took, {verb: count for verb, count in more.items() if count}


def _versions(lake: Lake) -> dict[str, int]:
    versions = {table.full_name: lake.version(table) for table in TABLES.values()}
    return {name: version for name, version in versions.items() if version is not None}


def _joined(name: str) -> tuple[Joins, str]:
    """Create a home of some generations; return its joins and its name."""
    home = open_home_location(name, create=True)
    joins = Joins(TaskRunner.alone(), _SIZE, home.lake)
    for _ in range(_GENERATIONS):
        joins.seconds()
    return joins, name


def _command(home: str, command: tuple[str, ...]) -> list[str]:
    program = [sys.executable, "-m", "cdc_platform", "--home", home, "--clock", format_us(CLOCK.now_us())]
    return [*program, *command]


@contextmanager
def store() -> Iterator[S3]:
    """Start the store, and set this process's environment to it."""
    tests = str(Path(__file__).parents[1] / "tests")
    if tests not in sys.path:
        sys.path.append(tests)
    from support.store.s3 import S3

    s3 = S3()
    try:
        with patch.dict(os.environ, s3.environment()):
            yield s3
    finally:
        s3.stop()
