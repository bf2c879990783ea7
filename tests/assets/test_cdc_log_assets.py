"""The CDC logs in Dagster, a partition a table: counted, checked row by row, looked at again when they change."""

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
    """One log, of a tablet-based table."""
    split(rehearsal.lake)
    rehearsal.instance.add_dynamic_partitions(LOGS_NAME, ["ks.tabs", "ks.none"])


def run(rehearsal: Rehearsal, partition: str = "ks.tabs", tags: dict[str, str] | None = None) -> ExecuteInProcessResult:
    """Look at one log."""
    return defs.resolve_job_def(LOGS_JOB).execute_in_process(
        run_config=QUIET,
        instance=rehearsal.instance,
        partition_key=partition,
        raise_on_error=False,
        tags=dict(tags or {}),
    )


def table(value: Any) -> list[dict[str, Any]]:
    """The rows of a table in metadata."""
    return [record.data for record in value.records]


def test_a_log_is_counted_and_checked(rehearsal: Rehearsal) -> None:
    """Rows by operation and by stream set; every invariant is a check, without Spark where the log is small."""
    result = run(rehearsal)
    assert result.success
    told = result.asset_materializations_for_node("platform__cdc_log")[0].metadata
    assert told["dagster/row_count"].value == ROWS
    operations, sets = (table(told[name].value) for name in ("operations", "generations"))
    assert operations == [
        {"operation": "update", "rows": str(BATCHES // 2)},
        {"operation": "insert", "rows": str(BATCHES)},
    ]
    assert sets == [{"since": format_us(each), "rows": str(ROWS // 2)} for each in (SWITCH_US, START_US)]
    checks = result.get_asset_check_evaluations()
    assert {check.check_name: check.passed for check in checks} == dict.fromkeys(
        (*LOG_INVARIANTS, STATE_MATCHES_LOG, PASSED_OVER_STAYS_EMPTY), True
    )


def test_a_damaged_log_fails_one_check(rehearsal: Rehearsal) -> None:
    """The others still pass; an empty log fails none."""
    rows = rows_of(rehearsal.lake, "tabs")
    rows.remove(three(rows)[1])
    put(rehearsal.lake, rows, "tabs")
    checks = run(rehearsal).get_asset_check_evaluations()
    assert [check.check_name for check in checks if not check.passed] == [LOG_BATCH_COMPLETE]
    put(rehearsal.lake, [], "tabs")
    checks = run(rehearsal).get_asset_check_evaluations()
    assert {check.description for check in checks if check.passed} == {
        "there are no rows",
        "no table with a log has a stored state",
        "no reader passed any over",
    }
    assert len(checks) == len(LOG_INVARIANTS) + 2


def test_a_partition_without_a_log_is_refused(rehearsal: Rehearsal) -> None:
    """Partitions can be typed by hand."""
    assert not run(rehearsal, "ks.none").success


def test_a_tick_asks_for_what_has_changed(rehearsal: Rehearsal) -> None:
    """A partition for a new log, one look at each of its states, none where nothing has changed."""
    rehearsal.instance.delete_dynamic_partition(LOGS_NAME, "ks.tabs")
    first = request_log_checks(rehearsal.lake, rehearsal.instance, None)
    (added,) = first.dynamic_partitions_requests or []
    (request,) = first.run_requests or []
    assert (list(added.partition_keys), request.partition_key) == (["ks.tabs"], "ks.tabs")
    rehearsal.instance.add_dynamic_partitions(LOGS_NAME, ["ks.tabs"])
    assert run(rehearsal, tags=dict(request.tags)).success
    done = request_log_checks(rehearsal.lake, rehearsal.instance, first.cursor)
    again = request_log_checks(rehearsal.lake, rehearsal.instance, done.cursor)
    assert (done.run_requests, again.run_requests, again.cursor) == ([], [], done.cursor)
    put(rehearsal.lake, rows_of(rehearsal.lake, "tabs"), "tabs")
    later = time.time() + 3_600
    (other,) = request_log_checks(rehearsal.lake, rehearsal.instance, done.cursor, later).run_requests or []
    assert other.run_key != request.run_key


def test_the_sensor_is_on_and_says_why_it_skips(tmp_path: Path) -> None:
    """Without a log it says so; nothing else can make it skip for good."""
    assert changed_logs.default_status.value == "RUNNING"
    with DagsterInstance.ephemeral() as instance:
        found = request_log_checks(Lake(tmp_path / "lake"), instance, None)
    assert said(found) == "there is no CDC log in this home yet"


def test_checks_of_a_log_take_a_tenth_of_the_time_at_most(rehearsal: Rehearsal) -> None:
    """While one runs the next waits, and afterwards nine times as long as it took; a change meanwhile is not lost."""
    lake, instance = rehearsal.lake, rehearsal.instance
    cursor = request_log_checks(lake, instance, None).cursor
    under_way = instance.create_run_for_job(
        defs.resolve_job_def(LOGS_JOB), tags={PARTITION_TAG: "ks.tabs"}, status=DagsterRunStatus.STARTED
    )
    put(lake, rows_of(lake, "tabs"), "tabs")
    waiting = request_log_checks(lake, instance, cursor)
    assert said(waiting) == f"ks.tabs: run {under_way.run_id} is in progress"
    assert waiting.cursor == cursor
    instance.delete_run(under_way.run_id)
    assert run(rehearsal).success
    (record,) = instance.get_run_records(limit=1)
    assert record.start_time is not None
    assert record.end_time is not None
    took_s = record.end_time - record.start_time
    early = request_log_checks(lake, instance, cursor, record.end_time + took_s * 8)
    assert said(early).startswith(f"ks.tabs: its last check took {took_s:.0f} s, so the next one is due in ")
    assert early.cursor == cursor
    late = request_log_checks(lake, instance, early.cursor, record.end_time + took_s * 9 + 1)
    assert [request.partition_key for request in late.run_requests or []] == ["ks.tabs"]
    (request,) = late.run_requests or []
    assert run(rehearsal, tags=dict(request.tags)).success
    assert said(request_log_checks(lake, instance, late.cursor)) == "no log has changed since its last check"


def said(found: SensorResult) -> str:
    """Why a tick asks for no run."""
    assert not found.run_requests
    assert found.skip_reason is not None
    return str(found.skip_reason.skip_message)
