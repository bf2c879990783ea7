"""V1 tables in Dagster: assets, the rewrite job, its sensor, schedule and checks. No Spark."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetExecutionContext,
    AssetSelection,
    Config,
    DagsterInstance,
    DefaultScheduleStatus,
    DefaultSensorStatus,
    Definitions,
    MaterializeResult,
    RunRequest,
    ScheduleEvaluationContext,
    SensorEvaluationContext,
    SensorResult,
    SkipReason,
    define_asset_job,
    in_process_executor,
    multi_asset_check,
    schedule,
    sensor,
)
from pydantic import Field

from assets.checks import check_specs, evaluate_checks
from assets.data_versions import AssetEventSpec, build_partition_event, find_last_write, read_partition_content
from assets.failures import platform_errors_as_failures
from assets.metadata import Stopwatch, build_materialize_result, build_rows_preview
from assets.partitions import GENERATIONS_NAME, read_generation_keys
from assets.run_requests import request_run, request_run_unless_active, skip_unless_writable
from assets.specs import (
    JOIN_CODE_MODULES,
    ColumnSources,
    asset_key_from_table,
    build_column_lineage,
    compute_code_version,
    pool_from_table,
    table_asset,
)
from cdc_platform.checks import V1_FAMILY
from cdc_platform.clock import Clock, Milliseconds, datetime_from_ms, format_ms
from cdc_platform.delta import Lake
from cdc_platform.lifecycle import V2_STEPS, audit_rewrite, find_step
from cdc_platform.lifecycle import rewrite as procedure
from cdc_platform.metastore import generations
from cdc_platform.settings import Settings
from cdc_platform.tables import (
    CDC_LOCAL,
    CDC_TABLES,
    GENERATION_DESCRIPTIONS,
    GENERATION_TIMESTAMPS,
    NODES,
    STREAMS_DESCRIPTIONS,
    STREAMS_DESCRIPTIONS_V2,
    Table,
)
from cdc_platform.timeline import GenerationRows, get_generation_names
from resources.clock import ClockResource
from resources.home import HomeResource

REWRITE_JOB = "rewrite"
REWRITE_CRON = "0 * * * *"

_STATE_TAG = "cdc_platform/rewrite_state"
_REWRITTEN_LINEAGE: Mapping[Table, ColumnSources] = {
    STREAMS_DESCRIPTIONS_V2: {
        "time": [(STREAMS_DESCRIPTIONS, "time")],
        "range_end": [(GENERATION_DESCRIPTIONS, "description")],
        "streams": [(GENERATION_DESCRIPTIONS, "description")],
    },
    GENERATION_TIMESTAMPS: {"time": [(STREAMS_DESCRIPTIONS, "time")]},
}
"""The sources of the rows that a rewrite publishes. A join publishes other rows of the same tables."""
_CODE_MODULES = ("cdc_platform.lifecycle.rewrite", "cdc_platform.generations.expiry")


class RewriteConfig(Config):
    """Which nodes the rewrite is run for, and how."""

    nodes: list[str] | None = Field(
        default=None, description="host IDs; by default every node of the ring that is not marked"
    )
    again: bool = Field(default=False, description="run it for nodes that are marked as rewritten, too")
    dry_run: bool = Field(default=False, description="say what would be done, and write nothing")


@table_asset(
    GENERATION_DESCRIPTIONS,
    group="first_format",
    spark=False,
    code=_CODE_MODULES,
    description="Written while not every node of the cluster understands the second format, and read as long as "
    "a generation from that time operates. Materialising it takes stock and writes nothing.",
)
def cdc_generation_descriptions(home: HomeResource) -> MaterializeResult:
    """Report which V1 generations have their data."""
    watch, lake = Stopwatch(), home.lake()
    with platform_errors_as_failures():
        times = generations.read_v1_times(lake).tolist()
    metadata = {"generations": build_rows_preview(("time",), ((format_ms(time_ms),) for time_ms in reversed(times)))}
    content = read_partition_content(lake, GenerationRows(GENERATION_DESCRIPTIONS, {}))
    return build_materialize_result(lake, content, rows=len(times), watch=watch, told=metadata)


@table_asset(
    STREAMS_DESCRIPTIONS,
    group="first_format",
    spark=False,
    deps=[asset_key_from_table(GENERATION_DESCRIPTIONS)],
    code=_CODE_MODULES,
    description="What clients of old read. Materialising it runs the rewrite: every generation that can still hold "
    "live log rows goes into the tables that took its place, streams first and then its timestamp, and the nodes are "
    "marked as rewritten. Any number of runs may do that, one after the other or at once.",
)
def cdc_streams_descriptions(
    context: AssetExecutionContext, config: RewriteConfig, home: HomeResource, clock: ClockResource
) -> MaterializeResult:
    """Run the rewrite for every node that is not marked."""
    watch, lake = Stopwatch(), home.lake()
    with platform_errors_as_failures():
        done = procedure.rewrite_streams_tables(
            lake,
            clock.clock(),
            home.settings(),
            config.nodes,
            dry_run=config.dry_run,
            force=config.again,
            on_message=context.log.info,
        )
    for decision in done.missing:
        context.log.warning(f"{format_ms(decision.time_ms)}: {decision.reason}")
    rows = ((format_ms(outcome.time_ms), outcome.action, outcome.reason) for outcome in reversed(done.decisions))
    metadata = {
        "ended": done.ended,
        "rewritten": sum(outcome.action == "rewrite" for outcome in done.decisions),
        "missing": len(done.missing),
        "marked": len(done.marked),
        "decisions": build_rows_preview(("time", "action", "reason"), rows),
    }
    if not config.dry_run:
        _log_rewritten_partitions(
            context, lake, [outcome.time_ms for outcome in done.decisions if outcome.action == "rewrite"]
        )
    content = read_partition_content(lake, GenerationRows(STREAMS_DESCRIPTIONS, {}))
    return build_materialize_result(lake, content, rows=len(done.decisions), watch=watch, told=metadata)


def _log_rewritten_partitions(context: AssetExecutionContext, lake: Lake, times: Sequence[Milliseconds]) -> None:
    """Log, for each rewritten generation, that this run wrote its streams rows and its timestamp."""
    names = read_generation_keys(lake, context.instance)
    partitions = {time_ms: names.of(get_generation_names(lake, names, time_ms).id, time_ms) for time_ms in times}
    context.instance.add_dynamic_partitions(GENERATIONS_NAME, list(partitions.values()))
    for time_ms, partition in partitions.items():
        for table in (STREAMS_DESCRIPTIONS_V2, GENERATION_TIMESTAMPS):
            part = GenerationRows(table, {"time": datetime_from_ms(time_ms)})
            inputs = [asset_key_from_table(input_table) for input_table in find_step(V2_STEPS, table).relies_on]
            spec = AssetEventSpec(
                asset_key_from_table(table),
                inputs,
                compute_code_version(*JOIN_CODE_MODULES),
                build_column_lineage(_REWRITTEN_LINEAGE[table]),
            )
            context.log_event(
                build_partition_event(
                    context.instance, spec, partition, read_partition_content(lake, part), find_last_write(lake, part)
                )
            )


@multi_asset_check(
    can_subset=True,
    name="audit_rewrite",
    specs=check_specs(STREAMS_DESCRIPTIONS, V1_FAMILY.invariants),
    pool=pool_from_table(STREAMS_DESCRIPTIONS),
)
def audit_cdc_streams_descriptions(
    context: AssetCheckExecutionContext, home: HomeResource, clock: ClockResource
) -> Iterator[AssetCheckResult]:
    """Judge what the rewrite left; where there are no V1 generations there is nothing to hold against it."""
    lake, now = home.lake(), clock.clock()
    yield from evaluate_checks(
        context, STREAMS_DESCRIPTIONS, lake, now, lambda _: [(V1_FAMILY, audit_rewrite(lake, now, home.settings()))]
    )


rewrite = define_asset_job(
    REWRITE_JOB,
    selection=AssetSelection.assets(cdc_generation_descriptions, cdc_streams_descriptions),
    description="Rewrites V1 generations into the new tables, for every node that is not marked as rewritten. Killed "
    "and run again, or run twice at once, it leaves the same rows.",
    executor_def=in_process_executor,
)


def request_rewrite(
    lake: Lake, clock: Clock, settings: Settings, instance: DagsterInstance, cursor: str | None
) -> SensorResult:
    """Request a run if the new table lacks live V1 timestamps and a node is not marked.

    The cursor only names the table versions at which that was not so. Time alone makes generations too old, never live
    again.
    """
    watched = (STREAMS_DESCRIPTIONS, GENERATION_TIMESTAMPS, CDC_LOCAL, NODES, CDC_TABLES)
    versions = "/".join(str(lake.version(table)) for table in watched)
    if cursor == versions:
        return SensorResult(skip_reason="nothing has changed since there was nothing to rewrite", cursor=versions)
    idle = _idle_reason(lake, settings)
    if idle:
        return SensorResult(skip_reason=idle)
    waiting = [
        planned
        for planned in procedure.plan_rewrite(lake, clock, settings)
        if planned.action in ("rewrite", "missing-data")
    ]
    if not waiting:
        return SensorResult(skip_reason="every live V1 generation is in the new table", cursor=versions)
    state = _hash_state(procedure.nodes_without_rewrite_marker(lake), [planned.time_ms for planned in waiting])
    wish = request_run(instance, REWRITE_JOB, state, state=(_STATE_TAG, state))
    if wish.active is not None:
        return SensorResult(skip_reason=f"run {wish.active.run_id} is rewriting")
    if wish.request is None:
        reason = (
            f"{len(wish.ended)} runs did not end the rewrite, the last is {wish.ended[0].run_id}: mend what it names"
        )
        return SensorResult(skip_reason=f"{reason}, and run: cdc-platform rewrite")
    return SensorResult(run_requests=[wish.request])


@sensor(
    name="v1_leftovers",
    job_name=REWRITE_JOB,
    minimum_interval_seconds=60,
    default_status=DefaultSensorStatus.RUNNING,
    description="Asks for the rewrite while V1 generations that can hold live rows are not in the new table and a node "
    "of the ring is not marked as rewritten.",
)
@skip_unless_writable
def v1_leftovers(context: SensorEvaluationContext, home: HomeResource, clock: ClockResource) -> SensorResult:
    """`request_rewrite` on this home and this instance."""
    return request_rewrite(home.lake(), clock.clock(), home.settings(), context.instance, context.cursor)


def request_scheduled_rewrite(
    lake: Lake, settings: Settings, instance: DagsterInstance, moment: datetime
) -> RunRequest | SkipReason:
    """Request a rewrite run at `moment`, unless there is nothing to do or a run is active."""
    idle = _idle_reason(lake, settings)
    return SkipReason(idle) if idle else request_run_unless_active(instance, REWRITE_JOB, moment)


@schedule(
    name="hourly_rewrite",
    job_name=REWRITE_JOB,
    cron_schedule=REWRITE_CRON,
    default_status=DefaultScheduleStatus.STOPPED,
    description="The rewrite without the sensor: every hour, until every node is marked. Both may be on at once.",
)
@skip_unless_writable
def hourly_rewrite(context: ScheduleEvaluationContext, home: HomeResource) -> RunRequest | SkipReason:
    """`request_scheduled_rewrite` on this home and this instance."""
    return request_scheduled_rewrite(home.lake(), home.settings(), context.instance, context.scheduled_execution_time)


def _idle_reason(lake: Lake, settings: Settings) -> str | None:
    """Return the reason why there is nothing to run regardless of the generations, or None."""
    if procedure.has_no_v1_streams(lake):
        return "there is no V1 streams table"
    if settings.dont_rewrite_streams:
        return "dont_rewrite_streams is set"
    if not procedure.nodes_without_rewrite_marker(lake):
        return "no node of the ring is unmarked"
    return None


def _hash_state(hosts: Sequence[str], times: Sequence[int]) -> str:
    """Hash the hosts that have not rewritten and the times that remain to be rewritten."""
    return hashlib.sha256(repr((list(hosts), list(times))).encode()).hexdigest()[:16]


DEFINED = Definitions(
    assets=[cdc_generation_descriptions, cdc_streams_descriptions],
    asset_checks=[audit_cdc_streams_descriptions],
    jobs=[rewrite],
    sensors=[v1_leftovers],
    schedules=[hourly_rewrite],
)
