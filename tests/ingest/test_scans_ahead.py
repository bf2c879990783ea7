"""One scan of the ring for several windows: when it is made, what it asks for, and a commit each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from support.command_line import run
from support.standin.brought import (
    FIRST_US,
    GENERATIONS,
    HORIZON_US,
    NOW_US,
    SWITCH_US,
    assert_each_once,
    bring,
    lake_of,
)
from support.standin.cluster import StandIn, description, nodes
from support.standin.live_log import LiveLog, keys_of
from support.standin.world import time_uuid

from cdc_platform import failpoints
from cdc_platform.cdclog import log_table
from cdc_platform.clock import HOUR_US, MINUTE_US, SECOND_US, Microseconds, Milliseconds, ms_from_us, us_from_ms
from cdc_platform.delta import TaskRunner
from cdc_platform.ingest import ReadPolicy, window_reader
from cdc_platform.scylla import ScyllaCluster

pytestmark = pytest.mark.cassandra

STREAMS = len(GENERATIONS[min(GENERATIONS)].streams)
RANGES = 16


def switches(standin: StandIn, log: LiveLog, count: int, tokens: int = 4) -> list[Microseconds]:
    """So many more generations, a minute after each other; when they begin (µs)."""
    made = dict(log.generations)
    for number in range(1, count + 1):
        begun = Milliseconds(ms_from_us(Microseconds(SWITCH_US + number * MINUTE_US)))
        new = made[begun] = description(time_uuid(begun), nodes(3, tokens))
        standin.world.published(begun, new)
    log.generations = made
    return [us_from_ms(each) for each in sorted(made)[-count:]]


def asked(standin: StandIn) -> list[str]:
    """The pages that were asked of the log."""
    return [text for _, text in standin.proxy.statements if "shop.t_scylla_cdc_log" in text.replace('"', "")]


def test_a_quiet_backlog_of_many_streams_is_one_scan(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner
) -> None:
    """Five windows over thousands of streams each: the server reads its few rows once; each window has its commit."""
    log.write([FIRST_US + 1, SWITCH_US - 1])
    bring(cluster, workers, SWITCH_US + 30 * SECOND_US)
    begun = switches(standin, log, 4, tokens=64)
    log.write([SWITCH_US + SECOND_US, *(each + 1 for each in begun)])
    before = lake_of(cluster).version(log_table(log.schema)) or 0
    standin.proxy.statements.clear()
    done = bring(cluster, workers)
    first, *others = done.windows
    assert [window.set_us for window in done.windows] == [SWITCH_US, *begun]
    assert first.chosen is not None
    assert first.other is not None
    assert (first.chosen.way, first.chosen.windows, first.scanned_with) == ("ranges", 5, None)
    assert first.other.looks >= STREAMS + 4 * 3 * 64 * 4
    assert (len(asked(standin)), first.requests, first.chosen.requests) == (RANGES, RANGES, RANGES)
    assert all("token(" in text for text in asked(standin))
    assert {(each.scanned_with, each.requests) for each in others} == {(first.number, 0)}
    assert lake_of(cluster).version(log_table(log.schema)) == before + 5
    assert [window.rows for window in done.windows] == [1] * 5
    assert_each_once(cluster, log)


@pytest.mark.parametrize(("windows", "way"), [(4, "streams"), (12, "ranges")])
def test_a_full_log_with_quiet_windows_is_scanned_for_many_of_them_alone(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner, windows: int, way: str
) -> None:
    """A scan reads 400 old rows, streams are looked up for each window: what adds up to less is asked for."""
    log.write([FIRST_US + place for place in range(400)])
    bring(cluster, workers, SWITCH_US + 30 * SECOND_US)
    switches(standin, log, windows - 1)
    standin.proxy.statements.clear()
    done = bring(cluster, workers)
    held = standin.world.rows("SELECT COUNT(*) FROM shop.t_scylla_cdc_log")[0][0]
    looked_at = {"streams": windows * STREAMS, "ranges": held + RANGES}
    assert way == min(looked_at, key=lambda each: looked_at[each])
    assert {window.chosen.way for window in done.windows if window.chosen} == {way}
    requests = {"streams": windows, "ranges": RANGES}[way]
    assert len(asked(standin)) == sum(window.requests for window in done.windows) == requests
    streams = sum(text.count("0x") for text in asked(standin))
    assert streams == {"streams": looked_at["streams"], "ranges": 0}[way]
    assert way == "streams" or sum(window.chosen.looks for window in done.windows if window.chosen) == looked_at[way]
    assert len(done.windows) == windows


def test_a_scan_of_more_rows_than_memory_holds_is_made_once(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It serves both windows, each with its own count of rows, and all rows arrive."""
    monkeypatch.setattr(window_reader, "MAX_ROWS_IN_MEMORY", 40)
    log.write([FIRST_US + place * MINUTE_US for place in range(100)])
    standin.proxy.statements.clear()
    done = bring(cluster, workers, way="ranges")
    assert [window.rows for window in done.windows] == [60, 40]
    assert [window.requests for window in done.windows] == [RANGES, 0]
    assert len(asked(standin)) == RANGES
    assert_each_once(cluster, log)


def test_rows_of_one_moment_come_together(
    cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than fit into memory, in one microsecond: no window could tell them apart."""
    monkeypatch.setattr(window_reader, "MAX_ROWS_IN_MEMORY", 10)
    log.write([SWITCH_US - 1, *[SWITCH_US + 5] * 30, SWITCH_US + 6])
    bring(cluster, workers, way="ranges")
    assert_each_once(cluster, log)


def test_windows_are_read_again_by_one_scan(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner
) -> None:
    """Late rows of both generations are found, each counted in its own window's commit, behind what was never read."""
    log.write([FIRST_US + 1, SWITCH_US + 1])
    bring(cluster, workers)
    log.write([FIRST_US + 2, SWITCH_US + 2, SWITCH_US + 3])
    standin.proxy.statements.clear()
    policy = ReadPolicy(second_pass_after_us=Microseconds(SECOND_US), second_pass_every_us=Microseconds(SECOND_US))
    done = bring(cluster, workers, NOW_US + HOUR_US, policy=policy, way="ranges")
    assert [window.late for window in done.windows] == [None, 1, 2]
    assert [window.requests for window in done.windows] == [RANGES, RANGES, 0]
    assert_each_once(cluster, log)


def test_a_reader_killed_between_the_commits_of_a_scan_goes_on(
    cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner
) -> None:
    """One window of two is in: the next process scans for the other, and has every row once."""
    log.write([FIRST_US + 1, SWITCH_US - 1, SWITCH_US + 1, HORIZON_US])
    command = ["--home", str(cluster.home.parent.parent), "ingest", "prod", "shop.t", "--by", "ranges"]
    environment = {**os.environ, failpoints.KILL_AT_VARIABLE: failpoints.AFTER_SINK}
    killed = subprocess.run([sys.executable, "-m", "cdc_platform", *command], env=environment, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    there = keys_of(lake_of(cluster).read(log_table(log.schema)))
    assert len(there) == 2
    done = run(*command, "--json")
    assert done.exit_code == 0, done.stderr
    (window,) = done.json["windows"]
    assert (window["rows"], window["requests"], window["scanned_with"]) == (2, RANGES, None)
    assert window["chosen"]["windows"] == 1
    assert_each_once(cluster, log)
