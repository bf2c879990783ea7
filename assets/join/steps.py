"""Join steps as assets, each with its audit as blocking checks, and the join job.

A step of either format fills the asset of the table that it writes.
"""

from collections.abc import Iterator
from dataclasses import replace

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetExecutionContext,
    AssetsDefinition,
    MaterializeResult,
    define_asset_job,
    in_process_executor,
    multi_asset_check,
)

from cdc_platform.checks import GENERATION_FAMILY
from cdc_platform.delta import list_part_files
from cdc_platform.lifecycle import (
    V2_STEPS,
    JoinContext,
    JoinStep,
    StepAudit,
    find_step,
    judge_step,
    require_passed,
    run_step,
    select_steps,
)
from cdc_platform.tables import BOOTSTRAP_EVENTS
from cdc_platform.timeline import GenerationKeys, get_generation_names
from cdc_platform_assets.checks import (
    build_judgement_results,
    check_specs,
    describe_run,
    fail_run,
    list_requested_partitions,
    report_results,
    select_with_own_checks,
)
from cdc_platform_assets.data_versions import PartitionContent
from cdc_platform_assets.failures import platform_errors_as_failures
from cdc_platform_assets.join.inbox import JOIN_JOB
from cdc_platform_assets.join.partition_keys import filter_finished_joins, get_joined_generation_id, read_step_content
from cdc_platform_assets.join.step_docs import STEP_DOCS, StepDocs, StepReport
from cdc_platform_assets.materialization import materialize_partitions
from cdc_platform_assets.metadata import build_replaced_metadata
from cdc_platform_assets.partitions import GENERATION_PARTITIONS
from cdc_platform_assets.specs import (
    JOIN_CODE_MODULES,
    asset_key_from_table,
    lineage_edge,
    pool_from_table,
    table_asset,
)
from cdc_platform_resources.clock import ClockResource
from cdc_platform_resources.home import HomeResource
from cdc_platform_resources.spark import SparkResource


def _build_asset(step: JoinStep, docs: StepDocs) -> AssetsDefinition:
    # The first step starts from the inbox.
    inputs = [asset_key_from_table(table) for table in step.relies_on or (BOOTSTRAP_EVENTS,)]
    edges = [lineage_edge(table) for table in docs.edges]

    @table_asset(
        step.table,
        group=docs.group,
        spark=docs.spark,
        deps=[*inputs, *edges],
        partitions=GENERATION_PARTITIONS,
        description=docs.description,
        sources=docs.sources,
        code=JOIN_CODE_MODULES,
    )
    def materialize(
        context: AssetExecutionContext, spark: SparkResource, home: HomeResource, clock: ClockResource
    ) -> MaterializeResult:
        lake = home.lake()

        def write(partition: str) -> PartitionContent:
            joining = _open_joining(context, spark, home, clock, partition)
            report = _run_step(joining, step, docs, context)
            content = read_step_content(joining.lake, partition, step.table)
            return replace(content, rows=report.rows, metadata=report.metadata)

        def select(partitions: list[str]) -> Iterator[str]:
            return filter_finished_joins(lake, partitions, context.log.info)

        return materialize_partitions(
            context, lake, "generations", write, sources=docs.sources, inputs=inputs, select=select, spark=spark
        )

    return materialize


def _run_step(joining: JoinContext, step: JoinStep, docs: StepDocs, context: AssetExecutionContext) -> StepReport:
    lake, steps = joining.lake, select_steps(joining.lake, joining.generation_id)
    names = get_generation_names(lake, GenerationKeys.read(lake), joining.generation_id)
    part = names.part(step.table)
    before = None if part is None else list_part_files(lake, part.table, part.where)
    report = docs.report(joining, run_step(joining, steps, find_step(steps, step.table)), context.log)
    replaced = build_replaced_metadata(lake, before)
    if replaced:
        context.log.warning(f"Rows of {step.table.full_name} were replaced: {replaced['replaced_rows']}.")
    return replace(report, metadata={**report.metadata, **replaced})


def _build_checks(step: JoinStep, audit: StepAudit) -> AssetChecksDefinition:
    @multi_asset_check(
        can_subset=True,
        name=f"audit_{step.name}",
        specs=check_specs(step.table, audit.invariants, GENERATION_PARTITIONS),
        description=f"Judges the rows of the step {step.name} before the next step reads them.",
        pool=pool_from_table(step.table),
    )
    def check(
        context: AssetCheckExecutionContext, spark: SparkResource, home: HomeResource, clock: ClockResource
    ) -> Iterator[AssetCheckResult]:
        names = {key.name for key in context.selected_asset_check_keys}
        partitions = [partition for partition in list_requested_partitions(context) if partition is not None]
        failures: list[str] = []
        # Rows that could not be judged stop a join; a run of checks alone reports them as warnings.
        materializes = context.run.asset_selection is None or bool(context.run.asset_selection)
        if not context.has_partition_key:
            partitions = [*filter_finished_joins(home.lake(), partitions, context.log.info)]
        for partition in partitions:
            with platform_errors_as_failures():
                joining = _open_joining(context, spark, home, clock, partition)
                format_step = find_step(select_steps(joining.lake, joining.generation_id), step.table)
                judgements = [line for line in judge_step(joining, format_step) if line.invariant in names]
            results = build_judgement_results(step.table, judgements)
            yield from report_results(context, partition, results, GENERATION_FAMILY, failures)
            if context.has_partition_key and (materializes or any(line.failed for line in judgements)):
                with platform_errors_as_failures():
                    require_passed(joining, format_step, judgements)
        fail_run(failures)

    return check


def _open_joining(
    context: AssetExecutionContext | AssetCheckExecutionContext,
    spark: SparkResource,
    home: HomeResource,
    clock: ClockResource,
    partition: str,
) -> JoinContext:
    lake = home.lake()
    return JoinContext(
        lake,
        clock.clock(),
        home.settings(),
        get_joined_generation_id(lake, partition),
        spark.workers(),
        describe_run(context),
    )


JOIN_ASSETS = [_build_asset(step, STEP_DOCS[step.table]) for step in V2_STEPS]
JOIN_CHECKS = [_build_checks(step, step.audit) for step in V2_STEPS if step.audit is not None]

# One process runs all steps of a run. By default each step would start its own JVM or Connect session.
join = define_asset_job(
    JOIN_JOB,
    selection=select_with_own_checks(*JOIN_ASSETS),
    description="Joins a node: describes its generation, audits it, inserts it, assigns its timestamp and publishes "
    "it. Every step is idempotent, so a failed run can be repeated.",
    executor_def=in_process_executor,
)
