"""Every kind of gap in a live cluster's log, and everyone that must see it: recorded once, whoever is killed.

Each kind is made on the stand-in, and each has a twin that makes none.
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
BEGUN_US = Microseconds(FIRST_US + 10 * MINUTE_US)
"""When the log is read first."""
LATER_US = Microseconds(SWITCH_US + HOUR_US)
"""When it is read again."""


@dataclass(frozen=True)
class World:
    """A log on the stand-in that was read once, with a row in each of its generations."""

    standin: StandIn
    cluster: ScyllaCluster
    log: LiveLog
    workers: TaskRunner
    by_real_clock: bool = False
    """What happens has the time of the stand-in's clock, so that commands have to have it too."""

    def ingest(self, at_us: int, *more: str) -> Answer:
        """Bring in what is new, by the command."""
        words = ["ingest", "prod", "shop.t", *(["--confidence", "0"] if self.by_real_clock else []), *more]
        return run("--home", self.cluster.home.parent.parent, *self._clock(at_us), *words)

    def asked(self, *words: str) -> Answer:
        """A command on the mirror, at the time of the second read."""
        return run("--home", self.cluster.home, *self._clock(LATER_US), *words)

    def _clock(self, at_us: int) -> list[str]:
        return [] if self.by_real_clock else ["--clock", format_us(Microseconds(at_us))]

    @property
    def lake(self) -> Lake:
        return lake_of(self.cluster)

    def rows(self) -> list[dict[str, Any]]:
        """The recorded gaps, but for the time before reading."""
        rows = self.lake.read(LOG_GAPS).to_pylist()
        return sorted((row for row in rows if row["what"] != "before_reading"), key=lambda row: row["since"])


def begun(
    standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner, ttl: int, *, by_real_clock: bool = False
) -> World:
    """A log whose rows live for so many seconds, as it is read first."""
    standin.world.generation(SWITCH_MS, time_uuid(SWITCH_MS), GENERATIONS[SWITCH_MS])
    ddl = DDL.replace("'ttl': '0'", f"'ttl': '{ttl}'")
    log = LiveLog(standin.world, defined(ddl), GENERATIONS).make()
    log.write([FIRST_US + 1])
    world = World(standin, cluster, log, workers, by_real_clock)
    assert world.ingest(BEGUN_US).exit_code == 0
    log.write([BEGUN_US + 1, SWITCH_US + 1])
    return world


def interval(row: dict[str, Any]) -> tuple[int, int]:
    """The times (µs) of a recorded gap."""
    return us_from_datetime(row["since"]), us_from_datetime(row["until"])


def nothing(world: World) -> None:
    """Rows live long enough, and nothing happens."""


def recreates(world: World) -> None:
    """The table is dropped with its log, and both are made again."""
    for table in ("shop.t", LOG):
        world.standin.world.run(f"DROP TABLE {table}")
    world.standin.world.logged_table(world.log.schema, SWITCH_MS)
    world.log.write([SWITCH_US + 2])


def switches_off(world: World) -> None:
    """CDC is off for a while, as two runs in between see it."""
    for minutes, enabled in ((20, "false"), (30, "true")):
        options = {"ttl": str(world.log.schema.cdc.ttl), "enabled": enabled}
        world.standin.world.cdc_options("shop", "t", **options)
        world.standin.world.schema_changed()
        world.ingest(FIRST_US + minutes * MINUTE_US)


def alters_and_back(world: World) -> None:
    """The table is altered between two looks, and is then what it was."""
    world.standin.world.altered("shop", "t")
    world.standin.world.schema_changed()


@dataclass(frozen=True)
class Kind:
    """A kind of gap: the log's TTL, what happens after the first read, and the interval that is recorded (µs).

    `times` is None where the stand-in's own clock says when that is.
    """

    what: str
    ttl: int
    happens: Callable[[World], None]
    times: tuple[int, int] | None


READ_US = BEGUN_US - 30 * SECOND_US
"""Up to when the first read comes."""
KINDS = (
    Kind("died", TTL, nothing, (READ_US + 1, LATER_US - TTL * SECOND_US + 1)),
    Kind("log_recreated", 0, recreates, (READ_US + 1, SWITCH_US)),
    Kind("cdc_off", 0, switches_off, (FIRST_US + 20 * MINUTE_US, FIRST_US + 30 * MINUTE_US)),
    Kind("altered", 0, alters_and_back, None),
)
ALL = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.what)


def by_ingest(world: World) -> bool:
    """Its exit code, also of a run that finds nothing new, and what it prints as JSON."""
    answers = [world.ingest(LATER_US), world.ingest(LATER_US + MINUTE_US, "--json")]
    assert [each.exit_code for each in answers] == [answers[0].exit_code] * 2
    gaps = [gap for gap in answers[1].json["gaps"] if gap["what"] != "before_reading"]
    assert bool(gaps) == bool(answers[0].exit_code)
    return bool(answers[0].exit_code)


def by_complete(world: World) -> bool:
    """An interval that overlaps the gap is not proved; one before it is, as far as gaps go."""

    def recorded(since_us: int, until_us: int) -> bool:
        times = [format_us(Microseconds(each)) for each in (since_us, until_us)]
        answer = world.asked("verify-interval", *times, "--consumer", "ingest", "--json")
        found = {each["check"]: each["passed"] for each in answer.json["checks"]}
        assert answer.json["verified"] <= found["no gap was recorded in it"]
        return not found["no gap was recorded in it"]

    for row in world.rows():
        since, until = interval(row)
        assert [recorded(*times) for times in ((since - 2, since), (since - 1, since + 1))] == [False, True]
        assert [recorded(*times) for times in ((until, until + 1), (until - 1, until + 1))] == [False, True]
    return recorded(READ_US, LATER_US if not world.by_real_clock else Clock().now_us())


def by_status(world: World) -> bool:
    """It is wrong there, and the reader has it."""
    answer = world.asked("status", "--json")
    found = {each["code"] for each in answer.json["alerts"] if each["level"] == "error"}
    assert answer.exit_code == bool(found)
    (reader,) = [each for each in answer.json["consumers"] if each["name"] == "ingest"]
    assert bool(reader["open_gaps"]) == ("rows-lost" in found)
    return "rows-lost" in found


def by_check(world: World) -> bool:
    """Its invariant does not hold."""
    answer = world.asked("check", "--json")
    (line,) = [each for each in answer.rows if each["invariant"] == "log_gaps_accepted"]
    assert line["checked"] == 1
    return not line["passed"]


def by_consumers(world: World) -> bool:
    """Each reader of the log has it counted, and the list of gaps has it."""
    rows = world.asked("consumers", "--json").rows
    listed = world.asked("consumers", "gaps", "shop.t", "--json")
    assert {bool(row["gaps"]) for row in rows} == {bool(listed.exit_code)}
    return bool(listed.exit_code)


def by_consume(world: World) -> bool:
    """A reader of the lake's log is told as it passes by."""
    answer = world.asked("consume", "shop.t", "--name", "audit", "--json")
    gaps = [gap for gap in answer.json["gaps"] if gap["what"] != "before_reading"]
    assert bool(gaps) == ("[log-gap]" in answer.stderr)
    return bool(gaps)


def by_stream(world: World) -> bool:
    """A stream of Spark refuses to go on over it, as Spark's planning worker asks."""
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
"""Everyone that has to see a gap; `ingest` comes first, which finds it."""


@ALL
def test_everyone_sees_every_gap(kind: Kind, standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner) -> None:
    """A gap is one row with its times. Once accepted, only `verify-interval` and streams still report it."""
    world = begun(standin, cluster, workers, kind.ttl, by_real_clock=kind.times is None)
    kind.happens(world)
    assert {name: sees(world) for name, sees in SEES.items()} == dict.fromkeys(SEES, True)
    (row,) = world.rows()
    assert (row["keyspace_name"], row["table_name"], row["what"]) == ("shop", "t", kind.what)
    assert kind.times in (None, interval(row))
    accepted = world.asked("consumers", "gaps", "shop.t", "--accept", "--reason", "ticket 4711")
    assert accepted.exit_code == 0, accepted
    assert "ticket 4711" in " ".join(accepted.stdout.split())
    unproved = {"verify-interval", "consume", "stream"}
    seen = {name: sees(world) for name, sees in SEES.items() if name not in {"ingest", *unproved}}
    assert seen == dict.fromkeys(seen, False)
    assert {name: SEES[name](world) for name in unproved} == dict.fromkeys(unproved, True)
    assert world.ingest(LATER_US + 2 * MINUTE_US).exit_code == 0
    assert "log-gap" in {each["code"] for each in world.asked("status", "--json").json["alerts"]}


@pytest.mark.parametrize("ttl", [0, 10 * TTL], ids=["rows never die", "rows live long enough"])
def test_nobody_sees_a_gap_where_there_is_none(
    ttl: int, standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner
) -> None:
    """The same log, read as late, whose rows live: what is recorded is when reading began."""
    world = begun(standin, cluster, workers, ttl)
    looks = {name: sees for name, sees in SEES.items() if name != "stream" or not ttl}
    assert {name: sees(world) for name, sees in looks.items()} == dict.fromkeys(looks, False)
    assert world.rows() == []
    whole = [format_us(Microseconds(each)) for each in (FIRST_US, LATER_US - 30 * SECOND_US)]
    assert world.asked("verify-interval", *whole, "--consumer", "ingest").exit_code == 0
    early = [format_us(Microseconds(FIRST_US - HOUR_US)), whole[1]]
    assert world.asked("verify-interval", *early, "--consumer", "ingest").exit_code == 1


@pytest.mark.parametrize("kind", KINDS[:3], ids=lambda kind: kind.what)
def test_a_gap_of_a_home_that_recorded_none_is_seen(
    kind: Kind, standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner
) -> None:
    """An earlier release left what its other tables say: `verify-interval` never proves it; accepting it records it."""
    world = begun(standin, cluster, workers, kind.ttl)
    kind.happens(world)
    world.ingest(LATER_US)
    shutil.rmtree(world.lake.path(LOG_GAPS))
    assert kind.times is not None
    times = [format_us(Microseconds(each)) for each in kind.times]
    assert world.asked("verify-interval", *times, "--consumer", "ingest").exit_code == 1
    if kind.what == "cdc_off":
        return  # the history of the table's options has it, as ever
    assert by_status(world)
    assert by_check(world)
    assert world.ingest(LATER_US + MINUTE_US).exit_code == 1
    assert world.asked("consumers", "gaps", "shop.t", "--accept", "--reason", "x").exit_code == 0
    assert not by_status(world)
    assert world.ingest(LATER_US + 2 * MINUTE_US).exit_code == 0
    assert world.asked("verify-interval", *times, "--consumer", "ingest").exit_code == 1


def test_the_part_of_an_older_log_is_lost_in_every_generation(
    standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner
) -> None:
    """The log was recreated behind a switch: what the window before the switch was to read went with it too."""
    world = begun(standin, cluster, workers, 0)
    for table in ("shop.t", LOG):
        standin.world.run(f"DROP TABLE {table}")
    standin.world.logged_table(world.log.schema, Milliseconds(SWITCH_MS + 60_000))
    assert world.ingest(LATER_US).exit_code == 1
    (row,) = world.rows()
    assert interval(row) == (READ_US + 1, SWITCH_US + MINUTE_US)


def test_the_ttl_that_rows_were_written_with_counts(
    standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner
) -> None:
    """Of a log whose TTL was short once: rows written since live as long as they were told to, and are no gap."""
    world = begun(standin, cluster, workers, 60)
    standin.world.cdc_options("shop", "t", ttl=str(10 * TTL))
    standin.world.schema_changed()
    changed = BEGUN_US + 20 * SECOND_US
    assert world.ingest(changed).exit_code == 0
    # Of the minute before the change was seen nobody knows.
    assert world.ingest(changed + 30 * MINUTE_US).exit_code == 1
    (row,) = world.rows()
    assert interval(row) == (changed - 30 * SECOND_US + 1, changed)
    world.asked("consumers", "gaps", "shop.t", "--accept", "--reason", "x")
    assert world.ingest(changed + 60 * MINUTE_US).exit_code == 0


@pytest.mark.parametrize("point", [failpoints.BEFORE_SINK, failpoints.AFTER_SINK])
@pytest.mark.parametrize("kind", KINDS[:2], ids=lambda kind: kind.what)
def test_a_killed_ingest_records_a_gap_once(
    kind: Kind, point: str, standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner
) -> None:
    """Killed before the window is committed, or behind that, and run again: the gap that was there at first, and 1."""
    world = begun(standin, cluster, workers, kind.ttl)
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
    assert interval(row) == kind.times


@pytest.mark.parametrize(
    ("behind_s", "code"),
    [(1799, None), (1800, "lag-half-ttl"), (2699, "lag-half-ttl"), (2700, "lag-near-ttl"), (3601, "rows-dying")],
)
def test_lag_against_the_ttl_is_a_finding(
    behind_s: int, code: str | None, standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner
) -> None:
    """From half of the TTL on; once rows may have died it is wrong, with up to when they were written."""
    world = begun(standin, cluster, workers, TTL)
    at = Microseconds(READ_US + 1 + behind_s * SECOND_US)
    answer = run("--home", cluster.home, "--clock", format_us(at), "status", "--json")
    codes = {"lag-half-ttl", "lag-near-ttl", "rows-dying"}
    found = [each for each in answer.json["alerts"] if each["code"] in codes]
    assert [each["code"] for each in found] == ([] if code is None else [code])
    (reader,) = answer.json["consumers"]
    assert (reader["ttl_seconds"], reader["ttl_share"]) == (TTL, round(behind_s / TTL, 3))
    if found:
        assert (found[0]["level"] == "error") == (code == "rows-dying")
        assert found[0]["command"] == f"cdc-platform --home {world.cluster.home.parent.parent} ingest prod shop.t"
    assert answer.exit_code == (code == "rows-dying")


@pytest.mark.parametrize(
    ("behind_s", "lag"),
    [(1799, "fine"), (1800, "half"), (2700, "three quarters"), (3600, "dying")],
)
def test_an_ingest_reports_its_lag_and_fails_once_rows_may_have_expired(
    behind_s: int, lag: str, standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner
) -> None:
    """It is stopped where the log was read already, so nothing is read and no gap is recorded yet."""
    world = begun(standin, cluster, workers, TTL)
    at = READ_US + 1 + behind_s * SECOND_US
    answer = world.ingest(at, "--until", format_us(Microseconds(READ_US)), "--second-pass-after", "0", "--json")
    assert (answer.exit_code, answer.json["lag"]) == (int(lag == "dying"), lag)
    assert answer.json["lag_seconds"] == (at - READ_US) / SECOND_US
    assert ("[lag-near-ttl]" in answer.stderr) == (lag != "fine")
    assert ("may have died unread" in answer.stderr) == (lag == "dying")
    assert answer.json["windows"] == []
    assert world.rows() == []


def test_rows_that_never_die_lag_behind_nothing(standin: StandIn, cluster: ScyllaCluster, workers: TaskRunner) -> None:
    """However late it is; and before a first window nobody knows."""
    begun(standin, cluster, workers, 0)
    answer = run(
        "--home", cluster.home, "--clock", format_us(Microseconds(LATER_US + 1000 * HOUR_US)), "status", "--json"
    )
    (reader,) = answer.json["consumers"]
    assert (reader["lag"], reader["ttl_seconds"], reader["ttl_share"]) == ("fine", 0, None)
    assert answer.exit_code == 0
    assert bring(cluster, workers, LATER_US).gaps[0].what == "before_reading"
