"""The invariants as asset checks: one function builds their specs, another judges an audit.

The audit is one Spark pass over all invariants of an asset; how is `cdc_platform.invariants`' business.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from warnings import catch_warnings, simplefilter

from dagster import AssetCheckKey, AssetCheckResult, AssetCheckSpec, PartitionsDefinition, PreviewWarning

from assets.declared import key
from assets.partitions import GENERATIONS
from cdc_platform.invariants import findings as invariants
from cdc_platform.invariants.findings import Finding
from cdc_platform.invariants.judge import Judgement, judge
from cdc_platform.lake.tables import Table

MEANINGS: Mapping[str, str] = {
    invariants.RING_COVERED_ONCE: "The ranges cover the whole ring, each token once.",
    invariants.REFINES_VNODES: "Every vnode of the ring, before and after the join, ends with a range's end.",
    invariants.VNODE_COLOCATION: "The token of every stream lies in the range that the stream belongs to.",
    invariants.SHARD_COLOCATION: "Stream j lies on shard j of the owner, where that shard owns anything of the range.",
    invariants.STREAM_FORMAT: "Every stream ID has 16 bytes, version 1, and the rank of its range end as its index.",
    invariants.STREAMS_UNIQUE: "No stream is in the generation twice.",
    invariants.STREAMS_UNIQUE_ACROSS_GENERATIONS: "No stream of the generation is in another generation too.",
    invariants.ROW_COUNT: "The generation has as many rows as the ring has tokens, or as `num_ranges` claims.",
    invariants.PUBLISHED_EQUALS_DESCRIPTION: "The rows are those of the step before, stream by stream.",
    invariants.TIMESTAMP_COMPLETE: "A timestamp that readers see has all of its rows.",
    invariants.LIVE_GENERATIONS_REWRITTEN: "Every V1 generation that can hold live rows is in the new table.",
    invariants.REWRITTEN_EQUALS_V1: "The published rows of a V1 generation are those of its V1 description.",
    invariants.SWITCH_DECIDED_ONCE: "One decision a switch, made as the rules say; one undecided switch at a time.",
    invariants.SWITCH_TIME_AFTER_LEASES: "A committed generation starts after the lease end of every participant.",
    invariants.SWITCH_PROMISES_KEPT: "Every participant answered with the lease end that it had promised.",
    invariants.SWITCH_HAS_ITS_GENERATION: "A committed generation is in the ledger under its time, no other one is.",
    invariants.TABLET_STREAM_FORMAT: "Every stream ID of a tablet has 16 bytes, version 1 and index 0.",
    invariants.TABLET_STREAM_AT_END: "Each tablet has one stream, whose token is the tablet's last one.",
    invariants.TABLET_RING_COVERED: "Every stream set covers the whole ring: its last stream has the last token.",
    invariants.TABLET_SETS_ADD_UP: "Every set is the one before it, without what was closed, with what was opened.",
    invariants.TABLET_CLOSED_IN_PREVIOUS: "Whatever a set closes was open in the set before it.",
    invariants.TABLET_TIMESTAMP_COMPLETE: "A timestamp that readers see has its current streams.",
    invariants.EXPIRED_NOT_HELD: "No generation that is marked as expired is needed by a table, a reader or a node.",
    invariants.NONE_HALF_REMOVED: "No generation that readers see lacks its streams; of a removed one nothing is left.",
    invariants.NODE_GENERATION_NOT_REMOVED: "No node's `cdc_local` names a generation that was removed.",
    invariants.LOG_TIME_IN_BOUNDS: "Every row's `cdc$time` is a timeuuid of a time at which a stream set operates.",
    invariants.LOG_TIMESTAMP_IS_TIME: "`cdc$timestamp`, by which readers skip files, is the time in `cdc$time`.",
    invariants.LOG_STREAM_OPERATES: "Every row is in a stream of the generation or tablet set of its `cdc$time`.",
    invariants.LOG_ROW_COLOCATED: "Every row is in the stream that the rule gives its base row's partition key.",
    invariants.LOG_BATCH_COMPLETE: "The rows of a batch are numbered from 0 on: none is missing, none comes twice.",
    invariants.LOG_BATCH_ENDED: "Exactly the last row of a batch says that it is the last.",
    invariants.HOURS_HOLD_THE_LOG: "The hourly sink has the rows that the log has in the hour, and no others.",
    invariants.HOURS_HOLD_ROWS_ONCE: "No row of the hour is in the hourly sink twice.",
}


def invariant_specs(
    table: Table, names: Sequence[str], partitions: PartitionsDefinition = GENERATIONS
) -> list[AssetCheckSpec]:
    """The specs of these invariants as checks of a table, one a partition; a violation stops what comes after."""
    with catch_warnings():
        # Checks that have partitions are a preview in this release of Dagster; without them a check would show the
        # newest result of any generation.
        simplefilter("ignore", PreviewWarning)
        return [
            AssetCheckSpec(name, asset=key(table), description=MEANINGS[name], blocking=True, partitions_def=partitions)
            for name in names
        ]


def invariant_results(
    table: Table, asked: Collection[AssetCheckKey], findings: Sequence[Finding], *, nothing: str = ""
) -> Iterator[AssetCheckResult]:
    """Judge an audit of a table: one result for each check that is asked for. Other findings are left out.

    An audit that found nothing to look at has failed, unless `nothing` says why that is well.
    """
    if nothing and not findings:
        for check in asked:
            yield AssetCheckResult(passed=True, asset_key=key(table), check_name=check.name, description=nothing)
        return
    names = [name for name in MEANINGS if AssetCheckKey(key(table), name) in asked]
    for judged in judge([line for line in findings if line.invariant in names], names):
        yield AssetCheckResult(
            passed=judged.passed,
            asset_key=key(table),
            check_name=judged.invariant,
            description=_verdict(judged),
            metadata={
                "population": judged.population,
                "violations": judged.violations,
                **({"sample": judged.sample} if judged.sample else {}),
            },
        )


def results_of_those_there(
    table: Table, names: Sequence[str], asked: Collection[AssetCheckKey], findings: Sequence[Finding]
) -> Iterator[AssetCheckResult]:
    """Judge an audit that leaves out an invariant where there is nothing that it could be held against: it passes."""
    by_name = {line.invariant: line for line in findings}
    for name in (name for name in names if AssetCheckKey(key(table), name) in asked):
        found = by_name.get(name)
        judged = judge([found], [name])[0] if found else None
        yield AssetCheckResult(
            passed=judged is None or judged.passed,
            asset_key=key(table),
            check_name=name,
            description="there is nothing of it" if judged is None else judged.sample or f"{judged.population} checked",
            metadata={} if judged is None else {"population": judged.population, "violations": judged.violations},
        )


def _verdict(judged: Judgement) -> str:
    if judged.passed:
        return f"{judged.population:,} checked"
    if judged.violations:
        return f"{judged.violations:,} of {judged.population:,} violate it: {judged.sample}"
    return judged.sample or "nothing was checked"
