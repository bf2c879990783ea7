"""A Spark cluster whose workers share no folder with the driver: their files, missing parts, and lost workers.

All tests use one standalone cluster, with a master, two workers of one core each and a Connect server. The homes are on
an S3 server.
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
LIVE_DDL = "CREATE TABLE shop.u (p int, k int, v int, PRIMARY KEY (p, k)) WITH cdc = {'enabled': 'true', 'ttl': '0'};"
LOST_WORKER = pytest.mark.grid("failures of a Spark cluster", 1)
_DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "executors.md"


def test_workers_see_nothing_of_the_driver(cluster: Cluster) -> None:
    """Workers see no file of its folder, this project or its environment; they run what was sent to them."""
    files = [cluster.secret, Path(worker_archive.__file__), Path(sys.executable)]
    assert all(path.stat().st_size for path in files)
    lines = cluster.ends(cluster.start(CLIENT, "look", *files)).splitlines()
    assert len(lines) == 2, lines
    for line in lines:
        worker = json.loads(line)
        assert worker["seen"] == []
        assert "/environment/bin/python" in worker["python"]
        assert ".zip/cdc_platform/" in worker["program"]


def test_the_documented_daemons_run(cluster: Cluster) -> None:
    """The documented commands for master and workers are those used here, except for addresses and sizes."""
    standalone = cluster.standalone
    for line, command in zip(
        documented_commands("spark-class"), [standalone.master_command, standalone.workers[0].command], strict=True
    ):
        assert line[1] == command[1]
        assert [word for word in line if word.startswith("--")] == [word for word in command if word.startswith("--")]
        assert line[-1].startswith("spark://") == command[-1].startswith("spark://")
    exported = re.findall(r"^ *\$ export (.*)$", _DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert {word.split("=")[0] for line in exported for word in line.split()} == {
        *standalone.environment,
        HOME_VARIABLE,
    }
    assert documented_commands("cdc-platform") == [
        ["cdc-platform", *words] for words in (["up"], _DOCTOR, _JOIN, _CHECK)
    ]


def test_doctor_checks_every_executor(cluster: Cluster, logged: str, s3_process: S3) -> None:
    """Both have everything they need, and the checks write nothing to the store."""
    s3_process.writes(logged)
    output = cluster.ends(cluster.start("-m", "cdc_platform", "--home", logged, *_DOCTOR, "--json"))
    written = s3_process.writes(logged)
    checks = json.loads(output)["checks"]
    assert [check for check in checks if not check["ok"]] == []
    assert [check["check"].split(" on ")[0] for check in checks] == ["archive", "executors", *_CHECKED, *_CHECKED]
    assert checks[1]["message"].startswith("2 of spark://")
    assert written == []


# As documented.
_JOIN, _DOCTOR, _CHECK = ["bootstrap", NODE, "--run"], ["doctor", "--cluster"], ["check", "--deep"]
_CHECKED = ("Python", "packages", "program", "lake", "clock")


@LOST_WORKER
def test_worker_lost_during_a_join(cluster: Cluster, s3_process: S3, tmp_path: Path) -> None:
    """The generation equals, to the last bit of every stream, one that one process created."""
    twins = Twins(f"{s3_process.bucket()}/join", tmp_path)
    cluster.loses_a_worker(*twins.join, at=tmp_path)
    twins.assert_same()


@LOST_WORKER
def test_worker_lost_during_an_audit(cluster: Cluster, logged: str) -> None:
    """The audit's results equal those of one process."""
    output = cluster.loses_a_worker("-m", "cdc_platform", "--home", logged, "--clock", AT, *_CHECK, "--json", code=None)
    alone = run("--home", logged, "--clock", AT, *_CHECK, "--json")
    # A check stores its results, so the next one has more stored tables to check.
    on_cluster, in_process = (
        [result for result in results if result["page"] != "docs/tables.md"]
        for results in (json.loads(output)["results"], alone.rows)
    )
    assert on_cluster == in_process != []


@LOST_WORKER
def test_worker_lost_during_an_append_to_a_log(cluster: Cluster, logged: str) -> None:
    """One commit adds each row to the log once."""
    cluster.loses_a_worker(CLIENT, "append", logged, "2")
    assert_appended(logged)


def test_writes_are_logged_and_their_table_is_rebuilt(cluster: Cluster, s3_process: S3, tmp_path: Path) -> None:
    """Workers read tables in the store: each write is logged once in its stream, and the rebuilt table is equal."""
    address = log_in_a_store(f"{s3_process.bucket()}/writes", tmp_path)
    bucket = address.rpartition("/")[0]
    keys = {name: pa.array(range(500), pa.int32()) for name in ("p", "k", "v")}
    times = {"timestamp": [parse_time_us("2026-01-31T13:00:00Z") + index * 10_000_000 for index in range(500)]}
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
    comparison = json.loads(cluster.ends(cluster.start(*command, *rebuild)))["comparison"]
    assert (comparison["equal"], comparison["rebuilt_rows"], comparison["given_rows"]) == (True, 500, 500)
    assert sum(worker.count(" Finished task ") for worker in cluster.standalone.workers) > tasks
    earlier = cluster.start(*command, *rebuild, "--as-of", "2026-01-31T13:00:01Z")
    assert json.loads(cluster.ends(earlier, 1))["comparison"]["only_given"] == 499
    check = run("--home", address, "--clock", "2026-01-31T15:00:00Z", "check", "--json")
    assert {line["invariant"] for line in check.rows if line["passed"]} >= {*LOG_INVARIANTS}


@LOST_WORKER
@pytest.mark.cassandra
def test_worker_lost_during_an_ingest(cluster: Cluster, standin: StandIn, s3_process: S3, tmp_path: Path) -> None:
    """The worker requests rows of a live log: each is in the lake once, by one commit per window."""
    address = f"{s3_process.bucket()}/live"
    generations = {FIRST_MS: description(time_uuid(FIRST_MS))}
    log = LiveLog(standin.world, defined(LIVE_DDL), generations).make()
    start_us = us_from_ms(FIRST_MS)
    log.write([start_us + offset for offset in range(20)])
    registry.add_cluster(open_home_location(tmp_path), "prod", standin.connection())
    ingest = ("ingest", "prod", "shop.u", "--json", "--by", "ranges")
    first = run("--home", tmp_path, "--clock", "2026-09-21T14:14:20Z", *ingest)
    assert first.exit_code == 0, first
    assert run("home", "copy", tmp_path / "clusters" / "prod", f"{address}/clusters/prod").exit_code == 0
    in_store = registry.add_cluster(open_home_location(address), "prod", standin.connection(page_rows=2))
    with open_session("prod", in_store.connection) as live:
        store_fingerprint(in_store, take_metadata_snapshot(live))  # so the tasks only request rows
    log.write([start_us + 60_000_000 + offset for offset in range(200)])
    lake = Lake(in_store.open_home().lake)
    before = lake.version(log_table(log.schema)) or 0
    standin.proxy.faults.slow_seconds = 0.1
    command = ("-m", "cdc_platform", "--home", address, "--clock", "2026-09-21T14:24:20Z", *ingest)
    result = json.loads(cluster.loses_a_worker(*command))
    assert (result["rows"], [window["chosen"]["by"] for window in result["windows"]]) == (200, ["ranges"])
    assert keys_of(lake.read(log_table(log.schema))) == log.written_keys()
    # One more commit adds the column of out-of-range values, which tasks only know of once they write.
    assert lake.version(log_table(log.schema)) == before + 1 + 1
    assert standin.proxy.refused == []


def test_doctor_names_a_worker_without_access_to_the_lake(cluster: Cluster, logged: str, s3_process: S3) -> None:
    """The worker with expired credentials fails to read the lake; the other one reads it."""
    cluster.gives({}, {})
    cluster.finds("expired", "plain")
    client = cluster.start("-m", "cdc_platform", "--home", logged, *_DOCTOR, "--json")
    output = cluster.ends(client, 1)
    lake_checks = [check for check in json.loads(output)["checks"] if check["check"].startswith("lake")]
    assert sorted(check["ok"] for check in lake_checks) == [False, True]
    (bad,) = [check for check in json.loads(output)["checks"] if not check["ok"]]
    assert "credentials" in bad["remedy"]
    assert "403" in bad["message"]


def documented_commands(program: str) -> list[list[str]]:
    """Return the commands of a program in the document, in order, split into words."""
    lines = re.findall(rf"^ *\$ ({program} .*)$", _DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [shlex.split(line) for line in lines]


@pytest.mark.parametrize("unshare", [None, "#!/bin/sh\nexit 1\n"], ids=["none", "one that may not"])
def test_machine_without_namespaces_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, unshare: str | None
) -> None:
    """Without a working unshare(1) nothing is started, as workers would see the driver's files."""
    from support.spark.standalone import ways_apart

    if unshare is not None:
        (tmp_path / "unshare").write_text(unshare, encoding="utf-8")
        (tmp_path / "unshare").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    ways_apart.cache_clear()
    with pytest.raises(RuntimeError, match=r"^workers cannot be kept apart: [^\n]*allow it [^\n]*$"):
        ways_apart()
    ways_apart.cache_clear()
