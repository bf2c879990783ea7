"""A table whose log has only keys is replicated by reading the rows that the log names from the table itself."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest
from support.command_line import run
from support.standin.cluster import FIRST_MS, StandIn, description
from support.standin.kept_table import AT_ONCE, bring, in_lake, now, old
from support.standin.live_log import defined
from support.standin.live_table import LiveTable
from support.standin.world import time_uuid

from cdc_platform.clock import Clock, Microseconds
from cdc_platform.delta import Lake, TaskRunner
from cdc_platform.ingest import ReadPolicy
from cdc_platform.ingest.replica import changed_keys
from cdc_platform.ingest.replica.tables import cells_table
from cdc_platform.scylla import ScyllaCluster, Unreachable

pytestmark = pytest.mark.cassandra

DDL = """CREATE TABLE shop.t (p int, k int, s int static, sm map<int, int> static, v int, l list<int>, m map<int, int>,
    PRIMARY KEY (p, k)) WITH cdc = {'enabled': 'true', 'ttl': '0', 'delta': 'keys', 'postimage': 'true'};"""


@pytest.fixture
def table(standin: StandIn) -> LiveTable:
    """A table with static columns, lists and maps, whose log has keys and post-images."""
    standin.proxy.collections = {"sm", "l", "m"}
    first = {FIRST_MS: description(time_uuid(FIRST_MS))}
    return LiveTable(standin.world, defined(DDL), first, random.Random(7)).make()


Logged = tuple[dict[str, Any], ...]
UPDATE, INSERT, ROW, PARTITION, IMAGE = ({"cdc$operation": number} for number in (1, 2, 3, 4, 9))
CHANGES: dict[str, tuple[str, Logged]] = {
    "a new row": ("INSERT INTO shop.t (p, k, v) VALUES (1, 9, 9) USING", (INSERT | {"k": 9},)),
    "a cell": ("UPDATE shop.t USING SET v = 7 WHERE p = 1 AND k = 2", (UPDATE | {"k": 2},)),
    "a deleted cell": ("DELETE v FROM shop.t USING WHERE p = 1 AND k = 2", (UPDATE | {"k": 2},)),
    "a deleted element": ("UPDATE shop.t USING SET m = m - {1} WHERE p = 1 AND k = 1", (UPDATE | {"k": 1},)),
    "a list": ("UPDATE shop.t USING SET l = [5, 6] WHERE p = 1 AND k = 1", (UPDATE | {"k": 1},)),
    "a list that grows": ("UPDATE shop.t USING SET l = l + [7] WHERE p = 1 AND k = 1", (UPDATE | {"k": 1},)),
    "a static cell": ("UPDATE shop.t USING SET s = 5 WHERE p = 1", (UPDATE,)),
    "a static element": ("UPDATE shop.t USING SET sm = sm + {1: 1} WHERE p = 1", (UPDATE,)),
    "a deleted static element": ("UPDATE shop.t USING SET sm = sm - {1} WHERE p = 1", (UPDATE,)),
    "a row and its static cell": (
        "INSERT INTO shop.t (p, k, s, v) VALUES (1, 3, 6, 6) USING",
        (UPDATE, INSERT | {"k": 3}),
    ),
    "a deleted row": ("DELETE FROM shop.t USING WHERE p = 1 AND k = 2", (ROW | {"k": 2},)),
    "a deletion of a missing row": ("DELETE FROM shop.t USING WHERE p = 1 AND k = 77", (ROW | {"k": 77},)),
    "a deleted range": (
        "DELETE FROM shop.t USING WHERE p = 1 AND k >= 3 AND k < 9",
        ({"cdc$operation": 5, "k": 3}, {"cdc$operation": 8, "k": 9}),
    ),
    "a deleted partition": ("DELETE FROM shop.t USING WHERE p = 1", (PARTITION,)),
    "a static row alone": ("UPDATE shop.t USING SET s = 1 WHERE p = 1", (UPDATE,)),
    "a row that consists of its key": ("INSERT INTO shop.t (p, k) VALUES (1, 1) USING", (INSERT | {"k": 1},)),
}


def test_each_kind_of_change_is_read_from_the_table(
    standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner, table: LiveTable
) -> None:
    """After each ingest the replica equals the table; wrong values in post-images have no effect."""
    for k in (1, 2):
        old(table, f"INSERT INTO shop.t (p, k, s, v, l, m) VALUES (1, {k}, 1, 1, [1, 2], {{1: 1, 2: 2}}) USING")
    old(table, "INSERT INTO shop.t (p, k, v) VALUES (2, 1, 1) USING")
    messages: list[str] = []
    first = bring(cluster, workers, current=True, on_message=messages.append).current
    assert first is not None
    assert first.copied_now
    assert "the log of shop.t has only keys, so changed rows are read from the table" in messages
    for change, (statement, rows) in CHANGES.items():
        wrong = [IMAGE | ({"k": row["k"], "v": -1} if "k" in row else {"s": -1}) for row in rows]
        now(table, statement, {"p": 1}, *rows, *wrong)
        standin.proxy.statements.clear()
        done = bring(cluster, workers).current
        assert in_lake(cluster, table)[0] == table.rows(), change
        assert done is not None
        reread = 2 if change == "a row and its static cell" else 1
        assert (done.copied_now, done.reread_rows, done.rows) == (False, reread, len(table.rows())), change
        assert not [text for _, text in standin.proxy.statements if "FROM shop.t WHERE token" in text], change
    standin.proxy.statements.clear()
    assert bring(cluster, workers).rows == 0
    assert not [text for _, text in standin.proxy.statements if "FROM shop.t " in text]


def test_a_row_that_changed_often_is_read_once(cluster: ScyllaCluster, workers: TaskRunner, table: LiveTable) -> None:
    """Twenty writes to two rows, with a deletion among them, and one to a static row cost three reads."""
    bring(cluster, workers, current=True)
    for number in range(20):
        k = number % 2
        statement, row = f"INSERT INTO shop.t (p, k, v) VALUES (1, {k}, {number}) USING", INSERT | {"k": k}
        if number == 10:
            statement, row = "DELETE FROM shop.t USING WHERE p = 1 AND k = 0", ROW | {"k": 0}
        now(table, statement, {"p": 1}, row)
    now(table, "UPDATE shop.t USING SET s = 5 WHERE p = 1", {"p": 1}, UPDATE)
    done = bring(cluster, workers).current
    assert done is not None
    assert (done.log_rows, done.reread_rows, done.rows) == (21, 3, 2)
    assert in_lake(cluster, table)[0] == table.rows()


def test_what_expires_without_a_log_row_goes_with_the_last_ttl_of_its_row(
    cluster: ScyllaCluster, workers: TaskRunner, table: LiveTable
) -> None:
    """CQL reports no TTL for row markers and elements of maps, so those in the log decide when to read a row again."""
    bring(cluster, workers, current=True)
    ttl = {"cdc$ttl": 8}
    now(table, "INSERT INTO shop.t (p, k) VALUES (1, 1) USING", {"p": 1}, INSERT | {"k": 1})
    writes: dict[str, Logged] = {
        "INSERT INTO shop.t (p, k) VALUES (1, 2) USING AND TTL 8": (INSERT | ttl | {"k": 2},),
        "UPDATE shop.t USING AND TTL 8 SET m = m + {1: 1} WHERE p = 1 AND k = 1": (UPDATE | ttl | {"k": 1},),
        "UPDATE shop.t USING AND TTL 8 SET sm = sm + {1: 1} WHERE p = 1": (UPDATE | ttl,),
        "UPDATE shop.t USING AND TTL 8 SET v = 1 WHERE p = 2 AND k = 1": (UPDATE | ttl | {"k": 1},),
    }
    for statement, rows in writes.items():
        partition = {"p": 2 if "p = 2" in statement else 1}
        now(table, statement, partition, *rows)
    written = time.monotonic()
    bring(cluster, workers)
    assert set(in_lake(cluster, table)[0]) == {(1, 1), (1, 2), (2, 1)}
    # Reading a row again does not lose when its other parts expire.
    now(table, "UPDATE shop.t USING SET m = m + {2: 2} WHERE p = 1 AND k = 1", {"p": 1}, UPDATE | {"k": 1})
    now(table, "UPDATE shop.t USING SET sm = sm + {2: 2} WHERE p = 1", {"p": 1}, UPDATE)
    bring(cluster, workers)
    time.sleep(max(0.0, written + 9.5 - time.monotonic()))
    done = bring(cluster, workers).current
    assert in_lake(cluster, table)[0] == table.rows()
    assert {key: (row["m"], row["sm"]) for key, row in table.rows().items()} == {(1, 1): ([(2, 2)], [(2, 2)])}
    assert done is not None
    assert done.reread_rows > 0
    again = bring(cluster, workers).current
    assert again is not None
    assert (again.reread_rows, again.written_ranges) == (0, 0)


def test_a_late_log_row_is_read_like_any_other(cluster: ScyllaCluster, workers: TaskRunner, table: LiveTable) -> None:
    """The second pass finds a write that the first pass missed, and the current row replaces the replica's."""
    bring(cluster, workers, current=True)
    late = Clock().now_us()
    time.sleep(0.01)
    now(table, "INSERT INTO shop.t (p, k, v) VALUES (1, 1, 1) USING", {"p": 1}, INSERT | {"k": 1})
    bring(cluster, workers)
    table.world.run(f"UPDATE shop.t USING TIMESTAMP {late} SET v = 0, m = {{1: 1}} WHERE p = 1 AND k = 1")
    table.log({"p": 1}, late, [UPDATE | {"k": 1}])
    assert bring(cluster, workers, AT_ONCE).late == 0
    done = bring(cluster, workers, ReadPolicy(Microseconds(0), Microseconds(1), Microseconds(1)))
    assert done.late == 1
    assert in_lake(cluster, table)[0] == table.rows()
    assert table.rows()[1, 1]["m"] == [(1, 1)]


def test_more_changed_rows_than_a_copy_would_read_are_copied(
    cluster: ScyllaCluster, workers: TaskRunner, table: LiveTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of changed rows decides, and a message reports it."""
    monkeypatch.setattr(changed_keys, "FEWEST_ROWS_FOR_COPY", 2)
    bring(cluster, workers, current=True)
    for count in (2, 3):
        for k in range(count):
            now(table, f"INSERT INTO shop.t (p, k, v) VALUES ({count}, {k}, 1) USING", {"p": count}, INSERT | {"k": k})
        messages: list[str] = []
        done = bring(cluster, workers, on_message=messages.append).current
        assert done is not None
        assert done.copied_now == (count == 3)
        assert ("3 rows of shop.t changed: a copy reads them faster" in messages) == (count == 3)
        assert in_lake(cluster, table)[0] == table.rows()


def test_a_failed_read_of_the_table_leaves_the_replica_and_is_repeated(
    cluster: ScyllaCluster, workers: TaskRunner, table: LiveTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next ingest reads the rows that the log named, so nothing is lost."""
    old(table, "INSERT INTO shop.t (p, k, v) VALUES (1, 1, 1) USING")
    bring(cluster, workers, current=True)
    before = in_lake(cluster, table)[0]
    now(table, "UPDATE shop.t USING SET v = 2 WHERE p = 1 AND k = 1", {"p": 1}, UPDATE | {"k": 1})
    now(table, "DELETE FROM shop.t USING WHERE p = 2", {"p": 2}, PARTITION)

    def fails(*_: Any) -> None:
        raise Unreachable("no node answers")

    with monkeypatch.context() as failing:
        failing.setattr(changed_keys, "send_partition_request", fails)
        with pytest.raises(Unreachable):
            bring(cluster, workers)
    assert in_lake(cluster, table)[0] == before
    done = bring(cluster, workers)
    assert (done.rows, in_lake(cluster, table)[0]) == (0, table.rows())


def test_the_command_replicates_it(cluster: ScyllaCluster, table: LiveTable) -> None:
    """The command replicates the table, and the state has no tombstones, since the table applied the deletions."""
    home = cluster.home.parent.parent
    old(table, "INSERT INTO shop.t (p, k, v) VALUES (1, 1, 1) USING")
    ingest = ("--home", home, "ingest", "prod", "shop.t", "--confidence", "0")
    answer = run(*ingest, "--current")
    assert answer.exit_code == 0, answer.stderr
    assert "the log of shop.t has only keys" in answer.stderr
    now(table, "DELETE FROM shop.t USING WHERE p = 1 AND k = 1", {"p": 1}, ROW | {"k": 1})
    now(table, "INSERT INTO shop.t (p, k, v) VALUES (1, 2, 2) USING", {"p": 1}, INSERT | {"k": 2})
    result = json.loads(run(*ingest, "--json").stdout)["current"]
    assert (result["rows"], result["reread_rows"], result["copied_now"], result["inexact"]) == (1, 2, False, 0)
    rows = run("--home", cluster.home, "sql", "SELECT p, k, v FROM shop.t", "--json").rows
    assert [(row["p"], row["k"], row["v"]) for row in rows] == [(1, 2, 2)]
    kinds = Lake(cluster.open_home().lake).read(cells_table(table.schema), ["kind"])["kind"].to_pylist()
    assert sorted(kinds) == [3, 5]
