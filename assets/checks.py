"""The invariants as asset checks: one function builds their specs, another judges an audit.

The audit is one Spark pass over all invariants of an asset; how is `cdc_platform.invariants`' business.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from warnings import catch_warnings, simplefilter

from dagster import AssetCheckKey, AssetCheckResult, AssetCheckSpec, PreviewWarning

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
}


def invariant_specs(table: Table, names: Sequence[str]) -> list[AssetCheckSpec]:
    """The specs of these invariants as checks of a table, one a generation; a violation stops what comes after."""
    with catch_warnings():
        # Checks that have partitions are a preview in this release of Dagster; without them a check would show the
        # newest result of any generation.
        simplefilter("ignore", PreviewWarning)
        return [
            AssetCheckSpec(
                name, asset=key(table), description=MEANINGS[name], blocking=True, partitions_def=GENERATIONS
            )
            for name in names
        ]


def invariant_results(
    table: Table, asked: Collection[AssetCheckKey], findings: Sequence[Finding]
) -> Iterator[AssetCheckResult]:
    """Judge an audit of a table: one result for each check that is asked for. Other findings are left out."""
    names = [name for name in invariants.INVARIANTS if AssetCheckKey(key(table), name) in asked]
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


def _verdict(judged: Judgement) -> str:
    if judged.passed:
        return f"{judged.population:,} checked"
    if judged.violations:
        return f"{judged.violations:,} of {judged.population:,} violate it: {judged.sample}"
    return judged.sample or "nothing was checked"
