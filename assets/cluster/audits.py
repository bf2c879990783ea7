"""Audits of live clusters: each judges the home of one cluster, or the homes of all registered clusters."""

from collections.abc import Callable, Sequence

from cdc_platform.checks import Finding, merge_findings
from cdc_platform.delta import Lake
from cdc_platform.home_location import HomeLocation
from cdc_platform.scylla import registry


def audit_cluster_homes(
    home: HomeLocation, name: str | None, audit: Callable[[Lake], Sequence[Finding]]
) -> list[Finding]:
    """Merge the findings of `audit`, which judges one invariant, in the home of a cluster, or of each without a name.

    Raises:
        NotFound: no cluster has this name.
    """
    clusters = registry.list_clusters(home) if name is None else [registry.find_cluster(home, name)]
    return merge_findings([finding for cluster in clusters for finding in audit(Lake(cluster.open_home().lake))])
