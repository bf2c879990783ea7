"""V1 tables in Dagster: assets, the rewrite job, its sensor, schedule and checks. No Spark."""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from dagster import (
    AssetExecutionContext,
    AssetMaterialization,
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
    schedule,
    sensor,
)
from pydantic import Field

from cdc_platform.checks import V1_FAMILY
from cdc_platform.clock import Clock, Milliseconds, datetime_from_ms, format_ms
from cdc_platform.delta import Lake
from cdc_platform.lifecycle import V2_STEPS, audit_rewrite, find_step
from cdc_platform.lifecycle import rewrite as procedure
from cdc_platform.metastore import cdc_tables, generations
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
from cdc_platform.timeline import GenerationRows, list_generation_names
from cdc_platform_assets.checks import select_with_own_checks
from cdc_platform_assets.data_versions import (
    KIND_METADATA_KEY,
    AssetEventSpec,
    build_partition_event,
    find_last_write,
    read_partition_content,
)
from cdc_platform_assets.failures import platform_errors_as_failures
from cdc_platform_assets.metadata import Stopwatch, build_materialize_result, build_rows_preview
from cdc_platform_assets.partitions import (
    GENERATIONS_NAME,
    REWRITE_DECISION_PARTITIONS,
    REWRITE_DECISIONS_NAME,
    read_generation_keys,
)
from cdc_platform_assets.run_requests import NoWork, Work, request_scheduled_run, request_work, skip_unless_writable
from cdc_platform_assets.specs import (
    JOIN_CODE_MODULES,
    REWRITE_DECISIONS,
    ColumnSources,
    asset_key_from_table,
    build_column_lineage,
    build_table_spec,
    compute_code_version,
    table_asset,
)
from cdc_platform_assets.table_checks import build_table_checks
from cdc_platform_resources.clock import ClockResource
from cdc_platform_resources.home import HomeResource

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
_PUBLISHED_TABLES = tuple(_REWRITTEN_LINEAGE)
MAX_SKIPPED = 200
"""The most V1 generations that one run or tick reports, so that it stays short."""
_CODE_MODULES = ("cdc_platform.lifecycle.rewrite", "cdc_platform.generations.expiry")


class RewriteConfig(Config):
    """For which nodes to run the rewrite, and how."""

    nodes: list[str] | None = Field(
        default=None, description="host IDs; default: every node of the ring that is not marked"
    )
    force: bool = Field(default=False, description="also rewrite for nodes that are already marked")
    dry_run: bool = Field(default=False, description="report what would be rewritten; write nothing")


@table_asset(
    GENERATION_DESCRIPTIONS,
    group="v1_format",
    spark=False,
    code=_CODE_MODULES,
    description="Materializing it lists the V1 generations with data and writes nothing. Nodes write this table until "
    "all of them support V2 generations.",
)
def cdc_generation_descriptions(home: HomeResource) -> MaterializeResult:
    """Report which V1 generations have their data."""
    watch, lake = Stopwatch(), home.lake()
    with platform_errors_as_failures():
        rows, metadata = describe_v1_generations(lake)
    content = read_partition_content(lake, GenerationRows(GENERATION_DESCRIPTIONS, {}))
    return build_materialize_result(lake, content, rows=rows, watch=watch, metadata=metadata)


def describe_v1_generations(lake: Lake) -> tuple[int, dict[str, Any]]:
    """Return the number of V1 generations with data, and as metadata their times."""
    times = generations.read_v1_times(lake).tolist()
    rows = ((format_ms(time_ms),) for time_ms in reversed(times))
    return len(times), {"generations": build_rows_preview(("time",), rows)}


@table_asset(
    STREAMS_DESCRIPTIONS,
    group="v1_format",
    spark=False,
    deps=[asset_key_from_table(GENERATION_DESCRIPTIONS)],
    code=_CODE_MODULES,
    description="Materializing it runs the rewrite: it copies every V1 generation that can still hold log rows to the "
    "V2 tables and marks the nodes as rewritten. Concurrent runs write the same rows.",
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
            force=config.force,
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
        _log_decisions(context, lake, done.decisions)
        report_skipped_generations(lake, clock.clock(), home.settings(), context.instance)
        _log_rewritten_partitions(
            context, lake, [outcome.time_ms for outcome in done.decisions if outcome.action == "rewrite"]
        )
    content = read_partition_content(lake, GenerationRows(STREAMS_DESCRIPTIONS, {}))
    return build_materialize_result(lake, content, rows=len(done.decisions), watch=watch, metadata=metadata)


def _log_rewritten_partitions(context: AssetExecutionContext, lake: Lake, times: Sequence[Milliseconds]) -> None:
    """Log, for each rewritten generation, that this run wrote its streams rows and its timestamp."""
    keys = _read_partition_keys(lake, context.instance)
    partitions = {time_ms: keys[time_ms] for time_ms in times}
    context.instance.add_dynamic_partitions(GENERATIONS_NAME, list(partitions.values()))
    for time_ms, partition in partitions.items():
        for table in _PUBLISHED_TABLES:
            part = GenerationRows(table, {"time": datetime_from_ms(time_ms)})
            content = read_partition_content(lake, part, metadata={KIND_METADATA_KEY: "python"})
            change = find_last_write(lake, part)
            context.log_event(
                build_partition_event(context.instance, _build_event_spec(table), partition, content, change)
            )


def _build_event_spec(table: Table) -> AssetEventSpec:
    """Return what an event names of a table into which the rewrite publishes."""
    return AssetEventSpec(
        asset_key_from_table(table),
        [asset_key_from_table(input_table) for input_table in find_step(V2_STEPS, table).relies_on],
        compute_code_version(*JOIN_CODE_MODULES),
        build_column_lineage(_REWRITTEN_LINEAGE[table]),
    )


def report_skipped_generations(lake: Lake, clock: Clock, settings: Settings, instance: DagsterInstance) -> int:
    """Report each V1 generation that is too old to be rewritten, and return how many are new to Dagster.

    Its partitions of the V2 tables get an event without rows that gives the reason; otherwise they would stay missing
    for ever. Partitions that have any event already are left as they are. While the CDC-enabled tables are unknown,
    none is reported, because each generation may still have log rows.
    """
    if procedure.has_no_v1_streams(lake) or not cdc_tables.are_cdc_tables_known(lake):
        return 0
    skipped = [
        decision for decision in procedure.plan_rewrite(lake, clock, settings) if decision.action == "skip-too-old"
    ]
    listed = generations.read_listed_times(lake)
    keys = _read_partition_keys(lake, instance)
    reasons = {keys[decision.time_ms]: decision for decision in skipped if decision.time_ms not in listed}
    if not reasons:
        return 0
    missing = {
        table: reasons.keys() - instance.get_materialized_partitions(asset_key_from_table(table))
        for table in _PUBLISHED_TABLES
    }
    new = [partition for partition in reasons if any(partition in absent for absent in missing.values())]
    new = new[:MAX_SKIPPED]
    for name in (GENERATIONS_NAME, REWRITE_DECISIONS_NAME):
        instance.add_dynamic_partitions(name, new)
    for partition in new:
        instance.report_runless_asset_event(_build_decision_event(partition, reasons[partition]))
        for table in (table for table in _PUBLISHED_TABLES if partition in missing[table]):
            instance.report_runless_asset_event(_build_skip_event(lake, instance, table, partition, reasons[partition]))
    return len(new)


def _read_partition_keys(lake: Lake, instance: DagsterInstance) -> dict[Milliseconds, str]:
    """Return the partition key of each generation by its time (ms)."""
    names = list_generation_names(lake, read_generation_keys(lake, instance))
    return {name.time_ms: name.key for name in names if name.time_ms is not None}


def _build_skip_event(
    lake: Lake, instance: DagsterInstance, table: Table, partition: str, decision: procedure.RewriteDecision
) -> AssetMaterialization:
    content = read_partition_content(lake, GenerationRows(table, {"time": datetime_from_ms(decision.time_ms)}))
    event = build_partition_event(instance, _build_event_spec(table), partition, content, None)
    return AssetMaterialization(
        event.asset_key,
        description=f"Skipped by the rewrite: {decision.reason}.",
        metadata={"skipped": decision.reason, "dagster/row_count": 0, "table": table.full_name},
        partition=partition,
        tags=event.tags,
    )


def _log_decisions(context: AssetExecutionContext, lake: Lake, decisions: Sequence[procedure.RewriteDecision]) -> None:
    """Log what this run did about each V1 generation, on the asset that stands for the rewrite's decisions."""
    newest, keys = decisions[-MAX_SKIPPED:], _read_partition_keys(lake, context.instance)
    context.instance.add_dynamic_partitions(REWRITE_DECISIONS_NAME, [keys[decision.time_ms] for decision in newest])
    for decision in newest:
        context.log_event(_build_decision_event(keys[decision.time_ms], decision))


def _build_decision_event(partition: str, decision: procedure.RewriteDecision) -> AssetMaterialization:
    return AssetMaterialization(
        asset_key_from_table(REWRITE_DECISIONS),
        description=f"{decision.action}: {decision.reason}",
        metadata={"action": decision.action, "reason": decision.reason},
        partition=partition,
    )


REWRITE_DECISIONS_SPEC = build_table_spec(
    REWRITE_DECISIONS,
    group="v1_format",
    deps=[asset_key_from_table(table) for table in (GENERATION_DESCRIPTIONS, STREAMS_DESCRIPTIONS)],
    partitions=REWRITE_DECISION_PARTITIONS,
    description="The rewrite between the V1 and the V2 tables. Each run that decides about a generation reports here "
    "what it did and why.",
)
audit_cdc_streams_descriptions = build_table_checks("audit_rewrite", STREAMS_DESCRIPTIONS, V1_FAMILY, audit_rewrite)


rewrite = define_asset_job(
    REWRITE_JOB,
    selection=select_with_own_checks(cdc_generation_descriptions, cdc_streams_descriptions),
    description="Rewrites V1 generations to the V2 tables for every node that is not marked as rewritten. It can run "
    "again after a failure, and concurrently.",
    executor_def=in_process_executor,
)


def request_rewrite(
    lake: Lake, clock: Clock, settings: Settings, instance: DagsterInstance, cursor: str | None
) -> SensorResult:
    """Request a rewrite while a V1 generation that can hold rows is not in the V2 tables and a node has no marker.

    Time alone only makes generations too old, never live again, so a tick without changed tables can skip.
    """

    def find_work() -> Work | NoWork:
        skip_reason = _describe_no_rewrite(lake, settings)
        if skip_reason is not None:
            return NoWork(skip_reason)
        waiting = [
            planned.time_ms
            for planned in procedure.plan_rewrite(lake, clock, settings)
            if planned.action in ("rewrite", "missing-data")
        ]
        if not waiting:
            return NoWork("every V1 generation that can still hold rows is rewritten", final=True)
        state = _hash_state(procedure.nodes_without_rewrite_marker(lake), waiting)
        return Work(state, f"rewrite {len(waiting)} V1 generations", "run: cdc-platform rewrite")

    watched = (STREAMS_DESCRIPTIONS, GENERATION_TIMESTAMPS, CDC_LOCAL, NODES, CDC_TABLES)
    return request_work(
        lake, instance, cursor, job=REWRITE_JOB, state_tag=_STATE_TAG, watched=watched, find_work=find_work
    )


@sensor(
    name="v1_leftovers",
    job_name=REWRITE_JOB,
    minimum_interval_seconds=60,
    default_status=DefaultSensorStatus.RUNNING,
    description="Every minute, requests the rewrite while a V1 generation that can still hold rows is not in the V2 "
    "tables and a node is not marked as rewritten. Reports generations that are too old for it as skipped.",
)
def v1_leftovers(
    context: SensorEvaluationContext, home: HomeResource, clock: ClockResource
) -> SensorResult | SkipReason:
    """Report what the rewrite skips, and run `request_rewrite` on this home and instance."""
    report_skipped_generations(home.lake(), clock.clock(), home.settings(), context.instance)
    return _request_if_writable(context, home=home, clock=clock)


@skip_unless_writable
def _request_if_writable(
    context: SensorEvaluationContext, home: HomeResource, clock: ClockResource
) -> SensorResult | SkipReason:
    return request_rewrite(home.lake(), clock.clock(), home.settings(), context.instance, context.cursor)


def request_scheduled_rewrite(
    lake: Lake, settings: Settings, instance: DagsterInstance, moment: datetime
) -> RunRequest | SkipReason:
    """Request a rewrite at `moment`, unless there is nothing to rewrite or a run is active."""
    return request_scheduled_run(instance, REWRITE_JOB, moment, _describe_no_rewrite(lake, settings))


@schedule(
    name="hourly_rewrite",
    job_name=REWRITE_JOB,
    cron_schedule=REWRITE_CRON,
    default_status=DefaultScheduleStatus.RUNNING,
    description="Every hour, requests the rewrite while the home has a V1 streams table and a node is not marked as "
    "rewritten. It repeats what the sensor `v1_leftovers` gives up after three attempts; neither requests a run while "
    "one is in progress.",
)
@skip_unless_writable
def hourly_rewrite(context: ScheduleEvaluationContext, home: HomeResource) -> RunRequest | SkipReason:
    """Run `request_scheduled_rewrite` on this home and instance."""
    return request_scheduled_rewrite(home.lake(), home.settings(), context.instance, context.scheduled_execution_time)


def _describe_no_rewrite(lake: Lake, settings: Settings) -> str | None:
    """Return why no rewrite is needed, whichever generations there are; None if one may be."""
    if procedure.has_no_v1_streams(lake):
        return "there is no V1 streams table"
    if settings.dont_rewrite_streams:
        return "the setting dont_rewrite_streams is on"
    if not procedure.nodes_without_rewrite_marker(lake):
        return "every node of the ring is marked as rewritten"
    return None


def _hash_state(hosts: Sequence[str], times: Sequence[int]) -> str:
    """Hash the hosts that have not rewritten and the times that remain to be rewritten."""
    return hashlib.sha256(repr((list(hosts), list(times))).encode()).hexdigest()[:16]


DEFINED = Definitions(
    assets=[cdc_generation_descriptions, cdc_streams_descriptions, REWRITE_DECISIONS_SPEC],
    asset_checks=[audit_cdc_streams_descriptions],
    jobs=[rewrite],
    sensors=[v1_leftovers],
    schedules=[hourly_rewrite],
)
