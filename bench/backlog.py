"""The rows about a backlog: whole processes that read one log, `ingest` into Delta and scylla-cdc-go without a sink.

Both sides read through the stand-in's proxy from the same server, one after the other. `make peers` builds the Go side.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from bench import asking
from bench.live import new_home, new_log, open_standin
from bench.measure import Result
from bench.session import Bench
from cdc_platform.clock import MINUTE_MS, MINUTE_US, SECOND_US, Clock, Milliseconds

if TYPE_CHECKING:
    from support.standin.cluster import StandIn

READER = Path(__file__).parents[1] / "build" / "read-log"
"""The program that `make peers` builds from `bench/peers`."""
SIZES = (300_000, 3_000_000)
_QUICK_SIZES = (2_000, 20_000)
_AGE_MS, _SPREAD_US = 90 * MINUTE_MS, 60 * MINUTE_US
_WRITTEN_AT_ONCE = 50_000
_PAGE_ROWS = 5_000
_SOURCE_ROWS_VARIABLE = "CDC_PLATFORM_BENCH_SOURCE_ROWS"
_GB = 1_000_000_000
_KEYSPACES = "CREATE TABLE scylla_schema.scylla_keyspaces (keyspace_name text PRIMARY KEY, initial_tablets int)"


@dataclass(frozen=True)
class Reading:
    """The cost of one process: seconds, CPU seconds of it and of the server, peak memory in bytes, pages."""

    seconds: float
    cpu: float
    server_cpu: float
    memory: int
    pages: int


def backlog(bench: Bench) -> list[Result]:
    """Read backlogs of two sizes by `ingest` and, if it is built, by scylla-cdc-go."""
    sizes = SIZES if bench.sizes.repeats > 1 else _QUICK_SIZES
    readings: dict[int, tuple[list[Reading], list[Reading]]] = {}
    for rows in sizes:
        with open_standin(bench) as standin:
            # The Go client reads from the schema which tables of ScyllaDB exist; the platform queries each.
            standin.world.run(_KEYSPACES)
            standin.world.run("DROP TABLE scylla_distributed.cdc_streams_descriptions")
            standin.proxy.in_schema = True
            _fill(standin, rows)
            pairs = [
                (_ingest(bench, standin, rows), _read_by_go(standin, rows)) for _ in range(min(3, bench.sizes.repeats))
            ]
        readings[rows] = (
            [own_reading for own_reading, _ in pairs],
            [peer_reading for _, peer_reading in pairs if peer_reading is not None],
        )
    small, large = sizes
    own, peers = readings[large]
    seconds, pages = _median(own, "seconds"), _median(own, "pages")
    results = [
        Result(
            "backlog-growth",
            f"{large:,} log rows",
            seconds,
            f"{small:,} log rows, times {large // small}",
            _median(readings[small][0], "seconds") * (large // small),
            seconds / (_median(readings[small][0], "seconds") * (large // small)),
            1.2,
        ),
        Result(
            "backlog-pages", f"{large:,} log rows", seconds, "pages of the log", 0.0, pages / (large / _PAGE_ROWS), 1.05
        ),
        Result(
            "backlog-memory",
            f"{large:,} log rows",
            seconds,
            "GB",
            0.0,
            max(reading.memory for reading in own) / _GB,
            1.0,
        ),
    ]
    if peers:
        floor, peer = "scylla-cdc-go, dropping the rows", _median(peers, "seconds")
        details = {"ours": [vars(reading) for reading in own], "theirs": [vars(reading) for reading in peers]}
        server, peers_server = _median(own, "server_cpu"), _median(peers, "server_cpu")
        results += [
            Result(
                "backlog", f"{large:,} log rows into Delta", seconds, floor, peer, seconds / peer, 1.5, details=details
            ),
            Result("backlog-server", "CPU of the server", server, floor, peers_server, server / peers_server, 1.1),
        ]
    return results


def backlog_source(bench: Bench) -> list[Result]:
    """Read a backlog by a stream of the Spark source into Delta, from `start()` to its last commit, and by `ingest`."""
    rows = int(os.environ.get(_SOURCE_ROWS_VARIABLE, SIZES[0] if bench.sizes.repeats > 1 else _QUICK_SIZES[0]))
    with open_standin(bench) as standin:
        _fill(standin, rows)
        _stream(bench, standin, rows)  # compile what the JVM needs
        pairs = [
            (_stream(bench, standin, rows), _ingest(bench, standin, rows).seconds)
            for _ in range(min(3, bench.sizes.repeats))
        ]
    seconds, floor = (median(side) for side in zip(*pairs, strict=True))
    at, against = f"{rows:,} log rows by a stream of Spark", "`ingest`, as a whole process"
    return [Result("backlog-source", at, seconds, against, floor, seconds / floor, 2.0)]


def _stream(bench: Bench, standin: StandIn, rows: int) -> float:
    """Return the seconds of a query of the Spark source, on a warm session, that writes the log to a Delta table."""
    from cdc_platform.ingest.spark_source import ScyllaCdc

    home = Path(new_home(bench, standin))
    bench.spark.dataSource.register(ScyllaCdc)
    where = {"home": str(home), "cluster": asking.NAME, "table": f"{asking.KEYSPACE}.{asking.TABLE}"}
    stream = bench.spark.readStream.format("scylla_cdc").options(**where).load()
    query = stream.writeStream.format("delta").option("checkpointLocation", str(home / "checkpoint"))
    begun = time.perf_counter()
    query.trigger(availableNow=True).start(str(home / "sink")).awaitTermination()
    seconds = time.perf_counter() - begun
    stored = bench.spark.read.format("delta").load(str(home / "sink")).count()
    assert stored == rows, f"{stored} of {rows} rows"
    return seconds


def _median(readings: Sequence[Reading], field: str) -> float:
    return median(getattr(reading, field) for reading in readings)


def _fill(standin: StandIn, rows: int) -> None:
    """Write a log of `rows` rows, all of them older than the confidence window."""
    log, begun = new_log(standin, Milliseconds(Clock().now_ms() - _AGE_MS))
    times = [begun + SECOND_US + index * _SPREAD_US // rows for index in range(rows)]
    for first in range(0, rows, _WRITTEN_AT_ONCE):
        log.write(times[first : first + _WRITTEN_AT_ONCE])
        log.written.clear()


def _ingest(bench: Bench, standin: StandIn, rows: int) -> Reading:
    """Ingest the log into a new home by the command line; raise if rows are missing."""
    home = new_home(bench, standin)
    program = [sys.executable, "-m", "cdc_platform", "--home", home]
    reading, output = _run(standin, [*program, "ingest", asking.NAME, f"{asking.KEYSPACE}.{asking.TABLE}", "--json"])
    assert json.loads(output)["rows"] == rows, output
    return reading


def _read_by_go(standin: StandIn, rows: int) -> Reading | None:
    """Read the log by scylla-cdc-go; None if it is not built."""
    if not READER.exists():
        return None
    from support.standin.world import OBSERVER

    words = ["127.0.0.1", str(standin.proxy.port), *OBSERVER, f"{asking.KEYSPACE}.{asking.TABLE}", str(rows)]
    reading, output = _run(standin, [str(READER), *words])
    assert int(output.split()[0]) >= rows, output
    return reading


def _run(standin: StandIn, command: Sequence[str]) -> tuple[Reading, str]:
    """Run a process to its end; return what it took and its output."""
    standin.proxy.faults.pages_asked = 0
    server, begun = _cpu_seconds(standin.server.pid), time.perf_counter()
    with TemporaryFile("w+", encoding="utf-8") as messages:  # the Go client warns at each poll that takes longer
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=messages, text=True)
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        messages.seek(0)
        assert process.returncode == 0, f"{command[0]} ended with {process.returncode}: {output}{messages.read()}"
    return Reading(
        time.perf_counter() - begun,
        used.ru_utime + used.ru_stime,
        _cpu_seconds(standin.server.pid) - server,
        used.ru_maxrss * 1024,
        standin.proxy.faults.pages_asked,
    ), output


def _cpu_seconds(pid: int) -> float:
    """Return the CPU seconds that a process has used (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
