"""The declared steps of a join as assets, each with the audit of what it left as blocking checks, and the job of all.

Which steps there are, what they rely on and what is judged is declared in `cdc_platform.lifecycle.join.formats`; how
each is shown, in `shown`. Steps of both formats have one asset: that of the table whose place they fill.
"""

from collections.abc import Iterator
from dataclasses import replace

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetExecutionContext,
    AssetsDefinition,
    AssetSelection,
    MaterializeResult,
    define_asset_job,
    in_process_executor,
    multi_asset_check,
)

from assets.checks import check_results, check_specs, door_of, judgement_results, judging, report_results
from assets.code import OF_JOINS
from assets.declared import key, pool, table_asset
from assets.events import told_apart, written
from assets.failures import in_one_line
from assets.join.asked import content_of, finished, joined_generation
from assets.join.inbox import JOIN_JOB
from assets.join.shown import SHOWN, Shown, Told
from assets.partitions import GENERATIONS, asked, partitions_of
from assets.told import Stopwatch, materialized
from cdc_platform.invariants.findings import GENERATIONS as GENERATION_FAMILY
from cdc_platform.lake.tables import BOOTSTRAP_EVENTS
from cdc_platform.lifecycle.join.formats import V2, steps_of
from cdc_platform.lifecycle.join.step import Audit, Joining, Step, insist, judged, step_of, take
from resources.clock import ClockResource
from resources.home import HomeResource
from resources.spark import SparkResource


def _asset(step: Step, shown: Shown) -> AssetsDefinition:
    # The first step begins with what the inbox has.
    inputs = [key(table) for table in step.relies_on or (BOOTSTRAP_EVENTS,)]

    @table_asset(
        step.table,
        group=shown.group,
        spark=shown.spark,
        deps=inputs,
        partitions=GENERATIONS,
        description=shown.description,
        sources=shown.sources,
        code=OF_JOINS,
    )
    def materialise(
        context: AssetExecutionContext, spark: SparkResource, home: HomeResource, clock: ClockResource
    ) -> MaterializeResult:
        with in_one_line():
            partitions = asked(context, "generations")
            if len(partitions) == 1:
                watch, joining = Stopwatch(), _joining(context, spark, home, clock, partitions[0])
                told = _taken(joining, step, shown, context)
                content = content_of(joining.lake, partitions[0], step.table)
                return materialized(
                    joining.lake, content, rows=told.rows, watch=watch, sources=shown.sources, told=told.told
                )
            made = {}
            for partition in finished(home.lake(), partitions, context.log.info):
                joining = _joining(context, spark, home, clock, partition)
                told = _taken(joining, step, shown, context)
                content = content_of(joining.lake, partition, step.table)
                content = replace(content, rows=told.rows, told=told.told)
                made[partition] = content, written(joining.lake, content.part)
        return told_apart(context, made, inputs)

    return materialise


def _taken(joining: Joining, step: Step, shown: Shown, context: AssetExecutionContext) -> Told:
    steps = steps_of(joining.lake, joining.generation_id)
    return shown.tell(joining, take(joining, steps, step_of(steps, step.table)), context.log)


def _checks(step: Step, audit: Audit) -> AssetChecksDefinition:
    @multi_asset_check(
        can_subset=True,
        name=f"audit_{step.name}",
        specs=check_specs(step.table, audit.invariants, GENERATIONS),
        description=f"Judge what the step {step.name} wrote, before the next step relies on it.",
        pool=pool(step.table),
    )
    def check(
        context: AssetCheckExecutionContext, spark: SparkResource, home: HomeResource, clock: ClockResource
    ) -> Iterator[AssetCheckResult]:
        names = context.selected_asset_check_keys
        if not context.has_partition_key and not context.has_partition_key_range:
            with in_one_line():
                look = judging(context, home.lake(), clock.clock(), None)
                findings = audit.of_all(look.lake, spark.workers())
            yield from check_results(step.table, context, look, findings, GENERATION_FAMILY)
            return
        partitions = partitions_of(context)
        several = len(partitions) > 1
        for partition in finished(home.lake(), partitions, context.log.info) if several else partitions:
            with in_one_line():
                joining = _joining(context, spark, home, clock, partition)
                of_format = step_of(steps_of(joining.lake, joining.generation_id), step.table)
                judgements = judged(joining, of_format)
            asked_for = [line for line in judgements if line.invariant in {each.name for each in names}]
            results = judgement_results(step.table, asked_for)
            if several:
                report_results(context, partition, results, blocking=GENERATION_FAMILY.blocking)
            else:
                yield from results
            with in_one_line():
                insist(joining, of_format, asked_for)

    return check


def _joining(
    context: AssetExecutionContext | AssetCheckExecutionContext,
    spark: SparkResource,
    home: HomeResource,
    clock: ClockResource,
    partition: str,
) -> Joining:
    lake = home.lake()
    return Joining(
        lake,
        clock.clock(),
        home.settings(),
        joined_generation(lake, partition),
        spark.workers(),
        door_of(context),
    )


ASSETS = [_asset(step, SHOWN[step.table]) for step in V2]
CHECKS = [_checks(step, step.audit) for step in V2 if step.audit is not None]

# One process for all steps of a run: by default each step would start a JVM, or a Connect session, of its own.
join = define_asset_job(
    JOIN_JOB,
    selection=AssetSelection.assets(*ASSETS),
    description="A node joins: its generation is described, audited, inserted, given its timestamp, published. "
    "Each step is idempotent; a run that died is simply run again.",
    executor_def=in_process_executor,
)
