"""The rows about looking: commands as whole processes, against one that imports the same libraries and opens tables."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.cluster import Size
from bench.life import Joins
from bench.many import ANOTHER_RING, FEW, MANY, SOME, imported
from bench.measure import Result, paired
from bench.session import CLOCK, Bench
from cdc_platform.clock import format_us
from cdc_platform.delta import Lake, TaskRunner
from cdc_platform.home_location import HomeLocation, open_home_location
from cdc_platform.tables import TABLES

_SIZE = Size(1, 256, 8)
COMMANDS = (
    ("generations",),
    ("explain", "--token", "42"),
    ("ring",),
    ("streams", "latest"),
    ("expire", "--dry-run"),
    ("status",),
)
"""What is asked of a home, which is answered without a JVM."""
_FLOOR = "import sys, click, numpy, pyarrow.compute, deltalake, pydantic, rich.table\nfor path in sys.argv[1:]:\n"
_FLOOR += "    deltalake.DeltaTable(path)"


def look_ups(bench: Bench) -> list[Result]:
    """Each command on a home of three generations; the floor opens every table that the home has once."""
    with bench.scratch() as folder:
        home = open_home_location(folder / "home", create=True)
        joins = Joins(TaskRunner.alone(), _SIZE, home.lake)
        for _ in range(FEW):
            joins.seconds()
        return _rows(bench, "look-ups", home, f"{FEW} generations", 1.5)


def look_ups_of_many(bench: Bench) -> list[Result]:
    """The same on a home that has lived long: as many generations as were imported, and one that was made there."""
    count = MANY if bench.sizes.repeats > 1 else SOME
    with bench.scratch() as folder:
        home = imported(str(folder / "home"), count, folder / "exports", ANOTHER_RING)
        Joins(TaskRunner.alone(), _SIZE, home.lake).seconds()
        return _rows(bench, "look-ups-of-many", home, f"{count:,} generations", 2.0)


def _rows(bench: Bench, row: str, home: HomeLocation, held: str, bound: float) -> list[Result]:
    lake = Lake(home.lake)
    paths = [lake.path(table) for table in TABLES.values() if lake.exists(table)]
    floor = [sys.executable, "-c", _FLOOR, *paths]
    program = [sys.executable, "-m", "cdc_platform", "--home", home.name, "--clock", format_us(CLOCK.now_us())]
    against = f"importing its libraries and opening {len(paths)} tables"
    results: list[Result] = []
    for command in COMMANDS:
        asked = [*program, *command]
        pairs = paired(lambda asked=asked: run(asked), lambda: run(floor), repeats=bench.sizes.repeats)
        at = f"{' '.join(command)}, {held}"
        results.append(Result(row, at, pairs.seconds, against, pairs.floor_seconds, pairs.ratio, bound))
    return results


def run(command: list[str]) -> None:
    """A process that may find something wrong, and ends well otherwise."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path.cwd(), check=False)
    assert done.returncode in (0, 1), done.stderr
