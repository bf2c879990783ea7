"""Check whether the last observation of a live cluster stored everything that the cluster lists.

It reads what the observation recorded and contacts no cluster.
"""

from __future__ import annotations

from collections.abc import Sequence

from cdc_platform.checks.invariants import OBSERVED_WHOLE, Finding
from cdc_platform.delta import Lake, get_mirrored_cluster
from cdc_platform.metastore import read_omitted_items
from cdc_platform.tables import GENERATION_TIMESTAMPS


def audit_observation(lake: Lake) -> list[Finding]:
    """What was left out, of all that is listed; nothing where no live cluster was looked at."""
    missing = read_omitted_items(lake)
    if get_mirrored_cluster(lake) is None and not missing:
        return []
    listed = lake.read(GENERATION_TIMESTAMPS, ["time"]).num_rows + len(missing)
    return [Finding(OBSERVED_WHOLE, listed, len(missing), missing[0].said if missing else "")] if listed else []


def merge_findings(found: Sequence[Finding]) -> list[Finding]:
    """Return what was found of several clusters by one invariant, as one finding."""
    if not found:
        return []
    sample = next((each.sample for each in found if each.sample), "")
    counts = (sum(each.population for each in found), sum(each.violations for each in found))
    return [Finding(found[0].invariant, *counts, sample)]
