"""The declared steps of a join as assets, each with the audit of what it left as blocking checks, and the job of all.

Which steps there are, what they rely on and what is judged is declared in `cdc_platform.lifecycle.join.formats`; how
each is shown, in `shown`. Steps of both formats have one asset: that of the table whose place they fill.
"""

from collections.abc import Iterator

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

from assets.checks import check_results, check_specs, judgement_results, judging
from assets.declared import key, pool, table_asset
from assets.failures import in_one_line
from assets.join.inbox import JOIN_JOB
from assets.join.shown import SHOWN, Shown
from assets.partitions import GENERATIONS
from assets.told import Stopwatch, materialized
from cdc_platform.invariants.findings import GENERATIONS as GENERATION_FAMILY
from cdc_platform.lake.tables import BOOTSTRAP_EVENTS
from cdc_platform.lifecycle.join.formats import V2, steps_of
from cdc_platform.lifecycle.join.step import Audit, Joining, Step, insist, judged, step_of, take
from resources.clock import ClockResource
from resources.home import HomeResource
from resources.spark import SparkResource


def _asset(step: Step, shown: Shown) -> AssetsDefinition:
    @table_asset(
        step.table,
        group=shown.group,
        spark=shown.spark,
        # The first step begins with what the inbox has.
        deps=[key(table) for table in step.relies_on or (BOOTSTRAP_EVENTS,)],
        partitions=GENERATIONS,
        description=shown.description,
    )
    def materialise(
        context: AssetExecutionContext, spark: SparkResource, home: HomeResource, clock: ClockResource
    ) -> MaterializeResult:
        watch, joining = Stopwatch(), _joining(context, spark, home, clock)
        with in_one_line():
            steps = steps_of(joining.lake, joining.generation_id)
            made = take(joining, steps, step_of(steps, step.table))
            told = shown.tell(joining, made, context.log)
        return materialized(told.version, rows=told.rows, watch=watch, sources=shown.sources, told=told.told)

    return materialise


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
        asked = context.selected_asset_check_keys
        if not context.has_partition_key:
            with in_one_line():
                look = judging(context, home.lake(), clock.clock())
                findings = audit.of_all(look.lake, spark.workers())
            yield from check_results(step.table, context, look, findings, GENERATION_FAMILY)
            return
        joining = _joining(context, spark, home, clock)
        with in_one_line():
            of_format = step_of(steps_of(joining.lake, joining.generation_id), step.table)
            judgements = judged(joining, of_format)
        names = {each.name for each in asked}
        judgements = [line for line in judgements if line.invariant in names]
        yield from judgement_results(step.table, judgements)
        with in_one_line():
            insist(joining, of_format, judgements)

    return check


def _joining(
    context: AssetExecutionContext | AssetCheckExecutionContext,
    spark: SparkResource,
    home: HomeResource,
    clock: ClockResource,
) -> Joining:
    return Joining(
        home.lake(),
        clock.clock(),
        home.settings(),
        context.partition_key,
        spark.workers(),
        f"Dagster's run {context.run.run_id}",
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
