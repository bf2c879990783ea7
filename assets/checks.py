"""Asset checks of invariants: build their specs and turn findings into check results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from warnings import catch_warnings, simplefilter

from dagster import (
    AssetCheckEvaluation,
    AssetCheckExecutionContext,
    AssetCheckKey,
    AssetCheckResult,
    AssetCheckSeverity,
    AssetCheckSpec,
    AssetExecutionContext,
    AssetsDefinition,
    AssetSelection,
    DagsterEvent,
    DagsterEventType,
    Failure,
    MetadataValue,
    PartitionsDefinition,
    PreviewWarning,
)
from dagster import _check as check

from cdc_platform.checks import (
    STORAGE_FAMILY,
    CheckResult,
    Finding,
    Invariant,
    InvariantFamily,
    invariants,
    judge_findings,
)
from cdc_platform.clock import Clock
from cdc_platform.delta import Lake
from cdc_platform.metastore import WHOLE_HOME, CheckRun, store_check_results
from cdc_platform.plots import ui_files
from cdc_platform.tables import Table
from cdc_platform_assets.failures import platform_errors_as_failures
from cdc_platform_assets.partitions import get_run_partitions
from cdc_platform_assets.specs import asset_key_from_table

FamilyFindings = Iterable[tuple[InvariantFamily, Sequence[Finding]]]
"""The findings of audits, by family."""

LOW_PRIORITY_TAGS = {"dagster/priority": "-1"}
"""For checks of the whole home. No step waits on them, so they run when no step is ready."""

MAX_NAMED_FAILURES = 3
"""The most failed checks that the description of a failed step names."""

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
                    "explained_in": link_to_invariant(invariant),
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

    Each result is of one partition. Non-blocking violations appear on the run, see `tag_violations_on_run`.

    Raises:
        Failure: a blocking check failed; all results are reported first.
    """
    failures: list[str] = []
    for partition in list_requested_partitions(context):
        check_run = start_judging(context, lake, clock, partition)
        with platform_errors_as_failures():
            audited = list(audit(partition))
        for family, findings in audited:
            results = build_check_results(table, context, check_run, findings, family)
            yield from report_results(context, partition, results, family, failures)
    fail_run(failures)


def list_requested_partitions(context: AssetCheckExecutionContext) -> list[str | None]:
    """Return the partitions that a run of checks judges; [None] if no requested check is partitioned.

    The UI launches checks without a partition. Partitioned checks then judge every partition that there is.
    """
    graph = context.job_def.asset_layer.asset_graph
    partitions = (graph.get(key).partitions_def for key in context.selected_asset_check_keys)
    definition = next((found for found in partitions if found is not None), None)
    if definition is None:
        return [None]
    if context.has_partition_key or context.has_partition_key_range:
        return [*get_run_partitions(context)]
    return [*definition.get_partition_keys(dynamic_partitions_store=context.instance)]


def report_results(
    context: AssetCheckExecutionContext,
    partition: str | None,
    results: Iterable[AssetCheckResult],
    family: InvariantFamily,
    failures: list[str],
) -> Iterator[AssetCheckResult]:
    """Yield the results of a partition, or report them on it if the run is not of this partition alone.

    Violations of a family that is not blocking are tagged on the run; those of a blocking one are added to `failures`,
    for `fail_run`.
    """
    results = [*(results if family.blocking else tag_violations_on_run(context, results))]
    if family.blocking:
        of = "" if partition is None else f" of {partition}"
        failures += [f"{result.check_name}{of}: {result.description}" for result in results if is_violation(result)]
    if partition is None or context.has_partition_key:
        yield from results
    else:
        report_partition_results(context, partition, results, blocking=family.blocking)


def is_violation(result: AssetCheckResult) -> bool:
    """Return True if a check failed; a result that could not be determined is a warning."""
    return not result.passed and result.severity is AssetCheckSeverity.ERROR


def fail_run(failures: Sequence[str]) -> None:
    """Fail the step, and with it the run, if blocking checks failed.

    Raises:
        Failure: `failures` is not empty; the first ones are named.
    """
    if failures:
        more = f"; and {len(failures) - MAX_NAMED_FAILURES} more" if len(failures) > MAX_NAMED_FAILURES else ""
        named = "; ".join(failures[:MAX_NAMED_FAILURES])
        count = "a blocking check" if len(failures) == 1 else f"{len(failures)} blocking checks"
        raise Failure(f"{count} failed: {named}{more}", allow_retries=False)


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

    An invariant without a finding fails, unless its family says why that is fine, or why there is no verdict then. The
    results are stored in the lake.
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
        yield build_result_without_subject(table, name, check_run.scope)
    judgements = judge_findings(requested, [name for name in names if name in due])
    store_check_results(check_run, [line for line in judgements if not line.unknown])
    yield from build_judgement_results(table, judgements)


def build_judgement_results(table: Table, judgements: Iterable[CheckResult]) -> Iterator[AssetCheckResult]:
    """Convert the judgements of a table to Dagster's check results."""
    for line in judgements:
        yield AssetCheckResult(
            passed=line.passed,
            asset_key=asset_key_from_table(table),
            check_name=str(line.invariant),
            description=line.message,
            severity=AssetCheckSeverity.WARN if line.unknown else AssetCheckSeverity.ERROR,
            metadata=build_check_metadata(line),
        )


def build_result_without_subject(table: Table, invariant: Invariant, subject: str = WHOLE_HOME) -> AssetCheckResult:
    """Build the result of a check for which there is nothing to judge.

    It passes if no violation can exist. It is a warning without a verdict if nobody has looked at the subject.
    """
    family = invariant.family
    if family.unknown_without and (subject != WHOLE_HOME or not family.fine_without):
        (line,) = (line for line in family.not_judged(family.unknown_without) if line.invariant == invariant)
        (result,) = build_judgement_results(table, judge_findings([line], [invariant]))
        return result
    (result,) = build_judgement_results(table, [CheckResult(invariant, 0, 0, passed=True)])
    return result._replace(description=family.fine_without)


def build_check_metadata(result: CheckResult) -> dict[str, Any]:
    """Return the metadata of a result: its counts, the first violation, and the page that explains the invariant."""
    invariant = invariants.INVARIANTS_BY_NAME.get(result.invariant)
    return {
        "population": result.population,
        "violations": result.violations,
        **({"unjudged": result.unjudged} if result.unjudged else {}),
        **({"sample": result.sample} if result.sample else {}),
        **({} if invariant is None else {"explained_in": link_to_invariant(invariant)}),
    }


def select_with_own_checks(*assets: AssetsDefinition) -> AssetSelection:
    """Select assets for a job, with all of their checks except those of the stored tables.

    Steps verify what they read against its commits, and the hourly audit verifies the tables. In every job these checks
    would only repeat that.
    """
    keys = (key for asset in assets for key in asset.keys)
    checks = [AssetCheckKey(key, str(invariant)) for key in keys for invariant in STORAGE_FAMILY.invariants]
    return AssetSelection.assets(*assets) - AssetSelection.checks(*checks)


def link_to_invariant(invariant: Invariant) -> MetadataValue:
    """Return a link to the page of an invariant, which the UI of `cdc-platform up` serves."""
    return MetadataValue.url(ui_files.invariant_address(str(invariant)))


def tag_violations_on_run(
    context: AssetCheckExecutionContext, results: Iterable[AssetCheckResult]
) -> Iterator[AssetCheckResult]:
    """Yield the same results, and tag the run with those violations so that the list of runs shows them.

    The run's log names them, too. Tags of other checks and partitions of the run stay.
    """
    violated = []
    for result in results:
        if is_violation(result):
            violated.append(result.check_name or "a check")
        yield result
    if violated:
        run = context.instance.get_run_by_id(context.run.run_id)
        existing = "" if run is None else run.tags.get(VIOLATED_TAG, "")
        names = dict.fromkeys([*filter(None, existing.split(", ")), *violated])
        context.instance.add_run_tags(context.run.run_id, {VIOLATED_TAG: ", ".join(names)})
        context.log.warning(f"The run goes on, and these checks failed: {', '.join(violated)}.")


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
