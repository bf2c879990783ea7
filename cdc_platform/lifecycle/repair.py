"""checkAndRepairCdcStreams: check whether the newest generation fits the ring, and queue a repair if it does not.

`generations.damage` holds the rules. The repair is queued in the inbox and proceeds like a join.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cdc_platform.clock import Clock
from cdc_platform.delta import JOINS_LOCK, Lake, exclusive
from cdc_platform.errors import InputError, NotFound, StateError, Unavailable
from cdc_platform.generations import (
    DamageKind,
    GenerationDamage,
    GenerationId,
    TopologyDescription,
    find_description_damage,
    find_id_damage,
    find_nodes_without_v2,
    find_range_damage,
    get_ring_layout,
)
from cdc_platform.metastore import (
    STATUS_LEFT,
    STATUS_NORMAL,
    cluster_changes,
    generations,
    inbox,
    read_current_ring,
    read_nodes,
)
from cdc_platform.ring import Node, Ring
from cdc_platform.tables import GENERATION_DESCRIPTIONS_V2
from cdc_platform.timeline import Generation, GenerationState, Timeline

_REPAIR_NAMESPACE = uuid.UUID("3c0f2a51-97c4-5d0b-8f16-c2f0b2a4de19")
_SETTLED_STATUSES = (STATUS_NORMAL, STATUS_LEFT)

DescriptionReader = Callable[[Lake, GenerationId], TopologyDescription]


@dataclass(frozen=True)
class RepairCheck:
    """The result of a check. `latest` is the known generation with the greatest timestamp, None without any.

    `reasons` require a new generation. `warnings` would also be fixed by a repair but do not require one; a strict
    check has only reasons. `blocked_by` says, one line each, why a repair is impossible now. `undetermined` names the
    precondition of a check: a table to import, or a topology that has settled.
    """

    latest: GenerationId | None
    reasons: tuple[GenerationDamage, ...]
    warnings: tuple[GenerationDamage, ...]
    blocked_by: tuple[str, ...]
    undetermined: str | None = None

    @property
    def needed(self) -> bool:
        """Return True if a new generation is due."""
        return bool(self.reasons)


def check_newest_generation(
    lake: Lake,
    *,
    strict: bool = False,
    streams: bool = True,
    reader: DescriptionReader = generations.read_generation_description,
) -> RepairCheck:
    """Check whether the latest generation needs repair. Reads only; `streams=False` does not read the streams.

    Raises:
        StateError: there is no ring whose streams could be repaired.
        Unavailable: the generation cannot be read now, which is no reason to make a new one.
    """
    ring, changing = read_current_ring(lake), cluster_changes.read_topology_transition(lake)
    if not ring.has_tokens and changing is None:
        raise StateError(
            "no node is in the ring yet that owns tokens, so there are no streams to repair; let a node join first"
        )
    newest = Timeline.read(lake).newest
    latest = None if newest is None else newest.gossiped
    unknown = None if newest is None else _missing_table(newest)
    if changing is not None:
        unknown = f"cannot tell while {changing}: the nodes known here are those before the change"
    if unknown is not None:
        return RepairCheck(latest, (), (), tuple(_find_blockers(lake)), unknown)
    findings = _find_damage(lake, latest, ring, streams, reader)
    reasons = tuple(finding for finding in findings if strict or finding.is_reason)
    warnings = tuple(finding for finding in findings if finding not in reasons)
    return RepairCheck(latest, reasons, warnings, tuple(_find_blockers(lake)))


@exclusive(JOINS_LOCK)
def queue_needed_repair(
    lake: Lake, clock: Clock, check: RepairCheck, host_id: uuid.UUID | None = None
) -> inbox.BootstrapEvent | None:
    """Queue the repair that `check` requires; return None if it requires none and none is unfinished.

    Concurrent calls yield one repair, because the event's ID follows from the latest generation and the ring. An
    unfinished repair is returned to every caller, even if its generation is already the latest and only its publishing
    remains. `host_id` is the node that makes the generation, by default the first.

    Raises:
        StateError: a node is neither NORMAL nor LEFT, or joins; even if no repair is needed.
        NotFound: `host_id` is no node of the ring.
    """
    node = _repairing_node(lake, host_id)
    pending = next((event for event in inbox.read_pending_events(lake) if event.kind == inbox.REPAIR_EVENT), None)
    if pending is not None:
        return inbox.find_event(lake, event_id=pending.event_id)
    blocked_by = check.blocked_by or _find_blockers(lake)
    if blocked_by:
        raise StateError(f"all nodes must be in NORMAL or LEFT state while the streams are repaired: {blocked_by[0]}")
    if not check.needed:
        return None
    return inbox.queue_repair(lake, clock, _request_id(check.latest, read_current_ring(lake)), node)


def _missing_table(newest: Generation) -> str | None:
    """Return the table needed to judge a generation that only client-facing tables name; None if none is missing.

    An imported table is not missing even if it is empty; rows that it lacks are then damage.
    """
    if newest.state is GenerationState.NOT_EXPORTED:
        return f"cannot tell without {GENERATION_DESCRIPTIONS_V2.name}: export it and import it here"
    return None


def _find_damage(
    lake: Lake, latest: GenerationId | None, ring: Ring, streams: bool, reader: DescriptionReader
) -> list[GenerationDamage]:
    v2_everywhere = not find_nodes_without_v2(ring.nodes)
    outdated = find_id_damage(latest, v2_everywhere=v2_everywhere)
    if latest is None:
        return outdated
    try:
        if not streams:
            return outdated + find_range_damage(generations.read_generation_range_ends(lake, latest), ring.tokens)
        return outdated + find_description_damage(
            reader(lake, latest), ring, get_ring_layout(ring, v1=not v2_everywhere)
        )
    except NotFound as error:
        return [GenerationDamage(DamageKind.MISSING_DATA, str(error))]
    except Unavailable as error:
        # The data may become readable again, and a new generation would have been unnecessary.
        raise Unavailable(
            f"generation {latest} cannot be read now: {error}; fix that, or remove what is unreachable, and check "
            f"again; no new generation is created for it"
        ) from None
    except (StateError, InputError) as error:
        return [*outdated, GenerationDamage(DamageKind.UNREADABLE, str(error))]


def _find_blockers(lake: Lake) -> list[str]:
    """Return the nodes that are not settled: by their status in the ring's table, or because they join."""
    blocking = [
        f"host {node.host_id} is in state {node.status}"
        for node in read_nodes(lake)
        if node.status not in _SETTLED_STATUSES
    ]
    for event in inbox.read_pending_events(lake):
        if event.kind == inbox.REPAIR_EVENT:
            break  # joins after the repair do not block it
        blocking.append(
            f"host {event.host_id} is in state JOINING; finish its join with: cdc-platform bootstrap --finish "
            f"{event.event_id}, or withdraw it with: cdc-platform bootstrap --withdraw {event.event_id}"
        )
    return blocking


def _repairing_node(lake: Lake, host_id: uuid.UUID | None) -> Node:
    nodes = {node.host_id: node for node in read_current_ring(lake).nodes if node.tokens or node.host_id == host_id}
    if host_id is None:
        return nodes[min(nodes, key=lambda host: host.int)]
    if host_id not in nodes:
        raise NotFound(f"host {host_id} is no node of the ring; list them with: cdc-platform ring")
    return nodes[host_id]


def _request_id(latest: GenerationId | None, ring: Ring) -> str:
    """Return the request ID, which is the same for every node that finds the same damage in the same ring."""
    content = {
        "latest": "" if latest is None else latest.gossip_text,
        "ring": hashlib.sha256(
            np.stack([ring.tokens, ring.shard_counts, ring.ignore_msbs]).astype("<i8").tobytes()
        ).hexdigest(),
        "hosts": sorted(str(node.host_id) for node in ring.nodes),
    }
    return str(uuid.uuid5(_REPAIR_NAMESPACE, json.dumps(content, sort_keys=True)))
