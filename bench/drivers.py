"""The row about where a home lies: the whole life of a generation, the home in a store or in a folder.

Each side is a driver of Spark in a process of its own, which keeps its session; both lie idle in turn. The store is the
S3 server of the tests, on loopback, on the cores of this machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path

from bench.cluster import Size
from bench.life import Joins, by_turns
from bench.measure import Result
from bench.session import Bench
from bench.stored import store
from cdc_platform.home import STATE_VARIABLE, open_home
from cdc_platform.lake.session import MASTER_VARIABLE, spark_session
from cdc_platform.lake.volume import Workers

_LOCAL = {MASTER_VARIABLE: "local[2]"}
_WARM_UPS = 2
_ROOT = Path(__file__).resolve().parents[1]


class Driver:
    """A process with joins of one size in a home of its own, and with the session that does them."""

    def __init__(self, home: str, size: Size, environment: Mapping[str, str]) -> None:
        command = [sys.executable, "-m", "bench.drivers", home, *map(str, astuple(size))]
        self._process = subprocess.Popen(
            command, cwd=_ROOT, env=os.environ | environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def seconds(self) -> float:
        """How long its next join takes."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        told = self._process.stdout.readline()
        assert told, f"a driver has ended with {self._process.wait()}"
        return float(told)

    def stop(self) -> None:
        """End it, when it has done what it was asked."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def stored_life(bench: Bench) -> list[Result]:
    """The whole life of a generation by `local[2]`, the home in the store, against a home in a folder."""
    size = bench.sizes.cluster
    with store() as s3, bench.scratch() as folder:
        state = {STATE_VARIABLE: str(folder / "state")}
        with (
            _driver(f"{s3.bucket()}/home", size, _LOCAL | state) as there,
            _driver(str(folder / "home"), size, _LOCAL) as here,
        ):
            pairs = by_turns(there, here, repeats=bench.sizes.repeats, warm_ups=_WARM_UPS)
    floor = "the same, the home in a folder"
    return [Result("stored-life", f"{size}, local[2]", pairs.seconds, floor, pairs.floor_seconds, pairs.ratio, 2.0)]


@contextmanager
def _driver(home: str, size: Size, environment: Mapping[str, str]) -> Iterator[Driver]:
    driver = Driver(home, size, environment)
    try:
        yield driver
    finally:
        driver.stop()


def _drive(home: str, size: Size) -> None:
    """Do a join for each line of the standard input, and say how long it took."""
    joins = Joins(Workers(lambda: spark_session(heavy=True), in_process=0), size, open_home(home).lake)
    for _ in sys.stdin:
        print(joins.seconds(), flush=True)


if __name__ == "__main__":
    _drive(sys.argv[1], Size(*map(int, sys.argv[2:])))
