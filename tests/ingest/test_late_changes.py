"""A replica includes log rows that arrive after its copy and are older than the time from which its log counts."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
from support.drawing import SEED
from support.standin.cluster import FIRST_MS, StandIn, description
from support.standin.kept_table import DAY_US, bring, in_lake, now, old, small_slices
from support.standin.live_table import HISTORIES, LiveTable, drawn
from support.standin.world import time_uuid

from cdc_platform import failpoints
from cdc_platform.clock import Clock, Microseconds
from cdc_platform.delta import TaskRunner
from cdc_platform.ingest import ReadPolicy
from cdc_platform.scylla import ScyllaCluster

pytestmark = pytest.mark.cassandra

ONCE, TWICE = (ReadPolicy(Microseconds(0), Microseconds(again), Microseconds(1)) for again in (0, 1))
"""No window is read a second time, or each is."""
WRITES: dict[str, tuple[str, tuple[dict[str, Any], ...]]] = {
    "a row": ("INSERT INTO shop.t (p, k, v) VALUES (1, 9, 9) USING", ({"cdc$operation": 2, "k": 9, "v": 9},)),
    "a cell of a row that is there": (
        "UPDATE shop.t USING SET v = 7 WHERE p = 1 AND k = 2",
        ({"cdc$operation": 1, "k": 2, "v": 7},),
    ),
    "a cell that was overwritten since": (
        "UPDATE shop.t USING SET v = 7 WHERE p = 1 AND k = 3",
        ({"cdc$operation": 1, "k": 3, "v": 7},),
    ),
    "an element of a map": (
        "UPDATE shop.t USING SET m = m + {5: 5} WHERE p = 1 AND k = 2",
        ({"cdc$operation": 1, "k": 2, "m": {5: 5}},),
    ),
    "an element of a map that goes": (
        "UPDATE shop.t USING SET m = m - {1} WHERE p = 1 AND k = 2",
        ({"cdc$operation": 1, "k": 2, "cdc$deleted_elements_m": {1}},),
    ),
    "an element of a map that is another": (
        "UPDATE shop.t USING SET m[2] = 0 WHERE p = 1 AND k = 2",
        ({"cdc$operation": 1, "k": 2, "m": {2: 0}},),
    ),
    "a list that is overwritten": (
        "UPDATE shop.t USING SET l = null WHERE p = 1 AND k = 2",
        ({"cdc$operation": 1, "k": 2, "cdc$deleted_l": True},),
    ),
    "a row that goes": ("DELETE FROM shop.t USING WHERE p = 1 AND k = 2", ({"cdc$operation": 3, "k": 2},)),
    "rows that go": (
        "DELETE FROM shop.t USING WHERE p = 1 AND k >= 2 AND k <= 3",
        ({"cdc$operation": 5, "k": 2}, {"cdc$operation": 7, "k": 3}),
    ),
    "a partition that goes": ("DELETE FROM shop.t USING WHERE p = 1", ({"cdc$operation": 4},)),
}


def late(table: LiveTable, text: str, *rows: dict[str, Any], days: int = 2) -> None:
    """Write and log rows with a time of some days ago."""
    at = Clock().now_us() - days * DAY_US
    table.world.run(text.replace("USING", f"USING TIMESTAMP {at}"))
    table.log({"p": 1}, at, list(rows))


def older(table: LiveTable, text: str) -> None:
    """Write rows of three days ago, which no log has any more."""
    table.world.run(text.replace("USING", f"USING TIMESTAMP {Clock().now_us() - 3 * DAY_US}"))


@pytest.mark.grid("late writes to a live table", 3)
@pytest.mark.parametrize(("text", "rows"), WRITES.values(), ids=WRITES)
def test_late_write_is_merged(
    cluster: ScyllaCluster, workers: TaskRunner, table: LiveTable, text: str, rows: tuple[dict[str, Any], ...]
) -> None:
    """One message has the number of rows to reread, and the replica equals the cluster's table."""
    for k in (1, 2, 3):
        older(table, f"INSERT INTO shop.t (p, k, v, l, m) VALUES (1, {k}, {k}, [1, 2], {{1: 1, 2: 2}}) USING")
    bring(cluster, workers, ONCE, current=True)
    now(table, "UPDATE shop.t USING SET v = 4 WHERE p = 1 AND k = 3", {"p": 1}, {"cdc$operation": 1, "k": 3, "v": 4})
    bring(cluster, workers, ONCE)
    late(table, text, *rows)
    messages: list[str] = []
    done = bring(cluster, workers, TWICE, on_message=messages.append)
    assert done.late == len(rows)
    assert done.current is not None
    assert not done.current.copied_now
    assert in_lake(cluster, table)[0] == table.rows()
    (line,) = messages
    assert line.startswith(f"{len(rows)} rows of the log of shop.t came behind its copy")
    bring(cluster, workers, TWICE, on_message=messages.append)
    assert messages == [line]
    assert in_lake(cluster, table)[0] == table.rows()


def test_late_write_to_a_deleted_row_stays_deleted(
    cluster: ScyllaCluster, workers: TaskRunner, table: LiveTable
) -> None:
    """If no log has the deletion, as while CDC was off, the run rereads the row from the cluster."""
    older(table, "INSERT INTO shop.t (p, k, v) VALUES (1, 1, 1) USING")
    old(table, "DELETE FROM shop.t USING WHERE p = 1")
    bring(cluster, workers, ONCE, current=True)
    late(table, WRITES["a row"][0], *WRITES["a row"][1], days=3)
    assert bring(cluster, workers, TWICE).late == 1
    assert in_lake(cluster, table)[0] == table.rows() == {}


def test_kill_after_the_copy_loses_no_late_write(
    cluster: ScyllaCluster, workers: TaskRunner, table: LiveTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run merges the whole log for the first time, including rows that arrived since the copy."""

    def killed(point: str) -> None:
        if point == failpoints.AFTER_COPY:
            raise KeyboardInterrupt

    older(table, "INSERT INTO shop.t (p, k, v) VALUES (1, 1, 1) USING")
    bring(cluster, workers, ONCE)
    with monkeypatch.context() as patched:
        patched.setattr(failpoints, "kill_if_selected", killed)
        with pytest.raises(KeyboardInterrupt):
            bring(cluster, workers, ONCE, current=True)
    late(table, WRITES["a row"][0], *WRITES["a row"][1])
    assert bring(cluster, workers, TWICE).late == 1
    assert in_lake(cluster, table)[0] == table.rows()
    assert len(table.rows()) == 2


@pytest.mark.parametrize("history", range(HISTORIES))
def test_random_late_writes_to_random_tables(
    standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner, history: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replica equals the cluster's table after late writes, some with a TTL, among current ones."""
    dice = random.Random(f"{SEED} late {history}")
    small_slices(monkeypatch, rows=3, sample=2, most=5)
    table = LiveTable(standin.world, drawn(dice), {FIRST_MS: description(time_uuid(FIRST_MS))}, dice).make()
    standin.proxy.collections = {column.name for column in table.schema.columns if column.type.multicell}
    for _ in range(12):
        table.write(Clock().now_us() - dice.randrange(2 * DAY_US, 4 * DAY_US), log=False)
    bring(cluster, workers, ONCE, current=True)
    for policy in (ONCE, ONCE, TWICE):
        for _ in range(6):
            ago = dice.choice((0, dice.randrange(2 * DAY_US, 4 * DAY_US)))
            table.write(Clock().now_us() - ago, ttl=dice.choice((0, 0, 10**7)))
            time.sleep(0.000_01)
        done = bring(cluster, workers, policy).current
        assert done is not None
        assert not done.copied_now
    assert in_lake(cluster, table)[0] == table.rows()
