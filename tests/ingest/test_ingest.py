"""An ingest copies each row of a live CDC log into the lake once, over switches and failures.

Streams and token ranges give the same rows.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from support.command_line import run
from support.standin.brought import (
    DDL,
    FIRST_US,
    GENERATIONS,
    NOW_US,
    SWITCH_MS,
    SWITCH_US,
    assert_each_once,
    bring,
    lake_of,
    rows_in,
)
from support.standin.cluster import FIRST_MS, StandIn, description, nodes
from support.standin.live_log import LiveLog, defined, keys_of
from support.standin.proxy import OVERLOADED, READ_TIMEOUT
from support.standin.world import time_uuid

from cdc_platform import failpoints
from cdc_platform.cdclog import log_table
from cdc_platform.clock import HOUR_US, SECOND_US, Microseconds, Milliseconds, us_from_ms
from cdc_platform.delta import Lake, TaskRunner
from cdc_platform.errors import NotFound, StateError
from cdc_platform.ingest import ReadPolicy, window_reader
from cdc_platform.ingest.marks import LATE, REQUESTS, RETRIES
from cdc_platform.metastore import ring
from cdc_platform.scylla import ScyllaCluster

pytestmark = pytest.mark.cassandra


@pytest.mark.parametrize("way", ["streams", "ranges"])
def test_each_row_is_ingested_once_over_a_switch(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner, way: str
) -> None:
    """Rows at the borders of both generations and of the horizon arrive once; newer rows wait for a later run."""
    horizon = NOW_US - 30 * SECOND_US
    times = [FIRST_US, FIRST_US + 1, SWITCH_US - 1, SWITCH_US, SWITCH_US + 1, horizon, horizon + 1]
    rows = log.write(times)
    done = bring(cluster, workers, way=way)
    assert (done.rows, done.position_us) == (len(times) - 1, horizon)
    assert [window.chosen and window.chosen.way for window in done.windows] == [way, way]
    assert keys_of(rows_in(cluster, log)) == [
        key for key in log.written_keys() if key[1] != rows["cdc$time"][6].as_py()
    ]
    expected = rows.slice(0, 6).sort_by("cdc$time")
    assert rows_in(cluster, log).sort_by("cdc$time").equals(expected)
    assert bring(cluster, workers, way=way).windows == []
    assert bring(cluster, workers, NOW_US + HOUR_US, way=way).rows == 1
    assert keys_of(rows_in(cluster, log)) == log.written_keys()
    assert standin.proxy.refused == []


def test_no_row_is_lost_or_doubled_by_an_unreliable_cluster(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner
) -> None:
    """Each row arrives once despite overloads, timeouts and nodes that go down between requests."""
    log.write([FIRST_US + offset for offset in range(500)])
    bring(cluster, workers, FIRST_US + 31 * SECOND_US)
    log.write([SWITCH_US + offset for offset in range(500)])
    standin.proxy.faults.error_rate = 0.1
    standin.proxy.faults.errors = [OVERLOADED, READ_TIMEOUT]
    standin.proxy.kill(2)
    messages: list[str] = []
    bring(cluster, workers, told=messages, way="streams")
    assert keys_of(rows_in(cluster, log)) == log.written_keys()
    assert [line for line in messages if "127.0.0.3" in line]


def test_requests_and_retries_are_counted_with_the_rows(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner
) -> None:
    """The log's own commits have the totals over all runs; a page that fails twice counts as two retries."""
    log.write([FIRST_US + offset for offset in range(500)])
    first = bring(cluster, workers, FIRST_US + 31 * SECOND_US)
    log.write([SWITCH_US + offset for offset in range(500)])
    faults = standin.proxy.faults
    faults.pages_asked, faults.meanwhile = 0, {1: lambda: faults.errors.extend([OVERLOADED, READ_TIMEOUT])}
    second = bring(cluster, workers, way="streams")
    windows = [*first.windows, *second.windows]
    stored = lake_of(cluster).transactions(log_table(log.schema), (REQUESTS, RETRIES))
    assert stored == {
        REQUESTS: sum(window.requests for window in windows),
        RETRIES: sum(window.retries for window in windows),
    }
    assert [sum(window.retries for window in done.windows) for done in (first, second)] == [0, 2]
    assert keys_of(rows_in(cluster, log)) == log.written_keys()


def test_second_pass_adds_late_rows_once(cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner) -> None:
    """The second pass merges and counts rows with old timestamps that were written behind the confidence window."""
    log.write([FIRST_US + 1, SWITCH_US + 1])
    bring(cluster, workers)
    log.write([FIRST_US + 2, SWITCH_US + 2], v=[7, 8])
    policy = ReadPolicy(second_pass_after_us=Microseconds(HOUR_US), second_pass_every_us=Microseconds(SECOND_US))
    first = bring(cluster, workers, policy=policy)
    assert (first.rows, first.late) == (0, 1)
    assert first.second_pass_us == SWITCH_US
    assert bring(cluster, workers, policy=policy).late == 0
    second = bring(cluster, workers, NOW_US + HOUR_US, policy=policy)
    assert (second.late, second.late_ever) == (1, 2)
    assert keys_of(rows_in(cluster, log)) == log.written_keys()
    assert lake_of(cluster).transaction(log_table(log.schema), LATE) == 2


def test_unread_windows_precede_the_second_pass_after_a_long_stop(
    cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner
) -> None:
    """Unread windows come before the second pass, because their rows expire first."""
    # The second pass precedes them only if all unread rows are recent.
    policy = ReadPolicy(
        second_pass_after_us=Microseconds(600 * SECOND_US), second_pass_every_us=Microseconds(SECOND_US)
    )
    log.write([FIRST_US + 1, FIRST_US + 60 * SECOND_US, SWITCH_US + 1])
    bring(cluster, workers, FIRST_US + 60 * SECOND_US, policy=policy)
    log.write([FIRST_US + 2], v=[7])
    stopped = bring(cluster, workers, policy=policy).windows
    assert [(window.set_us, window.rows, window.late) for window in stopped] == [
        (FIRST_US, 1, None),
        (SWITCH_US, 1, None),
        (FIRST_US, 1, 1),
    ]
    steady = bring(cluster, workers, NOW_US + 60 * SECOND_US, policy=policy).windows
    assert [window.late for window in steady] == [0, 0, None]
    assert_each_once(cluster, log)


@pytest.mark.parametrize("point", ["before-sink", "after-sink"])
def test_run_after_a_kill_continues_at_the_position(
    cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner, point: str
) -> None:
    """The run after a kill, before the commit or between commit and position, has each row once and no other."""
    log.write([FIRST_US + 1, SWITCH_US - 1, SWITCH_US + 1])
    home = str(cluster.home.parent.parent)
    command = [sys.executable, "-m", "cdc_platform", "--home", home, "ingest", "prod", "shop.t"]
    killed = subprocess.run(
        command, env={**os.environ, failpoints.KILL_AT_VARIABLE: point}, capture_output=True, timeout=120
    )
    assert killed.returncode == -signal.SIGKILL
    done = run("--home", home, "ingest", "prod", "shop.t", "--json")
    assert done.exit_code == 0, done.stderr
    assert keys_of(rows_in(cluster, log)) == log.written_keys()


def test_ingest_follows_an_altered_table(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner
) -> None:
    """An ingest follows added and dropped columns and a renamed key, even if no schema change is announced."""
    log.write([FIRST_US + 1], v=[7])
    bring(cluster, workers, FIRST_US + 60 * SECOND_US)
    world, name = standin.world, "shop.t_scylla_cdc_log"
    world.run("ALTER TABLE shop.t ADD w int")
    world.run(f'ALTER TABLE {name} ADD (w int, "cdc$deleted_w" boolean)')
    log.schema = defined(DDL.replace("v int,", "v int, w int,"))
    log.write([FIRST_US + 61 * SECOND_US], v=[8], w=[9])
    bring(cluster, workers, FIRST_US + 120 * SECOND_US)
    assert rows_in(cluster, log).sort_by("cdc$time").select(["v", "w"]).to_pylist() == [
        {"v": 7, "w": None},
        {"v": 8, "w": 9},
    ]
    for statement in ("ALTER TABLE shop.t DROP w", f'ALTER TABLE {name} DROP (w, "cdc$deleted_w")'):
        world.run(statement)
    world.run("ALTER TABLE shop.t ADD x blob")
    world.run(f'ALTER TABLE {name} ADD (x blob, "cdc$deleted_x" boolean)')
    world.run("ALTER TABLE shop.t RENAME k TO key")
    # The stand-in's log is an ordinary table, whose regular columns have fixed names.
    world.run(f"ALTER TABLE {name} DROP k")
    world.run(f"ALTER TABLE {name} ADD key int")
    log.schema = defined(DDL.replace("v int,", "v int, x blob,").replace("k ", "key ").replace("k)", "key)"))
    log.write([SWITCH_US + 1], v=[10], key=[3])
    world.schema_changed()
    bring(cluster, workers)
    table = log_table(log.schema)
    rows = Lake(cluster.open_home().lake).read(table, ["key", "v", "x"])
    assert sorted(rows["key"].to_pylist()) == [0, 0, 3]
    assert sorted(rows["v"].to_pylist()) == [7, 8, 10]
    assert {"w", "x", "key"} <= set(lake_of(cluster).stored_schema(table).names)
    assert "k" not in lake_of(cluster).stored_schema(table).names


def test_old_values_of_a_retyped_column_move_to_another_column(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner
) -> None:
    """The new values have the column's name; the old ones have a name that states until when they were valid."""
    log.write([FIRST_US + 1], v=[7])
    bring(cluster, workers, FIRST_US + 60 * SECOND_US)
    world = standin.world
    for table in ("shop.t", "shop.t_scylla_cdc_log"):
        world.run(f"DROP TABLE {table}")
    log.schema = defined(DDL.replace("v int", "v bigint"))
    log.make()
    log.write([SWITCH_US + 1], v=[2**40])
    bring(cluster, workers)
    names = lake_of(cluster).stored_schema(log_table(log.schema)).names
    (old,) = [name for name in names if name.startswith("v$until_")]
    rows = lake_of(cluster).read_version(log_table(log.schema), lake_of(cluster).version(log_table(log.schema)) or 0)
    assert sorted(rows.select([old, "v"]).to_pylist(), key=str) == [{old: 7, "v": None}, {old: None, "v": 2**40}]


def test_rows_that_may_have_expired_are_reported(standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner) -> None:
    """An ingest that runs a day late reads the remaining rows and reports the gap's times."""
    # The rows of the log live for an hour.
    ddl = DDL.replace("'ttl': '0'", "'ttl': '3600'")
    log = LiveLog(standin.world, defined(ddl), {FIRST_MS: GENERATIONS[FIRST_MS]}).make()
    log.write([FIRST_US + 1])
    messages: list[str] = []
    bring(cluster, workers, FIRST_US + 60 * SECOND_US, messages)
    assert not messages
    bring(cluster, workers, FIRST_US + 24 * HOUR_US, messages)
    (gap,) = messages
    assert "from 2026-09-21T14:13:50" in gap
    assert "may be gone" in gap


def test_time_without_cdc_is_reported_once(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner
) -> None:
    """One message has the times between which CDC was off."""
    # A log younger than its first window does not count as recreated.
    log.write([FIRST_US + 1])
    messages: list[str] = []
    standin.world.made(log.schema, Milliseconds(FIRST_MS + 60_000))
    bring(cluster, workers, FIRST_US + 70 * SECOND_US, messages)
    for minutes, enabled in ((5, "false"), (10, "false"), (20, "true"), (30, "true")):
        standin.world.cdc_options("shop", "t", ttl="0", enabled=enabled)
        standin.world.schema_changed()
        bring(cluster, workers, FIRST_US + minutes * 60 * SECOND_US, messages)
    assert messages == [
        "CDC of shop.t was off from 2026-09-21T14:18:20.000Z to 2026-09-21T14:33:20.000Z: no log has what was written"
        " meanwhile"
    ]


def test_generation_without_streams_is_skipped(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner
) -> None:
    """Like ScyllaDB's clients, an ingest skips and reports one without streams once a later one operates."""
    # It does not read streams that this generation gets later.
    empty = SWITCH_MS + Milliseconds(60_000)
    last = SWITCH_MS + Milliseconds(120_000)
    standin.world.put("scylla_distributed.cdc_generation_timestamps", key="timestamps", time=empty)
    standin.world.generation(last, time_uuid(last), description(time_uuid(last)))
    log.generations = {**GENERATIONS, last: description(time_uuid(last))}
    log.write([FIRST_US + 1, SWITCH_US + 1, us_from_ms(last), us_from_ms(last) + 1])
    messages: list[str] = []
    bring(cluster, workers, told=messages)
    assert keys_of(rows_in(cluster, log)) == log.written_keys()
    assert [line for line in messages if "skips the generation" in line]


def test_windows_wait_for_an_incomplete_generation(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner
) -> None:
    """Windows wait until a generation is complete; otherwise its rows would be sought in the previous one's streams."""
    third = Milliseconds(SWITCH_MS + 60_000)
    generation = description(time_uuid(third))
    standin.world.generation(third, time_uuid(third), generation)
    log.generations = {**GENERATIONS, third: generation}
    log.write([FIRST_US + 1, SWITCH_US + 1, us_from_ms(third) + 1])
    entry = generation.entry(0)
    where = "time = %s AND range_end = %s"
    standin.world.delete("scylla_distributed.cdc_streams_descriptions_v2", where, third, entry.range_end)
    messages: list[str] = []
    bring(cluster, workers, told=messages)
    assert [line for line in messages if "left out" in line]
    assert rows_in(cluster, log).num_rows == 2
    streams = {stream.tobytes() for stream in entry.streams}
    row = {"time": third, "range_end": entry.range_end, "streams": streams}
    standin.world.put("scylla_distributed.cdc_streams_descriptions_v2", **row)
    bring(cluster, workers)
    assert keys_of(rows_in(cluster, log)) == log.written_keys()


def test_windows_end_before_a_slow_clock(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner
) -> None:
    """Windows end before the time of the slowest node's clock, which may still give rows old timestamps."""
    log.write([FIRST_US + 1, SWITCH_US + 1])
    behind_ms = -(int(time.time() * 1000) - SWITCH_MS)
    standin.proxy.faults.clock_offset_ms = {1: behind_ms}
    messages: list[str] = []
    done = bring(cluster, workers, told=messages)
    assert (done.rows, done.position_us < SWITCH_US) == (1, True)
    assert [line for line in messages if "127.0.0.2" in line and "behind" in line]
    standin.proxy.faults.clock_offset_ms = {}
    assert bring(cluster, workers).rows == 1


def test_window_larger_than_memory_is_committed_in_parts(
    cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The window remains one with all its rows counted, and the table has each row once."""
    monkeypatch.setattr(window_reader, "MAX_ROWS_IN_MEMORY", 40)
    log.write([SWITCH_US + offset * SECOND_US for offset in range(100)])
    done = bring(cluster, workers)
    assert done.rows == 100
    assert [window.rows for window in done.windows if window.rows] == [100]
    assert keys_of(rows_in(cluster, log)) == log.written_keys()


def test_ingest_continues_while_the_topology_changes(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner
) -> None:
    """A node that streams for hours delays nothing. The ingest follows generations; the ring stays as last observed."""
    log.write([FIRST_US + 1])
    bring(cluster, workers, SWITCH_US - 60 * SECOND_US)
    third = Milliseconds(SWITCH_MS + 60_000)
    generation = description(time_uuid(third), nodes(4))
    standin.world.cluster(nodes(), topology={"transition_state": "write_both_read_old"})
    standin.world.generation(third, time_uuid(third), generation)
    log.generations = {**GENERATIONS, third: generation}
    log.write([SWITCH_US + 1, us_from_ms(third) + 1])
    bring(cluster, workers)
    assert keys_of(rows_in(cluster, log)) == log.written_keys()
    assert len(ring.read_nodes(lake_of(cluster))) == 3


def test_recreated_table_continues_the_log(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner
) -> None:
    """The log of a recreated table continues the old log, and a message reports the recreation."""
    # While the table does not exist, an ingest fails with one line.
    log.write([FIRST_US + 1])
    bring(cluster, workers, FIRST_US + 60 * SECOND_US)
    for table in ("shop.t", "shop.t_scylla_cdc_log"):
        standin.world.run(f"DROP TABLE {table}")
    standin.world.schema_changed()
    with pytest.raises(NotFound, match=r"has no table shop\.t with a CDC log"):
        bring(cluster, workers, FIRST_US + 120 * SECOND_US)
    standin.world.logged_table(log.schema, SWITCH_MS)
    log.write([SWITCH_US + 1])
    messages: list[str] = []
    bring(cluster, workers, told=messages)
    assert keys_of(rows_in(cluster, log)) == log.written_keys()
    assert [line for line in messages if "recreated at 2026-09-21T15:13:20" in line]


def test_restored_cluster_of_the_same_name_is_refused(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner
) -> None:
    """A position does not apply to a restored cluster, so an ingest refuses it until the user registers it as new."""
    log.write([FIRST_US + 1])
    bring(cluster, workers, FIRST_US + 60 * SECOND_US)
    standin.world.cluster(nodes(), name="restored")
    with pytest.raises(StateError, match="calls itself restored"):
        bring(cluster, workers)


def test_requests_match_the_estimate(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner
) -> None:
    """A quiet window of a full log requests only its streams, 100 at a time, without a scan."""
    # The proxy counts the requests.
    log.write([FIRST_US + offset for offset in range(400)])
    bring(cluster, workers, FIRST_US + 60 * SECOND_US)
    standin.proxy.statements.clear()
    done = bring(cluster, workers, FIRST_US + 90 * SECOND_US)
    reads = [text for _, text in standin.proxy.statements if "shop.t_scylla_cdc_log" in text.replace('"', "")]
    (window,) = done.windows
    assert window.chosen is not None
    streams = len(GENERATIONS[FIRST_MS].streams)
    assert (window.chosen.way, window.requests, len(reads)) == ("streams", -(-streams // 100), -(-streams // 100))
    assert "BYPASS CACHE" in reads[0]
    assert reads[0].count("0x") == streams
    assert window.other is not None
    assert window.other.looks > window.chosen.looks


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["prod", "nodot"], "keyspace.table"),
        (["nobody", "shop.t"], "no cluster nobody is known"),
        (
            ["prod", "shop.none"],
            "no table shop.none with a CDC log and a supported definition; see what there is with: cdc-platform",
        ),
        (["prod", "shop.t", "--until", "yesterday"], "yesterday"),
        (["prod", "shop.t", "--by", "magic"], "magic"),
        (["prod", "shop.t", "--confidence", "-1"], "-1"),
        (["prod", "shop.t", "--second-pass-after", "x"], "'x'"),
    ],
)
def test_invalid_request_prints_one_line(cluster: ScyllaCluster, log: LiveLog, arguments: list[str], says: str) -> None:
    """An invalid request exits with code 2, names the wrong value, and leaves the lake unchanged."""
    answer = run("--home", cluster.home.parent.parent, "ingest", *arguments)
    assert answer.exit_code == 2
    assert len(answer.stderr.splitlines()) == 1
    assert says in answer.stderr
    assert not lake_of(cluster).exists(log_table(log.schema))
