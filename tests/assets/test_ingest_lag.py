"""The lag of ingested logs in Dagster: a check with each run, and a sensor for logs without runs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from dagster import AssetCheckEvaluation, DagsterRunStatus
from support.failed_runs import advance_retries
from support.homes.ingested import POSITION_US, ReadLog, ingested_home, read_up_to
from support.worlds.rehearsal import QUIET, Rehearsal

from cdc_platform.clock import HOUR_US, SECOND_US, Clock, Microseconds, format_us
from cdc_platform.dagster_home import CLOCK_VARIABLE
from cdc_platform.definitions import defs
from cdc_platform.delta import Lake
from cdc_platform.home_location import HomeLocation, open_home_location
from cdc_platform_assets.cluster.lag import LAG_CHECK, LAG_JOB, judge_lags, read_lags, request_lag_check
from cdc_platform_assets.partitions import INGESTED_LOGS_NAME

LOGS = [ReadLog("t"), ReadLog("slow", 0), ReadLog("new", windows=None), ReadLog("begun", windows=0)]


def clock_after(after_s: int) -> Clock:
    """Return a clock this many seconds after the position of the logs."""
    return Clock(Microseconds(POSITION_US + 1 + after_s * SECOND_US))


def home_with_logs(rehearsal: Rehearsal) -> HomeLocation:
    """Create the platform's home with a cluster and its logs, each with a partition."""
    home, _ = ingested_home(rehearsal.lake.root.parent, LOGS)
    rehearsal.instance.add_dynamic_partitions(INGESTED_LOGS_NAME, [f"prod/shop.{log.table}" for log in LOGS])
    return home


def run_check(rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch, after_s: int) -> dict[str | None, Any]:
    """Run the check of all logs; return the results by partition, with None for all of them together."""
    stopped_at_us = clock_after(after_s).stopped_at_us
    assert stopped_at_us is not None
    monkeypatch.setenv(CLOCK_VARIABLE, format_us(stopped_at_us))
    executed = defs.resolve_job_def(LAG_JOB).execute_in_process(run_config=QUIET, instance=rehearsal.instance)
    assert executed.success
    records = rehearsal.instance.event_log_storage.get_logs_for_run(executed.run_id)
    events = [record.dagster_event for record in records if record.dagster_event is not None]
    event_data = [event.event_specific_data for event in events]
    return {result.partition: result for result in event_data if isinstance(result, AssetCheckEvaluation)}


@pytest.mark.parametrize(
    ("after_s", "passed", "severity", "says"),
    [
        (199, True, "WARN", "199 s ago, and its rows live for 400 s"),
        (200, True, "WARN", "200 s ago"),
        (299, True, "WARN", "299 s ago"),
        (300, False, "WARN", "300 s ago"),
        (400, False, "ERROR", "may have died unread"),
    ],
)
def test_the_check_of_a_log_has_the_level_of_its_lag(
    after_s: int, passed: bool, severity: str, says: str, rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check blocks nothing and fails no run; all logs together have the worst level; unread logs are left out."""
    home_with_logs(rehearsal)
    results = run_check(rehearsal, monkeypatch, after_s)
    assert set(results) == {None, "prod/shop.t", "prod/shop.slow", "prod/shop.begun"}
    assert not any(result.blocking for result in results.values())
    own_result = results["prod/shop.t"]
    assert (own_result.passed, own_result.severity.name, says in own_result.description) == (passed, severity, True)
    assert (results["prod/shop.slow"].passed, "never expire" in results["prod/shop.slow"].description) == (True, True)
    unknown = results["prod/shop.begun"]
    assert (unknown.passed, unknown.severity.name, unknown.metadata["lag"].value) == (False, "WARN", "unknown")
    assert results[None].severity.name == severity
    assert results[None].passed is False


@pytest.mark.parametrize(("partition", "says"), [("prod/shop.new", "never ingested"), ("prod/shop.t", "400 s")])
def test_a_log_is_judged_by_its_partition(partition: str, says: str, rehearsal: Rehearsal) -> None:
    """The run of its ingest does the same; a log that was never ingested is unknown, which is no success."""
    home = home_with_logs(rehearsal)
    (lag,) = read_lags(home, Microseconds(POSITION_US), partition).values()
    result = judge_lags({partition: lag})
    assert (result.passed, says in (result.description or "")) == (partition == "prod/shop.t", True)
    assert LAG_CHECK in {check.name for check in defs.resolve_asset_graph().asset_check_keys}


def test_the_sensor_requests_the_check_at_each_level_once(rehearsal: Rehearsal) -> None:
    """The sensor requests the check first and whenever a log reaches another level; ingested logs get partitions."""
    home, _ = ingested_home(rehearsal.lake.root.parent, LOGS)
    cursor: str | None = None
    keys = list[str]()

    def tick(after_s: int) -> int:
        nonlocal cursor
        result = request_lag_check(home, clock_after(after_s), rehearsal.instance, cursor)
        cursor = result.cursor
        for request in result.dynamic_partitions_requests or []:
            rehearsal.instance.add_dynamic_partitions(request.partitions_def_name, list(request.partition_keys))
        keys.extend(str(request.run_key) for request in result.run_requests or [])
        assert (result.skip_reason is None) == bool(result.run_requests)
        return len(result.run_requests or [])

    assert tick(0) == 1
    partitions = rehearsal.instance.get_dynamic_partitions(INGESTED_LOGS_NAME)
    assert sorted(partitions) == ["prod/shop.begun", "prod/shop.slow", "prod/shop.t"]
    assert [tick(after_s) for after_s in (199, 200, 299, 300, 399, 400, 500)] == [0, 1, 0, 1, 0, 1, 0]
    lake = Lake(home.path / "clusters" / "prod" / "lake")
    read_up_to(lake, [ReadLog("t", position_us=POSITION_US + 500 * SECOND_US)])
    assert tick(500) == 1
    assert cursor is not None
    assert json.loads(cursor)["levels"] == {
        "prod/shop.begun": "unknown",
        "prod/shop.slow": "fine",
        "prod/shop.t": "fine",
    }
    assert len(set(keys)) == len(keys) == 5


def test_a_failed_check_is_requested_again(rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed run has not judged the level, which may stay for hours; a successful one has."""
    home, _ = ingested_home(rehearsal.lake.root.parent, LOGS)
    first = request_lag_check(home, clock_after(0), rehearsal.instance, None)
    (request,) = first.run_requests or []
    job = defs.resolve_job_def(LAG_JOB)
    run = rehearsal.instance.create_run_for_job(job, tags=request.tags, status=DagsterRunStatus.STARTED)
    waiting = request_lag_check(home, clock_after(1), rehearsal.instance, first.cursor)
    assert "reached another level" in str(waiting.skip_reason)
    rehearsal.instance.report_run_failed(run)
    advance_retries(monkeypatch, HOUR_US)
    (repeated,) = request_lag_check(home, clock_after(2), rehearsal.instance, waiting.cursor).run_requests or []
    assert repeated.run_key != request.run_key
    rehearsal.instance.create_run_for_job(job, tags=repeated.tags, status=DagsterRunStatus.SUCCESS)
    judged = request_lag_check(home, clock_after(3), rehearsal.instance, waiting.cursor)
    assert "reached another level" in str(judged.skip_reason)


def test_a_home_without_a_cluster_requests_nothing(rehearsal: Rehearsal) -> None:
    """The sensor runs in every home, also without a cluster."""
    home = open_home_location(rehearsal.lake.root.parent)
    assert request_lag_check(home, clock_after(0), rehearsal.instance, None).run_requests in (None, [])
