"""Asset checks of invariants: build their specs and turn findings into check results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from warnings import catch_warnings, simplefilter

from dagster import (
    AssetCheckEvaluation,
    AssetCheckExecutionContext,
    AssetCheckKey,
    AssetCheckResult,
    AssetCheckSeverity,
    AssetCheckSpec,
    AssetExecutionContext,
    DagsterEvent,
    DagsterEventType,
    PartitionsDefinition,
    PreviewWarning,
)
from dagster import _check as check

from cdc_platform.checks import CheckResult, Finding, Invariant, InvariantFamily, judge_findings
from cdc_platform.clock import Clock
from cdc_platform.delta import Lake
from cdc_platform.metastore import WHOLE_HOME, CheckRun, store_check_results
from cdc_platform.tables import Table
from cdc_platform_assets.failures import platform_errors_as_failures
from cdc_platform_assets.partitions import get_run_partitions
from cdc_platform_assets.specs import asset_key_from_table

FamilyFindings = Iterable[tuple[InvariantFamily, Sequence[Finding]]]
"""The findings of audits, by family."""

LOW_PRIORITY_TAGS = {"dagster/priority": "-1"}
"""For checks of the whole home. No step waits on them, so they run when no step is ready."""

VIOLATED_TAG = "cdc_platform/violated"
"""The run tag that lists the checks that found a violation."""


def check_specs(
    table: Table, invariants: Iterable[Invariant], partitions: PartitionsDefinition | None = None
) -> list[AssetCheckSpec]:
    """Build the check specs of invariants of a table, partitioned if `partitions` is given."""
    with catch_warnings():
        # Partitioned checks are a preview in this release of Dagster. Without them a check would show the newest result
        # of any generation.
        simplefilter("ignore", PreviewWarning)
        return [
            AssetCheckSpec(
                str(invariant),
                asset=asset_key_from_table(table),
                description=invariant.meaning,
                blocking=invariant.family.blocking,
                partitions_def=partitions,
                metadata={
                    "asked_of": invariant.family.subject,
                    "judged": invariant.family.method,
                    "explained_in": invariant.family.page,
                },
            )
            for invariant in invariants
        ]


def evaluate_checks(
    context: AssetCheckExecutionContext,
    table: Table,
    lake: Lake,
    clock: Clock,
    audit: Callable[[str | None], FamilyFindings],
) -> Iterator[AssetCheckResult]:
    """Judge the findings of an audit for each requested partition. Without partitions `audit` gets None: everything.

    A run of several partitions reports each result on its own. Non-blocking violations appear on the run, see
    `tag_violations_on_run`.
    """
    partitions: list[str | None] = [*get_run_partitions(context)] if _is_partitioned(context) else [None]
    for partition in partitions:
        check_run = start_judging(context, lake, clock, partition)
        with platform_errors_as_failures():
            audited = list(audit(partition))
        for family, findings in audited:
            results = build_check_results(table, context, check_run, findings, family)
            if not family.blocking:
                results = tag_violations_on_run(context, results)
            if partition is None or len(partitions) == 1:
                yield from results
            else:
                report_partition_results(context, partition, results, blocking=family.blocking)


def _is_partitioned(context: AssetCheckExecutionContext) -> bool:
    """Return True if a requested check is partitioned. A run with partitions may include checks that have none."""
    if not (context.has_partition_key or context.has_partition_key_range):
        return False
    graph = context.job_def.asset_layer.asset_graph
    return any(graph.get(key).partitions_def is not None for key in context.selected_asset_check_keys)


def start_judging(context: AssetCheckExecutionContext, lake: Lake, clock: Clock, partition: str | None) -> CheckRun:
    """Start a check run on a partition, or on the whole home, before any table is read; see `build_check_results`."""
    return CheckRun.begin(lake, clock, describe_run(context), partition or WHOLE_HOME)


def describe_run(context: AssetCheckExecutionContext | AssetExecutionContext) -> str:
    """Return the entry point of a step, as verdicts and check results store it."""
    return f"Dagster's run {context.run.run_id}"


def build_check_results(
    table: Table,
    context: AssetCheckExecutionContext,
    check_run: CheckRun,
    findings: Sequence[Finding],
    family: InvariantFamily,
) -> Iterator[AssetCheckResult]:
    """Judge a table's findings by a family and yield one result per requested check. Other findings are ignored.

    An invariant without a finding fails, unless the family says why that is fine. The results are stored in the lake.
    """
    selected = context.selected_asset_check_keys
    names = [
        invariant
        for invariant in family.invariants
        if AssetCheckKey(asset_key_from_table(table), invariant) in selected
    ]
    requested = [line for line in findings if line.invariant in names]
    due = family.due(findings)
    for name in (name for name in names if name not in due):
        yield _build_result(table, name, True, family.fine_without, 0, 0)
    judgements = judge_findings(requested, [name for name in names if name in due])
    store_check_results(check_run, [line for line in judgements if not line.unknown])
    yield from build_judgement_results(table, judgements)


def build_judgement_results(table: Table, judgements: Iterable[CheckResult]) -> Iterator[AssetCheckResult]:
    """Convert the judgements of a table to Dagster's check results."""
    for line in judgements:
        result = _build_result(
            table, line.invariant, line.passed, line.message, line.population, line.violations, line.sample
        )
        yield result._replace(severity=AssetCheckSeverity.WARN) if line.unknown else result


def tag_violations_on_run(
    context: AssetCheckExecutionContext, results: Iterable[AssetCheckResult]
) -> Iterator[AssetCheckResult]:
    """Yield the same results, and tag the run with those violations so that the list of runs shows them.

    Tags of other checks and partitions of the run stay.
    """
    violated = []
    for result in results:
        if not result.passed and result.severity is AssetCheckSeverity.ERROR:
            violated.append(result.check_name or "a check")
        yield result
    if violated:
        run = context.instance.get_run_by_id(context.run.run_id)
        existing = "" if run is None else run.tags.get(VIOLATED_TAG, "")
        names = dict.fromkeys([*filter(None, existing.split(", ")), *violated])
        context.instance.add_run_tags(context.run.run_id, {VIOLATED_TAG: ", ".join(names)})


def report_partition_results(
    context: AssetCheckExecutionContext, partition: str, results: Iterable[AssetCheckResult], *, blocking: bool
) -> None:
    """Report the results of one of a run's several partitions. Results that a step yields would name no partition."""
    for result in results:
        evaluation = AssetCheckEvaluation(
            asset_key=check.not_none(result.asset_key),
            check_name=check.not_none(result.check_name),
            passed=result.passed,
            metadata=result.metadata,
            severity=result.severity,
            description=result.description,
            blocking=blocking,
            partition=partition,
        )
        context.instance.report_dagster_event(
            DagsterEvent(
                event_type_value=DagsterEventType.ASSET_CHECK_EVALUATION.value,
                event_specific_data=evaluation,
                job_name=context.run.job_name,
                step_key=context.op_execution_context.get_step_execution_context().step.key,
            ),
            run_id=context.run.run_id,
        )


def _build_result(
    table: Table, name: str, passed: bool, message: str, population: int, violations: int, sample: str = ""
) -> AssetCheckResult:
    return AssetCheckResult(
        passed=passed,
        asset_key=asset_key_from_table(table),
        check_name=str(name),
        description=message,
        metadata={
            "population": population,
            "violations": violations,
            **({"sample": sample} if sample else {}),
        },
    )
