"""A replica of a live cluster's table is copied once, updated from its log, and equal to the cluster's table."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import replace
from typing import Any, Literal

import pytest
from support.command_line import run
from support.drawing import SEED
from support.figures import tell
from support.standin.cluster import FIRST_MS, StandIn, description, nodes
from support.standin.kept_table import AT_ONCE, DAY_US, bring, in_lake, keep_id, now, old, small_slices
from support.standin.live_table import HISTORIES, LiveTable, drawn
from support.standin.world import time_uuid

from cdc_platform import failpoints
from cdc_platform.cdclog import StateRowKind, log_table
from cdc_platform.clock import Clock, Microseconds, Milliseconds
from cdc_platform.cql import INT, Column
from cdc_platform.delta import Lake, TaskRunner
from cdc_platform.generations import StreamSet, uniform_tablet_ends
from cdc_platform.generations.tablets import generate_tablet_streams
from cdc_platform.ingest import ReadPolicy, ReplicationResult, current_table
from cdc_platform.ingest.replica import replica as keeping
from cdc_platform.ingest.replica.tables import cells_table
from cdc_platform.scylla import ScyllaCluster

pytestmark = pytest.mark.cassandra

SECOND_US = 1_000_000
TABLE_ID = uuid.UUID(int=7)


class Writing:
    """Writes at the clock's own times, each once and none before `read_us` (µs), up to which everything was read."""

    def __init__(self, table: LiveTable) -> None:
        self.table, self.at, self.read_us = table, 0, 0

    def some(self, count: int, *, ago_us: int = 0, **options: Any) -> None:
        """Write random rows with times of now or `ago_us` (µs) ago, in any order of their times."""
        for _ in range(count):
            self.at = max(self.at + 1, Clock().now_us())
            back = self.table.dice.randrange(SECOND_US) if self.table.dice.random() < 0.3 and not options else 0
            when = self.at - ago_us - back % max(1, self.at - self.read_us)
            if when not in self.table.times:
                self.table.write(when, **options)


def topology(standin: StandIn, table: LiveTable, number: int, *, tablets: bool) -> None:
    """Make a node join, or split or merge tablets, now."""
    at = Milliseconds(Clock().now_ms())
    if tablets:
        before = table.generations[max(table.generations)]
        assert isinstance(before, StreamSet)
        count = len(before.ids) // 2 if table.dice.random() < 0.5 else len(before.ids) * 2
        streams = generate_tablet_streams(TABLE_ID, at, uniform_tablet_ends(count))
        closed_and_opened = [[stream.tobytes() for stream in ids] for ids in (before.ids, streams)]
        standin.world.stream_set(
            "shop", "t", at, closed_and_opened[1], closed=closed_and_opened[0], opened=closed_and_opened[1]
        )
        table.generations = {**table.generations, at: StreamSet.of(at, streams)}
    else:
        generation = description(time_uuid(at), nodes(3 + number))
        standin.world.generation(at, time_uuid(at), generation)
        table.generations = {**table.generations, at: generation}
    time.sleep(0.002)


def replicate(cluster: ScyllaCluster, workers: TaskRunner, **options: Any) -> ReplicationResult:
    """Ingest in a new process and return its changes to the replica."""
    current = bring(cluster, workers, **options).current
    assert current is not None
    return current


@pytest.mark.parametrize("delta", ["full", "keys"])
@pytest.mark.parametrize("history", range(HISTORIES))
def test_replica_equals_the_table_of_the_cluster_in_random_histories(
    standin: StandIn,
    cluster: ScyllaCluster,
    workers: TaskRunner,
    history: int,
    delta: Literal["full", "keys"],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """A random table and history gives an equal replica whenever writes pause."""
    # The history has rows from before the log, joins or splits and merges of tablets, and TTLs.
    dice, tablets = random.Random(f"{SEED} {history}"), (int(SEED) + history) % 2 == 1
    small_slices(monkeypatch, rows=3, sample=2, most=5)
    monkeypatch.setattr(keeping, "ROWS_AT_ONCE", dice.choice((20, 10**6)))
    schema = drawn(dice, delta)
    first: Any = description(time_uuid(FIRST_MS))
    if tablets:
        streams = generate_tablet_streams(TABLE_ID, FIRST_MS, uniform_tablet_ends(8))
        first = StreamSet.of(FIRST_MS, streams)
        standin.world.stream_set("shop", "t", FIRST_MS, [stream.tobytes() for stream in streams])
    table = LiveTable(standin.world, schema, {FIRST_MS: first}, dice).make()
    standin.proxy.collections = {column.name for column in schema.columns if column.type.multicell}
    writing = Writing(table)
    writing.some(dice.randrange(15), ago_us=2 * DAY_US, log=False)
    writing.some(dice.randrange(15))
    for number in range(3):
        done = bring(cluster, workers, current=number == 0)
        writing.read_us = Clock().now_us()
        assert done.current is not None
        assert done.current.copied_now == (number == 0)
        rows, inexact = in_lake(cluster, table)
        assert rows == table.rows()
        assert (done.current.rows, done.current.inexact) == (len(rows), len(inexact))
        tell(request, "rows of kept tables of drawn histories that are marked as inexact", len(inexact), len(rows))
        topology(standin, table, number + 1, tablets=tablets)
        writing.some(dice.randrange(1, 20))
        writing.some(3, ttl=1000 if number < 2 else 1)
    time.sleep(2.1)
    bring(cluster, workers)
    assert in_lake(cluster, table)[0] == table.rows()
    assert standin.proxy.refused == []


def test_inexact_rows_are_marked_and_reread_when_they_may_be_wrong(
    cluster: ScyllaCluster, workers: TaskRunner, table: LiveTable
) -> None:
    """Only rows that may have lost all but a marker, and lists changed at keys that CQL did not report, are reread."""
    old(table, "INSERT INTO shop.t (p, k, v) VALUES (1, 1, 1) USING")
    old(table, "UPDATE shop.t USING SET v = 2 WHERE p = 1 AND k = 2")
    old(table, "INSERT INTO shop.t (p, k) VALUES (1, 3) USING")
    old(table, "INSERT INTO shop.t (p, k, v, l) VALUES (1, 4, 4, [1, 2, 3]) USING")
    old(table, "INSERT INTO shop.t (p, k, v, m) VALUES (1, 5, 5, {1: 1}) USING")
    first = bring(cluster, workers, current=True).current
    assert first is not None
    assert (first.rows, first.inexact, first.reread_rows) == (5, 3, 0)
    assert in_lake(cluster, table)[1] == {(1, 3), (1, 4), (1, 5)}
    deletion = {"cdc$operation": 1, "cdc$deleted_v": True}
    for k in (1, 2):
        now(table, f"DELETE v FROM shop.t USING WHERE p = 1 AND k = {k}", {"p": 1}, {"k": k, **deletion})
    # The log names this key; no query does.
    key = uuid.UUID("00000001-1dd2-11b2-8080-0000000000ff")
    deleted = {"cdc$operation": 1, "k": 4, "cdc$deleted_elements_l": {key}}
    now(table, "UPDATE shop.t USING SET l = l - [2] WHERE p = 1 AND k = 4", {"p": 1}, deleted)
    now(table, "UPDATE shop.t USING SET v = 6 WHERE p = 1 AND k = 5", {"p": 1}, {"cdc$operation": 1, "k": 5, "v": 6})
    second = bring(cluster, workers).current
    assert second is not None
    assert second.reread_rows == 3
    rows, inexact = in_lake(cluster, table)
    assert rows == table.rows()
    assert rows[1, 4]["l"] == [1, 3]
    assert inexact == {(1, 1), (1, 3), (1, 4), (1, 5)}
    now(table, "DELETE FROM shop.t USING WHERE p = 1", {"p": 1}, {"cdc$operation": 4})
    now(table, "INSERT INTO shop.t (p, k, m) VALUES (1, 5, {2: 2}) USING", {"p": 1},
        {"cdc$operation": 2, "k": 5, "m": {2: 2}, "cdc$deleted_m": True})  # fmt: skip
    third = bring(cluster, workers).current
    rows, inexact = in_lake(cluster, table)
    assert rows == table.rows()
    assert inexact == set()
    assert third is not None
    assert replicate(cluster, workers).reread_rows == 0


def test_unreported_ttl_expires_with_a_copied_one(
    cluster: ScyllaCluster, workers: TaskRunner, table: LiveTable
) -> None:
    """A marker and a map expire with a cell whose TTL was copied: the row is then reread and removed."""
    written = time.monotonic()
    table.world.run("INSERT INTO shop.t (p, k, v, m) VALUES (1, 1, 1, {1: 1}) USING TTL 6")
    table.world.run("INSERT INTO shop.t (p, k, v) VALUES (1, 2, 1) USING TTL 1000")
    first = bring(cluster, workers, current=True).current
    assert first is not None
    assert first.rows == 2
    time.sleep(max(0.0, written + 7.1 - time.monotonic()))
    last = bring(cluster, workers).current
    assert last is not None
    assert (last.rows, last.reread_rows) == (1, 1)
    assert in_lake(cluster, table)[0] == table.rows()


def test_change_rewrites_only_its_partition(
    standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner, table: LiveTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change to one of two hundred rows rewrites one partition, without a request to the base table."""
    small_slices(monkeypatch, rows=20, sample=50, most=8)
    for p in range(200):
        old(table, f"INSERT INTO shop.t (p, k, v) VALUES ({p}, 0, 0) USING")
    first = bring(cluster, workers, current=True).current
    assert first is not None
    assert first.ranges == 8
    now(table, "INSERT INTO shop.t (p, k, v) VALUES (1, 0, 9) USING", {"p": 1}, {"cdc$operation": 2, "k": 0, "v": 9})
    standin.proxy.statements.clear()
    second = bring(cluster, workers).current
    assert second is not None
    assert (second.log_rows, second.written_ranges, second.rows) == (1, 1, 200)
    assert not [text for _, text in standin.proxy.statements if text.endswith("FROM shop.t") or "FROM shop.t " in text]
    assert replicate(cluster, workers).written_ranges == 0
    assert in_lake(cluster, table)[0] == table.rows()


def test_tombstones_are_purged_when_no_older_write_can_follow(
    cluster: ScyllaCluster, workers: TaskRunner, table: LiveTable
) -> None:
    """A tombstone is purged only after the second pass, so that a late write older than the deletion stays deleted."""
    twice = ReadPolicy(Microseconds(0), Microseconds(1), Microseconds(1))

    def tombstones() -> int:
        rows = Lake(cluster.open_home().lake).read(cells_table(table.schema), ["kind"])
        return sum(kind == StateRowKind.PARTITION_TOMBSTONE for kind in rows["kind"].to_pylist())

    def insert(k: int) -> None:
        row = {"cdc$operation": 2, "k": k, "v": k}
        now(table, f"INSERT INTO shop.t (p, k, v) VALUES (1, {k}, {k}) USING", {"p": 1}, row)

    insert(1)
    now(table, "DELETE FROM shop.t USING WHERE p = 1", {"p": 1}, {"cdc$operation": 4})
    bring(cluster, workers, twice, current=True)
    insert(2)
    bring(cluster, workers, twice)
    assert tombstones() == 1
    late = Clock().now_us()
    time.sleep(0.01)
    now(table, "DELETE FROM shop.t USING WHERE p = 1", {"p": 1}, {"cdc$operation": 4})
    insert(3)
    bring(cluster, workers, AT_ONCE)
    table.world.run(f"INSERT INTO shop.t (p, k, v) VALUES (1, 4, 4) USING TIMESTAMP {late}")
    table.log({"p": 1}, late, [{"cdc$operation": 2, "k": 4, "v": 4}])
    result = bring(cluster, workers, twice)
    assert (result.late, tombstones()) == (1, 1)
    assert in_lake(cluster, table)[0] == table.rows() == {(1, 3): {"p": 1, "k": 3, "v": 3, "l": None, "m": None}}
    insert(5)
    bring(cluster, workers, twice)
    assert tombstones() == 0
    assert in_lake(cluster, table)[0] == table.rows()


def test_table_is_copied_again_if_its_log_is_not_enough(
    cluster: ScyllaCluster, workers: TaskRunner, table: LiveTable
) -> None:
    """A dropped column causes a copy; an added one does not."""
    # So does a request after a TRUNCATE, which no log records.
    old(table, "INSERT INTO shop.t (p, k, v) VALUES (1, 1, 1) USING")
    bring(cluster, workers, current=True)
    world = table.world
    world.run("ALTER TABLE shop.t ADD w int")
    world.run('ALTER TABLE shop.t_scylla_cdc_log ADD (w int, "cdc$deleted_w" boolean)')
    keep_id(world)
    added = Column("w", INT)
    table.schema = replace(table.schema, columns=(*table.schema.columns, added))
    row = {"cdc$operation": 1, "k": 1, "w": 7}
    now(table, "UPDATE shop.t USING SET w = 7 WHERE p = 1 AND k = 1", {"p": 1}, row)
    assert not replicate(cluster, workers).copied_now
    assert in_lake(cluster, table)[0] == table.rows()
    world.run("TRUNCATE shop.t")
    assert replicate(cluster, workers, recopy=True).rows == 0
    for name in ("shop.t", "shop.t_scylla_cdc_log"):
        world.run(f"ALTER TABLE {name} DROP m")
    world.run('ALTER TABLE shop.t_scylla_cdc_log DROP ("cdc$deleted_m", "cdc$deleted_elements_m")')
    keep_id(world)
    table.schema = replace(table.schema, columns=tuple(column for column in table.schema.columns if column.name != "m"))
    assert replicate(cluster, workers).copied_now
    assert "m" not in Lake(cluster.open_home().lake).stored_schema(current_table(table.schema)).names


@pytest.mark.grid("kills of a replicated table", 1)
@pytest.mark.parametrize("delta", ["full", "keys"])
@pytest.mark.parametrize("point", failpoints.CURRENT_TABLE_POINTS)
def test_killed_replication_is_completed_by_the_next_run(
    cluster: ScyllaCluster, workers: TaskRunner, table: LiveTable, point: str, delta: Literal["full", "keys"]
) -> None:
    """The kills are after the copy, between state and readers' table, and before the progress is recorded."""
    home = str(cluster.home.parent.parent)
    table.schema = replace(table.schema, cdc=replace(table.schema.cdc, delta=delta))
    table.world.cdc_options("shop", "t", ttl="0", delta=delta)
    old(table, "INSERT INTO shop.t (p, k, v, m) VALUES (1, 1, 1, {1: 1}) USING")
    if point != failpoints.AFTER_COPY:
        bring(cluster, workers, current=True)
    row = {"cdc$operation": 2, "k": 1, "v": 2}
    now(table, "INSERT INTO shop.t (p, k, v) VALUES (1, 1, 2) USING", {"p": 1}, row)
    command = [sys.executable, "-m", "cdc_platform", "--home", home, "ingest", "prod", "shop.t", "--confidence", "0"]
    environment = {**os.environ, failpoints.KILL_AT_VARIABLE: point}
    killed = subprocess.run([*command, "--current"], env=environment, capture_output=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = bring(cluster, workers, current=True).current
    rows, inexact = in_lake(cluster, table)
    assert rows == table.rows()
    assert done is not None
    assert (done.rows, done.inexact, done.copied_now) == (1, len(inexact), False)


def test_commands_report_the_state_of_the_replica(cluster: ScyllaCluster, table: LiveTable) -> None:
    """`ingest`, its JSON and `status` have the counts of rows and inexact rows; `history` has the commits."""
    old(table, "INSERT INTO shop.t (p, k) VALUES (1, 1) USING")
    home = cluster.home.parent.parent
    answer = run("--home", home, "ingest", "prod", "shop.t", "--current", "--confidence", "0")
    assert answer.exit_code == 0, answer.stderr
    assert "1 (100.0%)" in answer.stdout
    report = json.loads(run("--home", home, "ingest", "prod", "shop.t", "--json", "--confidence", "0").stdout)
    assert (report["current"]["rows"], report["current"]["inexact"], report["current"]["copied_now"]) == (1, 1, False)
    answer = run("--home", cluster.home, "status", "--json")
    assert answer.stdout, answer.stderr
    status = json.loads(answer.stdout)
    (replica,) = [entry["copy"] for entry in status["tables"] if entry["table"] == "shop.t"]
    assert (replica["rows"], replica["inexact_rows"]) == (1, 1)
    report = run("--home", cluster.home, "history", "--table", "shop.t", "--json").rows
    lake = Lake(cluster.open_home().lake)
    for name in (log_table(table.schema), current_table(table.schema)):
        versions = [row["version"] for row in report if row["table"] == name.full_name]
        assert versions == [commit.version for commit in reversed(lake.commits(name))]
    assert [row["partitions"] for row in report if row["table"] == "shop.t"][-1] == []
    assert {row["by"] for row in report} == {"command line ingest"}
    assert run("--home", cluster.home, "history", "--table", "shop.u").exit_code == 2
