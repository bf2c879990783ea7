"""The row about the sensor: a tick with many pending events, relative to the start of one embedded Spark session.

Both run in their own processes, like the daemon's code server and a run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

from bench.cluster import Size, nodes_of
from bench.measure import Result
from bench.session import Bench
from cdc_platform.delta import Lake
from cdc_platform.home_location import HomeLocation, open_home_location
from cdc_platform.metastore import inbox
from cdc_platform.metastore.ring import node_rows
from cdc_platform.tables import BOOTSTRAP_EVENTS

_TICK = """
import json, os, sys, time
import cdc_platform.definitions  # the whole code location, as the code server has it before the first tick
from dagster import DagsterInstance, build_sensor_context
from cdc_platform_assets.join.inbox import waiting_joins
from bench.measure import children
from cdc_platform_resources.home import HomeResource
took = []
with DagsterInstance.local_temp(sys.argv[2]) as instance:
    instance.get_runs(limit=1)  # makes the databases, which the daemon has long since
    instance.get_dynamic_partitions("generation")
    for _ in range(int(sys.argv[3])):
        home = HomeResource(path=sys.argv[1])
        with build_sensor_context(instance=instance, resources={"home": home}) as context:
            start = time.perf_counter()
            result = waiting_joins(context)
            took.append(time.perf_counter() - start)
        assert len(result.run_requests) == 1, result.skip_reason
        for request in result.dynamic_partitions_requests:
            instance.add_dynamic_partitions(request.partitions_def_name, list(request.partition_keys))
print(json.dumps({"seconds": took, "jvm": "java" in children(os.getpid()).values()}))
"""
_SESSION = """
import json, time
start = time.perf_counter()
from cdc_platform.spark.session import get_spark_session
get_spark_session()
print(json.dumps({"seconds": time.perf_counter() - start}))
"""


def sensor_tick(bench: Bench) -> list[Result]:
    """Measure the slowest of some ticks of a code server, including the first one, which initializes everything."""
    waiting, turns = bench.sizes.waiting, 1 + 2 * bench.sizes.repeats
    with bench.scratch() as folder:
        home = open_home_location(folder / "home")
        Lake(home.lake).merge(BOOTSTRAP_EVENTS, _events(waiting), update=False)
        took = ticks(home, folder / "dagster", turns)
    starts = session_starts(bench)
    slowest, start = max(took), median(starts)
    details = {"first_tick": took[0], "ticks": took, "session_starts": starts}
    at = f"{waiting:,} events waiting, no JVM; the slowest of {turns} ticks"
    floor = "starting one embedded session"
    return [Result("sensor-tick", at, slowest, floor, start, slowest / start, 0.1, details=details)]


def session_starts(bench: Bench) -> list[float]:
    """Return the seconds of some starts of an embedded session, each in a new process."""
    return [_run(_SESSION)["seconds"] for _ in range(max(2, bench.sizes.repeats // 2))]


def ticks(home: HomeLocation, folder: Path, turns: int) -> list[float]:
    """Return the seconds of the first ticks of a code server after its imports; `folder` is Dagster's, new."""
    folder.mkdir()
    tick = _run(_TICK, str(home.path), str(folder), str(turns))
    assert not tick["jvm"], "the sensor started a JVM"
    return tick["seconds"]


def _events(count: int) -> pa.Table:
    queued = datetime(2026, 1, 1, tzinfo=UTC)
    rows = node_rows(nodes_of(Size(count, 16, 8))).drop_columns(["status"]).to_pylist()
    for number, row in enumerate(rows):
        row |= {
            "event_id": str(uuid.UUID(int=number)),
            "kind": inbox.JOIN_EVENT,
            "generation_id": str(uuid.UUID(int=count + number)),
            "created_at": queued + timedelta(seconds=number),
        }
    return pa.Table.from_pylist(rows, schema=BOOTSTRAP_EVENTS.schema)


def _run(code: str, *arguments: str) -> dict[str, Any]:
    """Run Python code in a new process, from the project's root; its last line is JSON."""
    root = Path(__file__).resolve().parent.parent
    ran = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=root, capture_output=True, text=True, check=False
    )
    if ran.returncode:
        raise RuntimeError(f"a part of the benchmark failed: {ran.stderr.strip()[-2000:]}")
    return json.loads(ran.stdout.strip().splitlines()[-1])
