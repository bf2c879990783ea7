"""Spark tasks read the log of a live cluster for an ingest, and copy a table of it."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from support.connections import connections_below, own_connections
from support.standin.brought import with_secret_file
from support.standin.cluster import FIRST_MS, NODES, StandIn, description
from support.standin.kept_table import now, small_slices
from support.standin.live_log import LiveLog, defined, keys_of
from support.standin.live_table import LiveTable, by_key
from support.standin.world import OBSERVER, time_uuid

from cdc_platform.cdclog import log_table
from cdc_platform.clock import Clock, Microseconds, Milliseconds, us_from_ms
from cdc_platform.cql import TableSchema
from cdc_platform.delta import Lake, TaskRunner
from cdc_platform.errors import PlatformError
from cdc_platform.home_location import open_home_location
from cdc_platform.ingest import ReadPolicy, cluster_log, current_table, ingest_table, planner
from cdc_platform.ingest.planner import LEAST_RANGES
from cdc_platform.ingest.replica.tables import cells_table
from cdc_platform.scylla import ScyllaCluster, registry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.cassandra, pytest.mark.spark]

SWITCH_MS = FIRST_MS + Milliseconds(3_600_000)
FIRST_US, SWITCH_US = us_from_ms(FIRST_MS), us_from_ms(SWITCH_MS)
DDL = "CREATE TABLE shop.t (p int, k int, v int, PRIMARY KEY (p, k)) WITH cdc = {'enabled': 'true', 'ttl': '0'};"


@pytest.fixture
def cluster(standin: StandIn, tmp_path: Path) -> ScyllaCluster:
    """The stand-in, with its secret where Spark's workers find it."""
    return with_secret_file(standin, tmp_path)


@pytest.fixture
def log(standin: StandIn) -> LiveLog:
    """Rows on both sides of a switch."""
    generations = {time: description(time_uuid(time)) for time in (FIRST_MS, SWITCH_MS)}
    standin.world.generation(SWITCH_MS, time_uuid(SWITCH_MS), generations[SWITCH_MS])
    live = LiveLog(standin.world, defined(DDL), generations).make()
    live.write([FIRST_US + 1, SWITCH_US - 1, SWITCH_US, SWITCH_US + 1])
    return live


def _connections(standin: StandIn, spark: SparkSession) -> tuple[int, Counter[int]]:
    """Return the connections of this process, and of each worker of its Spark, without those of others."""
    port, gateway = standin.proxy.port, cast("Any", spark.sparkContext._gateway)
    return own_connections(port, NODES).total(), connections_below(gateway.proc.pid, port, NODES)


def test_tasks_read_and_one_commit_has_their_rows(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window has several tasks, and each worker one connection; each row arrives once, and a repetition adds none."""
    monkeypatch.setattr(cluster_log, "TASKS_HERE", 0)
    monkeypatch.setattr(planner, "LOOKS_A_TASK", 40)
    workers = TaskRunner(lambda: spark, in_process=0)
    before_connections, counted = _connections(standin, spark), list[tuple[int, Counter[int]]]()
    for page in range(1, 3 * LEAST_RANGES, 4):
        standin.proxy.faults.meanwhile[page] = lambda: counted.append(_connections(standin, spark))
    done = ingest_table(cluster, Clock(), "shop", "t", workers, way="ranges")
    assert done.rows == 4
    # This process has one per node and the driver's own; a worker has one and, while it connects, its driver's own.
    # Workers that did tasks of other tests before keep theirs.
    assert max(own for own, _ in counted) - before_connections[0] <= NODES + 1
    added = [workers - before_connections[1] for _, workers in counted]
    assert max(count for workers in added for count in workers.values()) <= 2
    assert set(added[-1].values()) == {1}
    lake = Lake(cluster.open_home().lake)
    table = log_table(log.schema, exact=True)
    assert keys_of(lake.read(table)) == log.written_keys()
    before = lake.version(table) or 0
    assert ingest_table(cluster, Clock(), "shop", "t", workers, way="ranges").rows == 0
    newest = lake.commits(table)[0].info
    assert newest is not None
    assert newest.numbers["ingest"] == 3
    # By then both generations are due for a second pass: one commit each, and one for the new window.
    assert lake.version(table) == before + 3


def test_tasks_of_an_altered_table_read_its_new_columns(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If tasks find another definition than planned, the ingest rereads it and reads the new columns."""
    monkeypatch.setattr(cluster_log, "TASKS_HERE", 0)
    workers = TaskRunner(lambda: spark, in_process=0)
    ingest_table(cluster, Clock(us_from_ms(SWITCH_MS)), "shop", "t", workers, way="ranges")
    standin.world.run("ALTER TABLE shop.t ADD w int")
    standin.world.run('ALTER TABLE shop.t_scylla_cdc_log ADD (w int, "cdc$deleted_w" boolean)')
    log.schema = defined(DDL.replace("v int,", "v int, w int,"))
    log.write([SWITCH_US + 5], w=[9])
    ingest_table(cluster, Clock(), "shop", "t", workers, way="ranges")
    rows = Lake(cluster.open_home().lake).read(log_table(log.schema, exact=True))
    assert keys_of(rows) == log.written_keys()
    assert sorted(rows["w"].drop_null().to_pylist()) == [9]


def test_tasks_copy_a_table_as_one_process_does(
    standin: StandIn, cluster: ScyllaCluster, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One task per part of the ring gives the cluster's rows."""
    # The state equals, partition by partition, that of a copy without Spark.
    small_slices(monkeypatch, rows=10, sample=20, most=4)
    # A change is read from the table, as the log has only keys.
    schema = defined(DDL.replace("v int,", "v int, m map<int, int>,").replace("'ttl'", "'delta': 'keys', 'ttl'"))
    table = LiveTable(standin.world, schema, {FIRST_MS: description(time_uuid(FIRST_MS))}, random.Random(3)).make()
    standin.proxy.collections = {"m"}
    for p in range(60):
        row = f"({p % 30}, {p}, {p}, {{{p}: {p}}})"
        standin.world.run(f"INSERT INTO shop.t (p, k, v, m) VALUES {row} USING TIMESTAMP {p + 1}")
    jobs = spark.sparkContext.statusTracker()
    before = len(jobs.getJobIdsForGroup())
    done = ingest_table(cluster, Clock(), "shop", "t", TaskRunner(lambda: spark, in_process=0), current=True).current
    assert done is not None
    assert (done.copied_now, done.rows, done.ranges) == (True, 60, 4)
    assert len(jobs.getJobIdsForGroup()) > before
    alone = registry.add_cluster(open_home_location(tmp_path / "alone"), "prod", cluster.connection)
    ingest_table(alone, Clock(), "shop", "t", TaskRunner.alone(), current=True)
    replicated, expected = (_replica_tables(owner, schema) for owner in (cluster, alone))
    assert by_key(schema, replicated[0]) == by_key(schema, expected[0]) == table.rows()
    assert {row["cdc$slice"] for row in replicated[0]} == {0, 1, 2, 3}
    # Synthetic times depend on when each copy began, so inexact rows are compared without theirs.
    assert sorted(map(_comparable, replicated[1])) == sorted(map(_comparable, expected[1]))
    row = {"cdc$operation": 1, "k": 7}
    now(table, "UPDATE shop.t USING SET m = m + {8: 8} WHERE p = 7 AND k = 7", {"p": 7}, row)
    policy = ReadPolicy(Microseconds(0))
    changed = ingest_table(
        cluster, Clock(), "shop", "t", TaskRunner(lambda: spark, in_process=0), policy=policy
    ).current
    assert changed is not None
    assert (changed.reread_rows, changed.written_ranges, changed.copied_now) == (1, 1, False)
    assert by_key(schema, _replica_tables(cluster, schema)[0]) == table.rows()
    assert standin.proxy.refused == []


def test_secret_missing_in_tasks_is_one_line_for_a_copy(
    standin: StandIn, table: LiveTable, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process ingests the log; the copy of the table by tasks fails and stores no row."""
    small_slices(monkeypatch, rows=10, sample=20, most=4)
    names = {"user_env": "CDC_TEST_OF_DRIVER", "password_env": "CDC_TEST_OF_DRIVER_TOO"}
    for name, value in zip(names.values(), OBSERVER, strict=True):
        monkeypatch.setenv(name, value)
    alone = registry.add_cluster(open_home_location(tmp_path / "home"), "prod", standin.connection(**names))
    for p in range(60):
        standin.world.run(f"INSERT INTO shop.t (p, k, v) VALUES ({p}, {p}, {p}) USING TIMESTAMP {p + 1}")
    with pytest.raises(PlatformError) as failed:
        ingest_table(alone, Clock(), "shop", "t", TaskRunner(lambda: spark, in_process=0), current=True)
    (line,) = str(failed.value).splitlines()
    assert "environment variable CDC_TEST_OF_DRIVER is not set" in line
    lake = Lake(alone.open_home().lake)
    assert lake.exists(log_table(table.schema))
    assert not lake.exists(current_table(table.schema))
    assert lake.read(cells_table(table.schema)).num_rows == 0


def _replica_tables(cluster: ScyllaCluster, schema: TableSchema) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    lake = Lake(cluster.open_home().lake)
    return lake.read(current_table(schema)).to_pylist(), lake.read(cells_table(schema)).to_pylist()


def _comparable(row: dict[str, Any]) -> str:
    return repr(sorted((row | {"timestamp": None if row["inexact"] else row["timestamp"]}).items()))
