"""The rows about a live cluster: ingest against a plain reader, what a quiet window costs, keeping a table current.

The cluster is the tests' stand-in, a real CQL server behind a proxy; both sides of a row are asked through it.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from bench.cluster import ring_of
from bench.measure import Result, paired
from bench.session import Bench
from cdc_platform.clock import HOUR_US, MINUTE_US, SECOND_US, Clock, Microseconds, ms_of, us_of
from cdc_platform.generations import RingLayout, generate
from cdc_platform.home import open_home
from cdc_platform.lake.volume import Workers

if TYPE_CHECKING:
    from support.standin.cluster import StandIn
    from support.standin.live_log import LiveLog

    from cdc_platform.cluster.ingest.ingesting import Ingested
    from cdc_platform.cluster.known import KnownCluster

_ROWS, _QUICK_ROWS = 50_000, 2_000
_AT_ONCE, _PAGE_ROWS = 4, 5_000
_DDL = "CREATE TABLE shop.bench (p int, k int, v int, PRIMARY KEY (p, k)) WITH cdc = {'enabled': 'true', 'ttl': '0'};"


def ingesting(bench: Bench) -> list[Result]:
    """A backlog of one window in one process, against a process that asks the same and drops the rows."""
    with _standin(bench) as standin:
        count = _ROWS if bench.sizes.repeats > 1 else _QUICK_ROWS
        log, begun = _log(standin)
        log.write([begun + SECOND_US + place * HOUR_US // (2 * count) for place in range(count)])
        now = Microseconds(begun + HOUR_US)
        cluster: list[KnownCluster] = []
        conditions: list[str] = []

        def prepare() -> None:
            cluster[:] = [_known(bench, standin)]
            _ingest(cluster[0], Microseconds(begun + MINUTE_US // 2))

        def subject() -> None:
            done = _ingest(cluster[0], now)
            assert done.rows == count, done.rows

        prepare()
        standin.proxy.statements.clear()
        _ingest(cluster[0], now)
        asked = [text for _, text in standin.proxy.statements if "shop.bench_scylla_cdc_log" in text]
        conditions = [text.replace(" BYPASS CACHE", "") for text in asked]
        with _driver(standin) as session:
            pairs = paired(
                subject, lambda: _drop(session, conditions), repeats=min(3, bench.sizes.repeats), prepare=prepare
            )
    at = f"{count:,} log rows in {len(conditions)} requests, one process"
    floor = "the driver's rows of the same requests, dropped"
    return [Result("live-ingest", at, pairs.seconds, floor, pairs.floor_seconds, pairs.ratio, 1.5)]


def quiet(bench: Bench) -> list[Result]:
    """A window without changes over a whole cluster's streams: its requests, and what a quiet minute costs."""
    with _standin(bench) as standin:
        log, first = _log(standin)
        log.write([first + 1])
        begun = ms_of(Microseconds(first + MINUTE_US))
        made = generate(RingLayout.of(ring_of(bench.sizes.cluster)), UUID(int=1, version=1))
        standin.world.published(begun, made)
        cluster, at = _known(bench, standin), us_of(begun) + MINUTE_US
        _ingest(cluster, Microseconds(at))
        standin.proxy.statements.clear()
        clock, cpu = time.perf_counter(), time.process_time()
        done = _ingest(cluster, Microseconds(at + MINUTE_US))
        took, burnt = time.perf_counter() - clock, time.process_time() - cpu
        asked = len(standin.proxy.statements)
    (window,) = done.windows
    details: dict[str, Any] = {"queries": asked, "cpu_seconds": burnt, "requests": window.requests}
    words = f"a quiet minute over {len(made.streams):,} streams: {asked} queries in all, {burnt:.2f} s of CPU"
    return [Result("live-quiet", words, took, "requests of its window", 0.0, window.requests, 200, details=details)]


@contextmanager
def _standin(bench: Bench) -> Iterator[StandIn]:
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


def _log(standin: StandIn) -> tuple[LiveLog, Microseconds]:
    """The log of an empty table in the stand-in's first generation, and when that begins (µs)."""
    from support.standin.cluster import FIRST_MS, description
    from support.standin.live_log import LiveLog, defined
    from support.standin.world import time_uuid

    log = LiveLog(standin.world, defined(_DDL), {FIRST_MS: description(time_uuid(FIRST_MS))}).make()
    return log, us_of(FIRST_MS)


def _known(bench: Bench, standin: StandIn) -> KnownCluster:
    from cdc_platform.cluster import known

    return known.add(open_home(bench.folder / f"home-{time.monotonic_ns()}"), "bench", standin.connection())


def _ingest(cluster: KnownCluster, now_us: Microseconds) -> Ingested:
    from cdc_platform.cluster import known
    from cdc_platform.cluster.ingest.ingesting import ingest

    again = known.find(open_home(cluster.home.parent.parent), cluster.name)
    return ingest(again, Clock(now_us), "shop", "bench", Workers(_no_spark), tell=lambda line: None)


def _no_spark() -> Any:
    raise AssertionError("a row of this size is one process's work")


@contextmanager
def _driver(standin: StandIn) -> Iterator[Any]:
    from cassandra.auth import PlainTextAuthProvider
    from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
    from cassandra.policies import RoundRobinPolicy
    from support.standin.world import OBSERVER

    driver = Cluster(
        ["127.0.0.1"],
        port=standin.proxy.port,
        protocol_version=4,
        auth_provider=PlainTextAuthProvider(*OBSERVER),
        execution_profiles={EXEC_PROFILE_DEFAULT: ExecutionProfile(RoundRobinPolicy(), request_timeout=60)},
        schema_metadata_enabled=False,
        token_metadata_enabled=False,
    )
    try:
        session = driver.connect()
        session.default_fetch_size = _PAGE_ROWS
        yield session
    finally:
        driver.shutdown()


def _drop(session: Any, statements: list[str]) -> None:
    """Ask all, as many at once as an ingest does, and let go of the rows."""
    waiting: deque[Any] = deque()
    for text in statements:
        if len(waiting) == _AT_ONCE:
            deque(waiting.popleft().result(), maxlen=0)
        waiting.append(session.execute_async(text))
    while waiting:
        deque(waiting.popleft().result(), maxlen=0)
