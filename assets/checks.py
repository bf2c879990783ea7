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

from assets.failures import platform_errors_as_failures
from assets.partitions import get_run_partitions
from assets.specs import asset_key_from_table
from cdc_platform.checks import CheckResult, Finding, Invariant, InvariantFamily, judge_findings
from cdc_platform.clock import Clock
from cdc_platform.delta import Lake
from cdc_platform.metastore import WHOLE_HOME, CheckRun, store_check_results
from cdc_platform.tables import Table

FamilyFindings = Iterable[tuple[InvariantFamily, Sequence[Finding]]]
"""What audits have found, by family."""

LOW_PRIORITY_TAGS = {"dagster/priority": "-1"}
"""Of checks of the whole home, on which no step of a run waits: they run when there is no step to be run."""

VIOLATED_TAG = "cdc_platform/violated"
"""On a run: the checks that found a violation."""


def check_specs(
    table: Table, invariants: Iterable[Invariant], partitions: PartitionsDefinition | None = None
) -> list[AssetCheckSpec]:
    """The specs of these invariants as checks of a table, one a partition where it has any."""
    with catch_warnings():
        # Checks that have partitions are a preview in this release of Dagster; without them a check would show the
        # newest result of any generation.
        simplefilter("ignore", PreviewWarning)
        return [
            AssetCheckSpec(
                str(each),
                asset=asset_key_from_table(table),
                description=each.meaning,
                blocking=each.family.blocking,
                partitions_def=partitions,
                metadata={"asked_of": each.family.of, "judged": each.family.judged, "explained_in": each.family.page},
            )
            for each in invariants
        ]


def evaluate_checks(
    context: AssetCheckExecutionContext,
    table: Table,
    lake: Lake,
    clock: Clock,
    audit: Callable[[str | None], FamilyFindings],
) -> Iterator[AssetCheckResult]:
    """Judge what an audit finds of each partition that a check is asked for; None: of everything, without partitions.

    A run of several partitions reports each result by itself. What stops nothing is seen on the run, see
    `tag_violations_on_run`.
    """
    partitions: list[str | None] = [*get_run_partitions(context)] if _is_partitioned(context) else [None]
    for partition in partitions:
        look = start_judging(context, lake, clock, partition)
        with platform_errors_as_failures():
            found = list(audit(partition))
        for family, findings in found:
            results = build_check_results(table, context, look, findings, family)
            if not family.blocking:
                results = tag_violations_on_run(context, results)
            if partition is None or len(partitions) == 1:
                yield from results
            else:
                report_partition_results(context, partition, results, blocking=family.blocking)


def _is_partitioned(context: AssetCheckExecutionContext) -> bool:
    """Whether a check is asked for of partitions: in a run that has some, checks may stand that know none."""
    if not (context.has_partition_key or context.has_partition_key_range):
        return False
    graph = context.job_def.asset_layer.asset_graph
    return any(graph.get(each).partitions_def is not None for each in context.selected_asset_check_keys)


def start_judging(context: AssetCheckExecutionContext, lake: Lake, clock: Clock, partition: str | None) -> CheckRun:
    """Begin the look of a check at a partition, or at everything, before anything is read; see
    `build_check_results`.
    """
    return CheckRun.begin(lake, clock, describe_run(context), partition or WHOLE_HOME)


def describe_run(context: AssetCheckExecutionContext | AssetExecutionContext) -> str:
    """By which door a step judges, as verdicts and judgements keep it."""
    return f"Dagster's run {context.run.run_id}"


def build_check_results(
    table: Table,
    context: AssetCheckExecutionContext,
    look: CheckRun,
    findings: Sequence[Finding],
    family: InvariantFamily,
) -> Iterator[AssetCheckResult]:
    """Judge an audit of a table by a family: one result for each check that is asked for. Other findings are left out.

    An invariant of which nothing was found has failed, unless its family says why that is well. What is judged is kept
    in the lake.
    """
    asked = context.selected_asset_check_keys
    names = [each for each in family.invariants if AssetCheckKey(asset_key_from_table(table), each) in asked]
    found = [line for line in findings if line.invariant in names]
    due = family.due(findings)
    for name in (name for name in names if name not in due):
        yield _build_result(table, name, True, family.nothing, 0, 0)
    judgements = judge_findings(found, [name for name in names if name in due])
    store_check_results(look, [line for line in judgements if not line.unknown])
    yield from build_judgement_results(table, judgements)


def build_judgement_results(table: Table, judgements: Iterable[CheckResult]) -> Iterator[AssetCheckResult]:
    """What was judged of a table, as results."""
    for line in judgements:
        result = _build_result(
            table, line.invariant, line.passed, line.said, line.population, line.violations, line.sample
        )
        yield result._replace(severity=AssetCheckSeverity.WARN) if line.unknown else result


def tag_violations_on_run(
    context: AssetCheckExecutionContext, results: Iterable[AssetCheckResult]
) -> Iterator[AssetCheckResult]:
    """The same results; a violation that stops no step is a tag of the run, so that it is seen in the list of runs.

    What other checks and partitions of the run have there stays.
    """
    violated = []
    for result in results:
        if not result.passed and result.severity is AssetCheckSeverity.ERROR:
            violated.append(result.check_name or "a check")
        yield result
    if violated:
        run = context.instance.get_run_by_id(context.run.run_id)
        said = "" if run is None else run.tags.get(VIOLATED_TAG, "")
        names = dict.fromkeys([*filter(None, said.split(", ")), *violated])
        context.instance.add_run_tags(context.run.run_id, {VIOLATED_TAG: ", ".join(names)})


def report_partition_results(
    context: AssetCheckExecutionContext, partition: str, results: Iterable[AssetCheckResult], *, blocking: bool
) -> None:
    """Say what was judged of one of several partitions of a run: a step's results would name none of them."""
    for result in results:
        found = AssetCheckEvaluation(
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
                event_specific_data=found,
                job_name=context.run.job_name,
                step_key=context.op_execution_context.get_step_execution_context().step.key,
            ),
            run_id=context.run.run_id,
        )


def _build_result(
    table: Table, name: str, passed: bool, said: str, population: int, violations: int, sample: str = ""
) -> AssetCheckResult:
    return AssetCheckResult(
        passed=passed,
        asset_key=asset_key_from_table(table),
        check_name=str(name),
        description=said,
        metadata={
            "population": population,
            "violations": violations,
            **({"sample": sample} if sample else {}),
        },
    )
