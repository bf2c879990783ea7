"""`make demo-cluster`: nodes join a home in an S3 store; two workers without a shared folder make the generations.

Then the workers append the log rows of ten thousand writes, and rebuild the table from them.
The store and Spark standalone are real, on loopback: a master and two workers, each with its own working folder and
interpreter and without access to this project. The demo shows the platform's own commands.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet
from support.spark.standalone import Standalone
from support.store.s3 import S3

from cdc_platform.cli.output import write_facts
from cdc_platform.clock import HOUR_US, Microseconds, format_us, us_from_ms
from cdc_platform.delta import IN_PROCESS_VARIABLE, Lake
from cdc_platform.home_location import STATE_VARIABLE
from cdc_platform.spark import LOG_VARIABLE, ConnectServer, get_worker_archive
from cdc_platform.spark.worker_archive import get_program_file
from cdc_platform.storage import parse_path
from cdc_platform.timeline import Timeline

_ROWS = 10_000
_READINGS = """
CREATE KEYSPACE plant WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 1};
CREATE TABLE plant.readings (sensor int, number int, value int, PRIMARY KEY (sensor, number))
    WITH cdc = {'enabled': true};
"""


def main() -> int:
    """Start everything, check that the workers are usable, let the demo's nodes join, and report."""
    with tempfile.TemporaryDirectory(prefix="cdc-demo-cluster-") as folder:
        store = S3()
        try:
            os.environ.update(store.environment() | {STATE_VARIABLE: f"{folder}/state"})
            return _in(Path(folder), f"{store.bucket()}/demo", store)
        finally:
            store.stop()


def _in(folder: Path, address: str, store: S3) -> int:
    began = time.monotonic()
    archive = get_worker_archive()
    built = time.monotonic()
    standalone = Standalone(folder, [folder], [store.environment()] * 2)
    try:
        os.environ.update(standalone.environment | {LOG_VARIABLE: str(folder / "connect.log")})
        with ConnectServer(heavy=False) as server:
            os.environ.update(server.environment)
            started = time.monotonic()
            joined = _run(address, "demo")
            finished = time.monotonic()
            logged = _log_and_rebuild(folder, address)
            fit = _run(address, "doctor", "--cluster")
            tasks = {worker.folder.name: worker.count(" Finished task ") for worker in standalone.workers}
    finally:
        standalone.stop()
    verdict = _run(address, "check")
    counts = store.counts()
    write_facts(
        {
            "workers' archive": f"{archive}; found or made in {built - began:.0f} s",
            "program": f"{get_program_file().stat().st_size / 1e6:.1f} MB, with each session",
            "cluster and server": f"up in {started - built:.0f} s",
            "demo": f"{finished - started:.0f} s",
            "tasks": ", ".join(f"{count} by {name}" for name, count in tasks.items()),
            "requests": ", ".join(f"{count} {verb}" for verb, count in sorted(counts.items())),
        }.items()
    )
    return max(joined, logged, fit, verdict)


def _log_and_rebuild(folder: Path, address: str) -> int:
    """Append base writes twice and rebuild their table, compared with the expected one; the workers do all of it."""
    script = folder / "readings.cql"
    script.write_text(_READINGS, encoding="utf-8")
    begin = us_from_ms(Timeline.read(Lake(f"{address}/lake")).known[-1].time_ms)
    clock = format_us(Microseconds(begin + HOUR_US))
    keys = {"sensor": pa.array([row % 100 for row in range(_ROWS)], pa.int32())}
    keys |= {"number": pa.array([row // 100 for row in range(_ROWS)], pa.int32())}
    table = pa.table(keys | {"value": pa.array(range(_ROWS), pa.int32())})
    times = pa.array([begin + row for row in range(_ROWS)])
    bucket = address.rpartition("/")[0]
    for name, rows in (("writes", table.append_column("timestamp", times)), ("readings", table)):
        parquet.write_table(rows, folder / f"{name}.parquet")
        parse_path(f"{bucket}/{name}.parquet").receive(folder / f"{name}.parquet")
    log = ("log-writes", "plant.readings", f"{bucket}/writes.parquet", "--batch", "first")
    commands = (
        ("cql", "run", str(script), "--apply"),
        log,
        log,
        ("rebuild", "plant.readings", "--compare", f"{bucket}/readings.parquet"),
    )
    os.environ[IN_PROCESS_VARIABLE] = "0"  # one process would handle ten thousand rows otherwise
    try:
        return max(_run(address, "--clock", clock, *words) for words in commands)
    finally:
        del os.environ[IN_PROCESS_VARIABLE]


def _run(address: str, *words: str) -> int:
    print(f"$ cdc-platform --home {address} {' '.join(words)}", flush=True)
    return subprocess.run([sys.executable, "-m", "cdc_platform", "--home", address, *words], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
