"""The rows about a live cluster: ingest and first copy relative to plain readers, quiet windows, and the lag.

The cluster is the tests' stand-in, a real CQL server behind a proxy. Both sides of a row run in their own processes
and send their requests through the proxy, which runs in this one.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np

from bench import asking
from bench.cluster import ring_of
from bench.measure import Result, paired
from bench.session import Bench
from cdc_platform.clock import (
    HOUR_US,
    MINUTE_MS,
    MINUTE_US,
    SECOND_US,
    Clock,
    Microseconds,
    Milliseconds,
    ms_from_us,
    us_from_ms,
)
from cdc_platform.generations import RingLayout, generate_description
from cdc_platform.home_location import open_home_location
from cdc_platform.ingest import ReadPolicy

if TYPE_CHECKING:
    from support.standin.cluster import StandIn
    from support.standin.live_log import LiveLog

ROWS_VARIABLE = "CDC_PLATFORM_BENCH_LIVE_ROWS"
_LOGGED_ROWS = 1_000_000
_QUICK_ROWS, _WRITTEN_AT_ONCE = 2_000, 50_000
_COPIED_ROWS = 200_000
_SHARE, _FOLLOWED_SECONDS, _AGO_MS = 0.25, 30.0, MINUTE_MS * 10
_DDL = "CREATE TABLE shop.bench (p int, k int, v int, PRIMARY KEY (p, k)) WITH cdc = {'enabled': 'true', 'ttl': '0'};"
_FLOOR = "a process with the driver's rows of the same requests, dropped"


def ingesting(bench: Bench) -> list[Result]:
    """Measure a backlog of one window in a process, relative to a process that drops the rows of the same requests."""
    count = _count(bench, _LOGGED_ROWS)
    with open_standin(bench) as standin, _process() as subject_process, _process() as floor_process:
        log, begun = new_log(standin)
        times = [begun + SECOND_US + index * HOUR_US // (2 * count) for index in range(count)]
        for first in range(0, count, _WRITTEN_AT_ONCE):
            log.write(times[first : first + _WRITTEN_AT_ONCE])
        now, homes = Microseconds(begun + HOUR_US), [new_home(bench, standin)]

        def prepare() -> None:
            homes[:] = [new_home(bench, standin)]
            subject_process.submit(asking.bring, homes[0], Microseconds(begun + MINUTE_US // 120)).result()

        def subject() -> None:
            done, _ = subject_process.submit(asking.bring, homes[0], now).result()
            assert done.rows == count, done.rows

        prepare()
        standin.proxy.statements.clear()
        subject()
        statements = _asked(standin, "shop.bench_scylla_cdc_log")

        def floor() -> None:
            rows = _dropped(floor_process, standin, statements)
            assert rows == count, rows

        pairs = paired(subject, floor, repeats=min(3, bench.sizes.repeats), warm_ups=0, prepare=prepare)
    at = f"{count:,} log rows in {len(statements)} requests, one process"
    return [Result("live-ingest", at, pairs.seconds, _FLOOR, pairs.floor_seconds, pairs.ratio, 1.5)]


def first_copy(bench: Bench) -> list[Result]:
    """Measure the first copy of a replicated table, and the table that readers see, in one process."""
    count = _count(bench, _COPIED_ROWS)
    with open_standin(bench) as standin, _process() as subject_process, _process() as floor_process:
        log, begun = new_log(standin)
        log.world.values("shop.bench", ("p", "k", "v"), ((index // 10, index % 10, index) for index in range(count)))
        home, now = new_home(bench, standin), Microseconds(begun + HOUR_US)

        def subject() -> None:
            done, _ = subject_process.submit(asking.bring, home, now, recopy=True).result()
            assert done.current is not None
            assert done.current.copied_now
            assert done.current.rows == count, done.current

        subject()
        standin.proxy.statements.clear()
        subject()
        statements = _asked(standin, "FROM shop.bench WHERE token")
        statements = [text for text in statements if "LIMIT" not in text]

        def floor() -> None:
            rows = _dropped(floor_process, standin, statements)
            assert rows == count, rows

        pairs = paired(subject, floor, repeats=min(3, bench.sizes.repeats))
    at = f"{count:,} rows in {len(statements)} requests, one process"
    return [Result("live-first-copy", at, pairs.seconds, _FLOOR, pairs.floor_seconds, pairs.ratio, 1.5)]


def quiet(bench: Bench) -> list[Result]:
    """Measure a window without changes over a whole cluster's streams: its requests, and the cost of a quiet minute."""
    with open_standin(bench) as standin, _process() as subject_process:
        log, first = new_log(standin)
        log.write([first + 1])
        begun = ms_from_us(Microseconds(first + MINUTE_US))
        described = generate_description(RingLayout.of(ring_of(bench.sizes.cluster)), UUID(int=1, version=1))
        standin.world.published(begun, described)
        home, at = new_home(bench, standin), us_from_ms(begun) + MINUTE_US
        subject_process.submit(asking.bring, home, Microseconds(at)).result()
        standin.proxy.statements.clear()
        clock = time.perf_counter()
        done, burnt = subject_process.submit(asking.bring, home, Microseconds(at + MINUTE_US)).result()
        took = time.perf_counter() - clock
        queries = len(standin.proxy.statements)
    (window,) = done.windows
    details: dict[str, Any] = {"queries": queries, "cpu_seconds": burnt, "requests": window.requests}
    words = f"a quiet minute over {len(described.streams):,} streams: {queries} queries in all, {burnt:.2f} s of CPU"
    return [Result("live-quiet", words, took, "requests of its window", 0.0, window.requests, 200, details=details)]


def lag(bench: Bench) -> list[Result]:
    """Measure the lag of an ingest each second, without its window and confidence, while a writer writes."""
    seconds = _FOLLOWED_SECONDS if bench.sizes.repeats > 1 else 3.0
    with open_standin(bench) as standin, _process() as subject_process, _process() as floor_process:
        log, _ = new_log(standin, Milliseconds(Clock().now_ms() - _AGO_MS))
        home, policy = new_home(bench, standin), ReadPolicy(Microseconds(SECOND_US))
        subject_process.submit(asking.bring, home, None, policy).result()
        stream = next(iter(log.generations.values())).streams_of(np.zeros(1, np.int64))[0].tobytes()
        writing = floor_process.submit(asking.write, standin.server.port, seconds, _SHARE, stream)
        ingests = subject_process.submit(asking.follow, home, seconds, policy, 1.0).result()
        sent, share = writing.result()
    rows, worst = sum(rows for rows, _ in ingests), max(behind for _, behind in ingests)
    at = f"{sent / seconds:,.0f} rows a second, by a writer that takes {share:.2f} of a core; {len(ingests)} ingests"
    details = {"rows": rows, "sent": sent, "behind": [behind for _, behind in ingests]}
    return [Result("live-lag", at, seconds, "seconds behind, at worst", 0.0, worst, 5, details=details)]


def _count(bench: Bench, default: int) -> int:
    return int(os.environ.get(ROWS_VARIABLE, default)) if bench.sizes.repeats > 1 else _QUICK_ROWS


@contextmanager
def _process() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        yield pool


def _dropped(pool: ProcessPoolExecutor, standin: StandIn, statements: list[str]) -> int:
    from support.standin.world import OBSERVER

    return pool.submit(asking.drop, standin.proxy.port, OBSERVER, statements).result()


def _asked(standin: StandIn, words: str) -> list[str]:
    """Return the distinct statements that contain some words: further pages repeat the statement."""
    matching = [text for _, text in standin.proxy.statements if words in text]
    return list(dict.fromkeys(text.replace(" BYPASS CACHE", "") for text in matching))


@contextmanager
def open_standin(bench: Bench) -> Iterator[StandIn]:
    """Start a stand-in; it ends with the context."""
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    from support.standin.cluster import PASSWORD, USER, StandIn
    from support.standin.world import OBSERVER

    os.environ[USER], os.environ[PASSWORD] = OBSERVER
    folder = bench.folder / f"standin-{time.monotonic_ns()}"
    folder.mkdir()
    standin = StandIn(folder)
    try:
        standin.world.changed = True
        standin.reset()
        yield standin
    finally:
        standin.stop()


def new_log(standin: StandIn, first: Milliseconds | None = None) -> tuple[LiveLog, Microseconds]:
    """Return the log of an empty table in the stand-in's first generation, and that generation's start (µs)."""
    from support.standin.cluster import FIRST_MS, description
    from support.standin.live_log import LiveLog, defined
    from support.standin.world import time_uuid

    begun = FIRST_MS if first is None else first
    described = description(time_uuid(begun))
    if first is not None:
        standin.world.generation(begun, time_uuid(begun), described)
    return LiveLog(standin.world, defined(_DDL), {begun: described}).make(), us_from_ms(begun)


def new_home(bench: Bench, standin: StandIn) -> str:
    """Create a home with the stand-in as its cluster."""
    from cdc_platform.scylla import registry

    folder = bench.folder / f"home-{time.monotonic_ns()}"
    registry.add_cluster(open_home_location(folder), asking.NAME, standin.connection())
    return str(folder)
