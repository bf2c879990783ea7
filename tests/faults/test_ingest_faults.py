"""Faults in the middle of an ingest (pages, nodes, clocks, tables) lose no row and duplicate none."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from support.standin.brought import (
    FIRST_US,
    LOG,
    SWITCH_MS,
    SWITCH_US,
    assert_each_once,
    bring,
    keys_there,
    lake_of,
    rows_in,
)
from support.standin.cluster import FIRST_MS, StandIn, description
from support.standin.live_log import LiveLog, keys_of
from support.standin.proxy import OVERLOADED, READ_TIMEOUT
from support.standin.world import time_uuid

from cdc_platform.cdclog import gaps
from cdc_platform.clock import HOUR_US, MINUTE_US, SECOND_US, Clock, Microseconds, Milliseconds, ms_from_us
from cdc_platform.delta import TaskRunner
from cdc_platform.errors import PlatformError
from cdc_platform.home_location import open_home_location
from cdc_platform.metastore import cdc_tables
from cdc_platform.metastore.cdc_tables import TABLE_ADDED
from cdc_platform.scylla import ScyllaCluster, Unreachable, registry

pytestmark = pytest.mark.cassandra

ROWS = 60
TIMEOUT_SECONDS = 3.0
RUNS = 8
"""How often a new process retries after one gave up."""


@pytest.fixture
def paged(standin: StandIn, tmp_path: Path) -> ScyllaCluster:
    """Register the stand-in with pages of two rows and a short request timeout."""
    connection = standin.connection(page_rows=2, request_timeout=TIMEOUT_SECONDS)
    return registry.add_cluster(open_home_location(tmp_path / "paged"), "prod", connection)


@dataclass(frozen=True)
class Fault:
    """A fault at the request for the n-th page of a window. `runs`: how many ingests may give up because of it."""

    name: str
    happens: Callable[[StandIn, LiveLog], None]
    at: tuple[int, ...] = (5,)
    runs: int = 0


def _wait(standin: StandIn, log: LiveLog) -> None:
    time.sleep(TIMEOUT_SECONDS + 0.5)


def _inject_error(code: int, standin: StandIn, log: LiveLog) -> None:
    standin.proxy.faults.errors.append(code)


def _kill_node(standin: StandIn, log: LiveLog) -> None:
    standin.proxy.kill(1)


def _start_node(standin: StandIn, log: LiveLog) -> None:
    standin.proxy.faults.down.clear()


def _restart_node(standin: StandIn, log: LiveLog) -> None:
    _kill_node(standin, log)
    time.sleep(0.5)
    _start_node(standin, log)


def _restart_cluster(seconds: float, standin: StandIn, log: LiveLog) -> None:
    standin.proxy.restart(seconds)


def _jump_clock(seconds: int, standin: StandIn, log: LiveLog) -> None:
    standin.proxy.faults.clock_offset_ms = dict.fromkeys(range(3), seconds * 1_000)


def _set_cdc(on: bool, standin: StandIn, log: LiveLog) -> None:
    standin.world.cdc_options("shop", "t", enabled=str(on).lower(), ttl="0")
    standin.world.schema_changed()


def _toggle_cdc(standin: StandIn, log: LiveLog) -> None:
    _set_cdc(False, standin, log)
    _set_cdc(True, standin, log)


def _set_ttl(seconds: int, standin: StandIn, log: LiveLog) -> None:
    standin.world.cdc_options("shop", "t", ttl=str(seconds))
    standin.world.schema_changed()


def _add_column(standin: StandIn, log: LiveLog) -> None:
    standin.world.run("ALTER TABLE shop.t ADD w int")
    standin.world.run(f'ALTER TABLE {LOG} ADD (w int, "cdc$deleted_w" boolean)')
    standin.world.made(log.schema, FIRST_MS)
    standin.world.schema_changed()


def _drop_column(standin: StandIn, log: LiveLog) -> None:
    standin.world.run("ALTER TABLE shop.t DROP v")
    standin.world.run(f'ALTER TABLE {LOG} DROP (v, "cdc$deleted_v")')
    standin.world.made(log.schema, FIRST_MS)
    standin.world.schema_changed()


def _add_generation(standin: StandIn, log: LiveLog) -> None:
    third = Milliseconds(SWITCH_MS + 7_200_000)
    standin.world.generation(third, time_uuid(third), description(time_uuid(third)))


FAULTS = [
    Fault("a page that comes after its time is over", _wait),
    Fault("an overload behind some pages", partial(_inject_error, OVERLOADED), (3, 9, 20)),
    Fault("a time-out behind some pages", partial(_inject_error, READ_TIMEOUT), (4, 8, 12)),
    Fault("a node that goes", _kill_node),
    Fault("a node that goes and comes back", _restart_node),
    Fault("a cluster that is started anew", partial(_restart_cluster, 0.2), runs=2),
    Fault("a cluster that is away for seconds", partial(_restart_cluster, 3.0), runs=5),
    Fault("clocks that jump ahead", partial(_jump_clock, 86_400)),
    Fault("clocks that jump back", partial(_jump_clock, -86_400)),
    Fault("CDC that is turned off", partial(_set_cdc, False)),
    Fault("CDC that is turned off and on", _toggle_cdc),
    Fault("a TTL that is given", partial(_set_ttl, 10_000_000)),
    Fault("a column that comes", _add_column),
    Fault("a column that goes", _drop_column),
    Fault("a generation that comes", _add_generation),
]


def _ingest_until_done(cluster: ScyllaCluster, workers: TaskRunner) -> int:
    """Ingest until a run succeeds, as a schedule does; return how many runs gave up, each with a one-line error."""
    for attempts in range(RUNS):
        try:
            bring(cluster, workers)
            return attempts
        except Unreachable as error:
            lines = str(error).splitlines()
        if len(lines) != 1:
            raise AssertionError(lines)
        time.sleep(1)
    return RUNS


@pytest.mark.grid("faults in the middle of a window", 2)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_in_the_middle_of_a_window(
    fault: Fault, standin: StandIn, paged: ScyllaCluster, log: LiveLog, workers: TaskRunner
) -> None:
    """After a fault this run or the next ones ingest every row of the cluster's log exactly once."""
    log.write([FIRST_US + index for index in range(ROWS)])
    bring(paged, workers, FIRST_US + 31 * SECOND_US)
    log.write([SWITCH_US + index for index in range(ROWS)])
    standin.proxy.faults.pages_asked = 0
    standin.proxy.faults.meanwhile = {page: partial(fault.happens, standin, log) for page in fault.at}
    assert _ingest_until_done(paged, workers) <= fault.runs
    assert not standin.proxy.faults.meanwhile
    standin.proxy.faults.clock_offset_ms.clear()
    bring(paged, workers)
    assert keys_of(rows_in(paged, log)) == keys_there(log) == log.written_keys()
    assert standin.proxy.refused == []


def _set_clocks(standin: StandIn, times_us: dict[int, int]) -> None:
    """Let nodes report these times (µs) from now on."""
    standin.proxy.faults.clock_offset_ms = {
        node: ms_from_us(Microseconds(us)) - Clock().now_ms() for node, us in times_us.items()
    }


JUMPS = (0, 3_600, -3_600, 86_400, -7, 29, -86_400, 0)
"""Seconds by which a clock is off at each successive step."""


@pytest.mark.parametrize("whose", ["a node's", "this machine's"])
def test_a_clock_that_jumps_loses_no_row(
    whose: str, standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner
) -> None:
    """Windows stay behind the slowest clock, so rows that become visible in the confidence window are never late."""
    now = Microseconds(SWITCH_US + 10 * SECOND_US)
    position_us = 0
    for index, seconds in enumerate(JUMPS):
        now = Microseconds(now + MINUTE_US)
        off = now + seconds * SECOND_US
        _set_clocks(standin, {0: now, 1: off if whose == "a node's" else now, 2: now})
        # One row was written a while ago and becomes visible only now; the other is as new as possible.
        log.write([now - 25 * SECOND_US, now - index])
        done = bring(cluster, workers, now if whose == "a node's" else off)
        assert done.late == 0
        assert position_us <= done.position_us <= now - 30 * SECOND_US + SECOND_US
        position_us = done.position_us
    standin.proxy.faults.clock_offset_ms.clear()
    assert bring(cluster, workers).late_ever == 0
    assert_each_once(cluster, log)
    changes = cdc_tables.read_table_changes(lake_of(cluster))
    assert [change.what for change in changes if change.full_name == "shop.t"] == [TABLE_ADDED]


@pytest.mark.parametrize("seen_first", ["early", "in time"])
def test_a_clock_before_the_log_was_created_does_not_recreate_it(
    seen_first: str, standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner
) -> None:
    """A local clock set to before the table's creation, at first sight or later, does not make the log a new one."""
    early, messages = Microseconds(FIRST_US - HOUR_US), []
    if seen_first == "early":
        assert bring(cluster, workers, early, messages).rows == 0
    log.write([FIRST_US + 1])
    bring(cluster, workers, FIRST_US + MINUTE_US, messages)
    standin.world.schema_changed()
    assert bring(cluster, workers, early, messages).rows == 0
    standin.world.schema_changed()
    log.write([SWITCH_US + 1])
    bring(cluster, workers, told=messages)
    assert_each_once(cluster, log)
    assert messages == []
    changes = cdc_tables.read_table_changes(lake_of(cluster))
    assert [change.what for change in changes if change.full_name == "shop.t"] == [TABLE_ADDED]


def test_cdc_that_was_off_leaves_a_reported_gap(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner
) -> None:
    """Rows from before and after CDC was off arrive once, and the gap is reported in one line."""
    log.write([FIRST_US + 1])
    bring(cluster, workers, FIRST_US + MINUTE_US)
    _set_cdc(False, standin, log)
    log.write([FIRST_US + 70 * SECOND_US])
    bring(cluster, workers, FIRST_US + 120 * SECOND_US)
    _set_cdc(True, standin, log)
    log.write([SWITCH_US + 1])
    bring(cluster, workers)
    assert_each_once(cluster, log)
    changes = [change for change in cdc_tables.read_table_changes(lake_of(cluster)) if change.table_name == "t"]
    assert [change.enabled for change in changes] == [True, False, True]
    (line,) = gaps.describe_gaps(lake_of(cluster), ["shop.t"])
    assert "CDC of shop.t was off from" in line


def test_a_log_that_is_dropped_and_recreated_in_the_middle(
    standin: StandIn, paged: ScyllaCluster, log: LiveLog, workers: TaskRunner
) -> None:
    """Dropping a log mid-window fails in one line and commits nothing of it; the new log is reported and ingested."""
    log.write([FIRST_US + index for index in range(ROWS)])
    bring(paged, workers, FIRST_US + 31 * SECOND_US)
    first_rows = log.written.copy()
    log.write([SWITCH_US - 1 - index for index in range(ROWS)])

    def drop() -> None:
        for table in (LOG, "shop.t"):
            standin.world.run(f"DROP TABLE {table}")
        standin.world.schema_changed()

    standin.proxy.faults.pages_asked, standin.proxy.faults.meanwhile = 0, {5: drop}
    with pytest.raises(PlatformError) as error:
        bring(paged, workers, SWITCH_US - SECOND_US)
    assert len(str(error.value).splitlines()) == 1
    assert keys_of(rows_in(paged, log)) == sorted(key for rows in first_rows for key in keys_of(rows))
    standin.world.logged_table(log.schema, SWITCH_MS)
    log.written[:] = first_rows
    rows = log.write([SWITCH_US + index for index in range(ROWS)])
    messages: list[str] = []
    bring(paged, workers, told=messages)
    assert [line for line in messages if "recreated" in line]
    assert keys_there(log) == keys_of(rows)
    assert keys_of(rows_in(paged, log)) == log.written_keys()
