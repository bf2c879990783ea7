"""Check whether the last observation of a live cluster stored everything that the cluster lists.

The check reads what the observation recorded and contacts no cluster.
"""

from __future__ import annotations

from collections.abc import Sequence

from cdc_platform.checks.invariants import OBSERVED_WHOLE, Finding
from cdc_platform.delta import Lake, get_mirrored_cluster
from cdc_platform.metastore import read_omitted_items
from cdc_platform.tables import GENERATION_TIMESTAMPS


def audit_observation(lake: Lake) -> list[Finding]:
    """Return a finding of the omitted items among all listed ones, or nothing if no live cluster was observed."""
    missing = read_omitted_items(lake)
    if get_mirrored_cluster(lake) is None and not missing:
        return []
    listed = lake.read(GENERATION_TIMESTAMPS, ["time"]).num_rows + len(missing)
    return [Finding(OBSERVED_WHOLE, listed, len(missing), missing[0].message if missing else "")] if listed else []


def merge_findings(findings: Sequence[Finding]) -> list[Finding]:
    """Merge the findings of one invariant in several clusters into one."""
    if not findings:
        return []
    sample = next((finding.sample for finding in findings if finding.sample), "")
    counts = (sum(finding.population for finding in findings), sum(finding.violations for finding in findings))
    return [Finding(findings[0].invariant, *counts, sample)]
