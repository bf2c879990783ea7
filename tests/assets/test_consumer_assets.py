"""Logs copied hour by hour, in any order, repeatedly, after a kill and across a switch: each row is copied once."""

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
    build_sensor_context,
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
from cdc_platform.clock import ONE_US, Clock, Microseconds, datetime_from_us, format_us, parse_time_us, us_from_ms
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
from cdc_platform_resources.clock import ClockResource
from cdc_platform_resources.home import HomeResource

HOUR = 3_600_000_000
NOON, ONE, TWO, THREE = (parse_time_us(f"2026-01-31T{hour}:00:00Z") for hour in (12, 13, 14, 15))
_EDGES = (ONE, SWITCH_US, TWO, THREE)
TIMES = [START_US, START_US + ONE_US, *(time for edge in _EDGES for time in (edge - ONE_US, edge))]
READABLE_US = THREE + Microseconds(30_000_000)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create two generations, the second from 13:30 on, and a log with rows at the edges of them and of the hours."""
    home = home_with_log(tmp_path_factory.mktemp("hours"))
    write(Lake(home / "lake"), TIMES)
    return home


@pytest.fixture
def lake(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """Return a new home for the assets, at the first time when the hour from 14:00 on can be read."""
    shutil.copytree(template, tmp_path / "home")
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    stop_clock(READABLE_US, monkeypatch)
    return Lake(tmp_path / "home" / "lake")


def stop_clock(now_us: Microseconds, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the clock of the assets."""
    monkeypatch.setenv(CLOCK_VARIABLE, format_us(now_us))


def partition(hour_us: Microseconds) -> str:
    """Return the hour's name in Dagster."""
    return f"{datetime_from_us(hour_us):%Y-%m-%d-%H:%M}"


def copy(hour_us: Microseconds, tables: Sequence[str] | None = None) -> ExecuteInProcessResult:
    """Materialize an hour, with its checks."""
    config = {"ops": {"platform__consumed_hours": {"config": {"tables": list(tables)}}}} if tables else {}
    with DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions(HOURS_NAME, [partition(hour_us)])
        return defs.resolve_job_def(HOURS_JOB).execute_in_process(
            run_config=QUIET | config, instance=instance, partition_key=partition(hour_us), raise_on_error=False
        )


def failure_message(result: ExecuteInProcessResult) -> str:
    """Return the message with which a run failed, on one line and without retries."""
    assert not result.success
    assert not any(event.event_type is DagsterEventType.STEP_UP_FOR_RETRY for event in result.all_events)
    failure = next(event for event in result.all_events if event.event_type is DagsterEventType.STEP_FAILURE)
    failure_data = failure.step_failure_data.user_failure_data
    assert failure_data is not None
    assert "\n" not in (failure_data.description or "")
    return failure_data.description or ""


def check_outcomes(result: ExecuteInProcessResult) -> dict[str, bool]:
    """Return the checks of a run and whether they passed."""
    return {evaluation.check_name: evaluation.passed for evaluation in result.get_asset_check_evaluations()}


def sink(lake: Lake, table: str = "t") -> Any:
    """Return the rows that were copied."""
    return lake.read(reader.sink_table(schema(lake, table), "hourly"))


def position(lake: Lake, table: str = "t") -> int:
    """Return the position of the consumer (µs)."""
    return consumers.find_consumer(lake, "hourly", "ks", table).position_us


def records(value: Any) -> list[Any]:
    """Return the rows of a table among a run's metadata."""
    assert isinstance(value, TableMetadataValue)
    return [dict(record.data) for record in value.records]


GOOD = dict.fromkeys(HOUR_INVARIANTS, True)


def test_an_hour_has_its_rows_across_a_switch(lake: Lake) -> None:
    """The hour excludes its end and is split at the generations; the metadata counts by operation and by generation."""
    result = copy(ONE)
    assert result.success
    assert check_outcomes(result) == GOOD
    assert times_of(sink(lake)) == [ONE, SWITCH_US - 1, SWITCH_US, TWO - 1]
    metadata = result.asset_materializations_for_node("platform__consumed_hours")[0].metadata
    assert metadata["dagster/row_count"].value == 4
    assert records(metadata["operations"]) == [{"operation": "2", "rows": "4"}]
    assert [record["from"] for record in records(metadata["generations"])] == [
        format_us(START_US),
        format_us(SWITCH_US),
    ]


def test_a_log_without_a_generation_does_not_delay_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its hours are copied once a generation is published; until then the schedule requests hours of other logs."""
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    stop_clock(READABLE_US, monkeypatch)
    lake = Lake(tmp_path / "home" / "lake")
    for table in ("t", "tabs"):
        add_table(lake, table)
    tablets.create_tablets(lake, Clock(START_US), Settings(), "ks", "tabs", uniform_tablet_ends(2))
    write(lake, [ONE], table="tabs")
    assert hourly.list_due_hours(lake, Clock(READABLE_US), 24)[:2] == [NOON, ONE]
    assert copy(ONE).success
    assert times_of(sink(lake, "tabs")) == [ONE]
    refused = failure_message(copy(ONE, ["ks.t"]))
    assert "no generation is known in which ks.t could have rows" in refused


def test_due_hours_of_many_tables_read_the_generations_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalogue lists due hours in every tick: 500 tables must not cost 500 times the generations."""
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
    """Hours in any order, some of them twice, give the same rows and a position after the last of them."""
    for hour in order:
        assert copy(Microseconds(hour)).success
    log = lake.read(log_table(schema(lake)), filters=[("cdc$timestamp", "<", datetime_from_us(THREE))])
    assert times_of(log) == TIMES[:-1]
    copied = sink(lake).sort_by("cdc$time")
    assert copied.drop_columns([GENERATION]).equals(log.sort_by("cdc$time"))
    switched = datetime_from_us(SWITCH_US)
    expected = [
        switched if at >= switched else datetime_from_us(START_US) for at in copied["cdc$timestamp"].to_pylist()
    ]
    assert copied[GENERATION].to_pylist() == expected
    assert position(lake) == THREE - 1


def test_the_position_waits_at_a_gap(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours after a missing one are copied, but do not advance the position, so the first generation is not removed."""

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


def test_the_same_rows_again_cause_no_commit(lake: Lake) -> None:
    """Materializing an hour again leaves all tables at their versions."""
    assert copy(NOON).success
    tables = (reader.sink_table(schema(lake), "hourly"), CONSUMED_HOURS, CONSUMERS)
    versions = [lake.version(table) for table in tables]
    assert copy(NOON).success
    assert [lake.version(table) for table in tables] == versions


def test_late_rows_are_found_and_copied_with_the_next_materialization(lake: Lake) -> None:
    """After a write with an old timestamp, the check of its hour fails until the hour is materialized again."""
    assert copy(NOON).success
    assert copy(ONE).success
    write(lake, [Microseconds(ONE + 5), Microseconds(ONE + 6)])
    assert {line.invariant: line.violations for line in audit_hours(lake)} == {
        HOURS_MATCH_LOG: 1,
        HOURS_HOLD_ROWS_ONCE: 0,
    }
    [line, _] = audit_hours(lake, ONE)
    assert "2 of 6 rows of the log are not in ks.t_scylla_cdc_log_hourly, 0 others are" in line.sample
    assert check_outcomes(copy(ONE)) == GOOD
    assert times_of(sink(lake)) == sorted([*TIMES[:7], ONE + 5, ONE + 6])


def test_duplicate_rows_are_found_and_repaired(lake: Lake) -> None:
    """After a foreign writer appends an hour to the sink again, the check fails until the next copy."""
    assert copy(NOON).success
    table = reader.sink_table(schema(lake), "hourly")
    assert lake.append_once(table, sink(lake), {"stray": 1}, None)
    [log, once] = audit_hours(lake, NOON)
    assert (log.violations, once.violations) == (0, 1)
    assert "3 of 6 rows" in once.sample
    assert check_outcomes(copy(NOON)) == GOOD
    assert times_of(sink(lake)) == TIMES[:3]


def test_copied_rows_stay_when_the_log_loses_them(lake: Lake) -> None:
    """An hour of a log that lost rows is not copied over the earlier copy, and the check reports it."""
    assert copy(NOON).success
    lake.delete(log_table(schema(lake)), [("cdc$timestamp", "=", datetime_from_us(START_US))])
    assert "has 1 rows from" in failure_message(copy(NOON))
    assert times_of(sink(lake)) == TIMES[:3]
    assert [line.violations for line in audit_hours(lake)] == [1, 0]


@pytest.mark.parametrize("created_now", [True, False], ids=["of known age", "of unknown age"])
def test_a_recreated_table_is_not_compared_with_its_old_rows(lake: Lake, created_now: bool) -> None:
    """After a drop and a re-creation with a new log, the copied rows of the old log stay and are no violation."""
    assert copy(NOON).success
    table = log_table(schema(lake))
    cdc_tables.drop_cdc_table(lake, Clock(TWO), "ks", "t")
    assert audit_hours(lake) == []
    shutil.rmtree(lake.path(table))
    at = Clock(Microseconds(TWO + 1))  # without a stated creation time, the new log was created after the drop
    cdc_tables.add_cdc_table(lake, at, "ks", "t", ttl_seconds=60, created_now=created_now, ddl=ddl("v"))
    lake.ensure(table)
    write(lake, [Microseconds(TWO + 5_000)])
    assert [line.violations for line in audit_hours(lake)] == [0, 0]
    assert check_outcomes(copy(TWO)) == GOOD
    assert times_of(sink(lake)) == [*TIMES[:3], TWO + 5_000]


def test_a_tablet_based_table_is_copied_set_by_set(tmp_path: Path) -> None:
    """An hour across a split is copied; missing hours hold back the first set, and fail once it is removed."""
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
    collection = tablets.collect_tablet_sets(lake, later, "ks", "t")
    (held_back_set,) = collection.held_back
    assert (collection.removed_ms, held_back_set.consumer.name) == ((), "hourly")
    consumers.forget_consumer(lake, "hourly", "ks", "t")
    assert len(tablets.collect_tablet_sets(lake, later, "ks", "t").removed_ms) == 1
    consumers.register_consumer(lake, later, "hourly", "ks", "t", position_us=held_back_set.consumer.position_us)
    with pytest.raises(StateError, match="which has been removed"):
        hourly.copy_hour(lake, later, [schema(lake)], ONE)
    assert times_of(sink(lake)) == [SWITCH_US - ONE_US, SWITCH_US]


def test_an_unfinished_hour_is_refused(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour can be read once its last microsecond is older than the safety window; nothing is written before."""
    stop_clock(Microseconds(READABLE_US - 2), monkeypatch)
    assert "cannot be read before 2026-01-31T15:00:29.999999Z" in failure_message(copy(TWO))
    assert not lake.exists(CONSUMERS)
    stop_clock(Microseconds(READABLE_US - 1), monkeypatch)
    assert copy(TWO).success
    assert times_of(sink(lake)) == [TWO, THREE - 1]


def test_a_generation_whose_streams_are_incomplete_is_refused(lake: Lake) -> None:
    """The whole hour of the switch waits, including the part before the switch; the previous hour does not."""
    rows = lake.read(STREAMS_DESCRIPTIONS_V2, filters=[("time", "=", datetime_from_us(SWITCH_US))])
    lake.delete(STREAMS_DESCRIPTIONS_V2, [("time", "=", datetime_from_us(SWITCH_US)), ("range_end", ">", 0)])
    assert "not all published yet" in failure_message(copy(ONE))
    assert not lake.exists(CONSUMERS)
    assert copy(NOON).success
    lake.merge(STREAMS_DESCRIPTIONS_V2, rows, update=False)
    assert copy(ONE).success
    assert times_of(sink(lake)) == TIMES[:7]


def test_an_hour_of_a_removed_generation_is_refused(lake: Lake) -> None:
    """Copied rows stay; a consumer registered again begins after the removed generation, in the middle of the hour."""
    for hour in (NOON, ONE, TWO):
        assert copy(hour).success
    # All rows of the first generation have expired: one run marks it, and a run after the grace time removes it.
    later = READABLE_US + 3 * 24 * HOUR
    for now_us, known_generations in ((later, 2), (later + 2 * HOUR, 1)):
        expiry.expire_generations(lake, Clock(Microseconds(now_us)), Settings())
        assert lake.read(GENERATION_TIMESTAMPS).num_rows == known_generations
    assert "which has been removed" in failure_message(copy(NOON))
    consumers.forget_consumer(lake, "hourly", "ks", "t")
    assert copy(ONE).success
    assert times_of(sink(lake)) == TIMES[:-1]
    assert position(lake) == THREE - 1


@pytest.mark.grid("kills of hourly copies", 1)
@pytest.mark.parametrize("point", failpoints.HOURLY_POINTS)
def test_a_killed_run_can_be_repeated(lake: Lake, point: str) -> None:
    """A real process is killed before the rows, before the record, or before the position."""
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
    assert check_outcomes(copy(NOON)) == GOOD
    assert times_of(sink(lake)) == TIMES[:3]
    assert position(lake) == ONE - 1


def test_the_loser_of_two_writers_is_repeated(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the sink changes between the read and the commit, the copy fails instead of writing outdated rows."""
    read_rows = Lake.read
    is_overtaken = False

    def overtake(self: Lake, table: Any, *arguments: Any, **named: Any) -> Any:
        nonlocal is_overtaken
        rows = read_rows(self, table, *arguments, **named)
        if table.name.endswith("_hourly") and not is_overtaken:
            is_overtaken = True
            hourly.copy_hour(lake, Clock(READABLE_US), [schema(lake)], NOON)
        return rows

    monkeypatch.setattr(Lake, "read", overtake)
    with pytest.raises(ConflictError, match="another process writes to"):
        hourly.copy_hour(lake, Clock(READABLE_US), [schema(lake)], NOON)
    hourly.copy_hour(lake, Clock(READABLE_US), [schema(lake)], NOON)
    assert times_of(sink(lake)) == TIMES[:3]


def test_large_hours_are_copied_in_parts(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many files as fit are copied at once; with parts of another size the hour is the same."""
    for part in range(3):
        write(lake, [Microseconds(ONE + 1000 * part + 10), Microseconds(ONE + 1000 * part + 20)])
    monkeypatch.setattr(reader, "MAX_ROWS_IN_MEMORY", 1)
    assert check_outcomes(copy(ONE)) == GOOD
    version = lake.version(reader.sink_table(schema(lake), "hourly"))
    assert version is not None
    assert version > 2
    monkeypatch.setattr(reader, "MAX_ROWS_IN_MEMORY", 4)
    write(lake, [Microseconds(ONE + 15)])
    assert check_outcomes(copy(ONE)) == GOOD
    assert len(times_of(sink(lake))) == 11


def test_columns_are_added_and_dropped(lake: Lake) -> None:
    """A sink gets a new column with the next hour; values of a dropped column stay, also after late rows."""
    assert copy(NOON).success
    cdc_tables.alter_cdc_table(lake, Clock(ONE), "ks", "t", ddl=ddl("v", "w"))
    assert copy(NOON).success
    lake.widen(log_table(schema(lake)))
    table = log_table(schema(lake))
    assert lake.stored_schema(reader.sink_table(schema(lake), "hourly")).names[-2:] == ["w", "cdc$deleted_w"]
    assert sorted(lake.stored_schema(table).names) == sorted(table.schema.names)
    late_values = append_to_widened_log(lake, [Microseconds(NOON + 20 * 60_000_000)])
    assert check_outcomes(copy(NOON)) == GOOD
    assert [value for value in sink(lake)["w"].to_pylist() if value is not None] == late_values
    cdc_tables.alter_cdc_table(lake, Clock(TWO), "ks", "t", ddl=ddl("w"))
    append_to_widened_log(lake, [Microseconds(NOON + 21 * 60_000_000)])
    assert check_outcomes(copy(NOON)) == GOOD
    whole = lake.widen(reader.sink_table(schema(lake), "hourly"))
    values = [row["v"] for row in lake.read(whole).to_pylist() if row["v"] is not None]
    assert sorted(values) == sorted(when // 1_000_000 % 3600 for when in TIMES[:3])


def append_to_widened_log(lake: Lake, times_us: list[Microseconds]) -> list[int]:
    """Append rows with `w` to a log with another order of columns; return the values."""
    table_schema = schema(lake)
    typed = [{"operation": 2, "timestamp": when, "p": 7, "k": 7, "w": when % 1000 + 5} for when in times_us]
    batch = pa.RecordBatch.from_pylist(typed, schema=typed_writes_schema(table_schema))
    rows = pa.Table.from_batches([encode_log_batch(table_schema, batch, get_stream_lookup(lake, table_schema))])
    as_stored = lake.widen(log_table(table_schema))
    assert lake.append_once(as_stored, rows, {str(times_us): 1}, None)
    return [row["w"] for row in typed]


def test_all_logs_or_the_named_ones_are_copied(lake: Lake) -> None:
    """Each table has its sink and its position; a table that is not named is due again."""
    add_table(lake, "u")
    write(lake, [Microseconds(START_US + 7)], table="u")
    assert copy(NOON, ["ks.u"]).success
    assert not lake.exists(reader.sink_table(schema(lake), "hourly"))
    assert hourly.list_due_hours(lake, Clock(READABLE_US), 2) == [NOON, ONE]
    assert check_outcomes(copy(NOON)) == GOOD
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
    """All table names are validated before any table is written."""
    cdc_tables.add_cdc_table(lake, Clock(START_US), "ks", "bare", ttl_seconds=60, ddl=ddl("v", table="bare"))
    assert says in failure_message(copy(NOON, tables))
    assert not lake.exists(CONSUMERS)
    assert not lake.exists(CONSUMED_HOURS)


def test_without_logs_there_is_nothing_to_do(tmp_path: Path) -> None:
    """In an empty lake no hour is due and none is wrong; without a generation no hour is complete."""
    empty = Lake(tmp_path / "empty")
    assert hourly.list_due_hours(empty, Clock(READABLE_US), 5) == []
    assert audit_hours(empty) == []
    add_table(empty, "t")
    assert hourly.list_due_hours(empty, Clock(READABLE_US), 5) == []
    with pytest.raises(StateError, match="no generation is known"):
        hourly.copy_hour(empty, Clock(READABLE_US), [schema(empty)], NOON)


def test_no_other_consumer_uses_the_reserved_name(lake: Lake) -> None:
    """The name is in `platform.consumers`, where a reader that resumes from a position would take it over."""
    with pytest.raises(InputError, match="copies logs hour by hour"):
        reader.consume(lake, Clock(READABLE_US), schema(lake), "hourly")


MOMENT = datetime(2026, 1, 31, 15, 1, tzinfo=UTC)


def test_the_schedule_requests_missing_hours(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Off by default; the oldest hours first, none that is copied or in progress, and only a few at once."""
    assert hourly_logs.default_status is DefaultScheduleStatus.STOPPED

    def requested(now_us: Microseconds, running: Microseconds | None = None) -> list[str | None] | str:
        with DagsterInstance.ephemeral() as instance:
            if running is not None:
                tags = {"dagster/partition": partition(running)}
                job = defs.resolve_job_def(HOURS_JOB)
                instance.create_run_for_job(job, status=DagsterRunStatus.STARTED, tags=tags)
            result = request_scheduled_hours(lake, Clock(now_us), instance, MOMENT)
        if isinstance(result, SkipReason):
            return result.skip_message or ""
        assert all(isinstance(request, RunRequest) for request in result)
        assert len({request.run_key for request in result}) == len(result)
        return [request.partition_key for request in result]

    assert requested(Microseconds(READABLE_US - 2)) == [partition(NOON), partition(ONE)]
    assert requested(READABLE_US) == [partition(NOON), partition(ONE), partition(TWO)]
    assert requested(READABLE_US, running=ONE) == [partition(NOON), partition(TWO)]
    late_requests = requested(Microseconds(READABLE_US + 100 * HOUR))
    assert late_requests == [partition(Microseconds(NOON + index * HOUR)) for index in range(MAX_HOUR_REQUESTS)]
    for hour in (NOON, TWO):
        assert copy(hour).success
    assert requested(READABLE_US) == [partition(ONE)]
    assert "is in progress" in requested(READABLE_US, running=ONE)
    assert copy(ONE).success
    assert requested(READABLE_US) == "every readable hour is copied"


@settings(max_examples=examples(8))
@given(
    rows=st.lists(st.integers(0, 3 * HOUR - (START_US - NOON) - 1), max_size=12, unique=True),
    hours=st.lists(st.sampled_from([NOON, ONE, TWO]), min_size=1, max_size=6),
)
@pytest.mark.long("drawn homes of which each copies several hours")
def test_any_rows_and_any_hours(template: Path, rows: list[int], hours: list[int]) -> None:
    """Rows are written before each copied hour; each copied hour has all rows written before its last copy, once."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(template, Path(folder) / "home")
        lake = Lake(Path(folder) / "home" / "lake")
        written, expected = list(TIMES), dict[int, list[int]]()
        for index, hour in enumerate(hours):
            part = [
                Microseconds(START_US + 2 + offset)
                for offset in rows[index :: len(hours)]
                if START_US + 2 + offset not in written
            ]
            if part:
                write(lake, part)
                written += part
            hourly.copy_hour(lake, Clock(READABLE_US), [schema(lake)], Microseconds(hour))
            expected[hour] = [when for when in written if hour <= when < hour + HOUR]
        assert times_of(sink(lake)) == sorted(when for times in expected.values() for when in times)
        whole = [NOON + index * HOUR for index in range(3)]
        first_gap = next((hour for hour in whole if hour not in expected), THREE)
        assert position(lake) == (START_US - 1 if first_gap == NOON else first_gap - 1)


def tick_catalogue(instance: DagsterInstance) -> Sequence[str]:
    """Tick the catalogue sensor, and return the hours that have partitions then."""
    repository = defs.get_repository_def()
    resources = {"home": HomeResource(), "clock": ClockResource()}
    with build_sensor_context(instance=instance, repository_def=repository, resources=resources) as context:
        repository.get_sensor_def("catalogue").evaluate_tick(context)
    return instance.get_dynamic_partitions(HOURS_NAME)


@pytest.mark.parametrize("copied", [(NOON, ONE, TWO), (ONE, TWO)], ids=["all", "all-but-the-first"])
def test_old_hours_leave_dagster_and_stay_in_the_tables(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, copied: Sequence[Microseconds]
) -> None:
    """Dagster has the hours of the retention, and since the first hour that still has to be copied."""
    for hour_us in copied:
        hourly.copy_hour(lake, Clock(READABLE_US), hourly.select_logs_to_copy(lake, Clock(READABLE_US)), hour_us)
    with DagsterInstance.ephemeral() as instance:
        assert tick_catalogue(instance) == [partition(hour_us) for hour_us in (NOON, ONE, TWO)]
        stop_clock(Microseconds(TWO + us_from_ms(Settings().dagster_retention_ms)), monkeypatch)
        hours = tick_catalogue(instance)
        assert hours[0] == partition(TWO if NOON in copied else NOON)
        assert set(tick_catalogue(instance)) == set(hours)
    assert set(lake.read(CONSUMED_HOURS)["hour"].to_pylist()) == {datetime_from_us(hour_us) for hour_us in copied}
