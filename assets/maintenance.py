"""Daily cleanup of files that no table version needs, in this home and in the homes of its live clusters."""

from datetime import datetime

from dagster import (
    DagsterInstance,
    DefaultScheduleStatus,
    Definitions,
    OpExecutionContext,
    RunRequest,
    ScheduleEvaluationContext,
    SkipReason,
    in_process_executor,
    job,
    op,
    schedule,
)

from cdc_platform.delta import Lake, list_stored_tables, maintenance
from cdc_platform.errors import StateError
from cdc_platform.home_location import HomeLocation
from cdc_platform.scylla import registry
from cdc_platform.storage import parse_path
from cdc_platform_assets.failures import RETRY_POLICY, platform_errors_as_failures
from cdc_platform_assets.metadata import build_rows_preview
from cdc_platform_assets.run_requests import request_daily_run
from cdc_platform_resources.home import HomeResource

MAINTENANCE_JOB = "maintenance"
MAINTENANCE_HOUR = 4
"""The hour of the day (UTC) from which a run is due."""
MAINTENANCE_CRON = "30 * * * *"
"""Ticks every hour, so that a failed or missed run is repeated on the same day."""


@op(pool="platform/maintenance", retry_policy=RETRY_POLICY)
def clear_tables(context: OpExecutionContext, home: HomeResource) -> None:
    """Delete files that no table needs; after all other tables, fail if one could not be vacuumed."""
    with platform_errors_as_failures():
        done = [
            (path, summary)
            for path, lake in open_lakes(home.home()).items()
            for summary in maintenance.vacuum_lake(lake)
        ]
    rows = [(path, summary.table, summary.files) for path, summary in done if summary.files]
    files = sum(summary.files for _, summary in done)
    context.log.info(f"Deleted {files} files of {len(rows)} tables.")
    context.add_output_metadata({"files": files, "tables": build_rows_preview(("home", "table", "files"), rows)})
    with platform_errors_as_failures():
        failed = [summary.failed for _, summary in done if summary.failed]
        if failed:
            raise StateError(f"{len(failed)} tables could not be vacuumed, the first: {failed[0]}")


def open_lakes(home: HomeLocation) -> dict[str, Lake]:
    """Open the lakes of a home and of the cluster homes below it, by their paths."""
    below = {"": parse_path(home.name), **registry.list_cluster_homes(home)}
    return {path: Lake(str(folder / "lake")) for path, folder in below.items()}


@job(
    name=MAINTENANCE_JOB,
    description="Deletes files that no table version has needed for seven days, in all tables of this home and of its "
    "clusters. A failed run can be repeated.",
    executor_def=in_process_executor,
)
def maintain_tables() -> None:
    """Vacuum all tables."""
    clear_tables()


def request_scheduled_maintenance(
    home: HomeLocation, instance: DagsterInstance, moment: datetime
) -> RunRequest | SkipReason:
    """Request a maintenance run at `moment` if there are tables and none has succeeded since the last due hour."""
    has_tables = any(list_stored_tables(lake) for lake in open_lakes(home).values())
    reason = None if has_tables else "there are no tables yet"
    return request_daily_run(instance, MAINTENANCE_JOB, moment, MAINTENANCE_HOUR, reason)


@schedule(
    name="daily_maintenance",
    job_name=MAINTENANCE_JOB,
    cron_schedule=MAINTENANCE_CRON,
    default_status=DefaultScheduleStatus.RUNNING,
    description="Once a day from 04:30 (UTC), requests the deletion of files that no table version has needed for "
    "seven days. A failed or missed run is repeated.",
)
def daily_maintenance(context: ScheduleEvaluationContext, home: HomeResource) -> RunRequest | SkipReason:
    """Run `request_scheduled_maintenance` on this home and instance."""
    return request_scheduled_maintenance(home.home(), context.instance, context.scheduled_execution_time)


DEFINED = Definitions(jobs=[maintain_tables], schedules=[daily_maintenance])
