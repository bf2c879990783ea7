"""The invariants as asset checks: one function builds their specs, another judges an audit. All checks have this form.

What is asked, and what it means that there is nothing to judge, is declared in `cdc_platform.invariants.findings`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from warnings import catch_warnings, simplefilter

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckKey,
    AssetCheckResult,
    AssetCheckSpec,
    PartitionsDefinition,
    PreviewWarning,
)

from assets.declared import key
from cdc_platform.clock import Clock
from cdc_platform.invariants.findings import Family, Finding, Invariant
from cdc_platform.invariants.judge import Judgement, judge
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import Table
from cdc_platform.records.judgements import EVERYTHING, Judging, keep


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
                asset=key(table),
                description=each.meaning,
                blocking=each.family.blocking,
                partitions_def=partitions,
                metadata={"asked_of": each.family.of, "judged": each.family.judged, "explained_in": each.family.page},
            )
            for each in invariants
        ]


def judging(context: AssetCheckExecutionContext, lake: Lake, clock: Clock) -> Judging:
    """Begin the look of a check, before it reads anything; see `check_results`."""
    asked_of = context.partition_key if context.has_partition_key else EVERYTHING
    return Judging.begin(lake, clock, f"Dagster's run {context.run.run_id}", asked_of)


def check_results(
    table: Table, context: AssetCheckExecutionContext, look: Judging, findings: Sequence[Finding], family: Family
) -> Iterator[AssetCheckResult]:
    """Judge an audit of a table by a family: one result for each check that is asked for. Other findings are left out.

    An invariant of which nothing was found has failed, unless its family says why that is well. What is judged is kept
    in the lake.
    """
    asked = context.selected_asset_check_keys
    names = [each for each in family.invariants if AssetCheckKey(key(table), each) in asked]
    found = [line for line in findings if line.invariant in names]
    due = family.due(findings)
    for name in (name for name in names if name not in due):
        yield _result(table, name, True, family.nothing, 0, 0)
    judgements = judge(found, [name for name in names if name in due])
    keep(look, judgements)
    yield from judgement_results(table, judgements)


def judgement_results(table: Table, judgements: Iterable[Judgement]) -> Iterator[AssetCheckResult]:
    """What was judged of a table, as results."""
    for line in judgements:
        yield _result(table, line.invariant, line.passed, line.said, line.population, line.violations, line.sample)


def _result(
    table: Table, name: str, passed: bool, said: str, population: int, violations: int, sample: str = ""
) -> AssetCheckResult:
    return AssetCheckResult(
        passed=passed,
        asset_key=key(table),
        check_name=str(name),
        description=said,
        metadata={
            "population": population,
            "violations": violations,
            **({"sample": sample} if sample else {}),
        },
    )
