"""The rows about looking: commands as whole processes, against one that imports the same libraries and opens tables."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.cluster import Size
from bench.life import Joins
from bench.measure import Result, paired
from bench.session import CLOCK, Bench
from cdc_platform.clock import format_us
from cdc_platform.home import open_home
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import TABLES
from cdc_platform.lake.volume import Workers

_SIZE = Size(1, 256, 8)
_GENERATIONS = 3
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
    repeats = bench.sizes.repeats
    with bench.scratch() as folder:
        home = open_home(folder / "home", create=True)
        joins = Joins(Workers.alone(), _SIZE, home.path / "lake")
        for _ in range(_GENERATIONS):
            joins.seconds()
        lake = Lake(home.path / "lake")
        paths = [lake.path(table) for table in TABLES.values() if lake.exists(table)]
        floor = [sys.executable, "-c", _FLOOR, *paths]
        program = [sys.executable, "-m", "cdc_platform", "--home", str(home.path)]
        program += ["--clock", format_us(CLOCK.now_us())]
        return [_row([*program, *command], floor, command, len(paths), repeats) for command in COMMANDS]


def _row(program: list[str], floor: list[str], command: tuple[str, ...], tables: int, repeats: int) -> Result:
    pairs = paired(lambda: run(program), lambda: run(floor), repeats=repeats)
    against = f"importing its libraries and opening {tables} tables"
    at = f"{' '.join(command)}, {_GENERATIONS} generations"
    return Result("look-ups", at, pairs.seconds, against, pairs.floor_seconds, pairs.ratio, 1.5)


def run(command: list[str]) -> None:
    """A process that may find something wrong, and ends well otherwise."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path.cwd(), check=False)
    assert done.returncode in (0, 1), done.stderr
