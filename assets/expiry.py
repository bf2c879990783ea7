"""Expiry in Dagster: the plan with its forecast, a job that removes what may go, and the checks of both.

Marking is on by default, for it removes nothing; removal is off until somebody switches its schedule on. No Spark.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetExecutionContext,
    AssetObservation,
    AssetSelection,
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
    multi_asset_check,
    op,
    schedule,
)

from assets.checks import check_specs, judged
from assets.code import code_version
from assets.declared import Sources, key, pool, table_asset
from assets.events import Asked, event, held, written
from assets.failures import RETRIES, in_one_line
from assets.runs import unless_under_way
from assets.told import Stopwatch, few_rows, materialized, picture
from assets.whole_homes import on_whole_homes
from cdc_platform.clock import DAY_MS, Clock, format_ms, from_datetime
from cdc_platform.errors import StateError
from cdc_platform.invariants.findings import EXPIRY
from cdc_platform.lake import housekeeping
from cdc_platform.lake.lake import RETENTION, Lake
from cdc_platform.lake.tables import (
    EXPIRY_MARKS,
    GENERATION_TIMESTAMPS,
    GENERATIONS,
    REMOVED_GENERATIONS,
    UNORDERED_RANGES,
    Table,
)
from cdc_platform.lake.verified import verified
from cdc_platform.lifecycle.expiry import growth, purge_plan, removal
from cdc_platform.lifecycle.expiry.audit import audit_expiry
from cdc_platform.lifecycle.expiry.purge_plan import Action, PlannedGeneration
from cdc_platform.pictures.expiry import Stay, growth_picture, plan_picture
from cdc_platform.settings import Settings
from cdc_platform.timeline.parts import Part
from resources.clock import ClockResource
from resources.home import HomeResource

_CODE = ("cdc_platform.lifecycle.expiry", "cdc_platform.generations.expiry")
PLAN_JOB = "plan_expiry"
EXPIRE_JOB = "expire"
HOURLY = "0 * * * *"
FORECAST_NODES = 100
FORECAST_EVERY_MS = DAY_MS
# How long after a removal the vacuum has to run on: until the files of its rows are old enough, and once more.
_VACUUM_TIME = RETENTION + timedelta(days=1)

SOURCES: Sources = {
    "time": [(GENERATION_TIMESTAMPS, "time")],
    "generation_id": [(GENERATIONS, "generation_id")],
    "expired": [(GENERATION_TIMESTAMPS, "expired")],
}


@table_asset(
    REMOVED_GENERATIONS,
    group="expiry",
    spark=False,
    deps=[key(GENERATION_TIMESTAMPS)],
    sources=SOURCES,
    code=_CODE,
    description="Materialising it marks in `cdc_generation_timestamps` what has expired and shows the purge plan, with "
    "what keeps each generation, and how the tables would grow. It removes nothing: that is the job `expire`.",
)
def removed_generations(context: AssetExecutionContext, home: HomeResource, clock: ClockResource) -> MaterializeResult:
    """Mark what has expired; report the plan and the forecast."""
    watch, lake, now, settings = Stopwatch(), home.lake(), clock.clock(), home.settings()
    with in_one_line():
        deciding = verified(lake, removal.STEP)
        plan = purge_plan.plan(deciding, now, settings)
        marked = removal.mark(deciding, now, plan)
    rows = lake.read(REMOVED_GENERATIONS, ["time"]).num_rows
    told = {"marked": marked, **plan_told(lake, plan, now), **forecast_told(lake, now, settings)}
    context.log.info(f"{len(plan)} generations planned, {marked} marked as expired.")
    content = held(lake, Part(REMOVED_GENERATIONS, {}))
    return materialized(lake, content, rows=rows, watch=watch, sources=SOURCES, told=told)


def plan_told(lake: Lake, plan: Sequence[PlannedGeneration], clock: Clock) -> dict[str, Any]:
    """The plan as metadata: how many generations of each action, the first rows, a picture."""
    if not plan:
        return {"generations": 0}
    columns = ("time", "id", "action", "expired", "removable_at", "rows", "bytes", "blocked by")
    rows = (
        (
            format_ms(each.time_ms),
            each.id or "",
            each.action.value,
            "" if each.expired_ms is None else format_ms(each.expired_ms),
            "" if each.removable_ms is None else format_ms(each.removable_ms),
            each.rows,
            each.bytes,
            "; ".join(each.reasons),
        )
        for each in plan
    )
    ends = [each.time_ms for each in plan[1:]]
    stays = [
        Stay(
            each.id or format_ms(each.time_ms),
            each.time_ms,
            end,
            each.expired_ms,
            each.removable_ms,
            bool(each.blocked_by),
        )
        for each, end in zip(plan, [*ends, None], strict=True)
    ]
    return {
        "generations": len(plan),
        "removable": sum(each.action is Action.REMOVE for each in plan),
        "removable_bytes": sum(each.bytes for each in plan if each.action is Action.REMOVE),
        "purge_plan": few_rows(columns, rows),
        "plan": picture(lake, plan_picture(stays, clock.now_ms()), "purge plan"),
    }


def forecast_told(lake: Lake, clock: Clock, settings: Settings) -> dict[str, Any]:
    """The forecast as metadata; nothing where no ring is known."""
    try:
        steps = growth.forecast(lake, clock, settings, FORECAST_NODES, every_ms=FORECAST_EVERY_MS)
    except StateError as error:
        return {"forecast": str(error)}
    columns = ("nodes more", "streams kept", "bytes kept", "streams with expiry", "bytes with expiry")
    rows = [(step.nodes, step.streams, step.bytes, step.streams_with_expiry, step.bytes_with_expiry) for step in steps]
    drawn = growth_picture(*zip(*[(step.nodes, step.bytes, step.bytes_with_expiry) for step in steps], strict=True))
    return {"forecast": few_rows(columns, rows[:: FORECAST_NODES // 10]), "growth": picture(lake, drawn, "forecast")}


@multi_asset_check(
    can_subset=True,
    name="audit_expiry",
    specs=check_specs(REMOVED_GENERATIONS, EXPIRY.invariants),
    pool=pool(REMOVED_GENERATIONS),
)
def audit_removed_generations(
    context: AssetCheckExecutionContext, home: HomeResource, clock: ClockResource
) -> Iterator[AssetCheckResult]:
    """Judge what is marked and what was removed; where there never was a generation there is nothing to judge."""
    lake, now = home.lake(), clock.clock()
    yield from judged(
        context, REMOVED_GENERATIONS, lake, now, lambda _: [(EXPIRY, audit_expiry(lake, now, home.settings()))]
    )


plan_expiry = define_asset_job(
    PLAN_JOB,
    selection=AssetSelection.assets(removed_generations),
    description="Marks the generations that have expired and shows the purge plan. Removes nothing.",
    executor_def=in_process_executor,
)


@op(pool=pool(GENERATION_TIMESTAMPS), ins={"after": In(Nothing)}, retry_policy=RETRIES)
def mark_expired(context: OpExecutionContext, home: HomeResource, clock: ClockResource) -> None:
    """Mark what has expired: last, so that no run removes what it marked itself."""
    with in_one_line():
        lake, plan = removal.verified_plan(home.lake(), clock.clock(), home.settings())
        marked = removal.mark(lake, clock.clock(), plan)
    context.add_output_metadata({"marked": marked})


@op(pool=pool(REMOVED_GENERATIONS), retry_policy=RETRIES)
def begin_removals(context: OpExecutionContext, home: HomeResource, clock: ClockResource) -> None:
    """Note which generations are about to go."""
    with in_one_line():
        now = clock.clock()
        lake, plan = removal.verified_plan(home.lake(), now, home.settings())
        begun = removal.begin_removals(lake, now, plan)
        content = held(lake, Part(REMOVED_GENERATIONS, {}))
    rows = [(format_ms(each.time_ms), each.id or "", each.rows, each.bytes) for each in begun]
    if begun:
        told = Asked(key(REMOVED_GENERATIONS), [key(GENERATION_TIMESTAMPS)], code_version(*_CODE))
        change = written(lake, content.part)
        made = event(context.instance, told, None, content, change, shared=told.parents)
        context.log_event(made)
    context.add_output_metadata({"begun": len(begun), "generations": few_rows(("time", "id", "rows", "bytes"), rows)})


def _removal(table: Table) -> OpDefinition:
    """The step that removes from one table, and vacuums it: in that table's pool, like every writer of it."""

    def remove(context: OpExecutionContext, home: HomeResource, clock: ClockResource) -> None:
        with in_one_line():
            lake = home.lake()
            rows = removal.remove_from(lake, table, removal.begun(lake, clock.clock(), home.settings()))
            files = housekeeping.vacuum(lake, table)
        context.add_output_metadata({"rows": rows, "vacuumed_files": files})
        if rows and table not in (UNORDERED_RANGES, EXPIRY_MARKS):  # which are no assets
            told = {"removed_rows": rows, "delta_version": lake.version(table) or 0}
            context.log_event(AssetObservation(key(table), metadata=told, description="Rows of generations are gone."))

    make: Callable[[Callable[..., None]], OpDefinition] = op(
        name=f"remove_from_{table.name}",
        description=f"Remove from {table.full_name} what generations have there that are gone, and vacuum it.",
        pool=pool(table),
        ins={"after": In(Nothing)},
        retry_policy=RETRIES,
    )
    return make(remove)


_REMOVALS = [_removal(table) for table in removal.SHRINKING]


@job(
    name=EXPIRE_JOB,
    description="Removes the generations that have been expired for the grace time: timestamp, streams rows, "
    "descriptions, in this order, each table in its own pool, and Delta's vacuum. It marks last. "
    "A run that died is just run again.",
    executor_def=in_process_executor,
)
def expire() -> None:
    """One step after the other."""
    done = begin_removals()
    for step in _REMOVALS:
        done = step(done)
    mark_expired(done)


def scheduled_plan(
    lake: Lake, clock: Clock, settings: Settings, instance: DagsterInstance, moment: datetime
) -> RunRequest | SkipReason:
    """What the schedule of the plan asks for at `moment`: a run, if it would change a mark and none is under way."""
    plan = purge_plan.plan(lake, clock, settings)
    if not any(removal.is_to_be_marked(each) for each in plan):
        return SkipReason("nothing has expired since the last plan")
    return unless_under_way(instance, PLAN_JOB, moment)


def scheduled_removal(
    lake: Lake, clock: Clock, settings: Settings, instance: DagsterInstance, moment: datetime
) -> RunRequest | SkipReason:
    """What the schedule of removals asks for at `moment`: a run, if it has anything to do and none is under way."""
    due = removal_due(lake, clock, settings, moment)
    return unless_under_way(instance, EXPIRE_JOB, moment) if due else SkipReason("no generation may go yet")


def removal_due(lake: Lake, clock: Clock, settings: Settings, moment: datetime) -> str | None:
    """What there is to be done for the job `expire` at `moment`; None where there is nothing.

    Once a day for a while after a removal that is the vacuum: the files may go when they are old enough.
    """
    plan = purge_plan.plan(lake, clock, settings)
    due = sum(each.action is Action.REMOVE for each in plan)
    unmarked = sum(map(removal.is_to_be_marked, plan))
    left = len(removal.unfinished(lake))
    if due or unmarked or left:
        return f"{due} generations may go, {unmarked} are to be marked, {left} removals are not finished"
    removed = lake.read(REMOVED_GENERATIONS, ["removed_at"])["removed_at"].to_pylist()
    last_us = max((from_datetime(each) for each in removed), default=None)
    if last_us is not None and moment.hour == 0 and clock.now_us() - last_us < _VACUUM_TIME / timedelta(microseconds=1):
        return "the files of removed rows wait for the vacuum"
    return None


@schedule(
    name="hourly_expiry_plan",
    job_name=PLAN_JOB,
    cron_schedule=HOURLY,
    default_status=DefaultScheduleStatus.RUNNING,
    description="Marks what has expired, every hour in which something has. Removes nothing, and so is on by default.",
)
@on_whole_homes
def hourly_expiry_plan(
    context: ScheduleEvaluationContext, home: HomeResource, clock: ClockResource
) -> RunRequest | SkipReason:
    """`scheduled_plan` on this home and this instance."""
    moment = context.scheduled_execution_time
    return scheduled_plan(home.lake(), clock.clock(), home.settings(), context.instance, moment)


@schedule(
    name="hourly_expiry",
    job_name=EXPIRE_JOB,
    cron_schedule=HOURLY,
    default_status=DefaultScheduleStatus.STOPPED,
    description="Removes what has been expired for the grace time, and vacuums. Off until it is switched on: what is "
    "removed cannot be had again, so look at the purge plan first.",
)
@on_whole_homes
def hourly_expiry(
    context: ScheduleEvaluationContext, home: HomeResource, clock: ClockResource
) -> RunRequest | SkipReason:
    """`scheduled_removal` on this home and this instance."""
    moment = context.scheduled_execution_time
    return scheduled_removal(home.lake(), clock.clock(), home.settings(), context.instance, moment)


DEFINED = Definitions(
    assets=[removed_generations],
    asset_checks=[audit_removed_generations],
    jobs=[plan_expiry, expire],
    schedules=[hourly_expiry_plan, hourly_expiry],
)
