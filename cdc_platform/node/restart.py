"""Restart of a node: it finds the generation that it gossiped before, in either format, or reports that it has none.

It decides which node proposes a cluster's first generation. `lifecycle.repair` creates that generation.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from uuid import UUID

from cdc_platform.errors import NotFound, PlatformError
from cdc_platform.generations import GenerationId, TopologyDescription
from cdc_platform.node.interfaces import GenerationReader, NodeDisk

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RestartedNode:
    """What a node knows after a restart.

    `generation_id`: the ID that it gossips, None if it stored none. `description`: the generation's data, None if it
    could not be read (`warning` says why); until it can, the node must refuse the writes that need it.
    `proposes_first`: the node has no ID, and of all nodes it is the one that creates the first generation.
    """

    host_id: UUID
    generation_id: GenerationId | None
    description: TopologyDescription | None
    proposes_first: bool
    warning: str | None


def should_propose_first_generation(host_id: UUID, others: Iterable[UUID]) -> bool:
    """Return True if no known node has a greater host ID, so that only one of many restarting nodes proposes."""
    return all(other.int <= host_id.int for other in others)


def restart_node(host_id: UUID, ring: Collection[UUID], disk: NodeDisk, reader: GenerationReader) -> RestartedNode:
    """Return what a node knows when it restarts; `ring` has the host IDs of the NORMAL nodes.

    Raises:
        NotFound: the node is not in the ring.
    """
    if host_id not in ring:
        raise NotFound(f"no node {host_id} is in the ring; list the nodes with: cdc-platform ring")
    stored_id = disk.load_id()
    if stored_id is None:
        proposes = should_propose_first_generation(host_id, ring)
        proposer = "this node" if proposes else "the node with the largest host ID"
        warning = (
            f"node {host_id} is a member of the ring and has no generation in cdc_local, as after an upgrade from a "
            f"version without CDC; if the cluster has none, {proposer} proposes the first: cdc-platform repair"
        )
        _log.warning(warning)
        return RestartedNode(host_id, None, None, proposes, warning)
    try:
        return RestartedNode(host_id, stored_id, reader(stored_id), False, None)
    except (PlatformError, OSError) as error:
        warning = f"node {host_id} knows generation {stored_id} and cannot read it: {error}"
        _log.warning(warning)
        return RestartedNode(host_id, stored_id, None, False, warning)
