"""Hourly copies of CDC logs, one partition per hour, each row exactly once.

Partitions run in any order and repeatedly, which a position cannot express: each run replaces its hour in one commit.
The consumer `hourly` advances over complete hours up to the first gap, so no generation is removed while an hour of
it is missing. An hour inside the safety window, or in a generation without all of its streams, is refused. No Spark.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from dagster import (
    AllPartitionMapping,
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetDep,
    AssetExecutionContext,
    Config,
    DagsterInstance,
    DefaultScheduleStatus,
    FreshnessPolicy,
    MaterializeResult,
    RunRequest,
    ScheduleEvaluationContext,
    SkipReason,
    define_asset_job,
    in_process_executor,
    multi_asset_check,
    schedule,
)
from pydantic import Field

from cdc_platform.cdclog import audit_hours, hourly
from cdc_platform.checks import HOUR_FAMILY as HOURS_FAMILY
from cdc_platform.clock import Clock, datetime_from_us, format_us
from cdc_platform.delta import Lake, list_part_files
from cdc_platform.tables import CDC_TABLES, CONSUMED_HOURS, GENERATION_TIMESTAMPS
from cdc_platform.timeline import GenerationRows
from cdc_platform_assets.checks import check_specs, evaluate_checks, select_with_own_checks
from cdc_platform_assets.data_versions import (
    PartitionContent,
    read_partition_content,
)
from cdc_platform_assets.log.logs import CDC_LOG
from cdc_platform_assets.materialization import materialize_partitions
from cdc_platform_assets.metadata import (
    build_replaced_metadata,
    build_rows_preview,
)
from cdc_platform_assets.partitions import (
    HOUR_PARTITIONS,
    HOURS_NAME,
    hour_us_from_partition,
    partition_from_hour_us,
)
from cdc_platform_assets.run_requests import request_partitions, skip_unless_writable
from cdc_platform_assets.specs import (
    ColumnSources,
    asset_key_from_table,
    lineage_edge,
    pool_from_table,
    table_asset,
)
from cdc_platform_resources.clock import ClockResource
from cdc_platform_resources.home import HomeResource

HOURS_JOB = "consume_hours"
MAX_HOUR_REQUESTS = 24
"""The most hours that one tick of the schedule requests, oldest first."""
_LINEAGE: ColumnSources = {name: [(CDC_TABLES, name)] for name in ("keyspace_name", "table_name")}


class Logs(Config):
    """Which logs to copy."""

    tables: list[str] | None = Field(
        default=None,
        description="keyspace.table of each; default: all tables with a log and a published generation or stream set",
    )


@table_asset(
    CONSUMED_HOURS,
    group="cdc_log",
    spark=False,
    # An hour can have rows of any table, and a new generation changes no row of an hour that is over.
    deps=[
        AssetDep(asset_key_from_table(CDC_LOG), partition_mapping=AllPartitionMapping()),
        lineage_edge(GENERATION_TIMESTAMPS),
    ],
    partitions=HOUR_PARTITIONS,
    freshness=FreshnessPolicy.time_window(fail_window=timedelta(hours=3), warn_window=timedelta(hours=2)),
    sources=_LINEAGE,
    code=("cdc_platform.cdclog.consumer",),
    description="Materializing an hour copies its rows of every CDC log to `KS.T_scylla_cdc_log_hourly`, exactly "
    "once, in any order. An hour is readable 30 seconds after its end.",
)
def consumed_hours(
    context: AssetExecutionContext, config: Logs, home: HomeResource, clock: ClockResource
) -> MaterializeResult:
    """Copy one hour of the logs."""
    lake = home.lake()

    def copy(partition: str) -> PartitionContent:
        hour_us = hour_us_from_partition(partition)
        schemas = hourly.select_logs_to_copy(lake, clock.clock(), config.tables)
        part = GenerationRows(CONSUMED_HOURS, {"hour": datetime_from_us(hour_us)})
        before = list_part_files(lake, part.table, part.where)
        copied = hourly.copy_hour(lake, clock.clock(), schemas, hour_us, context.log.warning)
        rows, metadata = build_copy_metadata(copied)
        context.log.info(f"{partition}: {rows} rows of {len(copied)} logs.")
        return read_partition_content(lake, part, rows, metadata | build_replaced_metadata(lake, before))

    return materialize_partitions(context, lake, "hours", copy, sources=_LINEAGE)


def build_copy_metadata(copied: Sequence[hourly.CopiedHour]) -> tuple[int, dict[str, Any]]:
    """Return the number of rows of a copied hour, and its metadata: rows by table, operation and generation."""
    operations = sum((Counter(log.operations) for log in copied), Counter())
    sets = Counter(begin for log in copied for begin in log.sets_us)
    return operations.total(), {
        "tables": build_rows_preview(("table", "sink", "rows"), ((log.table, log.sink, log.rows) for log in copied)),
        "operations": build_rows_preview(("operation", "rows"), sorted(operations.items())),
        "generations": build_rows_preview(
            ("from", "tables"), ((format_us(begin), sets[begin]) for begin in sorted(sets))
        ),
    }


@multi_asset_check(
    can_subset=True,
    name="audit_consumed_hours",
    specs=check_specs(CONSUMED_HOURS, HOURS_FAMILY.invariants, HOUR_PARTITIONS),
    pool=pool_from_table(CONSUMED_HOURS),
)
def audit_consumed_hours(
    context: AssetCheckExecutionContext, home: HomeResource, clock: ClockResource
) -> Iterator[AssetCheckResult]:
    """Compare the copies of an hour, or of all copied hours, with the logs as they are now."""
    lake = home.lake()
    yield from evaluate_checks(
        context,
        CONSUMED_HOURS,
        lake,
        clock.clock(),
        lambda hour: [(HOURS_FAMILY, audit_hours(lake, None if hour is None else hour_us_from_partition(hour)))],
    )


consume_hours = define_asset_job(
    HOURS_JOB,
    selection=select_with_own_checks(consumed_hours),
    description="Copies one hour of the CDC logs to their hourly tables, and compares both.",
    executor_def=in_process_executor,
)


def request_scheduled_hours(
    lake: Lake, clock: Clock, instance: DagsterInstance, moment: datetime
) -> list[RunRequest] | SkipReason:
    """Request a run for each hour that can be read but is not copied yet at `moment`, oldest first.

    The partitions are added here because a schedule has no other way; adding an existing one costs nothing. The hours
    are derived from the tables, so hours that were missed or that failed are requested again.
    """
    due = [partition_from_hour_us(hour_us) for hour_us in hourly.list_due_hours(lake, clock, MAX_HOUR_REQUESTS)]
    if not due:
        return SkipReason("every readable hour is copied")
    instance.add_dynamic_partitions(HOURS_NAME, due)
    requests, reasons = request_partitions(instance, HOURS_JOB, due, moment.isoformat(), "copy it")
    return requests or SkipReason("; ".join(reasons))


@schedule(
    name="hourly_logs",
    job_name=HOURS_JOB,
    cron_schedule="1 * * * *",
    default_status=DefaultScheduleStatus.STOPPED,
    description="Every hour, one minute past, requests a copy of each hour that is readable and not copied, at most "
    f"{MAX_HOUR_REQUESTS} at once. Off by default: it stores every log twice, and keeps generations until they are "
    "copied.",
)
@partial(skip_unless_writable, table=CONSUMED_HOURS)
def hourly_logs(
    context: ScheduleEvaluationContext, home: HomeResource, clock: ClockResource
) -> list[RunRequest] | SkipReason:
    """Run `request_scheduled_hours` on this home and instance."""
    return request_scheduled_hours(home.lake(), clock.clock(), context.instance, context.scheduled_execution_time)
