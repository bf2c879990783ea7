"""CDC logs in Dagster, hour by hour: a partition an hour, which brings every row of that hour into a sink, once.

Partitions come in any order and more than once, which a reader that goes on from a position cannot follow: run for
12:00 after 15:00 it would have nothing to do, and run again it could mend nothing. So the hour itself is what is
replaced: it is read from the log anew, cut at the generations, and put in the place of what the sink has of it in one
commit. The same rows again are no commit. A row that came late, with a timestamp of an hour that was read before, is
found by the check and is in with the next materialisation; a position would have passed it.

It is a consumer like all others, `hourly` in `platform.consumers`: its position follows the hours that are whole, up to
the first gap, so that no generation is removed while an hour in it is missing. An hour that is not over for the safety
window, or that touches a generation whose streams are not all there or that is gone, is refused; nothing is written
then, and nothing that is there is taken away. No Spark: an hour is read in parts that fit into memory.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from dagster import (
    AllPartitionMapping,
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetDep,
    AssetExecutionContext,
    AssetSelection,
    Config,
    DagsterInstance,
    DefaultScheduleStatus,
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

from assets.checks import check_specs, judged
from assets.declared import Sources, key, pool, table_asset
from assets.events import held, told_apart, written
from assets.failures import in_one_line
from assets.log.logs import CDC_LOG
from assets.partitions import HOURS, HOURS_NAME, asked, hour_of, hour_partition
from assets.runs import MAX_RETRIES_TAG, partitions_under_way
from assets.told import Stopwatch, few_rows, materialized
from assets.whole_homes import for_readers
from cdc_platform.clock import Clock, format_us, to_datetime
from cdc_platform.invariants.findings import HOURS as HOURS_FAMILY
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import CDC_TABLES, CONSUMED_HOURS, GENERATION_TIMESTAMPS
from cdc_platform.log.audit.hours import audit_hours
from cdc_platform.log.reading import hourly
from cdc_platform.timeline.parts import Part
from resources.clock import ClockResource
from resources.home import HomeResource

HOURS_JOB = "consume_hours"
MOST_REQUESTS = 24
"""Hours that one tick of the schedule asks for, the oldest first."""
_SOURCES: Sources = {name: [(CDC_TABLES, name)] for name in ("keyspace_name", "table_name")}


class Logs(Config):
    """Whose logs are copied."""

    tables: list[str] | None = Field(
        default=None, description="keyspace.table of each; by default all whose definition is known and that have a log"
    )


@table_asset(
    CONSUMED_HOURS,
    group="cdc_log",
    spark=False,
    # An hour can have rows of any table, and lie in any generation.
    deps=[AssetDep(key(each), partition_mapping=AllPartitionMapping()) for each in (CDC_LOG, GENERATION_TIMESTAMPS)],
    partitions=HOURS,
    sources=_SOURCES,
    code=("cdc_platform.log.reading",),
    description="Materialising an hour brings its rows of every CDC log into `KS.T_scylla_cdc_log_hourly`, each once, "
    "in whatever order and however often hours are materialised. An hour can be read 30 seconds after its end.",
)
def consumed_hours(
    context: AssetExecutionContext, config: Logs, home: HomeResource, clock: ClockResource
) -> MaterializeResult:
    """Copy one hour of the logs."""
    watch, lake, made = Stopwatch(), home.lake(), {}
    with in_one_line():
        partitions = asked(context, "hours")
        for partition in partitions:
            hour_us = hour_of(partition)
            schemas = hourly.logs(lake, config.tables)
            copied = hourly.copy_hour(lake, clock.clock(), schemas, hour_us, context.log.warning)
            rows, told = _told(copied)
            context.log.info(f"{partition}: {rows} rows of {len(copied)} logs.")
            part = Part(CONSUMED_HOURS, {"hour": to_datetime(hour_us)})
            content = replace(held(lake, part), rows=rows, told=told)
            if len(partitions) == 1:
                return materialized(lake, content, rows=rows, watch=watch, sources=_SOURCES, told=told)
            made[partition] = content, written(lake, part)
    return told_apart(context, made, ())


def _told(copied: Sequence[hourly.CopiedHour]) -> tuple[int, dict[str, Any]]:
    operations = sum((Counter(each.operations) for each in copied), Counter())
    sets = Counter(begin for each in copied for begin in each.sets_us)
    return operations.total(), {
        "tables": few_rows(("table", "sink", "rows"), ((each.table, each.sink, each.rows) for each in copied)),
        "operations": few_rows(("operation", "rows"), sorted(operations.items())),
        "generations": few_rows(("from", "tables"), ((format_us(begin), sets[begin]) for begin in sorted(sets))),
    }


@multi_asset_check(
    can_subset=True,
    name="audit_consumed_hours",
    specs=check_specs(CONSUMED_HOURS, HOURS_FAMILY.invariants, HOURS),
    pool=pool(CONSUMED_HOURS),
)
def audit_consumed_hours(
    context: AssetCheckExecutionContext, home: HomeResource, clock: ClockResource
) -> Iterator[AssetCheckResult]:
    """Compare what the sinks have of an hour, or of all that were copied, with the logs as they are now."""
    lake = home.lake()
    yield from judged(
        context,
        CONSUMED_HOURS,
        lake,
        clock.clock(),
        lambda hour: [(HOURS_FAMILY, audit_hours(lake, None if hour is None else hour_of(hour)))],
    )


consume_hours = define_asset_job(
    HOURS_JOB,
    selection=AssetSelection.assets(consumed_hours),
    description="Copies one hour of the CDC logs into their hourly sinks, and compares them.",
    executor_def=in_process_executor,
)


def scheduled_hours(
    lake: Lake, clock: Clock, instance: DagsterInstance, moment: datetime
) -> list[RunRequest] | SkipReason:
    """What the schedule asks for at `moment`: a run for each hour that can be read and is missing, the oldest first.

    Their partitions are added here: a schedule has no other way, and an hour that is there costs nothing.

    Derived from the tables: hours in which nothing was running, and hours that failed, are asked for again.
    """
    due = [hour_partition(hour_us) for hour_us in hourly.due_hours(lake, clock, MOST_REQUESTS)]
    if not due:
        return SkipReason("every hour that can be read is copied")
    instance.add_dynamic_partitions(HOURS_NAME, due)
    running = partitions_under_way(instance, HOURS_JOB)
    requests = [
        RunRequest(run_key=f"{hour}/{moment.isoformat()}", partition_key=hour, tags={MAX_RETRIES_TAG: "0"})
        for hour in due
        if hour not in running
    ]
    return requests or SkipReason("; ".join(f"{hour}: run {running[hour]} is under way" for hour in due))


@schedule(
    name="hourly_logs",
    job_name=HOURS_JOB,
    cron_schedule="1 * * * *",
    default_status=DefaultScheduleStatus.STOPPED,
    description="A minute past every hour, when the last one can be read: copies what is missing, at most "
    f"{MOST_REQUESTS} hours at once. Off until it is switched on: from then on the logs are there twice, and a "
    "generation stays until its hours are copied.",
)
@for_readers
def hourly_logs(
    context: ScheduleEvaluationContext, home: HomeResource, clock: ClockResource
) -> list[RunRequest] | SkipReason:
    """`scheduled_hours` on this home and this instance."""
    return scheduled_hours(home.lake(), clock.clock(), context.instance, context.scheduled_execution_time)
