"""Plan an import: one function per kind of metadata turns what was read into writes of the lake's tables."""

from __future__ import annotations

from collections.abc import Sequence

from cdc_platform.clock import Clock
from cdc_platform.delta import Lake
from cdc_platform.importing.formats.nodetool import apply_status, nodes_from_ring
from cdc_platform.importing.plan import ImportPlan
from cdc_platform.importing.plan_cdc_tables import plan_cdc_tables
from cdc_platform.importing.plan_generations import plan_generations
from cdc_platform.importing.plan_tablets import plan_stream_sets
from cdc_platform.importing.plan_v1 import plan_v1
from cdc_platform.importing.sources import ImportSources
from cdc_platform.metastore import read_current_ring, read_nodes
from cdc_platform.ring import Node, Ring


def plan_import(lake: Lake, clock: Clock, sources: ImportSources, nodes: Sequence[Node] | None) -> ImportPlan:
    """Check the exports against the lake and each other, and plan all writes. `nodes` are those of a new ring.

    Raises:
        InputError: an export is half-written, or contradicts the lake about a generation or a table.
        StateError: the log of a tablet-based table was dropped after its stream sets began.
    """
    ring = read_current_ring(lake) if nodes is None else Ring.of(nodes)
    plan = ImportPlan(sources.exports, sources.issues)
    plan_generations(plan, lake, clock, ring, sources.ignore_msb)
    plan_v1(plan, lake, ring, sources.host_id)
    plan_stream_sets(plan, lake)
    plan_cdc_tables(plan, lake, clock)
    return plan


def plan_nodes(lake: Lake, sources: ImportSources) -> tuple[list[Node] | None, list[str]]:
    """Return the nodes of the new ring (None if the ring stays as it is) and the warnings."""
    nodes, warnings = sources.nodes, list[str]()
    if sources.printed is not None:
        given = sources.shards, sources.ignore_msb
        nodes, warnings = nodes_from_ring(sources.printed, read_nodes(lake), *given, status=sources.status)
    if sources.status is not None:
        before = read_nodes(lake) if nodes is None else nodes
        nodes, more = apply_status(before, sources.status, sources.shards, sources.ignore_msb)
        warnings += more
    return nodes, warnings
