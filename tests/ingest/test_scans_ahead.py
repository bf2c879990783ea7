"""One scan of the ring serves several windows: when it is planned, what it requests, and a commit per window."""

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


def add_generations(standin: StandIn, log: LiveLog, count: int, tokens: int = 4) -> list[Microseconds]:
    """Add `count` generations, one minute apart; return when they begin (µs)."""
    generations = dict(log.generations)
    for number in range(1, count + 1):
        start = Milliseconds(ms_from_us(Microseconds(SWITCH_US + number * MINUTE_US)))
        generation = generations[start] = description(time_uuid(start), nodes(3, tokens))
        standin.world.published(start, generation)
    log.generations = generations
    return [us_from_ms(start_ms) for start_ms in sorted(generations)[-count:]]


def log_requests(standin: StandIn) -> list[str]:
    """Return the page requests for the log."""
    return [text for _, text in standin.proxy.statements if "shop.t_scylla_cdc_log" in text.replace('"', "")]


def test_quiet_backlog_of_many_streams_is_one_scan(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner
) -> None:
    """For five windows of thousands of streams the server reads its few rows once; each window has its commit."""
    log.write([FIRST_US + 1, SWITCH_US - 1])
    bring(cluster, workers, SWITCH_US + 30 * SECOND_US)
    starts = add_generations(standin, log, 4, tokens=64)
    log.write([SWITCH_US + SECOND_US, *(start + 1 for start in starts)])
    before = lake_of(cluster).version(log_table(log.schema)) or 0
    standin.proxy.statements.clear()
    done = bring(cluster, workers)
    first, *others = done.windows
    assert [window.set_us for window in done.windows] == [SWITCH_US, *starts]
    assert first.chosen is not None
    assert first.other is not None
    assert (first.chosen.way, first.chosen.windows, first.scanned_with) == ("ranges", 5, None)
    assert first.other.looks >= STREAMS + 4 * 3 * 64 * 4
    assert (len(log_requests(standin)), first.requests, first.chosen.requests) == (RANGES, RANGES, RANGES)
    assert all("token(" in text for text in log_requests(standin))
    assert {(start.scanned_with, start.requests) for start in others} == {(first.number, 0)}
    assert lake_of(cluster).version(log_table(log.schema)) == before + 5
    assert [window.rows for window in done.windows] == [1] * 5
    assert_each_once(cluster, log)


@pytest.mark.parametrize(("windows", "way"), [(4, "streams"), (12, "ranges")])
def test_full_log_with_quiet_windows_is_scanned_only_for_many_windows(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner, windows: int, way: str
) -> None:
    """A scan reads 400 old rows, streams are looked up per window; the smaller sum determines the way."""
    log.write([FIRST_US + offset for offset in range(400)])
    bring(cluster, workers, SWITCH_US + 30 * SECOND_US)
    add_generations(standin, log, windows - 1)
    standin.proxy.statements.clear()
    done = bring(cluster, workers)
    row_count = standin.world.rows("SELECT COUNT(*) FROM shop.t_scylla_cdc_log")[0][0]
    costs = {"streams": windows * STREAMS, "ranges": row_count + RANGES}
    assert way == min(costs, key=lambda name: costs[name])
    assert {window.chosen.way for window in done.windows if window.chosen} == {way}
    requests = {"streams": windows, "ranges": RANGES}[way]
    assert len(log_requests(standin)) == sum(window.requests for window in done.windows) == requests
    streams = sum(text.count("0x") for text in log_requests(standin))
    assert streams == {"streams": costs["streams"], "ranges": 0}[way]
    assert way == "streams" or sum(window.chosen.looks for window in done.windows if window.chosen) == costs[way]
    assert len(done.windows) == windows


def test_scan_of_more_rows_than_memory_runs_once(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scan serves both windows, each with its own count of rows, and all rows arrive."""
    monkeypatch.setattr(window_reader, "MAX_ROWS_IN_MEMORY", 40)
    log.write([FIRST_US + minute * MINUTE_US for minute in range(100)])
    standin.proxy.statements.clear()
    done = bring(cluster, workers, way="ranges")
    assert [window.rows for window in done.windows] == [60, 40]
    assert [window.requests for window in done.windows] == [RANGES, 0]
    assert len(log_requests(standin)) == RANGES
    assert_each_once(cluster, log)


def test_rows_of_one_microsecond_are_one_window(
    cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More rows than fit into memory have one timestamp, so no window could separate them."""
    monkeypatch.setattr(window_reader, "MAX_ROWS_IN_MEMORY", 10)
    log.write([SWITCH_US - 1, *[SWITCH_US + 5] * 30, SWITCH_US + 6])
    bring(cluster, workers, way="ranges")
    assert_each_once(cluster, log)


def test_second_pass_reads_windows_with_one_scan(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner
) -> None:
    """The second pass finds late rows of both generations, after it has read unread rows."""
    # The commit of each window counts its late rows.
    log.write([FIRST_US + 1, SWITCH_US + 1])
    bring(cluster, workers)
    log.write([FIRST_US + 2, SWITCH_US + 2, SWITCH_US + 3])
    standin.proxy.statements.clear()
    policy = ReadPolicy(second_pass_after_us=Microseconds(SECOND_US), second_pass_every_us=Microseconds(SECOND_US))
    done = bring(cluster, workers, NOW_US + HOUR_US, policy=policy, way="ranges")
    assert [window.late for window in done.windows] == [None, 1, 2]
    assert [window.requests for window in done.windows] == [RANGES, RANGES, 0]
    assert_each_once(cluster, log)


def test_kill_between_the_commits_of_a_scan(cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner) -> None:
    """One of two windows is committed; the next process scans for the other and has each row once."""
    log.write([FIRST_US + 1, SWITCH_US - 1, SWITCH_US + 1, HORIZON_US])
    command = ["--home", str(cluster.home.parent.parent), "ingest", "prod", "shop.t", "--by", "ranges"]
    environment = {**os.environ, failpoints.KILL_AT_VARIABLE: failpoints.AFTER_SINK}
    killed = subprocess.run([sys.executable, "-m", "cdc_platform", *command], env=environment, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    stored = keys_of(lake_of(cluster).read(log_table(log.schema)))
    assert len(stored) == 2
    done = run(*command, "--json")
    assert done.exit_code == 0, done.stderr
    (window,) = done.json["windows"]
    assert (window["rows"], window["requests"], window["scanned_with"]) == (2, RANGES, None)
    assert window["chosen"]["windows"] == 1
    assert_each_once(cluster, log)
