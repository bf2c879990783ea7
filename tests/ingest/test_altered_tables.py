"""A replica equals the cluster's table after every schema change there, or one line states why it is not updated."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support.command_line import run
from support.standin.cluster import FIRST_MS, StandIn, description
from support.standin.kept_table import bring, in_lake, keep_id, now, old
from support.standin.live_log import defined
from support.standin.live_table import LiveTable
from support.standin.world import time_uuid

from cdc_platform.cdclog import gaps
from cdc_platform.clock import Clock, Milliseconds, format_us, us_from_ms
from cdc_platform.delta import Lake, TaskRunner
from cdc_platform.ingest import IngestResult
from cdc_platform.scylla import ScyllaCluster

pytestmark = pytest.mark.cassandra

INSERT = "INSERT INTO shop.t (p, k, v) VALUES ({p}, {k}, {v}) USING"


def insert(table: LiveTable, k: int, v: int) -> None:
    """Write a row and log it."""
    row = {"cdc$operation": 2, table.schema.clustering_key[0].name: k, "v": v}
    now(table, f"INSERT INTO shop.t (p, {table.schema.clustering_key[0].name}, v) VALUES (1, {k}, {v}) USING",
        {"p": 1}, row)  # fmt: skip


def options(table: LiveTable, **cdc_options: str) -> None:
    """Set the CDC options of the table."""
    table.world.cdc_options("shop", "t", ttl="0", **cdc_options)
    table.world.schema_changed()


def assert_replicated(cluster: ScyllaCluster, table: LiveTable, done: IngestResult, *, copied: bool) -> None:
    """Assert that the lake has the rows that `SELECT *` returns, and whether the run copied the table."""
    assert in_lake(cluster, table)[0] == table.rows()
    assert done.current is not None
    assert (done.current.rows, done.current.copied_now) == (len(table.rows()), copied)


def test_renamed_key(cluster: ScyllaCluster, workers: TaskRunner, table: LiveTable) -> None:
    """Copied, merged and later rows all have the key under its new name."""
    old(table, "INSERT INTO shop.t (p, k, v) VALUES (1, 1, 1) USING")
    insert(table, 2, 2)
    bring(cluster, workers, current=True)
    table.world.run("ALTER TABLE shop.t RENAME k TO place")
    # The stand-in's log is an ordinary table, whose regular columns have fixed names.
    table.world.run("ALTER TABLE shop.t_scylla_cdc_log DROP k")
    table.world.run("ALTER TABLE shop.t_scylla_cdc_log ADD place int")
    keep_id(table.world)
    columns = (replace(column, name="place") if column.name == "k" else column for column in table.schema.columns)
    table.schema = replace(table.schema, columns=tuple(columns))
    insert(table, 3, 3)
    assert_replicated(cluster, table, bring(cluster, workers), copied=True)
    insert(table, 2, 5)
    assert_replicated(cluster, table, bring(cluster, workers), copied=False)


def test_recreated_table(cluster: ScyllaCluster, workers: TaskRunner, table: LiveTable) -> None:
    """After a table is recreated, the replica has no row of the old table, neither copied nor from its log."""
    old(table, "INSERT INTO shop.t (p, k, v) VALUES (1, 1, 1) USING")
    insert(table, 2, 2)
    bring(cluster, workers, current=True)
    for name in ("shop.t", "shop.t_scylla_cdc_log"):
        table.world.run(f"DROP TABLE {name}")
    table.world.logged_table(table.schema, Milliseconds(Clock().now_ms()))
    time.sleep(0.002)
    insert(table, 3, 3)
    assert_replicated(cluster, table, bring(cluster, workers), copied=True)
    insert(table, 4, 4)
    assert_replicated(cluster, table, bring(cluster, workers), copied=False)


@pytest.mark.parametrize("kind", ["frozen<grown_whole>", "grown_apart"])
def test_type_with_an_added_field(standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner, kind: str) -> None:
    """The replica has values from before and after a field was added to their type, from the copy and the log."""
    name, multicell = kind.removeprefix("frozen<").rstrip(">"), "<" not in kind
    create_type = f"CREATE TYPE shop.{name} (a int, b text);"
    columns = f"p int, k int, v int, u {kind}, PRIMARY KEY (p, k)"
    ddl = f"CREATE TABLE shop.t ({columns}) WITH cdc = {{'enabled': 'true', 'ttl': '0'}};"
    standin.proxy.collections = {"u"} if multicell else set()
    standin.world.run(create_type.rstrip(";").replace("TYPE", "TYPE IF NOT EXISTS"))
    first = {FIRST_MS: description(time_uuid(FIRST_MS))}
    table = LiveTable(standin.world, defined(create_type + ddl), first, random.Random(7)).make()
    deleted_value: dict[str, Any] = {"cdc$deleted_u": True} if multicell else {}

    def write(k: int, text: str, *value: Any) -> None:
        row = {"cdc$operation": 2, "k": k, "u": value, **deleted_value}
        now(table, f"INSERT INTO shop.t (p, k, u) VALUES (1, {k}, {text}) USING", {"p": 1}, row)

    old(table, "INSERT INTO shop.t (p, k, u) VALUES (1, 1, {a: 1, b: 'x'}) USING")
    write(2, "{a: 2, b: 'y'}", 2, "y")
    write(3, "{a: 3, b: 'z'}", 3, "z")
    bring(cluster, workers, current=True)
    standin.world.run(f"ALTER TYPE shop.{name} ADD c int")
    keep_id(standin.world)
    table.schema = defined(create_type.replace(")", ", c int)") + ddl)
    write(3, "{a: 4, b: 'z', c: 5}", 4, "z", 5)
    done = bring(cluster, workers)
    assert done.current is not None
    assert_replicated(cluster, table, done, copied=done.current.copied_now)
    write(2, "{a: 6, c: 7}", 6, None, 7)
    assert_replicated(cluster, table, bring(cluster, workers), copied=False)


def test_replica_stays_unchanged_while_cdc_is_off(
    cluster: ScyllaCluster, workers: TaskRunner, table: LiveTable
) -> None:
    """Each run reports the reason and the replica's time."""
    # Once CDC is on again, the next run copies the table.
    old(table, "INSERT INTO shop.t (p, k, v) VALUES (1, 1, 1) USING")
    before = bring(cluster, workers, current=True).current
    assert before is not None
    options(table, enabled="false")
    for value in (2, 3):
        old(table, f"INSERT INTO shop.t (p, k, v) VALUES (1, 2, {value}) USING")
        messages: list[str] = []
        done = bring(cluster, workers, on_message=messages.append)
        assert done.current is None
        (line,) = [line for line in messages if "its CDC is disabled" in line]
        assert format_us(before.as_of_us) in line
    options(table)
    insert(table, 3, 3)
    assert_replicated(cluster, table, bring(cluster, workers), copied=True)
    insert(table, 4, 4)
    assert_replicated(cluster, table, bring(cluster, workers), copied=False)


def test_a_log_that_loses_its_values_and_gets_them_back(
    cluster: ScyllaCluster, workers: TaskRunner, table: LiveTable
) -> None:
    """Each change of `delta` costs a copy, since no row marks the time of the change; between them none does."""
    insert(table, 1, 1)
    assert_replicated(cluster, table, bring(cluster, workers, current=True), copied=True)
    for delta in ("keys", "full"):
        options(table, delta=delta)
        table.schema = replace(table.schema, cdc=replace(table.schema.cdc, delta=delta))
        insert(table, 1, 2)
        assert_replicated(cluster, table, bring(cluster, workers), copied=True)
        insert(table, 2, 2)
        now(table, "DELETE v FROM shop.t USING WHERE p = 1 AND k = 1", {"p": 1},
            {"cdc$operation": 1, "k": 1, "cdc$deleted_v": True})  # fmt: skip
        assert_replicated(cluster, table, bring(cluster, workers), copied=False)
        now(table, "DELETE FROM shop.t USING WHERE p = 1", {"p": 1}, {"cdc$operation": 4})
        insert(table, 3, 3)
        assert_replicated(cluster, table, bring(cluster, workers), copied=False)


def _switch_cdc_off_and_on(table: LiveTable) -> None:
    options(table, enabled="false")
    old(table, UNLOGGED)
    options(table)


def _log_keys_and_values_again(table: LiveTable) -> None:
    options(table, delta="keys")
    old(table, UNLOGGED)
    table.log({"p": 1}, Clock().now_us(), [{"cdc$operation": 2, "k": 2}])
    options(table)


def _drop_and_add_column(table: LiveTable) -> None:
    for name in ("shop.t", "shop.t_scylla_cdc_log"):
        table.world.run(f"ALTER TABLE {name} DROP v")
        table.world.run(f"ALTER TABLE {name} ADD v int")
    keep_id(table.world)


def _add_column_while_cdc_is_off(table: LiveTable) -> None:
    options(table, enabled="false")
    table.world.run("ALTER TABLE shop.t ADD w int")
    table.world.run('ALTER TABLE shop.t_scylla_cdc_log ADD (w int, "cdc$deleted_w" boolean)')
    old(table, UNLOGGED)
    keep_id(table.world)
    options(table)
    columns = "p int, k int, v int, w int, l list<int>, m map<int, int>, PRIMARY KEY (p, k)"
    table.schema = defined(f"CREATE TABLE shop.t ({columns}) WITH cdc = {{'enabled': 'true', 'ttl': '0'}};")


UNLOGGED = "INSERT INTO shop.t (p, k, v) VALUES (1, 2, 2) USING"
TEMPORARY_CHANGES = {
    "CDC off and on": _switch_cdc_off_and_on,
    "keys alone and values again": _log_keys_and_values_again,
    "a column dropped and added": _drop_and_add_column,
    "CDC off and on around a new column": _add_column_while_cdc_is_off,
}


@pytest.mark.grid("changes between two observations", 2)
@pytest.mark.parametrize("happens", TEMPORARY_CHANGES.values(), ids=TEMPORARY_CHANGES)
def test_temporary_change_between_two_observations_is_reported_and_copied(
    cluster: ScyllaCluster, workers: TaskRunner, table: LiveTable, happens: Callable[[LiveTable], None]
) -> None:
    """The table's last alteration time reveals the change: one message, one copy."""
    # `verify-interval` names the gap, too.
    old(table, "INSERT INTO shop.t (p, k, v) VALUES (1, 1, 1) USING")
    before = bring(cluster, workers, current=True)
    happens(table)
    messages: list[str] = []
    insert(table, 3, 3)
    assert_replicated(cluster, table, bring(cluster, workers, on_message=messages.append), copied=True)
    insert(table, 4, 4)
    done = bring(cluster, workers, on_message=messages.append)
    assert_replicated(cluster, table, done, copied=False)
    (line,) = [item for item in messages if "looks as before" in item]
    assert line.startswith(f"shop.t was altered between {format_us(before.position_us)} and 20")
    (gap,) = gaps.describe_gaps(Lake(cluster.open_home().lake))
    assert gap.startswith(f"shop.t was altered between {format_us(before.position_us)} and 20")
    read = [format_us(item) for item in (us_from_ms(FIRST_MS), before.position_us, done.position_us)]
    for times, whole in ((read[:2], True), (read[1:], False)):
        answer = run("--home", cluster.home, "verify-interval", *times, "--consumer", "ingest")
        assert ("✓ the log was enabled for all writes" in answer.stdout) == whole, answer.stdout + answer.stderr


def test_alteration_without_a_visible_change_is_in_history(
    cluster: ScyllaCluster, workers: TaskRunner, table: LiveTable
) -> None:
    """`observe` records such an alteration like any other change, with the cluster's time."""
    bring(cluster, workers)
    _switch_cdc_off_and_on(table)
    assert run("--home", cluster.home.parent.parent, "observe", "prod").exit_code == 0
    *_, last = run("--home", cluster.home, "history", "--cluster", "--json").rows
    assert last["who"] == "table shop.t"
    assert last["what"].startswith("was altered last at 20")
    assert last["what"].endswith(", and looks as before")


def test_recreated_column_has_no_values_of_the_dropped_one(
    cluster: ScyllaCluster, workers: TaskRunner, table: LiveTable
) -> None:
    """This holds for later copies too, although the lake's log still has the values written to the dropped column."""
    insert(table, 1, 1)
    bring(cluster, workers, current=True)
    columns = {column.name: column for column in table.schema.columns}
    for change, name, kind in (("DROP", "v", ""), ("ADD", "v", "int"), ("DROP", "l", "")):
        table.world.run(f"ALTER TABLE shop.t {change} {name} {kind}")
        table.world.run(f"ALTER TABLE shop.t_scylla_cdc_log {change} {name} {kind}")
        keep_id(table.world)
        remaining = [column for column in table.schema.columns if column.name != name]
        table.schema = replace(table.schema, columns=(*remaining, *([columns[name]] if kind else [])))
        done = bring(cluster, workers)
        assert in_lake(cluster, table)[0] == table.rows()
    assert done.current is not None
    assert done.current.copied_now
    table.world.run('ALTER TABLE shop.t_scylla_cdc_log DROP ("cdc$deleted_l", "cdc$deleted_elements_l")')
    keep_id(table.world)
    insert(table, 2, 2)
    assert_replicated(cluster, table, bring(cluster, workers), copied=False)


OTHER_CHANGES = {
    "a comment": "ALTER TABLE shop.t WITH comment = 'said'",
    "an index": "CREATE INDEX IF NOT EXISTS by_value ON shop.t (v)",
    "a TTL of writes": "ALTER TABLE shop.t WITH default_time_to_live = 86400",
}


@pytest.mark.grid("changes seen by a second observation", 1)
@pytest.mark.parametrize("statement", OTHER_CHANGES.values(), ids=OTHER_CHANGES)
def test_change_of_another_property_is_no_gap(
    cluster: ScyllaCluster, workers: TaskRunner, table: LiveTable, statement: str
) -> None:
    """Changed properties and indexes are written with the table's row; they cause no copy and no message."""
    old(table, "INSERT INTO shop.t (p, k, v) VALUES (1, 1, 1) USING")
    bring(cluster, workers, current=True)
    table.world.run(statement)
    table.world.altered("shop", "t")
    table.world.schema_changed()
    messages: list[str] = []
    bring(cluster, workers, on_message=messages.append)
    insert(table, 3, 3)
    assert_replicated(cluster, table, bring(cluster, workers, on_message=messages.append), copied=False)
    assert messages == []


def test_created_and_dropped_view_is_no_gap(cluster: ScyllaCluster, workers: TaskRunner, table: LiveTable) -> None:
    """ScyllaDB, unlike Cassandra, writes the row of the base table when a view is created or dropped."""
    bring(cluster, workers, current=True)
    keys = "p IS NOT NULL AND k IS NOT NULL PRIMARY KEY (k, p)"
    messages: list[str] = []
    for statement in (
        f"CREATE MATERIALIZED VIEW shop.by_k AS SELECT p, k FROM shop.t WHERE {keys}",
        "DROP MATERIALIZED VIEW shop.by_k",
    ):
        table.world.run(statement)
        table.world.altered("shop", "t")
        table.world.schema_changed()
        bring(cluster, workers, on_message=messages.append)
    insert(table, 3, 3)
    assert_replicated(cluster, table, bring(cluster, workers, on_message=messages.append), copied=False)
    assert messages == []


@pytest.mark.parametrize("asked", ["--current", "--recopy"])
def test_replication_of_a_table_without_cdc_is_refused(cluster: ScyllaCluster, table: LiveTable, asked: str) -> None:
    """One line refuses the request and nothing is copied; an ingest of the log alone succeeds."""
    options(table, enabled="false")
    home = cluster.home.parent.parent
    answer = run("--home", home, "ingest", "prod", "shop.t", asked, "--confidence", "0")
    assert answer.exit_code != 0
    assert len(answer.stderr.splitlines()) == 1
    assert "shop.t cannot be replicated: its CDC is disabled; run ALTER TABLE shop.t WITH cdc = " in answer.stderr
    assert run("--home", home, "ingest", "prod", "shop.t", "--confidence", "0").exit_code == 0
