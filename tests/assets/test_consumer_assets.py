"""Logs copied hour by hour: in any order, again, after a kill, over a switch; each row of an hour once."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dagster import (
    DagsterEventType,
    DagsterInstance,
    DagsterRunStatus,
    DefaultScheduleStatus,
    ExecuteInProcessResult,
    RunRequest,
    SkipReason,
    TableMetadataValue,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drawing import examples
from support.read_logs import START_US, SWITCH_US, add_table, ddl, home_with_log, schema, times_of, write
from support.worlds.rehearsal import QUIET

from cdc_platform import failpoints
from cdc_platform.cdclog import audit_hours, log_table
from cdc_platform.cdclog.batch_encoder import encode_log_batch
from cdc_platform.cdclog.consumer import hourly, reader
from cdc_platform.cdclog.dataframe import get_stream_lookup
from cdc_platform.cdclog.schema import GENERATION, typed_writes_schema
from cdc_platform.checks import HOURS_HOLD_ROWS_ONCE, HOURS_MATCH_LOG
from cdc_platform.checks.invariants import HOUR_INVARIANTS
from cdc_platform.clock import ONE_US, Clock, Microseconds, datetime_from_us, format_us, parse_time_us
from cdc_platform.dagster_home import CLOCK_VARIABLE
from cdc_platform.definitions import defs
from cdc_platform.delta import Lake
from cdc_platform.errors import ConflictError, InputError, StateError
from cdc_platform.generations import uniform_tablet_ends
from cdc_platform.home_location import HOME_VARIABLE
from cdc_platform.lifecycle import expiry, tablets
from cdc_platform.metastore import cdc_tables, consumers
from cdc_platform.settings import Settings
from cdc_platform.tables import CONSUMED_HOURS, CONSUMERS, GENERATION_TIMESTAMPS, STREAMS_DESCRIPTIONS_V2
from cdc_platform.timeline.vnodes import VnodeStreams
from cdc_platform_assets.log.hourly import HOURS_JOB, MAX_HOUR_REQUESTS, hourly_logs, request_scheduled_hours
from cdc_platform_assets.partitions import HOURS_NAME

HOUR = 3_600_000_000
NOON, ONE, TWO, THREE = (parse_time_us(f"2026-01-31T{hour}:00:00Z") for hour in (12, 13, 14, 15))
_EDGES = (ONE, SWITCH_US, TWO, THREE)
TIMES = [START_US, START_US + ONE_US, *(time for edge in _EDGES for time in (edge - ONE_US, edge))]
READABLE_US = THREE + Microseconds(30_000_000)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two generations, the second from 13:30 on, and a log with rows at the edges of them and of the hours."""
    home = home_with_log(tmp_path_factory.mktemp("hours"))
    write(Lake(home / "lake"), TIMES)
    return home


@pytest.fixture
def lake(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """A home of the test's own, as the assets find it, when the hour from 14:00 on can just be read."""
    shutil.copytree(template, tmp_path / "home")
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    stand(READABLE_US, monkeypatch)
    return Lake(tmp_path / "home" / "lake")


def stand(now_us: Microseconds, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the clock of the assets."""
    monkeypatch.setenv(CLOCK_VARIABLE, format_us(now_us))


def partition(hour_us: Microseconds) -> str:
    """The hour's name in Dagster."""
    return f"{datetime_from_us(hour_us):%Y-%m-%d-%H:%M}"


def copy(hour_us: Microseconds, tables: Sequence[str] | None = None) -> ExecuteInProcessResult:
    """Materialise an hour, with its checks."""
    config = {"ops": {"platform__consumed_hours": {"config": {"tables": list(tables)}}}} if tables else {}
    with DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions(HOURS_NAME, [partition(hour_us)])
        return defs.resolve_job_def(HOURS_JOB).execute_in_process(
            run_config=QUIET | config, instance=instance, partition_key=partition(hour_us), raise_on_error=False
        )


def refusal(result: ExecuteInProcessResult) -> str:
    """The one line with which a run failed, at once."""
    assert not result.success
    assert not any(event.event_type is DagsterEventType.STEP_UP_FOR_RETRY for event in result.all_events)
    failure = next(event for event in result.all_events if event.event_type is DagsterEventType.STEP_FAILURE)
    said = failure.step_failure_data.user_failure_data
    assert said is not None
    assert "\n" not in (said.description or "")
    return said.description or ""


def checked(result: ExecuteInProcessResult) -> dict[str, bool]:
    """The checks of a run and whether they passed."""
    return {each.check_name: each.passed for each in result.get_asset_check_evaluations()}


def sink(lake: Lake, table: str = "t") -> Any:
    """The rows that were copied."""
    return lake.read(reader.sink_table(schema(lake, table), "hourly"))


def position(lake: Lake, table: str = "t") -> int:
    """How far the consumer is (µs)."""
    return consumers.find_consumer(lake, "hourly", "ks", table).position_us


def records(value: Any) -> list[Any]:
    """The rows of a table among a run's metadata."""
    assert isinstance(value, TableMetadataValue)
    return [dict(record.data) for record in value.records]


GOOD = dict.fromkeys(HOUR_INVARIANTS, True)


def test_an_hour_has_its_rows_over_a_switch(lake: Lake) -> None:
    """Half open at the hour's end, cut at the generations; told by operation and by generation."""
    result = copy(ONE)
    assert result.success
    assert checked(result) == GOOD
    assert times_of(sink(lake)) == [ONE, SWITCH_US - 1, SWITCH_US, TWO - 1]
    told = result.asset_materializations_for_node("platform__consumed_hours")[0].metadata
    assert told["dagster/row_count"].value == 4
    assert records(told["operations"]) == [{"operation": "2", "rows": "4"}]
    assert [each["from"] for each in records(told["generations"])] == [format_us(START_US), format_us(SWITCH_US)]


def test_a_log_without_a_generation_does_not_delay_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its hours are copied once a generation is published; until then the schedule requests hours of other logs."""
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    stand(READABLE_US, monkeypatch)
    lake = Lake(tmp_path / "home" / "lake")
    for table in ("t", "tabs"):
        add_table(lake, table)
    tablets.create_tablets(lake, Clock(START_US), Settings(), "ks", "tabs", uniform_tablet_ends(2))
    write(lake, [ONE], table="tabs")
    assert hourly.list_due_hours(lake, Clock(READABLE_US), 24)[:2] == [NOON, ONE]
    assert copy(ONE).success
    assert times_of(sink(lake, "tabs")) == [ONE]
    refused = refusal(copy(ONE, ["ks.t"]))
    assert "no generation is known in which ks.t could have rows" in refused


def test_due_hours_of_many_tables_read_the_generations_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalogue looks for due hours in every tick: 500 tables must not cost 500 times the generations."""
    for number in range(4):
        add_table(lake, f"more{number}")
    periods, calls = VnodeStreams.periods, list[VnodeStreams]()

    def count(source: VnodeStreams) -> Any:
        calls.append(source)
        return periods(source)

    monkeypatch.setattr(VnodeStreams, "periods", count)
    assert hourly.list_due_hours(lake, Clock(READABLE_US), 24) == [NOON, ONE, TWO]
    assert len(calls) == 1


@pytest.mark.parametrize("order", [(NOON, ONE, TWO), (TWO, ONE, NOON), (ONE, TWO, NOON, ONE, ONE)])
def test_the_order_of_hours_does_not_matter(lake: Lake, order: tuple[int, ...]) -> None:
    """A backfill in any order, hours twice: the same rows, and a position behind the last of them."""
    for hour in order:
        assert copy(Microseconds(hour)).success
    log = lake.read(log_table(schema(lake)), filters=[("cdc$timestamp", "<", datetime_from_us(THREE))])
    assert times_of(log) == TIMES[:-1]
    copied = sink(lake).sort_by("cdc$time")
    assert copied.drop_columns([GENERATION]).equals(log.sort_by("cdc$time"))
    switched = datetime_from_us(SWITCH_US)
    begun = [switched if at >= switched else datetime_from_us(START_US) for at in copied["cdc$timestamp"].to_pylist()]
    assert copied[GENERATION].to_pylist() == begun
    assert position(lake) == THREE - 1


def test_the_position_waits_at_a_gap(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours behind one that is missing are there, but hold no less: the first generation is not removed."""

    def holds() -> bool:
        plan = expiry.plan_expiry(lake, Clock(Microseconds(READABLE_US + 10**13)), Settings())
        return any("hourly" in reason for reason in plan[0].reasons)

    assert copy(TWO).success
    assert position(lake) == START_US - 1
    assert copy(NOON).success
    assert position(lake) == ONE - 1
    assert holds()
    assert copy(ONE).success
    assert position(lake) == THREE - 1
    assert not holds()


def test_the_same_rows_again_are_no_commit(lake: Lake) -> None:
    """Materialised again an hour leaves all tables at their versions."""
    assert copy(NOON).success
    tables = (reader.sink_table(schema(lake), "hourly"), CONSUMED_HOURS, CONSUMERS)
    versions = [lake.version(table) for table in tables]
    assert copy(NOON).success
    assert [lake.version(table) for table in tables] == versions


def test_late_rows_are_found_and_come_with_the_next_materialisation(lake: Lake) -> None:
    """A write that says that it is old: the check of its hour fails until the hour is materialised again."""
    assert copy(NOON).success
    assert copy(ONE).success
    write(lake, [Microseconds(ONE + 5), Microseconds(ONE + 6)])
    assert {line.invariant: line.violations for line in audit_hours(lake)} == {
        HOURS_MATCH_LOG: 1,
        HOURS_HOLD_ROWS_ONCE: 0,
    }
    [line, _] = audit_hours(lake, ONE)
    assert "2 of 6 rows of the log are not in ks.t_scylla_cdc_log_hourly, 0 others are" in line.sample
    assert checked(copy(ONE)) == GOOD
    assert times_of(sink(lake)) == sorted([*TIMES[:7], ONE + 5, ONE + 6])


def test_rows_that_are_there_twice_are_found_and_mended(lake: Lake) -> None:
    """Somebody appended an hour to the sink once more."""
    assert copy(NOON).success
    table = reader.sink_table(schema(lake), "hourly")
    assert lake.append_once(table, sink(lake), {"stray": 1}, None)
    [log, once] = audit_hours(lake, NOON)
    assert (log.violations, once.violations) == (0, 1)
    assert "3 of 6 rows" in once.sample
    assert checked(copy(NOON)) == GOOD
    assert times_of(sink(lake)) == TIMES[:3]


def test_rows_that_the_log_has_no_longer_stay(lake: Lake) -> None:
    """An hour of a log that lost rows is not copied over what was read of it; the check says so."""
    assert copy(NOON).success
    lake.delete(log_table(schema(lake)), [("cdc$timestamp", "=", datetime_from_us(START_US))])
    assert "has 1 rows from" in refusal(copy(NOON))
    assert times_of(sink(lake)) == TIMES[:3]
    assert [line.violations for line in audit_hours(lake)] == [1, 0]


@pytest.mark.parametrize("created_now", [True, False], ids=["of known age", "of unknown age"])
def test_a_table_that_was_made_anew_is_not_held_to_its_old_rows(lake: Lake, created_now: bool) -> None:
    """Dropped with its log and created again: what was copied of the old one stays, and is no violation."""
    assert copy(NOON).success
    table = log_table(schema(lake))
    cdc_tables.drop_cdc_table(lake, Clock(TWO), "ks", "t")
    assert audit_hours(lake) == []
    shutil.rmtree(lake.path(table))
    at = Clock(Microseconds(TWO + 1))  # where nobody states when the new log was created, that was after the drop
    cdc_tables.add_cdc_table(lake, at, "ks", "t", ttl_seconds=60, created_now=created_now, ddl=ddl("v"))
    lake.ensure(table)
    write(lake, [Microseconds(TWO + 5_000)])
    assert [line.violations for line in audit_hours(lake)] == [0, 0]
    assert checked(copy(TWO)) == GOOD
    assert times_of(sink(lake)) == [*TIMES[:3], TWO + 5_000]


def test_a_tablet_based_table_is_copied_set_by_set(tmp_path: Path) -> None:
    """An hour over a split; the first set is held for hours that are missing, and where it is gone they are refused."""
    lake = Lake(tmp_path / "lake")
    created, split = Clock(Microseconds(START_US + 5_000_000)), Clock(Microseconds(SWITCH_US - 65_000_000))
    tablets.create_tablets(lake, created, Settings(), "ks", "t", uniform_tablet_ends(2), ttl_seconds=60)
    tablets.split_tablets(lake, split, Settings(), "ks", "t", 4)
    cdc_tables.alter_cdc_table(lake, split, "ks", "t", ddl=ddl("v"))
    lake.ensure(log_table(schema(lake)))
    write(lake, [SWITCH_US - ONE_US, SWITCH_US])
    later = Clock(Microseconds(READABLE_US + 100 * HOUR))
    [copied] = hourly.copy_hour(lake, later, [schema(lake)], ONE)
    assert (copied.rows, len(copied.sets_us)) == (2, 2)
    found = tablets.collect_tablet_sets(lake, later, "ks", "t")
    (held,) = found.held_back
    assert (found.removed_ms, held.consumer.name) == ((), "hourly")
    consumers.forget_consumer(lake, "hourly", "ks", "t")
    assert len(tablets.collect_tablet_sets(lake, later, "ks", "t").removed_ms) == 1
    consumers.register_consumer(lake, later, "hourly", "ks", "t", position_us=held.consumer.position_us)
    with pytest.raises(StateError, match="which has been removed"):
        hourly.copy_hour(lake, later, [schema(lake)], ONE)
    assert times_of(sink(lake)) == [SWITCH_US - ONE_US, SWITCH_US]


def test_an_hour_that_is_not_over_is_refused(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until its last microsecond is behind the safety window; nothing is written before."""
    stand(Microseconds(READABLE_US - 2), monkeypatch)
    assert "cannot be read before 2026-01-31T15:00:29.999999Z" in refusal(copy(TWO))
    assert not lake.exists(CONSUMERS)
    stand(Microseconds(READABLE_US - 1), monkeypatch)
    assert copy(TWO).success
    assert times_of(sink(lake)) == [TWO, THREE - 1]


def test_a_generation_whose_streams_are_incomplete_is_refused(lake: Lake) -> None:
    """The hour of the switch waits whole, with what lies before the switch; the hour before it does not."""
    rows = lake.read(STREAMS_DESCRIPTIONS_V2, filters=[("time", "=", datetime_from_us(SWITCH_US))])
    lake.delete(STREAMS_DESCRIPTIONS_V2, [("time", "=", datetime_from_us(SWITCH_US)), ("range_end", ">", 0)])
    assert "not all published yet" in refusal(copy(ONE))
    assert not lake.exists(CONSUMERS)
    assert copy(NOON).success
    lake.merge(STREAMS_DESCRIPTIONS_V2, rows, update=False)
    assert copy(ONE).success
    assert times_of(sink(lake)) == TIMES[:7]


def test_an_hour_of_a_generation_that_is_gone_is_refused(lake: Lake) -> None:
    """What was copied of it stays; who registers anew begins behind it, in the middle of the hour."""
    for hour in (NOON, ONE, TWO):
        assert copy(hour).success
    # All rows of the first generation have expired: one run marks it, and a run after the grace time removes it.
    later = READABLE_US + 3 * 24 * HOUR
    for now_us, known in ((later, 2), (later + 2 * HOUR, 1)):
        expiry.expire_generations(lake, Clock(Microseconds(now_us)), Settings())
        assert lake.read(GENERATION_TIMESTAMPS).num_rows == known
    assert "which has been removed" in refusal(copy(NOON))
    consumers.forget_consumer(lake, "hourly", "ks", "t")
    assert copy(ONE).success
    assert times_of(sink(lake)) == TIMES[:-1]
    assert position(lake) == THREE - 1


@pytest.mark.grid("kills of hourly copies", 1)
@pytest.mark.parametrize("point", failpoints.HOURLY_POINTS)
def test_a_killed_run_is_run_again(lake: Lake, point: str) -> None:
    """A real process that dies before the rows, before the note, or before the position."""
    program = (
        "from dagster import DagsterInstance; from cdc_platform.definitions import defs; "
        f"i = DagsterInstance.ephemeral(); i.add_dynamic_partitions({HOURS_NAME!r}, [{partition(NOON)!r}]); "
        f"defs.resolve_job_def({HOURS_JOB!r}).execute_in_process(instance=i, partition_key={partition(NOON)!r})"
    )
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, failpoints.KILL_AT_VARIABLE: point, "DAGSTER_HOME": folder}
        root = Path(__file__).resolve().parents[2]
        killed = subprocess.run(
            [sys.executable, "-c", program], env=environment, cwd=root, capture_output=True, timeout=120
        )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert position(lake) == START_US - 1
    assert len(times_of(sink(lake))) == (0 if point == failpoints.BEFORE_SINK else 3)
    assert checked(copy(NOON)) == GOOD
    assert times_of(sink(lake)) == TIMES[:3]
    assert position(lake) == ONE - 1


def test_of_two_writers_one_is_run_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sink changed between the look at it and the commit: the hour is not made of old rows."""
    stored = Lake.read
    overtaken = False

    def slow(self: Lake, table: Any, *arguments: Any, **named: Any) -> Any:
        nonlocal overtaken
        rows = stored(self, table, *arguments, **named)
        if table.name.endswith("_hourly") and not overtaken:
            overtaken = True
            hourly.copy_hour(lake, Clock(READABLE_US), [schema(lake)], NOON)
        return rows

    monkeypatch.setattr(Lake, "read", slow)
    with pytest.raises(ConflictError, match="another process writes to"):
        hourly.copy_hour(lake, Clock(READABLE_US), [schema(lake)], NOON)
    hourly.copy_hour(lake, Clock(READABLE_US), [schema(lake)], NOON)
    assert times_of(sink(lake)) == TIMES[:3]


def test_large_hours_come_in_parts(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many files at once as fit; again with other parts the hour is the same."""
    for part in range(3):
        write(lake, [Microseconds(ONE + 1000 * part + 10), Microseconds(ONE + 1000 * part + 20)])
    monkeypatch.setattr(reader, "MAX_ROWS_IN_MEMORY", 1)
    assert checked(copy(ONE)) == GOOD
    version = lake.version(reader.sink_table(schema(lake), "hourly"))
    assert version is not None
    assert version > 2
    monkeypatch.setattr(reader, "MAX_ROWS_IN_MEMORY", 4)
    write(lake, [Microseconds(ONE + 15)])
    assert checked(copy(ONE)) == GOOD
    assert len(times_of(sink(lake))) == 11


def test_columns_that_come_and_go(lake: Lake) -> None:
    """A sink gets a new column with the next hour; what it has of one that was dropped stays, late rows or not."""
    assert copy(NOON).success
    cdc_tables.alter_cdc_table(lake, Clock(ONE), "ks", "t", ddl=ddl("v", "w"))
    assert copy(NOON).success
    lake.widen(log_table(schema(lake)))
    table = log_table(schema(lake))
    assert lake.stored_schema(reader.sink_table(schema(lake), "hourly")).names[-2:] == ["w", "cdc$deleted_w"]
    assert sorted(lake.stored_schema(table).names) == sorted(table.schema.names)
    late = rows_of_widened_log(lake, [Microseconds(NOON + 20 * 60_000_000)])
    assert checked(copy(NOON)) == GOOD
    assert [value for value in sink(lake)["w"].to_pylist() if value is not None] == late
    cdc_tables.alter_cdc_table(lake, Clock(TWO), "ks", "t", ddl=ddl("w"))
    rows_of_widened_log(lake, [Microseconds(NOON + 21 * 60_000_000)])
    assert checked(copy(NOON)) == GOOD
    whole = lake.widen(reader.sink_table(schema(lake), "hourly"))
    kept = [row["v"] for row in lake.read(whole).to_pylist() if row["v"] is not None]
    assert sorted(kept) == sorted(when // 1_000_000 % 3600 for when in TIMES[:3])


def rows_of_widened_log(lake: Lake, times_us: list[Microseconds]) -> list[int]:
    """Append rows with `w` to a log whose columns are in an order of their own; answers with the values."""
    known = schema(lake)
    typed = [{"operation": 2, "timestamp": when, "p": 7, "k": 7, "w": when % 1000 + 5} for when in times_us]
    batch = pa.RecordBatch.from_pylist(typed, schema=typed_writes_schema(known))
    rows = pa.Table.from_batches([encode_log_batch(known, batch, get_stream_lookup(lake, known))])
    as_stored = lake.widen(log_table(known))
    assert lake.append_once(as_stored, rows, {str(times_us): 1}, None)
    return [each["w"] for each in typed]


def test_all_logs_or_those_that_are_named(lake: Lake) -> None:
    """Each table has its sink and its position; one that is not named is asked for again."""
    add_table(lake, "u")
    write(lake, [Microseconds(START_US + 7)], table="u")
    assert copy(NOON, ["ks.u"]).success
    assert not lake.exists(reader.sink_table(schema(lake), "hourly"))
    assert hourly.list_due_hours(lake, Clock(READABLE_US), 2) == [NOON, ONE]
    assert checked(copy(NOON)) == GOOD
    assert times_of(sink(lake)) == TIMES[:3]
    assert times_of(sink(lake, "u")) == [Microseconds(START_US + 7)]
    assert position(lake, "u") == ONE - 1


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        (["t"], "names no table; write it as keyspace.table"),
        (["ks."], "names no table"),
        (["ks.t", "ks.t"], "named twice"),
        (["ks.t", "ks.nothing"], "no CDC-enabled table ks.nothing"),
        (["ks.t", "ks.bare"], "has no log here"),
    ],
)
def test_bad_tables_are_refused_in_one_line(lake: Lake, tables: list[str], says: str) -> None:
    """All of them are checked before anything is written for one."""
    cdc_tables.add_cdc_table(lake, Clock(START_US), "ks", "bare", ttl_seconds=60, ddl=ddl("v", table="bare"))
    assert says in refusal(copy(NOON, tables))
    assert not lake.exists(CONSUMERS)
    assert not lake.exists(CONSUMED_HOURS)


def test_without_logs_there_is_nothing_to_do(tmp_path: Path) -> None:
    """An empty lake: no hour is due, none is wrong; and without a generation no hour is whole."""
    empty = Lake(tmp_path / "empty")
    assert hourly.list_due_hours(empty, Clock(READABLE_US), 5) == []
    assert audit_hours(empty) == []
    add_table(empty, "t")
    assert hourly.list_due_hours(empty, Clock(READABLE_US), 5) == []
    with pytest.raises(StateError, match="no generation is known"):
        hourly.copy_hour(empty, Clock(READABLE_US), [schema(empty)], NOON)


def test_nobody_else_reads_under_its_name(lake: Lake) -> None:
    """The name is in `platform.consumers`, where a reader that goes on from a position would take it over."""
    with pytest.raises(InputError, match="copies logs hour by hour"):
        reader.consume(lake, Clock(READABLE_US), schema(lake), "hourly")


MOMENT = datetime(2026, 1, 31, 15, 1, tzinfo=UTC)


def test_the_schedule_asks_for_what_is_missing(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Off by default; the oldest hours first, none that is copied or under way, and no more than a few at once."""
    assert hourly_logs.default_status is DefaultScheduleStatus.STOPPED

    def asked(now_us: Microseconds, running: Microseconds | None = None) -> list[str | None] | str:
        with DagsterInstance.ephemeral() as instance:
            if running is not None:
                tags = {"dagster/partition": partition(running)}
                job = defs.resolve_job_def(HOURS_JOB)
                instance.create_run_for_job(job, status=DagsterRunStatus.STARTED, tags=tags)
            found = request_scheduled_hours(lake, Clock(now_us), instance, MOMENT)
        if isinstance(found, SkipReason):
            return found.skip_message or ""
        assert all(isinstance(each, RunRequest) for each in found)
        assert len({each.run_key for each in found}) == len(found)
        return [each.partition_key for each in found]

    assert asked(Microseconds(READABLE_US - 2)) == [partition(NOON), partition(ONE)]
    assert asked(READABLE_US) == [partition(NOON), partition(ONE), partition(TWO)]
    assert asked(READABLE_US, running=ONE) == [partition(NOON), partition(TWO)]
    late = asked(Microseconds(READABLE_US + 100 * HOUR))
    assert late == [partition(Microseconds(NOON + place * HOUR)) for place in range(MAX_HOUR_REQUESTS)]
    for hour in (NOON, TWO):
        assert copy(hour).success
    assert asked(READABLE_US) == [partition(ONE)]
    assert "is in progress" in asked(READABLE_US, running=ONE)
    assert copy(ONE).success
    assert asked(READABLE_US) == "every readable hour is copied"


@settings(max_examples=examples(8))
@given(
    rows=st.lists(st.integers(0, 3 * HOUR - (START_US - NOON) - 1), max_size=12, unique=True),
    hours=st.lists(st.sampled_from([NOON, ONE, TWO]), min_size=1, max_size=6),
)
@pytest.mark.long("drawn homes of which each copies several hours")
def test_any_rows_and_any_hours(template: Path, rows: list[int], hours: list[int]) -> None:
    """Written a part before each hour that is copied: of the hours that came last, and only they, all rows, once."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(template, Path(folder) / "home")
        lake = Lake(Path(folder) / "home" / "lake")
        written, expected = list(TIMES), dict[int, list[int]]()
        for place, hour in enumerate(hours):
            part = [
                Microseconds(START_US + 2 + each)
                for each in rows[place :: len(hours)]
                if START_US + 2 + each not in written
            ]
            if part:
                write(lake, part)
                written += part
            hourly.copy_hour(lake, Clock(READABLE_US), [schema(lake)], Microseconds(hour))
            expected[hour] = [when for when in written if hour <= when < hour + HOUR]
        assert times_of(sink(lake)) == sorted(when for several in expected.values() for when in several)
        whole = [NOON + place * HOUR for place in range(3)]
        first_gap = next((hour for hour in whole if hour not in expected), THREE)
        assert position(lake) == (START_US - 1 if first_gap == NOON else first_gap - 1)
