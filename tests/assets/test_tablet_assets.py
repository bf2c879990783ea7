"""Tablet-based tables in Dagster, one partition per table: decided, audited, published, finished, collected.

No Spark.
"""

from __future__ import annotations

from typing import Any

import pytest
from dagster import DagsterEventType, DagsterRunStatus, ExecuteInProcessResult, SensorResult
from support.failed_runs import advance_retries, fail_run
from support.oracles import oracle, tablet_oracle
from support.worlds.rehearsal import QUIET, Rehearsal

from cdc_platform.checks.invariants import TABLET_INVARIANTS
from cdc_platform.clock import HOUR_US, Clock, parse_time_us, us_from_ms
from cdc_platform.dagster_home import CLOCK_VARIABLE
from cdc_platform.definitions import defs
from cdc_platform.errors import StateError
from cdc_platform.generations import uniform_tablet_ends
from cdc_platform.lifecycle import tablets
from cdc_platform.metastore import cdc_tables, consumers
from cdc_platform.metastore import tablets as metastore_tablets
from cdc_platform.settings import Settings
from cdc_platform.tables import TABLET_STREAMS
from cdc_platform_assets.partitions import TABLET_TABLES_NAME
from cdc_platform_assets.run_requests import MAX_ATTEMPTS
from cdc_platform_assets.tablets.maintenance import GC_JOB, request_collections, request_unfinished_changes
from cdc_platform_assets.tablets.stream_sets import TABLETS_JOB

NAME = ("ks", "t")
NOON, ONE, LATER = ("2026-01-01T12:00:00Z", "2026-01-01T13:00:00Z", "2026-01-03T12:00:00Z")


def clock(moment: str) -> Clock:
    """Return a stopped clock."""
    return Clock(parse_time_us(moment))


@pytest.fixture(autouse=True)
def table(rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Add one partition and stop the clock."""
    rehearsal.instance.add_dynamic_partitions(TABLET_TABLES_NAME, ["ks.t"])
    monkeypatch.setenv(CLOCK_VARIABLE, NOON)


def run_job(
    rehearsal: Rehearsal, config: dict[str, Any] | None = None, job: str = TABLETS_JOB, partition: str = "ks.t"
) -> ExecuteInProcessResult:
    """Run a job on the table."""
    ops = {"ops": {"platform__tablet_layouts": {"config": config}}} if config else {}
    return defs.resolve_job_def(job).execute_in_process(
        run_config=QUIET | ops, instance=rehearsal.instance, partition_key=partition, raise_on_error=False
    )


def refusal(result: ExecuteInProcessResult) -> str:
    """Return the message with which a run failed."""
    assert not result.success
    failure = next(event for event in result.all_events if event.event_type is DagsterEventType.STEP_FAILURE)
    failure_data = failure.step_failure_data.user_failure_data
    assert failure_data is not None
    return failure_data.description or ""


def requests(result: SensorResult) -> list[tuple[str | None, str | None]]:
    """Return the runs that a tick requests, as (partition, run key)."""
    return [(request.partition_key, request.run_key) for request in result.run_requests or []]


def counts(rehearsal: Rehearsal) -> list[tuple[int, int, int]]:
    """Return (current, closed, opened) of every set, oldest first."""
    changes = metastore_tablets.read_stream_set_changes(rehearsal.lake, *NAME)
    return [(len(change.current), len(change.closed), len(change.opened)) for change in changes]


def test_a_table_is_created_split_and_merged(rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run decides, writes, audits and publishes; repeating a run changes nothing."""
    result = run_job(rehearsal, {"count": 2, "ttl_seconds": 60})
    assert result.success
    assert sorted(check.check_name for check in result.get_asset_check_evaluations()) == sorted(TABLET_INVARIANTS)
    assert all(check.passed for check in result.get_asset_check_evaluations())
    monkeypatch.setenv(CLOCK_VARIABLE, ONE)
    assert run_job(rehearsal, {"count": 4}).success
    version = rehearsal.lake.version(TABLET_STREAMS)
    assert run_job(rehearsal, {"count": 4}).success
    assert rehearsal.lake.version(TABLET_STREAMS) == version
    assert run_job(rehearsal, {"count": 1}).success
    ends = [str(token) for token in (-5, oracle.LAST)]
    assert run_job(rehearsal, {"ends": ends}).success
    assert counts(rehearsal) == [(2, 0, 2), (4, 2, 4), (1, 4, 1), (2, 1, 2)]
    assert cdc_tables.find_cdc_table(rehearsal.lake, *NAME).ttl_seconds == 60


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"count": 0}, "a table has 1 to"),
        ({"count": 2, "ends": ["9223372036854775807"]}, "both count and ends"),
        ({"ends": ["x"]}, "tokens are integers"),
        ({"ends": ["5"]}, "has to end at 9223372036854775807"),
    ],
)
def test_bad_tablets_are_refused_in_one_line(rehearsal: Rehearsal, config: dict[str, Any], says: str) -> None:
    """The launchpad's config is validated before anything is written, and nothing is retried."""
    result = run_job(rehearsal, config)
    assert says in refusal(result)
    assert not any(event.event_type is DagsterEventType.STEP_UP_FOR_RETRY for event in result.all_events)
    assert cdc_tables.read_cdc_tables(rehearsal.lake) == []


def test_a_partition_without_a_table_name_is_refused(rehearsal: Rehearsal) -> None:
    """Partitions can be entered by hand."""
    rehearsal.instance.add_dynamic_partitions(TABLET_TABLES_NAME, ["table"])
    assert "names no table" in refusal(run_job(rehearsal, {"count": 2}, partition="table"))


def test_a_set_that_violates_an_invariant_is_not_published(rehearsal: Rehearsal) -> None:
    """A decided set contains a stream of no tablet: its timestamp is not published, and the check names it."""
    lake = rehearsal.lake
    tablets.create_tablets(lake, clock(NOON), Settings(), *NAME, uniform_tablet_ends(2))
    layout = tablets.decide_tablet_resize(lake, clock(ONE), Settings(), *NAME, lambda _: uniform_tablet_ends(4)).layout
    tablets.write_set_streams(lake, layout)
    row = lake.read(TABLET_STREAMS, filters=[("stream_state", "=", 2)]).sort_by("timestamp").slice(5, 1)
    stray_row = row.set_column(4, "stream_id", [[tablet_oracle.make(77, 1)]])
    lake.merge(TABLET_STREAMS, stray_row.set_column(3, "stream_state", [[0]]), update=False)
    result = run_job(rehearsal)
    failed = {check.check_name for check in result.get_asset_check_evaluations() if not check.passed}
    assert failed == {"tablet_sets_add_up", "tablet_stream_at_end"}
    assert not result.success
    assert len(metastore_tablets.read_stream_sets(lake, *NAME)) == 1


def test_the_sensor_finishes_an_unfinished_change(rehearsal: Rehearsal) -> None:
    """A decided but unfinished change gets its partition and a run, and then nothing is left."""
    lake = rehearsal.lake
    tablets.decide_tablet_creation(lake, clock(NOON), Settings(), "ks", "u", uniform_tablet_ends(2))
    first = request_unfinished_changes(lake, rehearsal.instance, None)
    assert requests(first) == [("ks.u", "ks.u/change 0/1")]
    assert [list(request.partition_keys) for request in first.dynamic_partitions_requests or []] == [["ks.u"]]
    rehearsal.instance.add_dynamic_partitions(TABLET_TABLES_NAME, ["ks.u"])
    assert run_job(rehearsal, partition="ks.u").success
    assert metastore_tablets.read_unfinished_layouts(lake) == []
    second = request_unfinished_changes(lake, rehearsal.instance, None)
    assert requests(second) == []
    assert request_unfinished_changes(lake, rehearsal.instance, second.cursor).skip_reason is not None


def test_the_sensor_removes_the_sets_of_a_dropped_log(rehearsal: Rehearsal) -> None:
    """The sets of a log dropped without a change of its tablets are detected and removed."""
    lake = rehearsal.lake
    tablets.create_tablets(lake, clock(NOON), Settings(), *NAME, uniform_tablet_ends(2))
    assert requests(request_unfinished_changes(lake, rehearsal.instance, None)) == []
    cdc_tables.drop_cdc_table(lake, clock(ONE), *NAME)
    assert requests(request_unfinished_changes(lake, rehearsal.instance, None)) == [("ks.t", "ks.t/change 0/1")]
    result = run_job(rehearsal)
    assert result.success
    assert {check.description for check in result.get_asset_check_evaluations()} == {"there are no stream sets"}
    assert metastore_tablets.read_tables_with_stream_sets(lake) == []
    assert requests(request_unfinished_changes(lake, rehearsal.instance, None)) == []


def test_a_table_is_left_to_a_person_after_some_failures(rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt has its own run key; while a run is in progress no other is requested."""
    advance_retries(monkeypatch, HOUR_US)
    lake = rehearsal.lake
    tablets.decide_tablet_creation(lake, clock(NOON), Settings(), *NAME, uniform_tablet_ends(2))
    job = defs.resolve_job_def(TABLETS_JOB)
    tags = {"dagster/partition": "ks.t", "cdc_platform/tablets": "change 0"}
    failed = None
    for attempt in range(1, MAX_ATTEMPTS + 1):
        assert requests(request_unfinished_changes(lake, rehearsal.instance, None)) == [
            ("ks.t", f"ks.t/change 0/{attempt}")
        ]
        failed = fail_run(rehearsal.instance, TABLETS_JOB, tags, StateError("rows are missing"))
    assert failed is not None
    given_up = request_unfinished_changes(lake, rehearsal.instance, None)
    assert requests(given_up) == []
    assert failed.run_id in str(given_up.skip_reason)
    active = rehearsal.instance.create_run_for_job(job, tags=tags, status=DagsterRunStatus.STARTED)
    assert active.run_id in str(request_unfinished_changes(lake, rehearsal.instance, None).skip_reason)


def test_old_sets_are_collected(rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch) -> None:
    """When no log can have a row of a set any more, the sensor requests its removal, and the job removes it."""
    lake = rehearsal.lake
    tablets.create_tablets(lake, clock(NOON), Settings(), *NAME, uniform_tablet_ends(2))
    changed = tablets.split_tablets(lake, clock(ONE), Settings(), *NAME, 4).layout
    assert requests(request_collections(lake, clock(ONE), rehearsal.instance)) == []
    key = f"ks.t/base {changed.timestamp_ms}/1"
    assert requests(request_collections(lake, clock(LATER), rehearsal.instance)) == [("ks.t", key)]
    monkeypatch.setenv(CLOCK_VARIABLE, LATER)
    assert run_job(rehearsal, job=GC_JOB).success
    assert counts(rehearsal) == [(4, 0, 4)]
    assert requests(request_collections(lake, clock(LATER), rehearsal.instance)) == []


def test_collection_of_sets_in_use_is_not_requested(rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a consumer needs a set, no run is requested and the reader is named; after it advances, a run collects."""
    lake, instance = rehearsal.lake, rehearsal.instance
    tablets.create_tablets(lake, clock(NOON), Settings(), *NAME, uniform_tablet_ends(2))
    second = tablets.split_tablets(lake, clock(ONE), Settings(), *NAME, 4).layout.timestamp_ms
    third = tablets.split_tablets(lake, clock("2026-01-01T14:00:00Z"), Settings(), *NAME, 8).layout.timestamp_ms
    assert second is not None
    assert third is not None
    reader = consumers.register_consumer(lake, clock(NOON), "audit", *NAME, position_us=parse_time_us(NOON))
    for _ in range(MAX_ATTEMPTS + 1):
        result = request_collections(lake, clock(LATER), instance)
        assert requests(result) == []
        assert "2 stream sets are held back by consumer audit of ks.t, which has read up to" in str(result.skip_reason)
    consumers.advance_consumer(
        lake,
        clock(LATER),
        reader,
        position_us=us_from_ms(second),
        set_timestamp_us=us_from_ms(second),
        expected_window=0,
    )
    assert requests(request_collections(lake, clock(LATER), instance)) == [("ks.t", f"ks.t/base {second}/1")]
    monkeypatch.setenv(CLOCK_VARIABLE, LATER)
    assert run_job(rehearsal, job=GC_JOB).success
    assert [change.timestamp_ms for change in metastore_tablets.read_stream_set_changes(lake, *NAME)] == [second, third]
    line = "1 stream set is held back by consumer audit of ks.t, which has read up to 2026-01-01T13:01:05.000Z"
    for _ in range(2):
        result = request_collections(lake, clock(LATER), instance)
        assert requests(result) == []
        assert line in str(result.skip_reason)
    metadata = run_job(rehearsal).asset_materializations_for_node("system__cdc_timestamps")[0].metadata
    assert metadata["held_back"].value == line
    consumers.forget_consumer(lake, "audit", *NAME)
    assert requests(request_collections(lake, clock(LATER), instance)) == [("ks.t", f"ks.t/base {third}/1")]
    assert run_job(rehearsal, job=GC_JOB).success
    metadata = run_job(rehearsal).asset_materializations_for_node("system__cdc_timestamps")[0].metadata
    assert "held_back" not in metadata
