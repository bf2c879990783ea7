"""Whether the last look at a live cluster took in all that it lists, as that look has noted; no cluster is asked."""

from __future__ import annotations

from collections.abc import Sequence

from cdc_platform.invariants.findings import OBSERVED_WHOLE, Finding
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.mirrors import cluster_of
from cdc_platform.lake.tables import GENERATION_TIMESTAMPS
from cdc_platform.records.left_out import left_out


def audit_observed(lake: Lake) -> list[Finding]:
    """What was left out, of all that is listed; nothing where no live cluster was looked at."""
    missing = left_out(lake)
    if cluster_of(lake) is None and not missing:
        return []
    listed = lake.read(GENERATION_TIMESTAMPS, ["time"]).num_rows + len(missing)
    return [Finding(OBSERVED_WHOLE, listed, len(missing), missing[0].said if missing else "")] if listed else []


def together(found: Sequence[Finding]) -> list[Finding]:
    """Return what was found of several clusters by one invariant, as one finding."""
    if not found:
        return []
    sample = next((each.sample for each in found if each.sample), "")
    counts = (sum(each.population for each in found), sum(each.violations for each in found))
    return [Finding(found[0].invariant, *counts, sample)]
