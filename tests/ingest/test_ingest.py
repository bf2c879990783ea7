"""The log of a live cluster comes into the lake, each row once: over switches, by either way, and whoever fails."""

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
def test_every_row_comes_once_over_a_switch(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner, way: str
) -> None:
    """Rows at the borders of both generations and of the horizon; the newest wait, and nothing comes a second time."""
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


def test_a_cluster_that_fails_now_and_then_loses_and_doubles_nothing(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner
) -> None:
    """Overloads, timeouts and nodes that go down between requests: all rows come, in the end each once."""
    log.write([FIRST_US + place for place in range(500)])
    bring(cluster, workers, FIRST_US + 31 * SECOND_US)
    log.write([SWITCH_US + place for place in range(500)])
    standin.proxy.faults.error_rate = 0.1
    standin.proxy.faults.errors = [OVERLOADED, READ_TIMEOUT]
    standin.proxy.kill(2)
    told: list[str] = []
    bring(cluster, workers, told=told, way="streams")
    assert keys_of(rows_in(cluster, log)) == log.written_keys()
    assert [line for line in told if "127.0.0.3" in line]


def test_requests_and_retries_are_counted_with_the_rows(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner
) -> None:
    """The totals over all runs are in the log's own commits, and a page that fails twice is two retries."""
    log.write([FIRST_US + place for place in range(500)])
    first = bring(cluster, workers, FIRST_US + 31 * SECOND_US)
    log.write([SWITCH_US + place for place in range(500)])
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


def test_rows_that_come_late_are_found_once(cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner) -> None:
    """Written behind the confidence window with an old timestamp: the second reading merges and counts them."""
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


def test_after_a_long_stop_what_was_never_read_comes_first(
    cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner
) -> None:
    """It dies first: windows are read a second time after it, and before it only where all that is new is young."""
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
def test_a_reader_that_is_killed_goes_on_where_it_was(
    cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner, point: str
) -> None:
    """Before its commit, and between the commit and the position: the next one has every row once, and no other."""
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


def test_an_altered_table_goes_on(standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner) -> None:
    """A column comes, without the schema saying so; it goes, another comes, and a key is renamed."""
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
    # The stand-in's log is a table like others, whose regular columns have fixed names.
    world.run(f"ALTER TABLE {name} DROP k")
    world.run(f"ALTER TABLE {name} ADD key int")
    log.schema = defined(DDL.replace("v int,", "v int, x blob,").replace("k ", "key ").replace("k)", "key)"))
    log.write([SWITCH_US + 1], v=[10], key=[3])
    world.schema_changed()
    bring(cluster, workers)
    table = log_table(log.schema)
    found = Lake(cluster.open_home().lake).read(table, ["key", "v", "x"])
    assert sorted(found["key"].to_pylist()) == [0, 0, 3]
    assert sorted(found["v"].to_pylist()) == [7, 8, 10]
    assert {"w", "x", "key"} <= set(lake_of(cluster).stored_schema(table).names)
    assert "k" not in lake_of(cluster).stored_schema(table).names


def test_a_column_that_comes_back_with_another_type_stands_beside_the_old_one(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner
) -> None:
    """The old values stay under a name that says until when they were; the new ones have the column's name."""
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


def test_rows_that_may_be_gone_are_told_of(standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner) -> None:
    """Read a day late of a log whose rows live for an hour: what is there comes, and the gap has its times."""
    ddl = DDL.replace("'ttl': '0'", "'ttl': '3600'")
    log = LiveLog(standin.world, defined(ddl), {FIRST_MS: GENERATIONS[FIRST_MS]}).make()
    log.write([FIRST_US + 1])
    told: list[str] = []
    bring(cluster, workers, FIRST_US + 60 * SECOND_US, told)
    assert not told
    bring(cluster, workers, FIRST_US + 24 * HOUR_US, told)
    (gap,) = told
    assert "from 2026-09-21T14:13:50" in gap
    assert "may be gone" in gap


def test_what_was_written_without_cdc_is_told_of(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner
) -> None:
    """With the times between which it was off, once; a log that is younger than its first window is no new one."""
    log.write([FIRST_US + 1])
    told: list[str] = []
    standin.world.made(log.schema, Milliseconds(FIRST_MS + 60_000))
    bring(cluster, workers, FIRST_US + 70 * SECOND_US, told)
    for minutes, enabled in ((5, "false"), (10, "false"), (20, "true"), (30, "true")):
        standin.world.cdc_options("shop", "t", ttl="0", enabled=enabled)
        standin.world.schema_changed()
        bring(cluster, workers, FIRST_US + minutes * 60 * SECOND_US, told)
    assert told == [
        "CDC of shop.t was off from 2026-09-21T14:18:20.000Z to 2026-09-21T14:33:20.000Z: no log has what was written"
        " meanwhile"
    ]


def test_a_generation_without_streams_is_passed_over(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner
) -> None:
    """As ScyllaDB's own clients do, once a later one operates; it is told of, and what it has later is not read."""
    empty = SWITCH_MS + Milliseconds(60_000)
    last = SWITCH_MS + Milliseconds(120_000)
    standin.world.put("scylla_distributed.cdc_generation_timestamps", key="timestamps", time=empty)
    standin.world.generation(last, time_uuid(last), description(time_uuid(last)))
    log.generations = {**GENERATIONS, last: description(time_uuid(last))}
    log.write([FIRST_US + 1, SWITCH_US + 1, us_from_ms(last), us_from_ms(last) + 1])
    told: list[str] = []
    bring(cluster, workers, told=told)
    assert keys_of(rows_in(cluster, log)) == log.written_keys()
    assert [line for line in told if "skips the generation" in line]


def test_a_generation_that_is_not_whole_holds_windows_back(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner
) -> None:
    """Its rows would else be looked for in the streams of the one before; they come when it is whole."""
    third = Milliseconds(SWITCH_MS + 60_000)
    made = description(time_uuid(third))
    standin.world.generation(third, time_uuid(third), made)
    log.generations = {**GENERATIONS, third: made}
    log.write([FIRST_US + 1, SWITCH_US + 1, us_from_ms(third) + 1])
    entry = made.entry(0)
    where = "time = %s AND range_end = %s"
    standin.world.delete("scylla_distributed.cdc_streams_descriptions_v2", where, third, entry.range_end)
    told: list[str] = []
    bring(cluster, workers, told=told)
    assert [line for line in told if "left out" in line]
    assert rows_in(cluster, log).num_rows == 2
    streams = {stream.tobytes() for stream in entry.streams}
    row = {"time": third, "range_end": entry.range_end, "streams": streams}
    standin.world.put("scylla_distributed.cdc_streams_descriptions_v2", **row)
    bring(cluster, workers)
    assert keys_of(rows_in(cluster, log)) == log.written_keys()


def test_a_slow_clock_holds_windows_back(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner
) -> None:
    """A node whose clock is far behind may still give rows old times: windows end before what it shows."""
    log.write([FIRST_US + 1, SWITCH_US + 1])
    behind_ms = -(int(time.time() * 1000) - SWITCH_MS)
    standin.proxy.faults.clock_offset_ms = {1: behind_ms}
    told: list[str] = []
    done = bring(cluster, workers, told=told)
    assert (done.rows, done.position_us < SWITCH_US) == (1, True)
    assert [line for line in told if "127.0.0.2" in line and "behind" in line]
    standin.proxy.faults.clock_offset_ms = {}
    assert bring(cluster, workers).rows == 1


def test_a_window_with_more_rows_than_memory_holds_is_committed_in_parts(
    cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The window stays whole, with all its rows counted; the table has each row once."""
    monkeypatch.setattr(window_reader, "MAX_ROWS_IN_MEMORY", 40)
    log.write([SWITCH_US + place * SECOND_US for place in range(100)])
    done = bring(cluster, workers)
    assert done.rows == 100
    assert [window.rows for window in done.windows if window.rows] == [100]
    assert keys_of(rows_in(cluster, log)) == log.written_keys()


def test_an_ingest_goes_on_while_the_topology_changes(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner
) -> None:
    """A node that streams for hours holds nothing up: generations are followed, the ring stays as it was seen last."""
    log.write([FIRST_US + 1])
    bring(cluster, workers, SWITCH_US - 60 * SECOND_US)
    third = Milliseconds(SWITCH_MS + 60_000)
    made = description(time_uuid(third), nodes(4))
    standin.world.cluster(nodes(), topology={"transition_state": "write_both_read_old"})
    standin.world.generation(third, time_uuid(third), made)
    log.generations = {**GENERATIONS, third: made}
    log.write([SWITCH_US + 1, us_from_ms(third) + 1])
    bring(cluster, workers)
    assert keys_of(rows_in(cluster, log)) == log.written_keys()
    assert len(ring.read_nodes(lake_of(cluster))) == 3


def test_a_table_that_is_gone_and_comes_back(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner
) -> None:
    """One line while it is gone; made anew its log goes on where the old one ended, and what that lost is told."""
    log.write([FIRST_US + 1])
    bring(cluster, workers, FIRST_US + 60 * SECOND_US)
    for table in ("shop.t", "shop.t_scylla_cdc_log"):
        standin.world.run(f"DROP TABLE {table}")
    standin.world.schema_changed()
    with pytest.raises(NotFound, match=r"has no table shop\.t with a CDC log"):
        bring(cluster, workers, FIRST_US + 120 * SECOND_US)
    standin.world.logged_table(log.schema, SWITCH_MS)
    log.write([SWITCH_US + 1])
    told: list[str] = []
    bring(cluster, workers, told=told)
    assert keys_of(rows_in(cluster, log)) == log.written_keys()
    assert [line for line in told if "recreated at 2026-09-21T15:13:20" in line]


def test_another_cluster_under_the_same_name_is_not_read(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner
) -> None:
    """A position says nothing about a cluster that was restored: it is refused until the user says that it is new."""
    log.write([FIRST_US + 1])
    bring(cluster, workers, FIRST_US + 60 * SECOND_US)
    standin.world.cluster(nodes(), name="restored")
    with pytest.raises(StateError, match="calls itself restored"):
        bring(cluster, workers)


def test_requests_and_rows_are_what_was_estimated(
    standin: StandIn, cluster: ScyllaCluster, log: LiveLog, workers: TaskRunner
) -> None:
    """The proxy counts: a quiet window of a full log asks for its streams alone, 100 a request, and no scan."""
    log.write([FIRST_US + place for place in range(400)])
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
def test_a_wrong_request_is_one_line(cluster: ScyllaCluster, log: LiveLog, arguments: list[str], says: str) -> None:
    """With exit code 2 and the value that is wrong; nothing comes into the lake."""
    answer = run("--home", cluster.home.parent.parent, "ingest", *arguments)
    assert answer.exit_code == 2
    assert len(answer.stderr.splitlines()) == 1
    assert says in answer.stderr
    assert not lake_of(cluster).exists(log_table(log.schema))
