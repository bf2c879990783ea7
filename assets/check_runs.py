"""Report check results of other entry points to Dagster, each as part of a run that names the entry point.

Dagster stores one result of a check for each partition and run, and only one for each partition without a run. A second
result that belongs to no run would be refused, so results of the command line get a run of their own, already ended.
"""

from __future__ import annotations

import re
import uuid

from dagster import AssetCheckEvaluation, DagsterEvent, DagsterEventType, DagsterInstance, DagsterRun, DagsterRunStatus

from cdc_platform_assets.run_requests import MAX_RETRIES_TAG

ENTRY_POINT_TAG = "cdc_platform/entry_point"
"""The tag of a run that stands for a check by another entry point."""
_JOB_NAME = "checked_outside_dagster"
_NAMESPACE = uuid.UUID("5f3c6a1e-9d0b-4a57-8c44-1f0a7d2f6b90")
_RUN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class CheckReporter:
    """Reports check results to one instance. It looks up the run of each entry point and occasion once."""

    def __init__(self, instance: DagsterInstance) -> None:
        self._instance = instance
        self._run_ids: dict[tuple[str, str], str] = {}

    def report(self, evaluation: AssetCheckEvaluation, entry_point: str, occasion: str) -> None:
        """Report a result of `entry_point`. `occasion` tells its check runs apart: a time, or the judged content.

        The result belongs to Dagster's run if that was the entry point.
        """
        key = entry_point, occasion
        if key not in self._run_ids:
            self._run_ids[key] = _find_run(self._instance, entry_point) or _ensure_run(self._instance, *key)
        self._instance.report_dagster_event(
            DagsterEvent(
                event_type_value=DagsterEventType.ASSET_CHECK_EVALUATION.value,
                event_specific_data=evaluation,
                job_name=_JOB_NAME,
            ),
            run_id=self._run_ids[key],
        )


def _find_run(instance: DagsterInstance, entry_point: str) -> str | None:
    named = _RUN_ID.search(entry_point)
    return named[0] if named is not None and instance.get_run_by_id(named[0]) is not None else None


def _ensure_run(instance: DagsterInstance, entry_point: str, occasion: str) -> str:
    run_id = str(uuid.uuid5(_NAMESPACE, f"{entry_point}\n{occasion}"))
    if instance.get_run_by_id(run_id) is None:
        tags = {ENTRY_POINT_TAG: entry_point, MAX_RETRIES_TAG: "0"}
        instance.add_run(DagsterRun(_JOB_NAME, run_id, status=DagsterRunStatus.SUCCESS, tags=tags))
    return run_id
