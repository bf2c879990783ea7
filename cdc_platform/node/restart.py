"""A node restarts: it finds the generation that it gossiped before, whichever format that is in, or says it has none.

It knows `system.cdc_local` and who proposes a cluster's first generation; making one is `repair`'s, and the rewrite
that every restarted node runs is `rewrite`'s.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from cdc_platform.clock import from_datetime
from cdc_platform.errors import NotFound, PlatformError
from cdc_platform.generations import GenerationId, TopologyDescription
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import CDC_LOCAL, NODES
from cdc_platform.records import generation_data, inbox

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Restarted:
    """What a node knows after a restart.

    `generation_id`: the ID that it gossips, None where it kept none. `description`: the generation's data, None where
    it could not be read (`warning` says why): until it can, the node has to refuse the writes that need it.
    `proposes_first`: it has no ID, and of all nodes it is the one that makes the first generation.
    """

    host_id: uuid.UUID
    generation_id: GenerationId | None
    description: TopologyDescription | None
    proposes_first: bool
    warning: str | None


def own_generation(lake: Lake, host_id: uuid.UUID) -> GenerationId | None:
    """The ID that a node kept in `cdc_local`: V1 where it has no UUID. A row without a time is as good as none."""
    where = [("host_id", "=", host_id), ("key", "=", "cdc_local")]
    rows = lake.read(CDC_LOCAL, ["streams_timestamp", "uuid"], where).to_pylist()
    if not rows or rows[0]["streams_timestamp"] is None:
        return None
    kept = rows[0]["uuid"]
    return GenerationId(from_datetime(rows[0]["streams_timestamp"]) // 1000, None if kept is None else uuid.UUID(kept))


def should_propose_first_generation(host_id: uuid.UUID, known: Iterable[uuid.UUID]) -> bool:
    """Whether no known node has a greater host ID: so that of many that restart at once, one makes a generation."""
    return all(other.int <= host_id.int for other in known)


def restart(lake: Lake, host_id: uuid.UUID) -> Restarted:
    """What the node finds when it starts again.

    Raises:
        NotFound: no such node is in the ring.
    """
    ring = lake.read(NODES, ["host_id"], [("status", "=", inbox.NORMAL)])["host_id"].to_pylist()
    if str(host_id) not in ring:
        raise NotFound(f"no node {host_id} is in the ring; list the nodes with: cdc-platform ring")
    id_ = own_generation(lake, host_id)
    if id_ is None:
        proposes = should_propose_first_generation(host_id, map(uuid.UUID, ring))
        mend = "this node" if proposes else "the node with the largest host ID"
        warning = (
            f"node {host_id} is a member of the ring and kept no generation in cdc_local, as after an upgrade from a "
            f"version without CDC; if the cluster has none, {mend} proposes the first: cdc-platform repair"
        )
        log.warning(warning)
        return Restarted(host_id, None, None, proposes, warning)
    try:
        return Restarted(host_id, id_, generation_data.description_of(lake, id_), False, None)
    except PlatformError as error:
        warning = f"node {host_id} knows generation {id_} and cannot read it: {error}"
        log.warning(warning)
        return Restarted(host_id, id_, None, False, warning)
