"""The rows about the place of a home and of its work: a folder or a store, this machine or workers.

Each side is a Spark driver in its own process, which retains its session; the sides alternate. The store is the S3
server of the tests and the workers are its Spark standalone, all on loopback, on this machine's cores.
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
    """A process with joins of one size in its own home, and with the session that runs them."""

    def __init__(self, home: str, size: Size, environment: Mapping[str, str]) -> None:
        command = [sys.executable, "-m", "bench.drivers", home, *map(str, astuple(size))]
        self._process = subprocess.Popen(
            command, cwd=_ROOT, env=os.environ | environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def seconds(self) -> float:
        """Return the seconds of its next join."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"a driver has ended with {self._process.wait()}"
        return float(line)

    def stop(self) -> None:
        """Stop it after its current join."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def stored_life(bench: Bench) -> list[Result]:
    """Measure a generation's whole life by `local[2]` with the home in the store, relative to a home in a folder."""
    size = bench.sizes.cluster
    with store() as s3, bench.scratch() as folder:
        state = {STATE_VARIABLE: str(folder / "state")}
        with (
            _driver(f"{s3.bucket()}/home", size, _LOCAL | state) as remote,
            _driver(str(folder / "home"), size, _LOCAL) as here,
        ):
            pairs = by_turns(remote, here, repeats=bench.sizes.repeats, warm_ups=_WARM_UPS)
    floor = "the same, the home in a folder"
    return [Result("stored-life", f"{size}, local[2]", pairs.seconds, floor, pairs.floor_seconds, pairs.ratio, 2.0)]


def two_workers(bench: Bench) -> list[Result]:
    """Measure it by a standalone master's two workers with one core each, relative to `local[2]`, both in the store."""
    size = bench.sizes.cluster
    with store() as s3, bench.scratch() as folder:
        from support.spark.standalone import Standalone

        state = {STATE_VARIABLE: str(folder / "state")}
        driver = folder / "driver"
        driver.mkdir()
        standalone = Standalone(driver, [driver], [s3.environment()] * 2)
        # In tests executors end before a second compiler pays off. Here they are warm, as the other side is.
        lines = standalone.conf.read_text(encoding="utf-8").splitlines(keepends=True)
        other_lines = [line for line in lines if not line.startswith("spark.executor.extraJavaOptions")]
        standalone.conf.write_text("".join(other_lines), encoding="utf-8")
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
    """Run a join for each line of standard input, and print its seconds."""
    joins = Joins(TaskRunner(lambda: get_spark_session(heavy=True), in_process=0), size, open_home_location(home).lake)
    for _ in sys.stdin:
        print(joins.seconds(), flush=True)


if __name__ == "__main__":
    _drive(sys.argv[1], Size(*map(int, sys.argv[2:])))
