"""checkAndRepairCdcStreams: is the latest generation still fit for the ring, and if not, a new one without a join.

It reads what `generations.damage` judges, and puts the repair into the inbox, from where it goes the way of a join.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cdc_platform.clock import Clock
from cdc_platform.errors import InputError, NotFound, StateError, Unavailable
from cdc_platform.generations import GenerationId, TopologyDescription, layout_of
from cdc_platform.generations.cluster_feature import nodes_without_v2
from cdc_platform.generations.damage import Condition, Damage, description_damage, known_damage, range_damage
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import GENERATION_DESCRIPTIONS_V2
from cdc_platform.lake.turns import JOINS, in_turn
from cdc_platform.records import cluster_changes, generation_data, inbox
from cdc_platform.records.ring import LEFT, NORMAL, current_ring, members
from cdc_platform.ring import Node, Ring
from cdc_platform.timeline import Generation, State, Timeline

_REPAIRS = uuid.UUID("3c0f2a51-97c4-5d0b-8f16-c2f0b2a4de19")
_AT_REST = (NORMAL, LEFT)

Reader = Callable[[Lake, GenerationId], TopologyDescription]


@dataclass(frozen=True)
class Checkup:
    """What was found. `latest` is the generation with the greatest timestamp that anybody knows, None without any.

    `reasons` make a new generation due; `warnings` a repair would mend too, but they ask for none: a strict check has
    only reasons. `blocked_by` says, a line each, why it cannot be made now; `cannot_tell` what has to be before
    anything could be said: a table that is brought here, or a topology that has settled.
    """

    latest: GenerationId | None
    reasons: tuple[Damage, ...]
    warnings: tuple[Damage, ...]
    blocked_by: tuple[str, ...]
    cannot_tell: str | None = None

    @property
    def needed(self) -> bool:
        """Whether a new generation is due."""
        return bool(self.reasons)


def check(
    lake: Lake, *, strict: bool = False, streams: bool = True, reader: Reader = generation_data.description_of
) -> Checkup:
    """Whether the latest generation needs repair. Reads only; `streams=False` leaves the streams unread too.

    Raises:
        StateError: there is no ring to repair the streams of.
        Unavailable: the generation cannot be read now; that is no reason to make a new one.
    """
    ring, changing = current_ring(lake), cluster_changes.changing(lake)
    if not ring.has_tokens and changing is None:
        raise StateError(
            "no node is in the ring yet that owns tokens, so there are no streams to repair; let a node join first"
        )
    newest = Timeline.read(lake).newest
    latest = None if newest is None else newest.gossiped
    unknown = None if newest is None else _cannot_tell(newest)
    if changing is not None:
        unknown = f"cannot tell while {changing}: the nodes here are those of before"
    if unknown is not None:
        return Checkup(latest, (), (), tuple(_blocked_by(lake)), unknown)
    findings = _findings(lake, latest, ring, streams, reader)
    reasons = tuple(each for each in findings if strict or each.is_reason)
    warnings = tuple(each for each in findings if each not in reasons)
    return Checkup(latest, reasons, warnings, tuple(_blocked_by(lake)))


@in_turn(JOINS)
def ask(lake: Lake, clock: Clock, checkup: Checkup, host_id: uuid.UUID | None = None) -> inbox.BootstrapEvent | None:
    """Queue the repair that `checkup` found to be needed; None where it did not and none is unfinished.

    Calls at the same time are one repair: the event's ID follows from the latest generation and the ring, and a
    repair that is unfinished already is the answer to everybody, also when its generation is the latest by now and
    only its publishing is left. `host_id`: the node that makes it, by default the first.

    Raises:
        StateError: a node is neither NORMAL nor LEFT, or joins; whether a repair is needed or not.
        NotFound: `host_id` is no node of the ring.
    """
    node = _asked_at(lake, host_id)
    pending = next((event for event in inbox.waiting(lake) if event.kind == inbox.REPAIR), None)
    if pending is not None:
        return inbox.event(lake, event_id=pending.event_id)
    blocked_by = checkup.blocked_by or _blocked_by(lake)
    if blocked_by:
        raise StateError(f"all nodes must be in NORMAL or LEFT state while the streams are repaired: {blocked_by[0]}")
    if not checkup.needed:
        return None
    return inbox.queue_repair(lake, clock, _request_id(checkup.latest, current_ring(lake)), node)


def _cannot_tell(newest: Generation) -> str | None:
    """Which table would have to be here to judge a generation that only clients' tables tell of; None: none would.

    A table that was brought here is there, were it without rows: then what it lacks is missing.
    """
    if newest.state is State.NOT_EXPORTED:
        return f"cannot tell without {GENERATION_DESCRIPTIONS_V2.name}: export it and import it here"
    return None


def _findings(lake: Lake, latest: GenerationId | None, ring: Ring, streams: bool, reader: Reader) -> list[Damage]:
    v2_everywhere = not nodes_without_v2(ring.nodes)
    outdated = known_damage(latest, v2_everywhere=v2_everywhere)
    if latest is None:
        return outdated
    try:
        if not streams:
            return outdated + range_damage(generation_data.complete_range_ends(lake, latest), ring.tokens)
        return outdated + description_damage(reader(lake, latest), ring, layout_of(ring, v1=not v2_everywhere))
    except NotFound as error:
        return [Damage(Condition.MISSING_DATA, str(error))]
    except Unavailable as error:
        # It may come back, and a new generation would be made for nothing.
        raise Unavailable(
            f"generation {latest} cannot be read now: {error}; mend that, or remove what is unreachable, and "
            "check again: no new generation is made for it"
        ) from None
    except (StateError, InputError) as error:
        return [*outdated, Damage(Condition.UNREADABLE, str(error))]


def _blocked_by(lake: Lake) -> list[str]:
    """The nodes that are not at rest: of the ring's table by their status, of the inbox because they join."""
    blocking = [
        f"host {node.host_id} is in state {node.status}" for node in members(lake) if node.status not in _AT_REST
    ]
    for waits in inbox.waiting(lake):
        if waits.kind == inbox.REPAIR:
            break  # whoever joins after it does not hold it up
        blocking.append(
            f"host {waits.host_id} is in state JOINING; finish its join with: cdc-platform bootstrap --finish "
            f"{waits.event_id}, or withdraw it with: cdc-platform bootstrap --withdraw {waits.event_id}"
        )
    return blocking


def _asked_at(lake: Lake, host_id: uuid.UUID | None) -> Node:
    nodes = {node.host_id: node for node in current_ring(lake).nodes if node.tokens or node.host_id == host_id}
    if host_id is None:
        return nodes[min(nodes, key=lambda host: host.int)]
    if host_id not in nodes:
        raise NotFound(f"host {host_id} is no node of the ring; list them with: cdc-platform ring")
    return nodes[host_id]


def _request_id(latest: GenerationId | None, ring: Ring) -> str:
    """What every node that finds the same damage in the same ring calls the repair."""
    content = {
        "latest": "" if latest is None else latest.gossip_text,
        "ring": hashlib.sha256(
            np.stack([ring.tokens, ring.shard_counts, ring.ignore_msbs]).astype("<i8").tobytes()
        ).hexdigest(),
        "hosts": sorted(str(node.host_id) for node in ring.nodes),
    }
    return str(uuid.uuid5(_REPAIRS, json.dumps(content, sort_keys=True)))
