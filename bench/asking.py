"""The work of the processes that rows at a live cluster measure: each is separate, and none contains the proxy."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from cdc_platform.clock import SECOND_US, Clock, Microseconds
from cdc_platform.delta import TaskRunner
from cdc_platform.home_location import open_home_location
from cdc_platform.ingest import IngestResult, ReadPolicy, ingest_table
from cdc_platform.scylla import registry

KEYSPACE, TABLE, NAME = "shop", "bench", "bench"
_AT_ONCE, _PAGE_ROWS = 4, 5_000


def bring(
    home: str, now_us: Microseconds | None, policy: ReadPolicy | None = None, **options: Any
) -> tuple[IngestResult, float]:
    """Ingest up to a time (µs; None: now) as a new process would; return the result and its CPU seconds."""
    cluster, before = registry.find_cluster(open_home_location(Path(home)), NAME), time.process_time()
    clock = Clock() if now_us is None else Clock(now_us)
    workers = TaskRunner(_no_spark)
    done = ingest_table(cluster, clock, KEYSPACE, TABLE, workers, policy=policy, on_message=lambda _: None, **options)
    return done, time.process_time() - before


def _no_spark() -> Any:
    raise AssertionError("a row of this size is one process's work")


def drop(port: int, user: tuple[str, str], statements: Sequence[str]) -> int:
    """Send all statements, as many at once as an ingest, and drop the driver's default rows; return their count."""
    session, waiting, rows = _session(port, user), deque[Any](), 0
    for text in statements:
        if len(waiting) == _AT_ONCE:
            rows += sum(1 for _ in waiting.popleft().result())
        waiting.append(session.execute_async(text))
    while waiting:
        rows += sum(1 for _ in waiting.popleft().result())
    return rows


@cache
def _session(port: int, user: tuple[str, str]) -> Any:
    from cassandra.auth import PlainTextAuthProvider
    from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
    from cassandra.policies import RoundRobinPolicy

    driver = Cluster(
        ["127.0.0.1"],
        port=port,
        protocol_version=4,
        auth_provider=PlainTextAuthProvider(*user),
        execution_profiles={EXEC_PROFILE_DEFAULT: ExecutionProfile(RoundRobinPolicy(), request_timeout=60)},
        schema_metadata_enabled=False,
        token_metadata_enabled=False,
    )
    session = driver.connect()
    session.default_fetch_size = _PAGE_ROWS
    return session


def follow(home: str, seconds: float, policy: ReadPolicy, every_seconds: float) -> list[tuple[int, float]]:
    """Ingest repeatedly; return the rows of each ingest and its lag (s) beyond the confidence window."""
    ingests, until = list[tuple[int, float]](), time.monotonic() + seconds
    while time.monotonic() < until:
        begun = time.monotonic()
        done, _ = bring(home, None, policy)
        behind = Clock().now_us() - done.position_us - policy.confidence_us
        ingests.append((done.rows, behind / SECOND_US))
        time.sleep(max(0.0, every_seconds - (time.monotonic() - begun)))
    return ingests


def write(port: int, seconds: float, share: float, stream: bytes) -> tuple[int, float]:
    """Write rows of a log at a share of a core; return their number and the actual share."""
    from cassandra.util import uuid_from_time

    session, sent = _session(port, ("cassandra", "cassandra")), 0
    names = '"cdc$stream_id", "cdc$time", "cdc$batch_seq_no", "cdc$end_of_batch", "cdc$operation", p, k, v'
    text = f"INSERT INTO {KEYSPACE}.{TABLE}_scylla_cdc_log ({names}) VALUES (?, ?, 0, true, 2, ?, 0, 0)"
    prepared, waiting = session.prepare(text), deque[Any]()
    begun, cpu = time.monotonic(), time.process_time()
    while (passed := time.monotonic() - begun) < seconds:
        if time.process_time() - cpu > share * passed:
            time.sleep(0.005)
            continue
        while len(waiting) >= 64:
            waiting.popleft().result()
        at = Clock().now_us() / SECOND_US
        waiting.append(session.execute_async(prepared, (stream, uuid_from_time(at, os.getpid(), sent % 16_384), sent)))
        sent += 1
    while waiting:
        waiting.popleft().result()
    return sent, (time.process_time() - cpu) / (time.monotonic() - begun)
