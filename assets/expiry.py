"""Expiry in Dagster: the purge plan with a forecast, the removal job and their checks.

Marking is on by default because it removes nothing. Removal is off until its schedule is switched on. No Spark.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from dagster import (
    AssetExecutionContext,
    AssetObservation,
    DagsterInstance,
    DefaultScheduleStatus,
    Definitions,
    In,
    MaterializeResult,
    Nothing,
    OpDefinition,
    OpExecutionContext,
    RunRequest,
    ScheduleEvaluationContext,
    SkipReason,
    define_asset_job,
    in_process_executor,
    job,
    op,
    schedule,
)

from cdc_platform.checks import EXPIRY_FAMILY
from cdc_platform.clock import DAY_MS, Clock, format_ms, us_from_datetime
from cdc_platform.delta import VERSION_RETENTION, Lake, get_verified_lake, maintenance
from cdc_platform.errors import StateError
from cdc_platform.lifecycle import ExpiryAction, PlannedGeneration, audit_expiry, expiry, forecast
from cdc_platform.plots import GenerationStay, plot_growth, plot_purge_plan
from cdc_platform.settings import Settings
from cdc_platform.tables import (
    EXPIRY_MARKS,
    GENERATION_TIMESTAMPS,
    GENERATIONS,
    REMOVED_GENERATIONS,
    UNORDERED_RANGES,
    Table,
)
from cdc_platform.timeline import GenerationRows
from cdc_platform_assets.checks import select_with_own_checks
from cdc_platform_assets.data_versions import (
    KIND_METADATA_KEY,
    AssetEventSpec,
    build_partition_event,
    find_last_write,
    read_partition_content,
)
from cdc_platform_assets.failures import RETRY_POLICY, platform_errors_as_failures
from cdc_platform_assets.metadata import Stopwatch, build_materialize_result, build_plot_metadata, build_rows_preview
from cdc_platform_assets.run_requests import request_scheduled_run, skip_unless_writable
from cdc_platform_assets.specs import (
    ColumnSources,
    asset_key_from_table,
    compute_code_version,
    pool_from_table,
    table_asset,
)
from cdc_platform_assets.table_checks import build_table_checks
from cdc_platform_resources.clock import ClockResource
from cdc_platform_resources.home import HomeResource

_CODE_MODULES = ("cdc_platform.lifecycle.expiry", "cdc_platform.generations.expiry")
PLAN_JOB = "plan_expiry"
EXPIRE_JOB = "expire"
EXPIRY_CRON = "0 * * * *"
FORECAST_NODES = 100
FORECAST_EVERY_MS = DAY_MS
# How long the vacuum keeps running after a removal: until the files of the removed rows are old enough, and once more.
_VACUUM_PERIOD = VERSION_RETENTION + timedelta(days=1)

REMOVED_GENERATIONS_LINEAGE: ColumnSources = {
    "time": [(GENERATION_TIMESTAMPS, "time")],
    "generation_id": [(GENERATIONS, "generation_id")],
    "expired": [(GENERATION_TIMESTAMPS, "expired")],
}


@table_asset(
    REMOVED_GENERATIONS,
    group="expiry",
    spark=False,
    deps=[asset_key_from_table(GENERATION_TIMESTAMPS)],
    sources=REMOVED_GENERATIONS_LINEAGE,
    code=_CODE_MODULES,
    description="Materializing it marks expired generations in `cdc_generation_timestamps`, and reports the purge "
    "plan and a growth forecast. It removes nothing; the job `expire` does.",
)
def removed_generations(context: AssetExecutionContext, home: HomeResource, clock: ClockResource) -> MaterializeResult:
    """Mark expired generations; report the plan and the forecast."""
    watch, lake, now, settings = Stopwatch(), home.lake(), clock.clock(), home.settings()
    with platform_errors_as_failures():
        deciding = get_verified_lake(lake, expiry.EXPIRY_STEP)
        plan = expiry.plan_expiry(deciding, now, settings)
        marked = expiry.mark_expired(deciding, now, plan)
    rows = lake.read(REMOVED_GENERATIONS, ["time"]).num_rows
    metadata = {
        "marked": marked,
        **build_plan_metadata(lake, plan, now),
        **build_forecast_metadata(lake, now, settings),
    }
    context.log.info(f"{len(plan)} generations planned, {marked} marked as expired.")
    content = read_partition_content(lake, GenerationRows(REMOVED_GENERATIONS, {}))
    return build_materialize_result(
        lake, content, rows=rows, watch=watch, sources=REMOVED_GENERATIONS_LINEAGE, metadata=metadata
    )


def build_plan_metadata(lake: Lake, plan: Sequence[PlannedGeneration], clock: Clock) -> dict[str, Any]:
    """Return the plan as metadata: the number of generations per action, the first rows and a plot."""
    if not plan:
        return {"generations": 0}
    columns = ("time", "id", "action", "expired", "removable_at", "rows", "bytes", "blocked by")
    rows = (
        (
            format_ms(generation.time_ms),
            generation.id or "",
            generation.action.value,
            "" if generation.expired_ms is None else format_ms(generation.expired_ms),
            "" if generation.removable_ms is None else format_ms(generation.removable_ms),
            generation.rows,
            generation.bytes,
            "; ".join(generation.reasons),
        )
        for generation in plan
    )
    ends = [generation.time_ms for generation in plan[1:]]
    stays = [
        GenerationStay(
            generation.id or format_ms(generation.time_ms),
            generation.time_ms,
            end,
            generation.expired_ms,
            generation.removable_ms,
            bool(generation.blocked_by),
        )
        for generation, end in zip(plan, [*ends, None], strict=True)
    ]
    return {
        "generations": len(plan),
        "removable": sum(generation.action is ExpiryAction.REMOVE for generation in plan),
        "removable_bytes": sum(generation.bytes for generation in plan if generation.action is ExpiryAction.REMOVE),
        "purge_plan": build_rows_preview(columns, rows),
        "plan": build_plot_metadata(lake, plot_purge_plan(stays, clock.now_ms()), "purge plan"),
    }


def build_forecast_metadata(lake: Lake, clock: Clock, settings: Settings) -> dict[str, Any]:
    """Return the forecast as metadata. Without a known ring it holds only the reason."""
    try:
        steps = forecast.forecast_growth(lake, clock, settings, FORECAST_NODES, every_ms=FORECAST_EVERY_MS)
    except StateError as error:
        return {"forecast": str(error)}
    columns = (
        "added nodes",
        "streams without expiry",
        "bytes without expiry",
        "streams with expiry",
        "bytes with expiry",
    )
    rows = [(step.nodes, step.streams, step.bytes, step.streams_with_expiry, step.bytes_with_expiry) for step in steps]
    plot = plot_growth(*zip(*[(step.nodes, step.bytes, step.bytes_with_expiry) for step in steps], strict=True))
    return {
        "forecast": build_rows_preview(columns, rows[:: FORECAST_NODES // 10]),
        "growth": build_plot_metadata(lake, plot, "forecast"),
    }


audit_removed_generations = build_table_checks(
    "audit_expiry",
    REMOVED_GENERATIONS,
    EXPIRY_FAMILY,
    lambda lake, clock, settings: audit_expiry(lake, clock, settings),
)


plan_expiry = define_asset_job(
    PLAN_JOB,
    selection=select_with_own_checks(removed_generations),
    description="Marks expired generations and reports the purge plan. Removes nothing.",
    executor_def=in_process_executor,
)


@op(pool=pool_from_table(GENERATION_TIMESTAMPS), ins={"after": In(Nothing)}, retry_policy=RETRY_POLICY)
def mark_expired(context: OpExecutionContext, home: HomeResource, clock: ClockResource) -> None:
    """Mark what has expired: last, so that no run removes what it marked itself."""
    with platform_errors_as_failures():
        lake, plan = expiry.read_verified_plan(home.lake(), clock.clock(), home.settings())
        marked = expiry.mark_expired(lake, clock.clock(), plan)
    context.add_output_metadata({"marked": marked})


@op(pool=pool_from_table(REMOVED_GENERATIONS), retry_policy=RETRY_POLICY)
def begin_removals(context: OpExecutionContext, home: HomeResource, clock: ClockResource) -> None:
    """Record which generations are about to be removed."""
    with platform_errors_as_failures():
        now = clock.clock()
        lake, plan = expiry.read_verified_plan(home.lake(), now, home.settings())
        begun = expiry.begin_removals(lake, now, plan)
        part = GenerationRows(REMOVED_GENERATIONS, {})
        content = read_partition_content(lake, part, metadata={KIND_METADATA_KEY: "python"})
    rows = [
        (format_ms(generation.time_ms), generation.id or "", generation.rows, generation.bytes) for generation in begun
    ]
    if begun:
        spec = AssetEventSpec(
            asset_key_from_table(REMOVED_GENERATIONS),
            [asset_key_from_table(GENERATION_TIMESTAMPS)],
            compute_code_version(*_CODE_MODULES),
        )
        change = find_last_write(lake, content.part)
        event = build_partition_event(context.instance, spec, None, content, change, shared=spec.parents)
        context.log_event(event)
    context.add_output_metadata(
        {"begun": len(begun), "generations": build_rows_preview(("time", "id", "rows", "bytes"), rows)}
    )


def _build_removal_op(table: Table) -> OpDefinition:
    """Build the op that removes rows from one table and vacuums it, in the table's pool like every writer of it."""

    def remove(context: OpExecutionContext, home: HomeResource, clock: ClockResource) -> None:
        with platform_errors_as_failures():
            lake = home.lake()
            rows = expiry.remove_generation_rows(
                lake, table, expiry.read_due_removals(lake, clock.clock(), home.settings())
            )
            files = maintenance.vacuum_table(lake, table)
        context.add_output_metadata({"rows": rows, "vacuumed_files": files})
        if rows and table not in (UNORDERED_RANGES, EXPIRY_MARKS):  # these two are not assets
            metadata = {"removed_rows": rows, "delta_version": lake.version(table) or 0}
            context.log_event(
                AssetObservation(
                    asset_key_from_table(table), metadata=metadata, description="Removed rows of expired generations."
                )
            )

    make: Callable[[Callable[..., None]], OpDefinition] = op(
        name=f"remove_from_{table.name}",
        description=f"Removes the rows of removed generations from {table.full_name}, and vacuums it.",
        pool=pool_from_table(table),
        ins={"after": In(Nothing)},
        retry_policy=RETRY_POLICY,
    )
    return make(remove)


_REMOVAL_OPS = [_build_removal_op(table) for table in expiry.REMOVAL_TABLES]


@job(
    name=EXPIRE_JOB,
    description="Removes generations that have been expired for the grace period: timestamps, then streams, then "
    "descriptions. Then it vacuums the tables and marks what has expired since. A failed run can be repeated.",
    executor_def=in_process_executor,
)
def expire() -> None:
    """One step after the other."""
    done = begin_removals()
    for step in _REMOVAL_OPS:
        done = step(done)
    mark_expired(done)


def request_scheduled_plan(
    lake: Lake, clock: Clock, settings: Settings, instance: DagsterInstance, moment: datetime
) -> RunRequest | SkipReason:
    """Request a run of the plan at `moment` if it would change a mark and no run is active."""
    plan = expiry.plan_expiry(lake, clock, settings)
    has_expired = any(map(expiry.needs_mark, plan))
    reason = None if has_expired else "no generation has expired since the last plan"
    return request_scheduled_run(instance, PLAN_JOB, moment, reason)


def request_scheduled_removal(
    lake: Lake, clock: Clock, settings: Settings, instance: DagsterInstance, moment: datetime
) -> RunRequest | SkipReason:
    """Request a run of the removals at `moment` if there is anything to remove and no run is active."""
    due = describe_due_removal(lake, clock, settings, moment)
    reason = None if due else "no generation can be removed yet"
    return request_scheduled_run(instance, EXPIRE_JOB, moment, reason)


def describe_due_removal(lake: Lake, clock: Clock, settings: Settings, moment: datetime) -> str | None:
    """Describe the work of the job `expire` at `moment`, or return None if there is none.

    After a removal this includes a daily vacuum for some time, because files may be deleted only when they are old
    enough.
    """
    plan = expiry.plan_expiry(lake, clock, settings)
    due = sum(generation.action is ExpiryAction.REMOVE for generation in plan)
    unmarked = sum(map(expiry.needs_mark, plan))
    unfinished = len(expiry.read_unfinished_removals(lake))
    if due or unmarked or unfinished:
        return f"{due} generations to remove, {unmarked} to mark, {unfinished} unfinished removals"
    removed = lake.read(REMOVED_GENERATIONS, ["removed_at"])["removed_at"].to_pylist()
    last_us = max((us_from_datetime(removed_at) for removed_at in removed), default=None)
    if (
        last_us is not None
        and moment.hour == 0
        and clock.now_us() - last_us < _VACUUM_PERIOD / timedelta(microseconds=1)
    ):
        return "files of removed rows to vacuum"
    return None


@schedule(
    name="hourly_expiry_plan",
    job_name=PLAN_JOB,
    cron_schedule=EXPIRY_CRON,
    default_status=DefaultScheduleStatus.RUNNING,
    description="Every hour, requests the purge plan if a generation has expired since the last one. Removes nothing.",
)
@skip_unless_writable
def hourly_expiry_plan(
    context: ScheduleEvaluationContext, home: HomeResource, clock: ClockResource
) -> RunRequest | SkipReason:
    """Run `request_scheduled_plan` on this home and instance."""
    moment = context.scheduled_execution_time
    return request_scheduled_plan(home.lake(), clock.clock(), home.settings(), context.instance, moment)


@schedule(
    name="hourly_expiry",
    job_name=EXPIRE_JOB,
    cron_schedule=EXPIRY_CRON,
    default_status=DefaultScheduleStatus.STOPPED,
    description="Every hour, requests the removal of generations whose grace period is over. Off by default: a "
    "removal cannot be undone, so read the purge plan first.",
)
@skip_unless_writable
def hourly_expiry(
    context: ScheduleEvaluationContext, home: HomeResource, clock: ClockResource
) -> RunRequest | SkipReason:
    """Run `request_scheduled_removal` on this home and instance."""
    moment = context.scheduled_execution_time
    return request_scheduled_removal(home.lake(), clock.clock(), home.settings(), context.instance, moment)


DEFINED = Definitions(
    assets=[removed_generations],
    asset_checks=[audit_removed_generations],
    jobs=[plan_expiry, expire],
    schedules=[hourly_expiry_plan, hourly_expiry],
)
