"""The rows about where a home lies and where its work is done: a folder or a store, this machine or workers.

Each side is a driver of Spark in a process of its own, which keeps its session; both lie idle in turn. The store is the
S3 server of the tests and the workers are its Spark standalone, all on loopback, on the cores of this machine.
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
from cdc_platform.delta import TaskRunner
from cdc_platform.home_location import STATE_VARIABLE, open_home_location
from cdc_platform.spark import get_spark_session
from cdc_platform.spark.session import MASTER_VARIABLE

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


def two_workers(bench: Bench) -> list[Result]:
    """The same life by a standalone master's two workers of one core, against `local[2]`; both homes in the store."""
    size = bench.sizes.cluster
    with store() as s3, bench.scratch() as folder:
        from support.spark.standalone import Standalone

        state = {STATE_VARIABLE: str(folder / "state")}
        driver = folder / "driver"
        driver.mkdir()
        standalone = Standalone(driver, [driver], [s3.environment()] * 2)
        # In tests executors end before a second compiler has paid for itself; here they are warm, as the other side is.
        lines = standalone.conf.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if not line.startswith("spark.executor.extraJavaOptions")]
        standalone.conf.write_text("".join(kept), encoding="utf-8")
        try:
            with (
                _driver(f"{s3.bucket()}/home", size, standalone.environment | state) as cluster,
                _driver(f"{s3.bucket()}/home", size, _LOCAL | state) as here,
            ):
                pairs = by_turns(cluster, here, repeats=bench.sizes.repeats, warm_ups=_WARM_UPS)
        finally:
            standalone.stop()
    at = f"{size}, two workers of one core"
    return [Result("two-workers", at, pairs.seconds, "the same by local[2]", pairs.floor_seconds, pairs.ratio, 1.5)]


@contextmanager
def _driver(home: str, size: Size, environment: Mapping[str, str]) -> Iterator[Driver]:
    driver = Driver(home, size, environment)
    try:
        yield driver
    finally:
        driver.stop()


def _drive(home: str, size: Size) -> None:
    """Do a join for each line of the standard input, and say how long it took."""
    joins = Joins(TaskRunner(lambda: get_spark_session(heavy=True), in_process=0), size, open_home_location(home).lake)
    for _ in sys.stdin:
        print(joins.seconds(), flush=True)


if __name__ == "__main__":
    _drive(sys.argv[1], Size(*map(int, sys.argv[2:])))
