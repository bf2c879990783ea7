"""`make demo-live`: nodes join a cluster on loopback while it is written to, observed and ingested.

The server is the stand-in of the tests, a real Apache Cassandra behind a proxy that responds as ScyllaDB does. The
demo shows the platform's commands, each in its own process. It ends with a report, and with exit code 1 if the tables
differ. The home remains for inspection.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.standin.cluster import PASSWORD, USER, StandIn, description, nodes
from support.standin.live_log import LiveLog, defined, keys_of
from support.standin.world import OBSERVER, time_uuid

from cdc_platform import failpoints
from cdc_platform.cdclog import log_rows_from_arrow, log_table, replay_log
from cdc_platform.cli.output import write_facts
from cdc_platform.clock import Clock, Milliseconds, format_us, us_from_ms
from cdc_platform.delta import Lake
from cdc_platform.home_location import open_home_location
from cdc_platform.ingest import current_table
from cdc_platform.scylla import registry

CONFIDENCE_SECONDS = 3
DDL = "CREATE TABLE shop.t (p int, k int, v int, PRIMARY KEY (p, k)) WITH cdc = {'enabled': 'true', 'ttl': '86400'};"
JOIN_SECONDS = 15.0
"""The time between two joins; a join of a real cluster takes more than a minute."""
LEAD_MS = Milliseconds(5_000)
"""How long before its start a generation is published here."""
_EMPTY_MS = Milliseconds(600_000)


class Writer(threading.Thread):
    """Writes to the base table and its log with equal timestamps until `stop`."""

    def __init__(self, log: LiveLog) -> None:
        super().__init__(daemon=True)
        self._log, self._stopped, self._dice = log, threading.Event(), random.Random(7)
        self.failed: Exception | None = None

    def run(self) -> None:
        """Make ten writes five times a second."""
        try:
            while not self._stopped.wait(0.2):
                now = Clock().now_us()
                columns = {name: [self._dice.randrange(30) for _ in range(10)] for name in ("p", "k", "v")}
                times = [now - 20 + index for index in range(10)]
                self._log.write(times, **columns)
                for at, p, k, v in zip(times, *columns.values(), strict=True):
                    self._log.world.run(f"INSERT INTO shop.t (p, k, v) VALUES ({p}, {k}, {v}) USING TIMESTAMP {at}")
        except Exception as error:  # noqa: BLE001  # the report shows any error as the demo's failure
            self.failed = error

    def stop(self) -> None:
        """Stop writing."""
        self._stopped.set()
        self.join()


@dataclass
class Commands:
    """Runs commands as a person types them, each in its own process, on one home."""

    home: Path
    ingests: list[dict[str, Any]] = field(default_factory=list)
    """The results of all completed ingests."""
    killed: int = 0

    def show(self, *args: str, home: Path | None = None) -> None:
        """Print a command and its output."""
        self._print(args, home or self.home)
        code = self._run(args, home or self.home).returncode
        if code:
            raise RuntimeError(f"{shlex.join(args)} ended with {code}")

    def ingest(self, *, shown: bool = False, killed: bool = False) -> None:
        """Ingest what is new and print one line for the table; with `killed` the process dies before its commit."""
        args = ("ingest", "live", "shop.t", "--current", "--confidence", str(CONFIDENCE_SECONDS))
        if shown:
            self._print(args, self.home)
        point = {failpoints.KILL_AT_VARIABLE: failpoints.BEFORE_SINK} if killed else {}
        done = self._run((*args, "--json"), self.home, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=point)
        if done.returncode == -signal.SIGKILL:
            self.killed += 1
            print("  shop.t: the ingest was killed (SIGKILL) before its commit; the next one continues", flush=True)
            return
        if done.returncode:
            raise RuntimeError(done.stderr.decode())
        result = json.loads(done.stdout)
        self.ingests.append(result)
        read = result["read"]
        print(
            f"  shop.t: {result['rows']} rows in {len(result['windows'])} windows and {read['requests']} requests, "
            f"{result['lag_seconds']:.1f} s behind; replica of {result['current']['rows']} rows",
            flush=True,
        )

    def _print(self, args: tuple[str, ...], home: Path) -> None:
        print(f"\n$ {shlex.join(['cdc-platform', '--home', str(home), *args])}", flush=True)

    def _run(
        self, args: tuple[str, ...], home: Path, env: dict[str, str] | None = None, **streams: Any
    ) -> subprocess.CompletedProcess[bytes]:
        program = Path(sys.executable).with_name("cdc-platform")
        return subprocess.run(
            [program, "--home", home, *args], env={**os.environ, **(env or {})}, check=False, timeout=300, **streams
        )


def main() -> int:
    """Run the demo; return the exit code."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cdc-demo-live-") as folder:
        print("An Apache Cassandra that answers as ScyllaDB does starts on loopback ...", flush=True)
        try:
            standin = StandIn(Path(folder))
        except (pytest.skip.Exception, pytest.fail.Exception) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        os.environ[USER], os.environ[PASSWORD] = OBSERVER
        try:
            return play(standin, Path(tempfile.mkdtemp(prefix="cdc-demo-live-home-")), begun)
        finally:
            standin.stop()


def play(standin: StandIn, home: Path, begun: float) -> int:
    """Run the demo on an empty cluster with a new home; return the exit code."""
    first = Milliseconds(Clock().now_ms() - _EMPTY_MS)
    generations = {first: description(time_uuid(first), nodes(1))}
    standin.world.cluster(nodes(1))
    standin.world.generation(first, time_uuid(first), generations[first])
    log = LiveLog(standin.world, defined(DDL), generations).make()
    commands = Commands(home)
    contact = f"127.0.0.1:{standin.proxy.port}"
    commands.show("cluster", "add", "live", "--contact", contact, "--user-env", USER, "--password-env", PASSWORD)
    commands.show("cluster", "test", "live")
    commands.show("observe", "live")
    writer = Writer(log)
    writer.start()
    for count in (2, 3, None):
        commands.ingest(shown=count == 2)
        if count == 3:
            commands.ingest(killed=True)
        until = time.monotonic() + JOIN_SECONDS
        while time.monotonic() < until:
            commands.ingest()
            time.sleep(1)
        if count is not None:
            _join(standin, log, count)
    writer.stop()
    time.sleep(CONFIDENCE_SECONDS + 1)
    commands.ingest(shown=True)
    commands.show("watch", "live", "--polls", "1")
    cluster = registry.find_cluster(open_home_location(home), "live")
    commands.show("status", home=cluster.home)
    return _report(log, cluster, commands, writer, time.monotonic() - begun)


def _join(standin: StandIn, log: LiveLog, count: int) -> None:
    """Let a node join: publish its generation, which starts a little later."""
    at = Milliseconds(Clock().now_ms() + LEAD_MS)
    described = description(time_uuid(at), nodes(count))
    standin.world.cluster(nodes(count), topology={"version": 7 + count})
    standin.world.generation(at, time_uuid(at), described)
    log.generations = {**log.generations, at: described}
    print(
        f"Node {count} joins: a generation of {len(described.streams)} streams starts at {format_us(us_from_ms(at))}",
        flush=True,
    )


def _report(log: LiveLog, cluster: registry.ScyllaCluster, commands: Commands, writer: Writer, seconds: float) -> int:
    lake = Lake(cluster.open_home().lake)
    rows = lake.read(log_table(log.schema))
    windows = [window for result in commands.ingests for window in result["windows"]]
    same_log = keys_of(rows) == log.written_keys()
    base = {tuple(row) for row in log.world.rows("SELECT p, k, v FROM shop.t")}
    same_table = _replayed(log, rows) == base
    table, replica = lake.read(current_table(log.schema), ["p", "k", "v"]), commands.ingests[-1]["current"]
    same_replica = set(zip(*(table[name].to_pylist() for name in table.column_names), strict=True)) == base
    followed = {window["generation"] for window in windows}
    # The last ingest waited for the confidence window after the last write.
    lags = [result["lag_seconds"] for result in commands.ingests[:-1]]
    print()
    write_facts(
        [
            ("server", "an Apache Cassandra that answers as ScyllaDB does; no ScyllaDB was running"),
            ("rows written", len(log.written_keys())),
            ("rows in the lake", rows.num_rows),
            ("ingests", f"{len(commands.ingests)} in {len(windows)} windows, and {commands.killed} killed"),
            ("generations followed", f"{len(followed)} of {len(log.generations)}"),
            ("lag, median", f"{sorted(lags)[len(lags) // 2]:.1f} s"),
            ("lag, most", f"{max(lags):.1f} s, of which {CONFIDENCE_SECONDS} s are the confidence window"),
            ("log equal to the cluster's", "yes" if same_log else "NO"),
            ("table, rebuilt from it, equal to the cluster's", "yes" if same_table else "NO"),
            ("replica, equal to the cluster's table", "yes" if same_replica else "NO"),
            ("inexact rows of the replica", f"{replica['inexact']} of {replica['rows']}"),
            ("seconds", f"{seconds:.0f}"),
            ("home", str(commands.home)),
        ]
    )
    print(
        f"Look at it, without the server: cdc-platform --home {cluster.home} history --cluster\n"
        f"Remove it: rm -r {commands.home}"
    )
    if writer.failed is not None:
        print(f"error: the writer failed: {writer.failed}", file=sys.stderr)
    complete = len(log.generations) == len(followed) and commands.killed == 1
    return 0 if same_log and same_table and same_replica and complete and writer.failed is None else 1


def _replayed(log: LiveLog, rows: Any) -> set[tuple[Any, ...]]:
    """Return the base table rebuilt from the log's rows."""
    rebuilt = set()
    for state in replay_log(log.schema, log_rows_from_arrow(log.schema, rows)).values():
        (p,) = state.partition_key
        for (k,), row in state.rows.items():
            rebuilt.add((p, k, getattr(row.cells["v"], "value", None)))
    return rebuilt


if __name__ == "__main__":
    sys.exit(main())
