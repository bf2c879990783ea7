"""The CDC logs in Dagster, one partition per table: counted, checked row by row, and checked again after changes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance, DagsterRunStatus, ExecuteInProcessResult, SensorResult
from support.homes.log_lake import BATCHES, ROWS, START_US, SWITCH_US, put, rows_of, split, three
from support.worlds.rehearsal import QUIET, Rehearsal

from cdc_platform.checks import LOG_BATCH_COMPLETE, LOG_INVARIANTS, PASSED_OVER_STAYS_EMPTY, STATE_MATCHES_LOG
from cdc_platform.clock import format_us
from cdc_platform.definitions import defs
from cdc_platform.delta import Lake
from cdc_platform_assets.log.logs import LOGS_JOB, changed_logs, request_log_checks
from cdc_platform_assets.partitions import LOGS_NAME
from cdc_platform_assets.run_requests import PARTITION_TAG


@pytest.fixture(autouse=True)
def log(rehearsal: Rehearsal) -> None:
    """Create one log of a tablet-based table."""
    split(rehearsal.lake)
    rehearsal.instance.add_dynamic_partitions(LOGS_NAME, ["ks.tabs", "ks.none"])


def run_checks(
    rehearsal: Rehearsal, partition: str = "ks.tabs", tags: dict[str, str] | None = None
) -> ExecuteInProcessResult:
    """Run the checks of one log."""
    return defs.resolve_job_def(LOGS_JOB).execute_in_process(
        run_config=QUIET,
        instance=rehearsal.instance,
        partition_key=partition,
        raise_on_error=False,
        tags=dict(tags or {}),
    )


def table(value: Any) -> list[dict[str, Any]]:
    """Return the rows of a table in metadata."""
    return [record.data for record in value.records]


def test_a_log_is_counted_and_checked(rehearsal: Rehearsal) -> None:
    """Rows are counted by operation and by stream set; every invariant is a check, without Spark for a small log."""
    result = run_checks(rehearsal)
    assert result.success
    metadata = result.asset_materializations_for_node("platform__cdc_log")[0].metadata
    assert metadata["dagster/row_count"].value == ROWS
    operations, sets = (table(metadata[name].value) for name in ("operations", "generations"))
    assert operations == [
        {"operation": "update", "rows": str(BATCHES // 2)},
        {"operation": "insert", "rows": str(BATCHES)},
    ]
    assert sets == [{"since": format_us(since), "rows": str(ROWS // 2)} for since in (SWITCH_US, START_US)]
    checks = result.get_asset_check_evaluations()
    assert {check.check_name: check.passed for check in checks} == dict.fromkeys(
        (*LOG_INVARIANTS, STATE_MATCHES_LOG, PASSED_OVER_STAYS_EMPTY), True
    )


def test_a_damaged_log_fails_one_check(rehearsal: Rehearsal) -> None:
    """The other checks still pass; an empty log fails none."""
    rows = rows_of(rehearsal.lake, "tabs")
    rows.remove(three(rows)[1])
    put(rehearsal.lake, rows, "tabs")
    checks = run_checks(rehearsal).get_asset_check_evaluations()
    assert [check.check_name for check in checks if not check.passed] == [LOG_BATCH_COMPLETE]
    put(rehearsal.lake, [], "tabs")
    checks = run_checks(rehearsal).get_asset_check_evaluations()
    assert {check.description for check in checks if check.passed} == {
        "there are no rows",
        "no table with a log has a stored state",
        "no reader passed any over",
    }
    assert len(checks) == len(LOG_INVARIANTS) + 2


def test_a_partition_without_a_log_is_refused(rehearsal: Rehearsal) -> None:
    """Partitions can be entered by hand, so one without a log fails."""
    assert not run_checks(rehearsal, "ks.none").success


def test_a_tick_requests_changed_logs(rehearsal: Rehearsal) -> None:
    """A new log gets a partition and each of its states one check; an unchanged log gets none."""
    rehearsal.instance.delete_dynamic_partition(LOGS_NAME, "ks.tabs")
    first = request_log_checks(rehearsal.lake, rehearsal.instance, None)
    (added,) = first.dynamic_partitions_requests or []
    (request,) = first.run_requests or []
    assert (list(added.partition_keys), request.partition_key) == (["ks.tabs"], "ks.tabs")
    rehearsal.instance.add_dynamic_partitions(LOGS_NAME, ["ks.tabs"])
    assert run_checks(rehearsal, tags=dict(request.tags)).success
    unchanged = request_log_checks(rehearsal.lake, rehearsal.instance, first.cursor)
    repeated = request_log_checks(rehearsal.lake, rehearsal.instance, unchanged.cursor)
    assert (unchanged.run_requests, repeated.run_requests, repeated.cursor) == ([], [], unchanged.cursor)
    put(rehearsal.lake, rows_of(rehearsal.lake, "tabs"), "tabs")
    later = time.time() + 3_600
    (second_request,) = (
        request_log_checks(rehearsal.lake, rehearsal.instance, unchanged.cursor, later).run_requests or []
    )
    assert second_request.run_key != request.run_key


def test_the_sensor_runs_by_default_and_states_why_it_skips(tmp_path: Path) -> None:
    """Without a log it says so; nothing else can make it skip forever."""
    assert changed_logs.default_status.value == "RUNNING"
    with DagsterInstance.ephemeral() as instance:
        result = request_log_checks(Lake(tmp_path / "lake"), instance, None)
    assert skip_message(result) == "there is no CDC log in this home yet"


def test_checks_of_a_log_take_a_tenth_of_the_time_at_most(rehearsal: Rehearsal) -> None:
    """The next check waits for the running one, and then nine times its duration; a change meanwhile is not lost."""
    lake, instance = rehearsal.lake, rehearsal.instance
    cursor = request_log_checks(lake, instance, None).cursor
    running = instance.create_run_for_job(
        defs.resolve_job_def(LOGS_JOB), tags={PARTITION_TAG: "ks.tabs"}, status=DagsterRunStatus.STARTED
    )
    put(lake, rows_of(lake, "tabs"), "tabs")
    waiting = request_log_checks(lake, instance, cursor)
    assert skip_message(waiting) == f"ks.tabs: run {running.run_id} is in progress"
    assert waiting.cursor == cursor
    instance.delete_run(running.run_id)
    assert run_checks(rehearsal).success
    (record,) = instance.get_run_records(limit=1)
    assert record.start_time is not None
    assert record.end_time is not None
    duration_s = record.end_time - record.start_time
    early = request_log_checks(lake, instance, cursor, record.end_time + duration_s * 8)
    assert skip_message(early).startswith(
        f"ks.tabs: its last check took {duration_s:.0f} s, so the next one is due in "
    )
    assert early.cursor == cursor
    late = request_log_checks(lake, instance, early.cursor, record.end_time + duration_s * 9 + 1)
    assert [request.partition_key for request in late.run_requests or []] == ["ks.tabs"]
    (request,) = late.run_requests or []
    assert run_checks(rehearsal, tags=dict(request.tags)).success
    assert skip_message(request_log_checks(lake, instance, late.cursor)) == "no log has changed since its last check"


def skip_message(result: SensorResult) -> str:
    """Return why a tick requests no run."""
    assert not result.run_requests
    assert result.skip_reason is not None
    return str(result.skip_reason.skip_message)
