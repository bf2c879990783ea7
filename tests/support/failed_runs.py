"""Failed runs with the events that Dagster stores for them, and a clock of the retry policy that can be advanced."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import nullcontext

import pytest
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, Failure
from dagster._core.definitions.metadata import normalize_metadata
from dagster._core.events import DagsterEvent, DagsterEventType
from dagster._core.execution.plan.objects import ErrorSource, StepFailureData, UserFailureData
from dagster._utils.error import serializable_error_info_from_exc_info

from cdc_platform.clock import Microseconds, system_time_us
from cdc_platform.definitions import defs
from cdc_platform_assets import run_requests
from cdc_platform_assets.failures import platform_errors_as_failures


def fail_run(
    instance: DagsterInstance,
    job: str,
    tags: Mapping[str, str],
    error: BaseException | None = None,
    *,
    as_failure: bool = True,
) -> DagsterRun:
    """Create a run of a job that failed with this error in a step; without an error its worker disappeared.

    `as_failure`: the step turned the error into a Dagster failure, as most steps do.
    """
    run = instance.create_run_for_job(defs.resolve_job_def(job), tags=dict(tags), status=DagsterRunStatus.FAILURE)
    if error is not None:
        instance.report_dagster_event(_failure_event(job, error, as_failure), run_id=run.run_id)
    return run


def advance_retries(monkeypatch: pytest.MonkeyPatch, by_us: Microseconds) -> None:
    """Move the clock of the retry policy ahead of the machine's."""
    monkeypatch.setattr(run_requests, "system_time_us", lambda: Microseconds(system_time_us() + by_us))


def _failure_event(job: str, error: BaseException, as_failure: bool) -> DagsterEvent:
    user = None
    try:
        with platform_errors_as_failures() if as_failure else nullcontext():
            raise error
    except Failure as failure:
        info = serializable_error_info_from_exc_info(sys.exc_info())
        user = UserFailureData("failure", failure.description, normalize_metadata(failure.metadata))
    except BaseException:  # noqa: BLE001  (any error with which the test lets a run fail)
        info = serializable_error_info_from_exc_info(sys.exc_info())
    return DagsterEvent(
        event_type_value=DagsterEventType.STEP_FAILURE.value,
        job_name=job,
        step_key="a_step",
        event_specific_data=StepFailureData(
            error=info, user_failure_data=user, error_source=ErrorSource.USER_CODE_ERROR
        ),
    )
