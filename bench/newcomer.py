"""The rows about a new user who has just cloned the project: the demo with its set-up, and a home's first join."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median

from bench.cluster import Size
from bench.life import Joins
from bench.measure import Result, seconds
from bench.sensor_tick import session_starts
from bench.session import Bench
from cdc_platform.delta import TaskRunner

_ROOT = Path(__file__).resolve().parents[1]
_DEMO_SECONDS = 40.0
_NODE = "docs/examples/node.json"


def newcomer(bench: Bench) -> list[Result]:
    """Run `make demo` in an empty clone with cached packages and JARs, and `bootstrap --run` in a new home."""
    with bench.scratch() as folder:
        clone = folder / "clone"
        _copy(clone)
        environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
        demo = seconds(lambda: _run(["make", "demo"], clone, environment))
        joins = Joins(TaskRunner.alone(), Size(1, 256, 8), folder / "joins")
        warm = median([joins.seconds() for _ in range(1 + bench.sizes.repeats)][1:])
        start = median(session_starts(bench))
        first = median([_first_join(folder / f"home{number}") for number in range(bench.sizes.repeats)])
    expected = 2 * warm + start
    against = "twice the warm join, and the start of a session"
    return [
        Result("demo", "make demo, set-up included", demo, "none: seconds", 0.0, demo, _DEMO_SECONDS),
        Result("first-bootstrap", "bootstrap --run in a fresh home", first, against, expected, first / expected, 1.0),
    ]


def _copy(clone: Path) -> None:
    """Copy the files that git tracks, in their current state."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=_ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(_ROOT / name, clone / name)


def _first_join(home: Path) -> float:
    command = [sys.executable, "-m", "cdc_platform", "--home", str(home), "bootstrap", _NODE, "--run"]
    return seconds(lambda: _run(command, _ROOT, dict(os.environ)))


def _run(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
