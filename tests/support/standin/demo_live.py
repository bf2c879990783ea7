"""`make demo-live`: a cluster on loopback that nodes join while it is written to, observed and ingested as it lives.

The server is the stand-in of the tests, a real Apache Cassandra behind a proxy that answers as ScyllaDB does; what is
shown of the platform is the platform itself. It ends with a report, and with exit code 1 where the tables differ.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support.standin.cluster import PASSWORD, USER, StandIn, description, nodes
from support.standin.live_log import LiveLog, defined, keys_of
from support.standin.world import OBSERVER, time_uuid

from cdc_platform.cdclog import log_rows_from_arrow, log_table, replay_log
from cdc_platform.cli.output import write_facts, write_table
from cdc_platform.clock import SECOND_US, Clock, Microseconds, Milliseconds, format_us, us_from_ms
from cdc_platform.delta import Lake, TaskRunner
from cdc_platform.home_location import open_home_location
from cdc_platform.ingest import IngestResult, ReadPolicy, current_table, ingest_table
from cdc_platform.scylla import registry

DDL = "CREATE TABLE shop.t (p int, k int, v int, PRIMARY KEY (p, k)) WITH cdc = {'enabled': 'true', 'ttl': '86400'};"
CONFIDENCE_US = Microseconds(SECOND_US * 3)
JOIN_SECONDS = 15.0
"""Between two joins; a real cluster takes more than a minute for one."""
LEAD_MS = Milliseconds(5_000)
"""How long before it starts a generation is published here."""
_EMPTY_MS = Milliseconds(600_000)


class Writer(threading.Thread):
    """Writes to the base table and its log, both with the same timestamps, until it is told to stop."""

    def __init__(self, log: LiveLog) -> None:
        super().__init__(daemon=True)
        self._log, self._stopped, self._dice = log, threading.Event(), random.Random(7)
        self.failed: Exception | None = None

    def run(self) -> None:
        """Ten writes five times a second."""
        try:
            while not self._stopped.wait(0.2):
                now = Clock().now_us()
                columns = {name: [self._dice.randrange(30) for _ in range(10)] for name in ("p", "k", "v")}
                times = [now - 20 + place for place in range(10)]
                self._log.write(times, **columns)
                for at, p, k, v in zip(times, *columns.values(), strict=True):
                    self._log.world.run(f"INSERT INTO shop.t (p, k, v) VALUES ({p}, {k}, {v}) USING TIMESTAMP {at}")
        except Exception as error:  # noqa: BLE001  # whatever it is, the report says that the demo failed by it
            self.failed = error

    def stop(self) -> None:
        """Write no more."""
        self._stopped.set()
        self.join()


def main() -> int:
    """Play it; answers with the exit code."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cdc-demo-live-") as folder:
        server = Path(folder, "server")
        server.mkdir()
        print("A CQL server starts on loopback ...", flush=True)
        try:
            standin = StandIn(server)
        except (pytest.skip.Exception, pytest.fail.Exception) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        os.environ[USER], os.environ[PASSWORD] = OBSERVER
        try:
            return play(standin, Path(folder, "home"), begun)
        finally:
            standin.stop()


def play(standin: StandIn, home: Path, begun: float) -> int:
    """Play it on a cluster without anything, into a new home; answers with the exit code."""
    first = Milliseconds(Clock().now_ms() - _EMPTY_MS)
    generations = {first: description(time_uuid(first), nodes(1))}
    standin.world.cluster(nodes(1))
    standin.world.generation(first, time_uuid(first), generations[first])
    log = LiveLog(standin.world, defined(DDL), generations).make()
    cluster = registry.add_cluster(open_home_location(home), "live", standin.connection(page_rows=5_000))
    writer, lags, done = Writer(log), list[float](), list[IngestResult]()
    writer.start()
    for count in (2, 3, None):
        until = time.monotonic() + JOIN_SECONDS
        while time.monotonic() < until:
            done.append(_ingest(cluster))
            lags.append((Clock().now_us() - done[-1].position_us) / SECOND_US)
            _tell(done[-1], lags[-1])
            time.sleep(1)
        if count is not None:
            _join(standin, log, count)
    writer.stop()
    time.sleep(CONFIDENCE_US / SECOND_US + 1)
    done.append(_ingest(cluster))
    _tell(done[-1], 0.0)
    return _report(log, cluster, done, lags, writer, time.monotonic() - begun)


def _ingest(cluster: registry.ScyllaCluster) -> IngestResult:
    def no_session() -> Any:
        raise AssertionError("so little needs no Spark")

    again = registry.find_cluster(open_home_location(cluster.home.parent.parent), cluster.name)
    policy = ReadPolicy(CONFIDENCE_US)
    return ingest_table(
        again, Clock(), "shop", "t", TaskRunner(no_session), policy=policy, on_message=print, current=True
    )


def _join(standin: StandIn, log: LiveLog, count: int) -> None:
    """Let a node join: its generation is published, and starts a little later."""
    at = Milliseconds(Clock().now_ms() + LEAD_MS)
    made = description(time_uuid(at), nodes(count))
    standin.world.cluster(nodes(count), topology={"version": 7 + count})
    standin.world.generation(at, time_uuid(at), made)
    log.generations = {**log.generations, at: made}
    print(
        f"Node {count} joins: a generation of {len(made.streams)} streams starts at {format_us(us_from_ms(at))}",
        flush=True,
    )


def _tell(done: IngestResult, lag: float) -> None:
    for window in done.windows:
        way = "passed over" if window.chosen is None else window.chosen.way
        print(
            f"  window {window.number}: {window.rows} rows by {way} in {window.requests} requests, generation of "
            f"{format_us(window.set_us)}, {lag:.1f} s behind",
            flush=True,
        )


def _report(
    log: LiveLog,
    cluster: registry.ScyllaCluster,
    done: list[IngestResult],
    lags: list[float],
    writer: Writer,
    seconds: float,
) -> int:
    lake = Lake(cluster.open_home().lake)
    rows = lake.read(log_table(log.schema))
    windows = [window for each in done for window in each.windows]
    same_log = keys_of(rows) == log.written_keys()
    base = {tuple(row) for row in log.world.rows("SELECT p, k, v FROM shop.t")}
    same_table = _replayed(log, rows) == base
    table, kept = lake.read(current_table(log.schema), ["p", "k", "v"]), done[-1].current
    assert kept is not None
    same_kept = set(zip(*(table[name].to_pylist() for name in table.column_names), strict=True)) == base
    followed = sorted({window.set_us for window in windows})
    write_table(
        "Generations", ("starts", ">windows", ">rows"),
        [
            (
                format_us(each),
                sum(window.set_us == each for window in windows),
                sum(window.rows for window in windows if window.set_us == each),
            )
            for each in followed
        ],
    )  # fmt: skip
    write_facts(
        [
            ("rows written", len(log.written_keys())),
            ("rows in the lake", rows.num_rows),
            ("windows", len(windows)),
            ("generations followed", len(followed)),
            ("lag, most", f"{max(lags):.1f} s, of which {CONFIDENCE_US / SECOND_US:.0f} s are the confidence window"),
            ("log equal to the cluster's", "yes" if same_log else "NO"),
            ("table, rebuilt from it, equal to the cluster's", "yes" if same_table else "NO"),
            ("table that is kept, equal to the cluster's", "yes" if same_kept else "NO"),
            (
                "its rows that are marked inexact",
                f"{kept.inexact} of {kept.rows} ({kept.inexact / max(kept.rows, 1):.1%})",
            ),
            ("seconds", f"{seconds:.0f}"),
        ]
    )
    if writer.failed is not None:
        print(f"error: the writer failed: {writer.failed}", file=sys.stderr)
    expected = len(log.generations) == len(followed)
    return 0 if same_log and same_table and same_kept and expected and writer.failed is None else 1


def _replayed(log: LiveLog, rows: Any) -> set[tuple[Any, ...]]:
    """The base table that the log's rows make."""
    found = set()
    for state in replay_log(log.schema, log_rows_from_arrow(log.schema, rows)).values():
        (p,) = state.partition_key
        for (k,), row in state.rows.items():
            found.add((p, k, getattr(row.cells["v"], "value", None)))
    return found


if __name__ == "__main__":
    sys.exit(main())
