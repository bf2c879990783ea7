"""Every kind of gap in a live log is recorded once, despite kills, and every command reports it.

Each kind occurs on the stand-in, and each has a counterpart without a gap.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql.types import StructType
from support.command_line import Answer, run
from support.standin.brought import DDL, FIRST_US, GENERATIONS, LOG, SWITCH_MS, SWITCH_US, bring, lake_of
from support.standin.cluster import StandIn
from support.standin.live_log import LiveLog, defined
from support.standin.world import time_uuid

from cdc_platform import failpoints
from cdc_platform.clock import HOUR_US, SECOND_US, Clock, Microseconds, Milliseconds, format_us, us_from_datetime
from cdc_platform.delta import Lake, TaskRunner
from cdc_platform.errors import StateError
from cdc_platform.ingest.spark_source import ScyllaCdc
from cdc_platform.scylla import ScyllaCluster
from cdc_platform.tables import LOG_GAPS

pytestmark = pytest.mark.cassandra

MINUTE_US = 60 * SECOND_US
TTL = 3600
FIRST_READ_US = Microseconds(FIRST_US + 10 * MINUTE_US)
"""The time of the first read."""
LATER_US = Microseconds(SWITCH_US + HOUR_US)
"""The time of the second read."""


@dataclass(frozen=True)
class World:
    """A log on the stand-in that was read once, with a row in each of its generations."""

    standin: StandIn
    cluster: ScyllaCluster
    log: LiveLog
    workers: TaskRunner
    by_real_clock: bool = False
    """True if events have the time of the stand-in's clock, which commands must then use, too."""

    def ingest(self, at_us: int, *more: str) -> Answer:
        """Ingest new rows with the command."""
        words = ["ingest", "prod", "shop.t", *(["--confidence", "0"] if self.by_real_clock else []), *more]
        return run("--home", self.cluster.home.parent.parent, *self._clock(at_us), *words)

    def asked(self, *words: str) -> Answer:
        """Run a command on the mirror, at the time of the second read."""
        return run("--home", self.cluster.home, *self._clock(LATER_US), *words)

    def _clock(self, at_us: int) -> list[str]:
        return [] if self.by_real_clock else ["--clock", format_us(Microseconds(at_us))]

    @property
    def lake(self) -> Lake:
        return lake_of(self.cluster)

    def rows(self) -> list[dict[str, Any]]:
        """Return the recorded gaps, except the time before reading."""
        rows = self.lake.read(LOG_GAPS).to_pylist()
        return sorted((row for row in rows if row["what"] != "before_reading"), key=lambda row: row["since"])


def start_log(
    standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner, ttl: int, *, by_real_clock: bool = False
) -> World:
    """Create a log whose rows live for `ttl` seconds, and read it once."""
    standin.world.generation(SWITCH_MS, time_uuid(SWITCH_MS), GENERATIONS[SWITCH_MS])
    ddl = DDL.replace("'ttl': '0'", f"'ttl': '{ttl}'")
    log = LiveLog(standin.world, defined(ddl), GENERATIONS).make()
    log.write([FIRST_US + 1])
    world = World(standin, cluster, log, workers, by_real_clock)
    assert world.ingest(FIRST_READ_US).exit_code == 0
    log.write([FIRST_READ_US + 1, SWITCH_US + 1])
    return world


def interval_us(row: dict[str, Any]) -> tuple[int, int]:
    """Return the times (µs) of a recorded gap."""
    return us_from_datetime(row["since"]), us_from_datetime(row["until"])


def nothing(world: World) -> None:
    """Do nothing; rows live long enough."""


def recreates(world: World) -> None:
    """Drop the table with its log, and create both again."""
    for table in ("shop.t", LOG):
        world.standin.world.run(f"DROP TABLE {table}")
    world.standin.world.logged_table(world.log.schema, SWITCH_MS)
    world.log.write([SWITCH_US + 2])


def switches_off(world: World) -> None:
    """Disable CDC for a while; two runs observe it."""
    for minutes, enabled in ((20, "false"), (30, "true")):
        options = {"ttl": str(world.log.schema.cdc.ttl), "enabled": enabled}
        world.standin.world.cdc_options("shop", "t", **options)
        world.standin.world.schema_changed()
        world.ingest(FIRST_US + minutes * MINUTE_US)


def alters_and_back(world: World) -> None:
    """Alter the table between two observations, so that it looks as before."""
    world.standin.world.altered("shop", "t")
    world.standin.world.schema_changed()


@dataclass(frozen=True)
class Kind:
    """A kind of gap: the log's TTL, the event after the first read, and the recorded interval (µs).

    `times` is None if the stand-in's own clock determines the interval.
    """

    what: str
    ttl: int
    happens: Callable[[World], None]
    times: tuple[int, int] | None


READ_US = FIRST_READ_US - 30 * SECOND_US
"""The position after the first read."""
KINDS = (
    Kind("died", TTL, nothing, (READ_US + 1, LATER_US - TTL * SECOND_US + 1)),
    Kind("log_recreated", 0, recreates, (READ_US + 1, SWITCH_US)),
    Kind("cdc_off", 0, switches_off, (FIRST_US + 20 * MINUTE_US, FIRST_US + 30 * MINUTE_US)),
    Kind("altered", 0, alters_and_back, None),
)
ALL = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.what)


def by_ingest(world: World) -> bool:
    """Return True if `ingest` fails, also in a run without new rows, and prints the gap as JSON."""
    answers = [world.ingest(LATER_US), world.ingest(LATER_US + MINUTE_US, "--json")]
    assert [answer.exit_code for answer in answers] == [answers[0].exit_code] * 2
    gaps = [gap for gap in answers[1].json["gaps"] if gap["what"] != "before_reading"]
    assert bool(gaps) == bool(answers[0].exit_code)
    return bool(answers[0].exit_code)


def by_complete(world: World) -> bool:
    """Return True if no interval that overlaps the gap is proved; one before it may be."""

    def recorded(since_us: int, until_us: int) -> bool:
        times = [format_us(Microseconds(time_us)) for time_us in (since_us, until_us)]
        answer = world.asked("verify-interval", *times, "--consumer", "ingest", "--json")
        checks = {time_us["check"]: time_us["passed"] for time_us in answer.json["checks"]}
        assert answer.json["verified"] <= checks["no gap was recorded in it"]
        return not checks["no gap was recorded in it"]

    for row in world.rows():
        since, until = interval_us(row)
        assert [recorded(*times) for times in ((since - 2, since), (since - 1, since + 1))] == [False, True]
        assert [recorded(*times) for times in ((until, until + 1), (until - 1, until + 1))] == [False, True]
    return recorded(READ_US, LATER_US if not world.by_real_clock else Clock().now_us())


def by_status(world: World) -> bool:
    """Return True if `status` has an error and the reader's gaps."""
    answer = world.asked("status", "--json")
    codes = {entry["code"] for entry in answer.json["alerts"] if entry["level"] == "error"}
    assert answer.exit_code == bool(codes)
    (reader,) = [entry for entry in answer.json["consumers"] if entry["name"] == "ingest"]
    assert bool(reader["open_gaps"]) == ("rows-lost" in codes)
    return "rows-lost" in codes


def by_check(world: World) -> bool:
    """Return True if the invariant fails."""
    answer = world.asked("check", "--json")
    (line,) = [row for row in answer.rows if row["invariant"] == "log_gaps_accepted"]
    assert line["checked"] == 1
    return not line["passed"]


def by_consumers(world: World) -> bool:
    """Return True if each reader of the log counts the gap and the list of gaps has it."""
    rows = world.asked("consumers", "--json").rows
    listed = world.asked("consumers", "gaps", "shop.t", "--json")
    assert {bool(row["gaps"]) for row in rows} == {bool(listed.exit_code)}
    return bool(listed.exit_code)


def by_consume(world: World) -> bool:
    """Return True if `consume` reports the gap when it passes it."""
    answer = world.asked("consume", "shop.t", "--name", "audit", "--json")
    gaps = [gap for gap in answer.json["gaps"] if gap["what"] != "before_reading"]
    assert bool(gaps) == ("[log-gap]" in answer.stderr)
    return bool(gaps)


def by_stream(world: World) -> bool:
    """Return True if a Spark stream refuses to pass the gap, when its planning worker checks."""
    home = world.cluster.home.parent.parent
    options = {"home": str(home), "cluster": "prod", "table": "shop.t", "confidence": "0"}
    reader = ScyllaCdc(options).streamReader(StructType())
    try:
        start = {"until": READ_US}
        reader.latestOffset(start, reader.getDefaultReadLimit())
        reader.partitions(start, {"until": Clock().now_us() if world.by_real_clock else LATER_US - 30 * SECOND_US})
    except StateError as refusal:
        return "gaps = tell" in str(refusal)
    finally:
        reader.stop()
    return False


SEES: Mapping[str, Callable[[World], bool]] = {
    "ingest": by_ingest,
    "verify-interval": by_complete,
    "status": by_status,
    "check": by_check,
    "consumers": by_consumers,
    "consume": by_consume,
    "stream": by_stream,
}
"""All commands that must report a gap; `ingest`, which finds it, is the first."""


@ALL
def test_every_command_reports_every_gap(
    kind: Kind, standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner
) -> None:
    """A gap is one row with its times. Once accepted, only `verify-interval` and streams still report it."""
    world = start_log(standin, cluster, workers, kind.ttl, by_real_clock=kind.times is None)
    kind.happens(world)
    assert {name: sees(world) for name, sees in SEES.items()} == dict.fromkeys(SEES, True)
    (row,) = world.rows()
    assert (row["keyspace_name"], row["table_name"], row["what"]) == ("shop", "t", kind.what)
    assert kind.times in (None, interval_us(row))
    accepted = world.asked("consumers", "gaps", "shop.t", "--accept", "--reason", "ticket 4711")
    assert accepted.exit_code == 0, accepted
    assert "ticket 4711" in " ".join(accepted.stdout.split())
    unproved = {"verify-interval", "consume", "stream"}
    reported = {name: sees(world) for name, sees in SEES.items() if name not in {"ingest", *unproved}}
    assert reported == dict.fromkeys(reported, False)
    assert {name: SEES[name](world) for name in unproved} == dict.fromkeys(unproved, True)
    assert world.ingest(LATER_US + 2 * MINUTE_US).exit_code == 0
    assert "log-gap" in {alert["code"] for alert in world.asked("status", "--json").json["alerts"]}


@pytest.mark.parametrize("ttl", [0, 10 * TTL], ids=["rows never die", "rows live long enough"])
def test_no_command_reports_a_gap_without_lost_rows(
    ttl: int, standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner
) -> None:
    """The same log, read equally late, loses no row; only the start of reading is recorded."""
    world = start_log(standin, cluster, workers, ttl)
    checks = {name: sees for name, sees in SEES.items() if name != "stream" or not ttl}
    assert {name: sees(world) for name, sees in checks.items()} == dict.fromkeys(checks, False)
    assert world.rows() == []
    whole = [format_us(Microseconds(time_us)) for time_us in (FIRST_US, LATER_US - 30 * SECOND_US)]
    assert world.asked("verify-interval", *whole, "--consumer", "ingest").exit_code == 0
    early = [format_us(Microseconds(FIRST_US - HOUR_US)), whole[1]]
    assert world.asked("verify-interval", *early, "--consumer", "ingest").exit_code == 1


@pytest.mark.parametrize("kind", KINDS[:3], ids=lambda kind: kind.what)
def test_gap_is_found_in_a_home_without_recorded_gaps(
    kind: Kind, standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner
) -> None:
    """In an earlier release's home other tables show the gap."""
    # `verify-interval` never proves the interval, and accepting the gap records it.
    world = start_log(standin, cluster, workers, kind.ttl)
    kind.happens(world)
    world.ingest(LATER_US)
    shutil.rmtree(world.lake.path(LOG_GAPS))
    assert kind.times is not None
    times = [format_us(Microseconds(time_us)) for time_us in kind.times]
    assert world.asked("verify-interval", *times, "--consumer", "ingest").exit_code == 1
    if kind.what == "cdc_off":
        return  # the history of the table's options has it, as always
    assert by_status(world)
    assert by_check(world)
    assert world.ingest(LATER_US + MINUTE_US).exit_code == 1
    assert world.asked("consumers", "gaps", "shop.t", "--accept", "--reason", "x").exit_code == 0
    assert not by_status(world)
    assert world.ingest(LATER_US + 2 * MINUTE_US).exit_code == 0
    assert world.asked("verify-interval", *times, "--consumer", "ingest").exit_code == 1


def test_recreated_log_loses_rows_of_every_generation(
    standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner
) -> None:
    """If the log was recreated after a switch, the unread rows from before the switch are lost, too."""
    world = start_log(standin, cluster, workers, 0)
    for table in ("shop.t", LOG):
        standin.world.run(f"DROP TABLE {table}")
    standin.world.logged_table(world.log.schema, Milliseconds(SWITCH_MS + 60_000))
    assert world.ingest(LATER_US).exit_code == 1
    (row,) = world.rows()
    assert interval_us(row) == (READ_US + 1, SWITCH_US + MINUTE_US)


def test_ttl_at_the_time_of_writing_counts(standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner) -> None:
    """After a short TTL was raised, later rows live for the longer one and are no gap."""
    world = start_log(standin, cluster, workers, 60)
    standin.world.cdc_options("shop", "t", ttl=str(10 * TTL))
    standin.world.schema_changed()
    changed = FIRST_READ_US + 20 * SECOND_US
    assert world.ingest(changed).exit_code == 0
    # No observation shows the TTL of the minute before the change was found.
    assert world.ingest(changed + 30 * MINUTE_US).exit_code == 1
    (row,) = world.rows()
    assert interval_us(row) == (changed - 30 * SECOND_US + 1, changed)
    world.asked("consumers", "gaps", "shop.t", "--accept", "--reason", "x")
    assert world.ingest(changed + 60 * MINUTE_US).exit_code == 0


@pytest.mark.parametrize("point", [failpoints.BEFORE_SINK, failpoints.AFTER_SINK])
@pytest.mark.parametrize("kind", KINDS[:2], ids=lambda kind: kind.what)
def test_killed_ingest_records_a_gap_once(
    kind: Kind, point: str, standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner
) -> None:
    """After a kill before or after the window's commit, the next run leaves the recorded gap and exits with code 1."""
    world = start_log(standin, cluster, workers, kind.ttl)
    kind.happens(world)
    home, now = world.cluster.home.parent.parent, format_us(LATER_US)
    command = [sys.executable, "-m", "cdc_platform", "--home", str(home), "--clock", now, "ingest", "prod", "shop.t"]
    killed = subprocess.run(
        command, env={**os.environ, failpoints.KILL_AT_VARIABLE: point}, capture_output=True, timeout=120
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    before = world.rows()
    assert [row["what"] for row in before] == [kind.what]
    assert world.ingest(LATER_US).exit_code == 1
    (row,) = world.rows()
    assert {**row, "until": None} == {**before[0], "until": None}
    assert interval_us(row) == kind.times


@pytest.mark.parametrize(
    ("behind_s", "code"),
    [(1799, None), (1800, "lag-half-ttl"), (2699, "lag-half-ttl"), (2700, "lag-near-ttl"), (3601, "rows-dying")],
)
def test_lag_relative_to_the_ttl_is_an_alert(
    behind_s: int, code: str | None, standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner
) -> None:
    """`status` reports it from half of the TTL on; it is an error once rows may have expired."""
    world = start_log(standin, cluster, workers, TTL)
    at = Microseconds(READ_US + 1 + behind_s * SECOND_US)
    answer = run("--home", cluster.home, "--clock", format_us(at), "status", "--json")
    codes = {"lag-half-ttl", "lag-near-ttl", "rows-dying"}
    alerts = [alert for alert in answer.json["alerts"] if alert["code"] in codes]
    assert [alert["code"] for alert in alerts] == ([] if code is None else [code])
    (reader,) = answer.json["consumers"]
    assert (reader["ttl_seconds"], reader["ttl_share"]) == (TTL, round(behind_s / TTL, 3))
    if alerts:
        assert (alerts[0]["level"] == "error") == (code == "rows-dying")
        assert alerts[0]["command"] == f"cdc-platform --home {world.cluster.home.parent.parent} ingest prod shop.t"
    assert answer.exit_code == (code == "rows-dying")


@pytest.mark.parametrize(
    ("behind_s", "lag"),
    [(1799, "fine"), (1800, "half"), (2700, "three quarters"), (3600, "dying")],
)
def test_ingest_reports_its_lag_and_fails_once_rows_may_have_expired(
    behind_s: int, lag: str, standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner
) -> None:
    """`--until` stops it at the position, so it reads nothing and records no gap yet."""
    world = start_log(standin, cluster, workers, TTL)
    at = READ_US + 1 + behind_s * SECOND_US
    answer = world.ingest(at, "--until", format_us(Microseconds(READ_US)), "--second-pass-after", "0", "--json")
    assert (answer.exit_code, answer.json["lag"]) == (int(lag == "dying"), lag)
    assert answer.json["lag_seconds"] == (at - READ_US) / SECOND_US
    assert ("[lag-near-ttl]" in answer.stderr) == (lag != "fine")
    assert ("may have died unread" in answer.stderr) == (lag == "dying")
    assert answer.json["windows"] == []
    assert world.rows() == []


def test_log_without_ttl_has_no_lag(standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner) -> None:
    """A late reader of a log without TTL is fine; before the first window the lag is unknown."""
    start_log(standin, cluster, workers, 0)
    answer = run(
        "--home", cluster.home, "--clock", format_us(Microseconds(LATER_US + 1000 * HOUR_US)), "status", "--json"
    )
    (reader,) = answer.json["consumers"]
    assert (reader["lag"], reader["ttl_seconds"], reader["ttl_share"]) == ("fine", 0, None)
    assert answer.exit_code == 0
    assert bring(cluster, workers, LATER_US).gaps[0].what == "before_reading"
