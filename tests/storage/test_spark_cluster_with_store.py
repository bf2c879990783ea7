"""A cluster whose workers share no folder with who drives it: what they are given, what they lack, and that one dies.

One Spark standalone for all of it: a master and two workers of one core each, a Connect server before them, the homes
on an S3 server.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyarrow import parquet
from support.command_line import run
from support.spark.twins import CLIENT, NODE, Twins, assert_appended, log_in_a_store
from support.standin.cluster import FIRST_MS, description
from support.standin.live_log import LiveLog, defined, keys_of
from support.standin.world import time_uuid

from cdc_platform.cdclog import log_table
from cdc_platform.checks import LOG_INVARIANTS
from cdc_platform.clock import parse_time_us, us_from_ms
from cdc_platform.delta import Lake
from cdc_platform.home_location import HOME_VARIABLE, open_home_location
from cdc_platform.scylla import open_session, registry
from cdc_platform.scylla.metadata_fingerprint import store_fingerprint, take_metadata_snapshot
from cdc_platform.spark import worker_archive
from cdc_platform.storage import parse_path

if TYPE_CHECKING:
    from support.spark.driven import Cluster
    from support.standin.cluster import StandIn
    from support.store.s3 import S3

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
AT = "2026-01-31T14:00:00Z"
LIVE = "CREATE TABLE shop.u (p int, k int, v int, PRIMARY KEY (p, k)) WITH cdc = {'enabled': 'true', 'ttl': '0'};"
A_DEATH = pytest.mark.grid("failures of a Spark cluster", 1)
_DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "executors.md"


def test_workers_see_nothing_of_the_driver(cluster: Cluster) -> None:
    """No file of its folder, this project or its environment: what they run is what they were given."""
    files = [cluster.secret, Path(worker_archive.__file__), Path(sys.executable)]
    assert all(path.stat().st_size for path in files)
    told = cluster.ends(cluster.start(CLIENT, "look", *files)).splitlines()
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
    exported = re.findall(r"^ *\$ export (.*)$", _DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert {word.split("=")[0] for line in exported for word in line.split()} == {
        *standalone.environment,
        HOME_VARIABLE,
    }
    assert documented("cdc-platform") == [["cdc-platform", *words] for words in (["up"], _DOCTOR, _JOIN, _CHECK)]


def test_doctor_looks_at_every_executor(cluster: Cluster, logged: str, s3_process: S3) -> None:
    """Both have all that is needed; nothing is written to the store by looking."""
    s3_process.writes(logged)
    ended = cluster.ends(cluster.start("-m", "cdc_platform", "--home", logged, *_DOCTOR, "--json"))
    written = s3_process.writes(logged)
    found = json.loads(ended)["checks"]
    assert [each for each in found if not each["ok"]] == []
    assert [each["check"].split(" on ")[0] for each in found] == ["archive", "executors", *_LOOKED_AT, *_LOOKED_AT]
    assert found[1]["message"].startswith("2 of spark://")
    assert written == []


# As they are documented.
_JOIN, _DOCTOR, _CHECK = ["bootstrap", NODE, "--run"], ["doctor", "--cluster"], ["check", "--deep"]
_LOOKED_AT = ("Python", "packages", "program", "lake", "clock")


@A_DEATH
def test_a_worker_dies_in_a_join(cluster: Cluster, s3_process: S3, tmp_path: Path) -> None:
    """The generation has the rows, to the last bit of every stream, of one that was made in one process."""
    twins = Twins(f"{s3_process.bucket()}/join", tmp_path)
    cluster.loses_a_worker(*twins.join, at=tmp_path)
    twins.assert_same()


@A_DEATH
def test_a_worker_dies_in_an_audit(cluster: Cluster, logged: str) -> None:
    """It finds what one process finds."""
    told = cluster.loses_a_worker("-m", "cdc_platform", "--home", logged, "--clock", AT, *_CHECK, "--json", code=None)
    alone = run("--home", logged, "--clock", AT, *_CHECK, "--json")
    # What a check has found it keeps: the next one has more to look at, of tables as they are stored.
    here, there = (
        [each for each in found if each["page"] != "docs/tables.md"]
        for found in (json.loads(told)["results"], alone.rows)
    )
    assert here == there != []


@A_DEATH
def test_a_worker_dies_in_an_append_to_a_log(cluster: Cluster, logged: str) -> None:
    """Each row is in the log once, by one commit."""
    cluster.loses_a_worker(CLIENT, "append", logged, "2")
    assert_appended(logged)


def test_writes_are_logged_and_their_table_is_rebuilt(cluster: Cluster, s3_process: S3, tmp_path: Path) -> None:
    """By workers, from tables in the store: each write once, in its stream; the rebuilt table is the given one."""
    address = log_in_a_store(f"{s3_process.bucket()}/writes", tmp_path)
    bucket = address.rpartition("/")[0]
    keys = {name: pa.array(range(500), pa.int32()) for name in ("p", "k", "v")}
    times = {"timestamp": [parse_time_us("2026-01-31T13:00:00Z") + place * 10_000_000 for place in range(500)]}
    for name, columns in (("writes", times | keys), ("table", keys)):
        parquet.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
        parse_path(f"{bucket}/{name}.parquet").receive(tmp_path / f"{name}.parquet")
    command = ("-m", "cdc_platform", "--home", address, "--clock", "2026-01-31T15:00:00Z")
    tasks = sum(worker.count(" Finished task ") for worker in cluster.standalone.workers)
    for appended in (True, False):
        client = cluster.start(*command, "log-writes", "ks.t", f"{bucket}/writes.parquet", "--batch", "one", "--json")
        (batch,) = json.loads(cluster.ends(client))["batches"]
        assert (batch["appended"], batch["writes"], batch["log_rows"]) == (appended, 500, 500 * appended)
    rebuild = ("rebuild", "ks.t", "--compare", f"{bucket}/table.parquet", "--json")
    compared = json.loads(cluster.ends(cluster.start(*command, *rebuild)))["comparison"]
    assert (compared["equal"], compared["rebuilt_rows"], compared["given_rows"]) == (True, 500, 500)
    assert sum(worker.count(" Finished task ") for worker in cluster.standalone.workers) > tasks
    earlier = cluster.start(*command, *rebuild, "--as-of", "2026-01-31T13:00:01Z")
    assert json.loads(cluster.ends(earlier, 1))["comparison"]["only_given"] == 499
    checked = run("--home", address, "--clock", "2026-01-31T15:00:00Z", "check", "--json")
    assert {line["invariant"] for line in checked.rows if line["passed"]} >= {*LOG_INVARIANTS}


@A_DEATH
@pytest.mark.cassandra
def test_a_worker_dies_in_an_ingest(cluster: Cluster, standin: StandIn, s3_process: S3, tmp_path: Path) -> None:
    """While it asks a live cluster for rows of a log: each of them is in the lake once, by one commit a window."""
    address = f"{s3_process.bucket()}/live"
    generations = {FIRST_MS: description(time_uuid(FIRST_MS))}
    log = LiveLog(standin.world, defined(LIVE), generations).make()
    begun = us_from_ms(FIRST_MS)
    log.write([begun + place for place in range(20)])
    registry.add_cluster(open_home_location(tmp_path), "prod", standin.connection())
    ingest = ("ingest", "prod", "shop.u", "--json", "--by", "ranges")
    first = run("--home", tmp_path, "--clock", "2026-09-21T14:14:20Z", *ingest)
    assert first.exit_code == 0, first
    assert run("home", "copy", tmp_path / "clusters" / "prod", f"{address}/clusters/prod").exit_code == 0
    there = registry.add_cluster(open_home_location(address), "prod", standin.connection(page_rows=2))
    with open_session("prod", there.connection) as live:
        store_fingerprint(there, take_metadata_snapshot(live))  # so that what the tasks do is to ask for rows
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


def test_doctor_names_the_worker_that_cannot_read_the_lake(cluster: Cluster, logged: str, s3_process: S3) -> None:
    """The one whose credentials ran out does not read the lake; the other one does."""
    cluster.gives({}, {})
    cluster.finds("expired", "plain")
    client = cluster.start("-m", "cdc_platform", "--home", logged, *_DOCTOR, "--json")
    told = cluster.ends(client, 1)
    reached = [each for each in json.loads(told)["checks"] if each["check"].startswith("lake")]
    assert sorted(each["ok"] for each in reached) == [False, True]
    (bad,) = [each for each in json.loads(told)["checks"] if not each["ok"]]
    assert "credentials" in bad["remedy"]
    assert "403" in bad["message"]


def documented(program: str) -> list[list[str]]:
    """The commands of a program that the document tells a reader to type, in order, by their words."""
    lines = re.findall(rf"^ *\$ ({program} .*)$", _DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [shlex.split(line) for line in lines]


@pytest.mark.parametrize("unshare", [None, "#!/bin/sh\nexit 1\n"], ids=["none", "one that may not"])
def test_a_machine_without_namespaces_gets_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, unshare: str | None
) -> None:
    """Nothing is started where there is no unshare(1) that works, rather than workers that see the driver's files."""
    from support.spark.standalone import ways_apart

    if unshare is not None:
        (tmp_path / "unshare").write_text(unshare, encoding="utf-8")
        (tmp_path / "unshare").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    ways_apart.cache_clear()
    with pytest.raises(RuntimeError, match=r"^workers cannot be kept apart: [^\n]*allow it [^\n]*$"):
        ways_apart()
    ways_apart.cache_clear()
