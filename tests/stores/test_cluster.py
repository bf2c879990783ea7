"""A cluster whose workers share no folder with who drives it: what they are given, what they lack, and that one dies.

One Spark standalone for all of it: a master and two workers of one core each, a Connect server before them, the homes
on an S3 server. Run as a script, this file is a client that appends to a log.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from support.command_line import run
from support.nodes import node_text
from support.read_logs import home_with_log, schema
from support.standin.cluster import FIRST_MS, PASSWORD, USER, description
from support.standin.live_log import LiveLog, defined, keys_of
from support.standin.world import OBSERVER, time_uuid

from cdc_platform.clock import parse_time_us, us_of
from cdc_platform.cluster import known
from cdc_platform.cluster.glance import glance, remember
from cdc_platform.cluster.session import connected
from cdc_platform.home import STATE_VARIABLE, open_home
from cdc_platform.home import VARIABLE as HOME_VARIABLE
from cdc_platform.lake import worker_archive
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.session import LOG_VARIABLE, spark_session
from cdc_platform.lake.tables import (
    GENERATION_DESCRIPTIONS_V2,
    STREAMS_DESCRIPTIONS_V2,
    TOPOLOGY_DESCRIPTIONS,
)
from cdc_platform.lake.volume import IN_PROCESS_VARIABLE
from cdc_platform.log.columns import log_batch
from cdc_platform.log.log_table import log_table, writes_schema
from cdc_platform.log.volume import append_writes
from cdc_platform.timeline import StreamSources

if TYPE_CHECKING:
    from support.spark.standalone import Standalone, Worker
    from support.standin.cluster import StandIn
    from support.store.s3 import S3

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
CLOCK = "2026-01-01T00:00:00Z"
AT = "2026-01-31T14:00:00Z"
START_US = parse_time_us("2026-01-31T12:20:00Z")
LIVE = "CREATE TABLE shop.u (p int, k int, v int, PRIMARY KEY (p, k)) WITH cdc = {'enabled': 'true', 'ttl': '0'};"
_SECONDS = 120
A_DEATH = pytest.mark.grid("deaths of workers", 1)
_TESTS = Path(__file__).resolve().parents[1]
_DOCUMENT = _TESTS.parent / "docs" / "executors.md"


class Cluster:
    """The cluster with its Connect server, and what a client of it has in its environment."""

    def __init__(self, standalone: Standalone, environment: dict[str, str], secret: Path) -> None:
        self.standalone = standalone
        self.environment = environment
        self.secret = secret

    def start(self, *command: str | Path, at: Path | None = None) -> subprocess.Popen[str]:
        """A client, as a process of its own; all of its work is done by the workers."""
        return subprocess.Popen(
            [sys.executable, *map(str, command)],
            env={**os.environ, **self.environment, IN_PROCESS_VARIABLE: "0", "PYTHONPATH": str(_TESTS)},
            cwd=at,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ends(self, client: subprocess.Popen[str], code: int | None = 0) -> str:
        """What a client has printed as it ended with a code."""
        told, said = client.communicate(timeout=_SECONDS)
        assert code in (None, client.returncode), told + said
        return told

    def loses_a_worker(self, *command: str | Path, at: Path | None = None, code: int | None = 0) -> str:
        """What a client prints while a worker dies in the middle of a task of its; another takes that one's place."""
        before = {worker: worker.count(" Running task ") for worker in self.standalone.workers}
        client = self.start(*command, at=at)
        victim = self._working(before, client)
        victim.stand_still()
        assert victim.count(" Running task ") > victim.count(" Finished task ")
        self.standalone.replace(victim)
        return self.ends(client, code)

    def _working(self, before: dict[Worker, int], client: subprocess.Popen[str]) -> Worker:
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline and client.poll() is None:
            for worker, count in before.items():
                if worker.count(" Running task ") > count:
                    return worker
            time.sleep(0.02)
        raise AssertionError(client.communicate(timeout=5))


@pytest.fixture(scope="module")
def cluster(s3_process: S3, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers that see neither this project nor its environment nor the driver's folder."""
    from support.spark.standalone import Standalone

    from cdc_platform.lake.connect import ConnectServer

    driver = tmp_path_factory.mktemp("driver")
    secret = driver / "secret"
    secret.write_text("of the driver", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patched:
        for name, value in (s3_process.environment() | {STATE_VARIABLE: str(driver / "state")}).items():
            patched.setenv(name, value)
        login = dict(zip((USER, PASSWORD), OBSERVER, strict=True))
        standalone = Standalone(driver, [driver], s3_process.environment() | login)
        try:
            for name, value in (standalone.environment | {LOG_VARIABLE: str(driver / "connect.log")}).items():
                patched.setenv(name, value)
            with ConnectServer(heavy=False) as server:
                yield Cluster(standalone, server.environment, secret)
        finally:
            standalone.stop()


@pytest.fixture(scope="module")
def logged(cluster: Cluster, s3_process: S3, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A home in the store with two generations and a table whose log is empty."""
    address = f"{s3_process.bucket()}/logs"
    here = home_with_log(tmp_path_factory.mktemp("logs"))
    copied = run("home", "copy", here, address)
    assert copied.exit_code == 0, copied
    return address


def test_workers_see_nothing_of_the_driver(cluster: Cluster) -> None:
    """No file of its folder, this project or its environment: what they run is what they were given."""
    files = [cluster.secret, Path(worker_archive.__file__), Path(sys.executable)]
    assert all(path.stat().st_size for path in files)
    told = cluster.ends(cluster.start(__file__, "look", *files)).splitlines()
    assert len(told) == 2, told
    for line in told:
        worker = json.loads(line)
        assert worker["seen"] == []
        assert "/environment/bin/python" in worker["python"]
        assert ".zip/cdc_platform/" in worker["program"]


def test_the_documented_daemons_run(cluster: Cluster) -> None:
    """The commands that start master and workers are those that run here, but for addresses and sizes."""
    standalone = cluster.standalone
    for line, command in zip(
        documented("spark-class"), [standalone.master_command, standalone.workers[0].command], strict=True
    ):
        assert line[1] == command[1]
        assert [word for word in line if word.startswith("--")] == [word for word in command if word.startswith("--")]
        assert line[-1].startswith("spark://") == command[-1].startswith("spark://")
    exported = re.findall(r"^\$ export (.*)$", _DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert {word.split("=")[0] for line in exported for word in line.split()} == {
        *standalone.environment,
        HOME_VARIABLE,
    }
    assert documented("cdc-platform") == [["cdc-platform", *words] for words in (["up"], _JOIN, _DOCTOR, _CHECK)]


def test_doctor_looks_at_every_executor(cluster: Cluster, logged: str, s3_process: S3) -> None:
    """Both have all that is needed; nothing is written to the store by looking."""
    before = s3_process.counts()
    found = json.loads(cluster.ends(cluster.start("-m", "cdc_platform", "--home", logged, *_DOCTOR, "--json")))
    assert [each for each in found if not each["ok"]] == []
    assert [each["check"].split(" on ")[0] for each in found] == ["archive", "executors", *_LOOKED_AT, *_LOOKED_AT]
    assert found[1]["found"].startswith("2 of spark://")
    after = s3_process.counts()
    assert [verb for verb in ("PUT", "POST", "DELETE") if before.get(verb) != after.get(verb)] == []


# As they are documented.
_JOIN, _DOCTOR, _CHECK = ["bootstrap", "node.json", "--run"], ["doctor", "--cluster"], ["check", "--deep"]
_LOOKED_AT = ("Python", "packages", "program", "lake", "clock")


@A_DEATH
def test_a_worker_dies_in_a_join(cluster: Cluster, s3_process: S3, tmp_path: Path) -> None:
    """The generation has the rows, to the last bit of every stream, of one that was made in one process."""
    node = tmp_path / _JOIN[1]
    node.write_text(node_text(1, 16, 4), encoding="utf-8")
    twin, address = tmp_path / "twin", f"{s3_process.bucket()}/join"
    queued = run("--home", twin, "--clock", CLOCK, "bootstrap", node)
    assert queued.exit_code == 0, queued
    assert run("home", "copy", twin, address).exit_code == 0
    assert run("--home", twin, "--clock", CLOCK, "bootstrap", node, "--run").exit_code == 0
    cluster.loses_a_worker("-m", "cdc_platform", "--home", address, "--clock", CLOCK, *_JOIN, at=tmp_path)
    there, here = Lake(f"{address}/lake"), Lake(twin / "lake")
    for table in (TOPOLOGY_DESCRIPTIONS, GENERATION_DESCRIPTIONS_V2, STREAMS_DESCRIPTIONS_V2):
        assert rows(there.read(table)) == rows(here.read(table)) != []
    assert run("--home", address, *_CHECK).exit_code == 0


@A_DEATH
def test_a_worker_dies_in_an_audit(cluster: Cluster, logged: str) -> None:
    """It finds what one process finds."""
    told = cluster.loses_a_worker("-m", "cdc_platform", "--home", logged, "--clock", AT, *_CHECK, "--json", code=None)
    alone = run("--home", logged, "--clock", AT, *_CHECK, "--json")
    # What a check has found it keeps: the next one has more to look at, of tables as they are stored.
    here, there = (
        [each for each in found if each["page"] != "docs/tables.md"] for found in (json.loads(told), alone.json)
    )
    assert here == there != []


@A_DEATH
def test_a_worker_dies_in_an_append_to_a_log(cluster: Cluster, logged: str) -> None:
    """Each row is in the log once, by one commit."""
    lake = Lake(f"{logged}/lake")
    table = log_table(schema(lake))
    before = lake.version(table) or 0
    cluster.loses_a_worker(__file__, "append", logged)
    expected = log_batch(schema(lake), writes(lake), StreamSources(lake).generations.finder())
    assert rows(lake.read(table)) == rows(pa.Table.from_batches([expected]))
    assert lake.version(table) == before + 1


@A_DEATH
@pytest.mark.cassandra
def test_a_worker_dies_in_an_ingest(cluster: Cluster, standin: StandIn, s3_process: S3, tmp_path: Path) -> None:
    """While it asks a live cluster for rows of a log: each of them is in the lake once, by one commit a window."""
    address = f"{s3_process.bucket()}/live"
    generations = {FIRST_MS: description(time_uuid(FIRST_MS))}
    log = LiveLog(standin.world, defined(LIVE), generations).make()
    begun = us_of(FIRST_MS)
    log.write([begun + place for place in range(20)])
    known.add(open_home(tmp_path), "prod", standin.connection())
    ingest = ("ingest", "prod", "shop.u", "--json", "--by", "ranges")
    first = run("--home", tmp_path, "--clock", "2026-09-21T14:14:20Z", *ingest)
    assert first.exit_code == 0, first
    assert run("home", "copy", tmp_path / "clusters" / "prod", f"{address}/clusters/prod").exit_code == 0
    there = known.add(open_home(address), "prod", standin.connection(page_rows=2))
    with connected("prod", there.connection) as live:
        remember(there, glance(live))  # so that what the tasks do is to ask for rows
    log.write([begun + 60_000_000 + place for place in range(200)])
    lake = Lake(there.open_home().lake)
    before = lake.version(log_table(log.schema)) or 0
    standin.proxy.faults.slow_seconds = 0.1
    command = ("-m", "cdc_platform", "--home", address, "--clock", "2026-09-21T14:24:20Z", *ingest)
    told = json.loads(cluster.loses_a_worker(*command))
    assert (told["rows"], [window["chosen"]["by"] for window in told["windows"]]) == (200, ["ranges"])
    assert keys_of(lake.read(log_table(log.schema))) == log.written_keys()
    # One for the column of values that no native one holds, which tasks cannot know of before they write.
    assert lake.version(log_table(log.schema)) == before + 1 + 1
    assert standin.proxy.refused == []


def test_doctor_names_the_worker_that_lacks_something(cluster: Cluster, logged: str, s3_process: S3) -> None:
    """The one whose credentials ran out does not read the lake; the other one does."""
    worker = cluster.standalone.workers[0]
    cluster.standalone.replace(worker, AWS_ENDPOINT_URL=s3_process.environment("expired")["AWS_ENDPOINT_URL"])
    cluster.standalone.workers[0].await_executor()
    client = cluster.start("-m", "cdc_platform", "--home", logged, *_DOCTOR, "--json")
    told, said = client.communicate(timeout=_SECONDS)
    assert client.returncode == 1, said
    reached = [each for each in json.loads(told) if each["check"].startswith("lake")]
    assert sorted(each["ok"] for each in reached) == [False, True]
    (bad,) = [each for each in json.loads(told) if not each["ok"]]
    assert "credentials" in bad["mend"]
    assert "403" in bad["found"]


def documented(program: str) -> list[list[str]]:
    """The commands of a program that the document tells a reader to type, in order, by their words."""
    lines = re.findall(rf"^\$ ({program} .*)$", _DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [shlex.split(line) for line in lines]


def rows(table: pa.Table) -> list[str]:
    """The rows of a table, whatever their order."""
    return sorted(map(repr, table.to_pylist()))


def writes(lake: Lake) -> pa.RecordBatch:
    """Two hundred typed writes."""
    said = [
        {"timestamp": START_US + number * 600_000, "ttl": 0, "operation": 2, "p": number % 40, "k": number, "v": number}
        for number in range(200)
    ]
    return pa.RecordBatch.from_pylist(said, schema=writes_schema(schema(lake)))


def _append(address: str) -> None:
    """Two hundred rows, in two tasks of their own."""
    lake = Lake(f"{address}/lake")
    frame: Any = spark_session().createDataFrame(pa.Table.from_batches([writes(lake)]))
    append_writes(lake, schema(lake), frame.repartition(2), files=2, transaction=("writer", 1))


def _look(files: list[str]) -> None:
    """What each worker sees of some files."""
    import_file = "cdc_platform.lake.slices"

    def look(_row: int) -> str:
        import importlib
        import json
        import sys
        import time
        from pathlib import Path

        seen = []
        for name in files:
            try:
                Path(name).read_bytes()
                seen.append(name)
            except OSError:
                pass
        time.sleep(0.5)
        program = importlib.import_module(import_file).__file__
        return json.dumps(
            {"seen": seen, "python": sys.prefix + "/bin/python", "program": program, "at": str(Path.cwd())}
        )

    from pyspark.sql import functions as F

    session = spark_session()
    asked = F.udf(look, "string", useArrow=False)
    found = session.range(0, 2, 1, 2).select(asked("id").alias("told")).collect()
    print("\n".join(sorted({row["told"] for row in found})))


if __name__ == "__main__":
    if sys.argv[1] == "append":
        _append(sys.argv[2])
    else:
        _look(sys.argv[2:])
