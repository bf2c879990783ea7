"""The rows about look-ups: commands as whole processes, relative to importing the libraries and opening the tables."""

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
"""Commands that read a home without a JVM."""
_FLOOR = "import sys, click, numpy, pyarrow.compute, deltalake, pydantic, rich.table\nfor path in sys.argv[1:]:\n"
_FLOOR += "    deltalake.DeltaTable(path)"


def look_ups(bench: Bench) -> list[Result]:
    """Measure each command on a home of three generations; the floor opens every table of the home once."""
    with bench.scratch() as folder:
        home = open_home_location(folder / "home", create=True)
        joins = Joins(TaskRunner.alone(), _SIZE, home.lake)
        for _ in range(FEW):
            joins.seconds()
        return _rows(bench, "look-ups", home, f"{FEW} generations", 1.5)


def look_ups_of_many(bench: Bench) -> list[Result]:
    """Measure the same on a home with as many generations as a long life leaves, and one made there."""
    count = MANY if bench.sizes.repeats > 1 else SOME
    with bench.scratch() as folder:
        home = imported(str(folder / "home"), count, folder / "exports", ANOTHER_RING)
        Joins(TaskRunner.alone(), _SIZE, home.lake).seconds()
        return _rows(bench, "look-ups-of-many", home, f"{count:,} generations", 2.0)


def _rows(bench: Bench, row: str, home: HomeLocation, contents: str, bound: float) -> list[Result]:
    lake = Lake(home.lake)
    paths = [lake.path(table) for table in TABLES.values() if lake.exists(table)]
    floor = [sys.executable, "-c", _FLOOR, *paths]
    program = [sys.executable, "-m", "cdc_platform", "--home", home.name, "--clock", format_us(CLOCK.now_us())]
    against = f"importing its libraries and opening {len(paths)} tables"
    results: list[Result] = []
    for command in COMMANDS:
        words = [*program, *command]
        pairs = paired(lambda arguments=words: run(arguments), lambda: run(floor), repeats=bench.sizes.repeats)
        at = f"{' '.join(command)}, {contents}"
        results.append(Result(row, at, pairs.seconds, against, pairs.floor_seconds, pairs.ratio, bound))
    return results


def run(command: list[str]) -> None:
    """Run a process that may exit with 0 or 1."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path.cwd(), check=False)
    assert done.returncode in (0, 1), done.stderr
