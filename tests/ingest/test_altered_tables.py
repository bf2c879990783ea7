"""A kept table is the cluster's after whatever is done to it there, or says in one line why it is not brought up."""

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
    """Write a row, and log it."""
    row = {"cdc$operation": 2, table.schema.clustering_key[0].name: k, "v": v}
    now(table, f"INSERT INTO shop.t (p, {table.schema.clustering_key[0].name}, v) VALUES (1, {k}, {v}) USING",
        {"p": 1}, row)  # fmt: skip


def options(table: LiveTable, **said: str) -> None:
    """Change the CDC options of the table."""
    table.world.cdc_options("shop", "t", ttl="0", **said)
    table.world.schema_changed()


def assert_right(cluster: ScyllaCluster, table: LiveTable, done: IngestResult, *, copied: bool) -> None:
    """Hold that the lake has what `SELECT *` answers, after a copy or without one."""
    assert in_lake(cluster, table)[0] == table.rows()
    assert done.current is not None
    assert (done.current.rows, done.current.copied_now) == (len(table.rows()), copied)


def test_a_key_that_is_renamed(cluster: ScyllaCluster, workers: TaskRunner, table: LiveTable) -> None:
    """What was copied, what was merged and what comes later stand under the key's new name."""
    old(table, "INSERT INTO shop.t (p, k, v) VALUES (1, 1, 1) USING")
    insert(table, 2, 2)
    bring(cluster, workers, current=True)
    table.world.run("ALTER TABLE shop.t RENAME k TO place")
    # The stand-in's log is a table like others, whose regular columns have fixed names.
    table.world.run("ALTER TABLE shop.t_scylla_cdc_log DROP k")
    table.world.run("ALTER TABLE shop.t_scylla_cdc_log ADD place int")
    keep_id(table.world)
    columns = (replace(each, name="place") if each.name == "k" else each for each in table.schema.columns)
    table.schema = replace(table.schema, columns=tuple(columns))
    insert(table, 3, 3)
    assert_right(cluster, table, bring(cluster, workers), copied=True)
    insert(table, 2, 5)
    assert_right(cluster, table, bring(cluster, workers), copied=False)


def test_a_table_that_is_made_anew(cluster: ScyllaCluster, workers: TaskRunner, table: LiveTable) -> None:
    """Nothing of the one before is left, neither of what was copied of it nor of what its log told."""
    old(table, "INSERT INTO shop.t (p, k, v) VALUES (1, 1, 1) USING")
    insert(table, 2, 2)
    bring(cluster, workers, current=True)
    for name in ("shop.t", "shop.t_scylla_cdc_log"):
        table.world.run(f"DROP TABLE {name}")
    table.world.logged_table(table.schema, Milliseconds(Clock().now_ms()))
    time.sleep(0.002)
    insert(table, 3, 3)
    assert_right(cluster, table, bring(cluster, workers), copied=True)
    insert(table, 4, 4)
    assert_right(cluster, table, bring(cluster, workers), copied=False)


@pytest.mark.parametrize("kind", ["frozen<grown_whole>", "grown_apart"])
def test_a_type_that_gets_a_field(standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner, kind: str) -> None:
    """Values from before it, of the copy and of the log, and those that have it."""
    name, apart = kind.removeprefix("frozen<").rstrip(">"), "<" not in kind
    made = f"CREATE TYPE shop.{name} (a int, b text);"
    columns = f"p int, k int, v int, u {kind}, PRIMARY KEY (p, k)"
    ddl = f"CREATE TABLE shop.t ({columns}) WITH cdc = {{'enabled': 'true', 'ttl': '0'}};"
    standin.proxy.collections = {"u"} if apart else set()
    standin.world.run(made.rstrip(";").replace("TYPE", "TYPE IF NOT EXISTS"))
    first = {FIRST_MS: description(time_uuid(FIRST_MS))}
    table = LiveTable(standin.world, defined(made + ddl), first, random.Random(7)).make()
    gone: dict[str, Any] = {"cdc$deleted_u": True} if apart else {}

    def write(k: int, text: str, *value: Any) -> None:
        row = {"cdc$operation": 2, "k": k, "u": value, **gone}
        now(table, f"INSERT INTO shop.t (p, k, u) VALUES (1, {k}, {text}) USING", {"p": 1}, row)

    old(table, "INSERT INTO shop.t (p, k, u) VALUES (1, 1, {a: 1, b: 'x'}) USING")
    write(2, "{a: 2, b: 'y'}", 2, "y")
    write(3, "{a: 3, b: 'z'}", 3, "z")
    bring(cluster, workers, current=True)
    standin.world.run(f"ALTER TYPE shop.{name} ADD c int")
    keep_id(standin.world)
    table.schema = defined(made.replace(")", ", c int)") + ddl)
    write(3, "{a: 4, b: 'z', c: 5}", 4, "z", 5)
    done = bring(cluster, workers)
    assert done.current is not None
    assert_right(cluster, table, done, copied=done.current.copied_now)
    write(2, "{a: 6, c: 7}", 6, None, 7)
    assert_right(cluster, table, bring(cluster, workers), copied=False)


NO_LOG = {
    "CDC that is off": ({"enabled": "false"}, "its CDC is disabled"),
    "a log of keys alone": ({"delta": "keys"}, "its log has no values (delta 'keys')"),
}


@pytest.mark.parametrize(("said", "why"), NO_LOG.values(), ids=NO_LOG)
def test_a_table_whose_log_tells_no_values_stays_as_it_was(
    cluster: ScyllaCluster, workers: TaskRunner, table: LiveTable, said: dict[str, str], why: str
) -> None:
    """It says so, and as of when it is, each time; it is copied anew once the log tells all again."""
    old(table, "INSERT INTO shop.t (p, k, v) VALUES (1, 1, 1) USING")
    before = bring(cluster, workers, current=True).current
    assert before is not None
    options(table, **said)
    for value in (2, 3):
        old(table, f"INSERT INTO shop.t (p, k, v) VALUES (1, 2, {value}) USING".replace("USING", "USING "))
        if "delta" in said:
            table.log({"p": 1}, Clock().now_us(), [{"cdc$operation": 2, "k": 2}])
        told: list[str] = []
        done = bring(cluster, workers, on_message=told.append)
        assert done.current is None
        (line,) = [each for each in told if why in each]
        assert format_us(before.as_of_us) in line
    options(table)
    insert(table, 3, 3)
    assert_right(cluster, table, bring(cluster, workers), copied=True)
    insert(table, 4, 4)
    assert_right(cluster, table, bring(cluster, workers), copied=False)


def _off_and_on(table: LiveTable) -> None:
    options(table, enabled="false")
    old(table, UNLOGGED)
    options(table)


def _keys_and_values(table: LiveTable) -> None:
    options(table, delta="keys")
    old(table, UNLOGGED)
    table.log({"p": 1}, Clock().now_us(), [{"cdc$operation": 2, "k": 2}])
    options(table)


def _column_goes_and_comes(table: LiveTable) -> None:
    for name in ("shop.t", "shop.t_scylla_cdc_log"):
        table.world.run(f"ALTER TABLE {name} DROP v")
        table.world.run(f"ALTER TABLE {name} ADD v int")
    keep_id(table.world)


def _off_while_a_column_comes(table: LiveTable) -> None:
    options(table, enabled="false")
    table.world.run("ALTER TABLE shop.t ADD w int")
    table.world.run('ALTER TABLE shop.t_scylla_cdc_log ADD (w int, "cdc$deleted_w" boolean)')
    old(table, UNLOGGED)
    keep_id(table.world)
    options(table)
    columns = "p int, k int, v int, w int, l list<int>, m map<int, int>, PRIMARY KEY (p, k)"
    table.schema = defined(f"CREATE TABLE shop.t ({columns}) WITH cdc = {{'enabled': 'true', 'ttl': '0'}};")


UNLOGGED = "INSERT INTO shop.t (p, k, v) VALUES (1, 2, 2) USING"
CAME_AND_WENT = {
    "CDC off and on": _off_and_on,
    "keys alone and values again": _keys_and_values,
    "a column dropped and added": _column_goes_and_comes,
    "CDC off and on around a new column": _off_while_a_column_comes,
}


@pytest.mark.grid("changes between two observations", 2)
@pytest.mark.parametrize("happens", CAME_AND_WENT.values(), ids=CAME_AND_WENT)
def test_what_came_and_went_between_two_looks_is_told_and_copied_again(
    cluster: ScyllaCluster, workers: TaskRunner, table: LiveTable, happens: Callable[[LiveTable], None]
) -> None:
    """Once, by the time at which the table was altered last; whoever asks what its log lacks hears of it too."""
    old(table, "INSERT INTO shop.t (p, k, v) VALUES (1, 1, 1) USING")
    before = bring(cluster, workers, current=True)
    happens(table)
    told: list[str] = []
    insert(table, 3, 3)
    assert_right(cluster, table, bring(cluster, workers, on_message=told.append), copied=True)
    insert(table, 4, 4)
    done = bring(cluster, workers, on_message=told.append)
    assert_right(cluster, table, done, copied=False)
    (line,) = [each for each in told if "looks as before" in each]
    assert line.startswith(f"shop.t was altered between {format_us(before.position_us)} and 20")
    (gap,) = gaps.describe_gaps(Lake(cluster.open_home().lake))
    assert gap.startswith(f"shop.t was altered between {format_us(before.position_us)} and 20")
    read = [format_us(each) for each in (us_from_ms(FIRST_MS), before.position_us, done.position_us)]
    for times, whole in ((read[:2], True), (read[1:], False)):
        answer = run("--home", cluster.home, "verify-interval", *times, "--consumer", "ingest")
        assert ("✓ the log was enabled for all writes" in answer.stdout) == whole, answer.stdout + answer.stderr


def test_a_table_that_was_altered_and_looks_as_before_is_history(
    cluster: ScyllaCluster, workers: TaskRunner, table: LiveTable
) -> None:
    """With the time of the cluster; `observe` tells of it as of any change."""
    bring(cluster, workers)
    _off_and_on(table)
    assert run("--home", cluster.home.parent.parent, "observe", "prod").exit_code == 0
    *_, last = run("--home", cluster.home, "history", "--cluster", "--json").rows
    assert last["who"] == "table shop.t"
    assert last["what"].startswith("was altered last at 20")
    assert last["what"].endswith(", and looks as before")


def test_a_column_that_comes_back_has_nothing_of_the_one_before(
    cluster: ScyllaCluster, workers: TaskRunner, table: LiveTable
) -> None:
    """Whatever the table is copied anew for later on: the lake's log still has what was written to that one."""
    insert(table, 1, 1)
    bring(cluster, workers, current=True)
    columns = {each.name: each for each in table.schema.columns}
    for what, name, kind in (("DROP", "v", ""), ("ADD", "v", "int"), ("DROP", "l", "")):
        table.world.run(f"ALTER TABLE shop.t {what} {name} {kind}")
        table.world.run(f"ALTER TABLE shop.t_scylla_cdc_log {what} {name} {kind}")
        keep_id(table.world)
        kept = [each for each in table.schema.columns if each.name != name]
        table.schema = replace(table.schema, columns=(*kept, *([columns[name]] if kind else [])))
        done = bring(cluster, workers)
        assert in_lake(cluster, table)[0] == table.rows()
    assert done.current is not None
    assert done.current.copied_now
    table.world.run('ALTER TABLE shop.t_scylla_cdc_log DROP ("cdc$deleted_l", "cdc$deleted_elements_l")')
    keep_id(table.world)
    insert(table, 2, 2)
    assert_right(cluster, table, bring(cluster, workers), copied=False)


SEEN = {
    "a comment": "ALTER TABLE shop.t WITH comment = 'said'",
    "an index": "CREATE INDEX IF NOT EXISTS by_value ON shop.t (v)",
    "a TTL of writes": "ALTER TABLE shop.t WITH default_time_to_live = 86400",
}


@pytest.mark.grid("changes seen by a second observation", 1)
@pytest.mark.parametrize("statement", SEEN.values(), ids=SEEN)
def test_what_the_second_look_shows_is_no_gap(
    cluster: ScyllaCluster, workers: TaskRunner, table: LiveTable, statement: str
) -> None:
    """Other properties and indexes are written with the table's row: nothing is copied for them, nor told."""
    old(table, "INSERT INTO shop.t (p, k, v) VALUES (1, 1, 1) USING")
    bring(cluster, workers, current=True)
    table.world.run(statement)
    table.world.altered("shop", "t")
    table.world.schema_changed()
    told: list[str] = []
    bring(cluster, workers, on_message=told.append)
    insert(table, 3, 3)
    assert_right(cluster, table, bring(cluster, workers, on_message=told.append), copied=False)
    assert told == []


def test_a_view_that_comes_and_goes_is_no_gap(cluster: ScyllaCluster, workers: TaskRunner, table: LiveTable) -> None:
    """ScyllaDB writes the row of its base table with both, which Cassandra does not."""
    bring(cluster, workers, current=True)
    keys = "p IS NOT NULL AND k IS NOT NULL PRIMARY KEY (k, p)"
    told: list[str] = []
    for statement in (
        f"CREATE MATERIALIZED VIEW shop.by_k AS SELECT p, k FROM shop.t WHERE {keys}",
        "DROP MATERIALIZED VIEW shop.by_k",
    ):
        table.world.run(statement)
        table.world.altered("shop", "t")
        table.world.schema_changed()
        bring(cluster, workers, on_message=told.append)
    insert(table, 3, 3)
    assert_right(cluster, table, bring(cluster, workers, on_message=told.append), copied=False)
    assert told == []


@pytest.mark.grid("logs without values", 2)
@pytest.mark.parametrize("asked", ["--current", "--recopy"])
@pytest.mark.parametrize(("said", "why"), NO_LOG.values(), ids=NO_LOG)
def test_whoever_asks_for_a_table_whose_log_tells_no_values_is_refused(
    cluster: ScyllaCluster, table: LiveTable, said: dict[str, str], why: str, asked: str
) -> None:
    """In one line, and nothing is copied; the log itself comes in without it."""
    options(table, **said)
    home = cluster.home.parent.parent
    answer = run("--home", home, "ingest", "prod", "shop.t", asked, "--confidence", "0")
    assert answer.exit_code != 0
    assert len(answer.stderr.splitlines()) == 1
    assert f"shop.t cannot be replicated: {why}" in answer.stderr
    assert run("--home", home, "ingest", "prod", "shop.t", "--confidence", "0").exit_code == 0
