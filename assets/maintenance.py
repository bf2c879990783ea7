"""The job `maintenance`: tables, log files and Dagster's storage of this home and its clusters, and a check of both."""

from collections.abc import Callable
from datetime import datetime

from dagster import (
    DagsterInstance,
    DefaultScheduleStatus,
    Definitions,
    In,
    Nothing,
    OpDefinition,
    OpExecutionContext,
    RunRequest,
    ScheduleEvaluationContext,
    SkipReason,
    graph,
    in_process_executor,
    job,
    op,
    schedule,
)

from cdc_platform.delta import (
    TABLE_TASKS,
    Lake,
    MaintenanceTask,
    list_stored_tables,
    maintenance,
    record_maintenance,
)
from cdc_platform.errors import NotFound, StateError
from cdc_platform.home import list_lakes, maintain_tables, open_home, trim_log_files
from cdc_platform.home_location import HomeLocation
from cdc_platform.tables import TABLES, Table
from cdc_platform_assets.checks import LOW_PRIORITY_TAGS, VIOLATED_TAG
from cdc_platform_assets.dagster_history import trim_runs
from cdc_platform_assets.failures import RETRY_POLICY, platform_errors_as_failures
from cdc_platform_assets.metadata import build_rows_preview
from cdc_platform_assets.run_requests import request_daily_run
from cdc_platform_assets.specs import pool_from_table
from cdc_platform_resources.clock import ClockResource
from cdc_platform_resources.home import HomeResource

MAINTENANCE_JOB = "maintenance"
MAINTENANCE_HOUR = 4
"""The hour of the day (UTC) from which a run is due."""
MAINTENANCE_CRON = "30 * * * *"
"""Ticks every hour, so that a failed or missed run is repeated on the same day."""
_OTHER_TABLES_POOL = "platform/logs"
"""The pool of the step for logs, sinks and replicas, the tables that no declaration names."""


def _maintain(context: OpExecutionContext, home: HomeResource, clock: ClockResource, declared: Table | None) -> None:
    """Maintain a declared table in all lakes of the home, or all tables that are not declared.

    Raises:
        Failure: a table could not be maintained; all others were.
    """
    with platform_errors_as_failures():
        done = [
            (path, result)
            for path, lake in list_lakes(home.home()).items()
            for result in maintain_tables(lake, clock.clock(), _list_names(lake, declared))
        ]
    rows = [
        (path, result.table, result.rewritten, result.remaining, result.files, result.not_rewritten)
        for path, result in done
        if result.rewritten or result.remaining or result.files or result.not_rewritten
    ]
    columns = ("home", "table", "rewritten files", "remaining groups", "deleted files", "not rewritten because")
    context.add_output_metadata(
        {
            "rewritten_files": sum(result.rewritten for _, result in done),
            "checkpoints": sum(result.checkpoint for _, result in done),
            "deleted_files": sum(result.files for _, result in done),
            "tables": build_rows_preview(columns, rows),
        }
    )
    with platform_errors_as_failures():
        failed = [result.failed for _, result in done if result.failed]
        if failed:
            raise StateError(f"{len(failed)} tables could not be maintained, the first: {failed[0]}")


def _list_names(lake: Lake, declared: Table | None) -> list[str]:
    if declared is not None:
        return [declared.full_name]
    names = (table.full_name for table in maintenance.list_maintained_tables(lake))
    return [name for name in names if name not in TABLES]


def _build_table_op(table: Table) -> OpDefinition:
    """Build the op that maintains one declared table, in the table's pool like every writer of it."""

    def maintain(context: OpExecutionContext, home: HomeResource, clock: ClockResource) -> None:
        _maintain(context, home, clock, table)

    make: Callable[[Callable[..., None]], OpDefinition] = op(
        name=f"maintain_{table.keyspace}_{table.name}",
        description=f"Rewrites small files of {table.full_name}, writes a checkpoint, and vacuums it.",
        pool=pool_from_table(table),
        retry_policy=RETRY_POLICY,
    )
    return make(maintain)


_TABLE_OPS = [_build_table_op(table) for table in TABLES.values()]


@op(pool=_OTHER_TABLES_POOL, retry_policy=RETRY_POLICY)
def maintain_other_tables(context: OpExecutionContext, home: HomeResource, clock: ClockResource) -> None:
    """Maintain logs, sinks of consumers, replicas, and all other tables that the platform does not declare."""
    _maintain(context, home, clock, None)


@op(ins={"after": In(Nothing)}, retry_policy=RETRY_POLICY)
def record_tables(home: HomeResource, clock: ClockResource) -> None:
    """Record for `status` that all tables were maintained, and delete leftovers of store probes."""
    with platform_errors_as_failures():
        for lake in list_lakes(home.home()).values():
            maintenance.remove_leftover_probes(lake)
            record_maintenance(lake, clock.clock(), TABLE_TASKS)


@op(pool="platform/maintenance", retry_policy=RETRY_POLICY)
def trim_storage(context: OpExecutionContext, home: HomeResource, clock: ClockResource) -> None:
    """Remove old runs from Dagster's storage, and old log files."""
    with platform_errors_as_failures():
        location = home.home()
        runs = trim_runs(context.instance, location.settings.dagster_retention_ms, location.dagster)
        files = trim_log_files(location)
        tasks = [MaintenanceTask.DAGSTER_RUNS, MaintenanceTask.LOG_FILES]
        record_maintenance(home.lake(), clock.clock(), tasks)
    context.add_output_metadata(
        {
            "removed_runs": runs.removed,
            "retained_runs": runs.retained,
            "log_files": files.files,
            "log_bytes": files.bytes,
        }
    )


@op(tags=LOW_PRIORITY_TAGS, retry_policy=RETRY_POLICY)
def check_homes(context: OpExecutionContext, home: HomeResource, clock: ClockResource) -> None:
    """Check every invariant of the home and of its clusters. Violations appear here, on the run and in `status`.

    It needs no result of the steps for tables, so a table that fails does not prevent it; its priority puts it last.
    """
    rows, violated = [], []
    for path, lake in list_lakes(home.home()).items():
        if not list_stored_tables(lake):
            continue
        with platform_errors_as_failures():
            try:
                report = open_home(str(lake.location.folder), clock=clock.clock()).check(
                    entry_point=f"Dagster's run {context.run.run_id}"
                )
            except NotFound:
                continue
        rows += [
            (path, str(result.invariant), "failed" if result.failed else "passed", result.violations, result.message)
            for result in sorted(report.results, key=lambda result: not result.failed)
            if not result.unknown
        ]
        violated += [str(result.invariant) for result in report.failed]
    columns = ("home", "invariant", "result", "violations", "message")
    metadata = {"checks": len(rows), "failed": len(violated), "results": build_rows_preview(columns, rows)}
    context.add_output_metadata(metadata)
    if violated:
        context.instance.add_run_tags(context.run.run_id, {VIOLATED_TAG: ", ".join(dict.fromkeys(violated))})
        context.log.warning(f"{len(violated)} checks failed: {', '.join(dict.fromkeys(violated))}")


@graph(name="maintain_tables")
def _maintain_all_tables() -> None:
    """Maintain each declared table and then the other tables of all lakes, and record that."""
    record_tables([table_op() for table_op in (*_TABLE_OPS, maintain_other_tables)])


@job(
    name=MAINTENANCE_JOB,
    description="Rewrites small files, writes checkpoints and deletes files that no table version has needed for seven "
    "days, in all tables of this home and of its clusters, each in its pool. Removes old runs and log files, and "
    "checks every invariant. A failed run can be repeated.",
    executor_def=in_process_executor,
)
def maintain_home() -> None:
    """Maintain all tables, and record that; trim Dagster's storage and the logs; check everything."""
    _maintain_all_tables()  # a graph, because a row of forty steps could not be read in the UI
    trim_storage()
    check_homes()


def request_scheduled_maintenance(
    home: HomeLocation, instance: DagsterInstance, moment: datetime
) -> RunRequest | SkipReason:
    """Request a maintenance run at `moment` if there are tables and none has succeeded since the last due hour."""
    has_tables = any(list_stored_tables(lake) for lake in list_lakes(home).values())
    reason = None if has_tables else "there are no tables yet"
    return request_daily_run(instance, MAINTENANCE_JOB, moment, MAINTENANCE_HOUR, reason)


@schedule(
    name="daily_maintenance",
    job_name=MAINTENANCE_JOB,
    cron_schedule=MAINTENANCE_CRON,
    default_status=DefaultScheduleStatus.RUNNING,
    description="Once a day from 04:30 (UTC), requests maintenance of all tables, logs and Dagster's storage, and a "
    "check of every invariant. A failed or missed run is repeated.",
)
def daily_maintenance(context: ScheduleEvaluationContext, home: HomeResource) -> RunRequest | SkipReason:
    """Run `request_scheduled_maintenance` on this home and instance."""
    return request_scheduled_maintenance(home.home(), context.instance, context.scheduled_execution_time)


DEFINED = Definitions(jobs=[maintain_home], schedules=[daily_maintenance])
