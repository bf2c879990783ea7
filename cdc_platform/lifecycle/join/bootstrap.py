"""A node joins: its generation is described, inserted as V2 descriptions, and only then given its timestamp."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from cdc_platform import failpoints
from cdc_platform.clock import Clock, Milliseconds, ms_to_datetime, to_datetime
from cdc_platform.errors import NotFound, StateError
from cdc_platform.generations import (
    GenerationId,
    RingLayout,
    choose_generation_timestamp,
    layout_of,
)
from cdc_platform.generations.cluster_feature import CDC_GENERATIONS_V2, nodes_without_v2, understands_v2
from cdc_platform.lake import frames
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import (
    GENERATION_DESCRIPTIONS_V2,
    GENERATIONS,
    TOPOLOGY_DESCRIPTIONS,
)
from cdc_platform.lake.turns import JOINS, in_turn
from cdc_platform.lake.volume import Workers
from cdc_platform.lifecycle.join.description_rows import as_v2, description_rows
from cdc_platform.lifecycle.switch import register
from cdc_platform.records import cdc_local, descriptions, generation_data, inbox, ledger, switches
from cdc_platform.records.join_request import JoinRequest
from cdc_platform.records.ring import NORMAL, current_ring, features, put_nodes
from cdc_platform.ring import Node, Ring
from cdc_platform.settings import Settings
from cdc_platform.timeline import Timeline


@dataclass(frozen=True)
class Described:
    """What `describe` wrote: the ring without and with the joining node, and the table's version.

    `warning`: what to do after the upgrade, where the cluster does not understand V2 yet.
    """

    ring_before: Ring
    ring_after: Ring
    num_ranges: int
    num_streams: int
    version: int
    warning: str | None = None


def rings(lake: Lake, generation_id: str) -> tuple[Ring, Ring]:
    """The ring before and after the join that introduces this generation; a repair makes it for the ring as it is.

    Until the generation has its timestamp this is the ring as it stands; from then on it is the one that the
    description was made from, so that materialising it again gives the same bytes however far the ring has moved on.

    Raises:
        NotFound: no bootstrap event introduces this generation.
        InputError: the node cannot join the ring as it stands, say because a token has an owner by now.
    """
    event = inbox.event(lake, generation_id=generation_id)
    joining = replace(event.node, status=NORMAL)
    introduced = ledger.introduced_at_ms(lake, generation_id) is not None
    if introduced and is_v1(lake, generation_id):
        # The limit on streams may have changed what the event says of the node: the description alone tells.
        after = descriptions.described_ring(lake, generation_id)
        if event.is_repair:
            return after, after
        return Ring.of(node for node in after.nodes if node.host_id != joining.host_id), after
    if event.is_repair:
        ring = descriptions.described_ring(lake, generation_id) if introduced else current_ring(lake)
        return ring, ring
    if not introduced:
        ring = current_ring(lake)
        before = Ring.of(node for node in ring.nodes if node.host_id != joining.host_id)
        return before, before.join(joining)
    after = descriptions.described_ring(lake, generation_id, joining)
    return Ring.of(node for node in after.nodes if node.host_id != joining.host_id), after


def is_v1(lake: Lake, generation_id: str) -> bool:
    """Whether the generation is one of the first format; until it has its timestamp, whether it would become one.

    Raises:
        NotFound: no bootstrap event introduces this generation.
    """
    id_ = ledger.introduced_id(lake, generation_id)
    if id_ is not None:
        return id_.format == "v1"
    understood = [*features(lake), inbox.event(lake, generation_id=generation_id).node.features]
    return not all(map(understands_v2, understood))


def mixed_cluster_warning(ring: Ring) -> str | None:
    """What to know and to do about a generation that is introduced while not every node understands V2; else None."""
    lacking = nodes_without_v2(ring.nodes)
    if not lacking:
        return None
    fewer = layout_of(ring, v1=False).stream_total - layout_of(ring, v1=True).stream_total
    loss = f", with {fewer} streams fewer than there are shards, which loses shard colocation" if fewer else ""
    return (
        f"{len(lacking)} of {len(ring.nodes)} nodes lack the feature {CDC_GENERATIONS_V2}, the first "
        f"{lacking[0].host_id}: the generation is introduced in the first format{loss}; finish the upgrade of the "
        "cluster, then bootstrap a node or run: cdc-platform repair"
    )


@dataclass(frozen=True)
class JoinedWithoutTokens:
    """A zero-token node of the ring, and the newest generation, which it learned of; None where there is none."""

    node: Node
    generation: GenerationId | None


@in_turn(JOINS)
def join_zero_token(lake: Lake, request: JoinRequest) -> JoinedWithoutTokens:
    """Let a zero-token node join at once. It makes no generation and learns of the newest one before it is a member.

    The same request again changes nothing.

    Raises:
        InputError: the host is in the ring, or waits to join, with other content.
        StateError: no node owns tokens yet, or a switch is undecided, of which it would not be a participant.
    """
    assert request.is_zero_token
    node = inbox.requested_node(request, (), NORMAL)
    ring = current_ring(lake)
    if node in ring.nodes:
        return JoinedWithoutTokens(node, cdc_local.kept_id(lake, node.host_id))
    inbox.assert_new_host(node.host_id, inbox.ring_to_come(lake))
    if not ring.has_tokens:
        raise StateError(
            f"host {node.host_id} has no tokens, and no node of the ring owns any yet; the first node of a cluster "
            "owns tokens: give it num_tokens"
        )
    under_way = switches.unfinished(lake)
    if under_way:
        raise StateError(
            f"host {node.host_id} cannot join while nodes switch to generation {under_way[0].generation_id}, of which "
            f"it would not learn; look at: cdc-platform switch show {under_way[0].generation_id}"
        )
    newest = Timeline.read(lake).newest
    learned = None if newest is None else newest.gossiped
    if learned is not None:
        cdc_local.keep_at_maker(lake, node.host_id, learned, joins=True)
    put_nodes(lake, [node])
    return JoinedWithoutTokens(node, learned)


def describe(
    workers: Workers, lake: Lake, generation_id: str, layout: Callable[[Ring], RingLayout] = RingLayout.of
) -> Described:
    """Write the topology description of a joining node's generation; every range ends with a token of the ring after.

    `layout`: of the ring after the join, what the streams are generated from.

    Raises:
        NotFound: no bootstrap event introduces this generation.
        StateError: an earlier join is unfinished.
        InputError: the node cannot join the ring as it stands.
    """
    inbox.assert_next(lake, generation_id)
    before, after = rings(lake, generation_id)
    made_from = layout(after)
    rows = description_rows(after, generation_id, made_from)
    version = frames.replace_slice(workers, lake, TOPOLOGY_DESCRIPTIONS, rows, {"generation_id": generation_id})
    failpoints.reached(failpoints.AFTER_DESCRIPTION)
    return Described(before, after, after.tokens.size, made_from.stream_total, version)


def insert_descriptions(workers: Workers, lake: Lake, generation_id: str) -> int:
    """Insert the audited description as V2 descriptions, each row with `num_ranges`; answers with the table's version.

    Raises:
        StateError: the description is missing or does not have a row a range of the ring after the join.
    """
    inbox.assert_next(lake, generation_id)
    expected = rings(lake, generation_id)[1].tokens
    assert_described(lake, generation_id, expected)
    described = frames.committed_rows(lake, TOPOLOGY_DESCRIPTIONS, {"generation_id": generation_id})
    rows = described.changed(as_v2(generation_id, int(expected.size)))
    version = frames.replace_slice(workers, lake, GENERATION_DESCRIPTIONS_V2, rows, {"id": generation_id})
    failpoints.reached(failpoints.AFTER_V2_INSERT)
    return version


def assert_described(lake: Lake, generation_id: str, expected: np.ndarray) -> None:
    """Refuse a generation whose topology description has not exactly these range ends (int64[n], ascending).

    Raises:
        StateError: it has others, or none.
    """
    described = lake.read(TOPOLOGY_DESCRIPTIONS, ["range_end"], [("generation_id", "=", generation_id)])
    ends = np.sort(described["range_end"].to_numpy())
    if not np.array_equal(ends, expected):
        raise StateError(
            f"generation {generation_id}: its topology description has {ends.size} ranges, the ring has "
            f"{expected.size}; materialise topology_descriptions first"
        )


@in_turn(JOINS)
def introduce(lake: Lake, clock: Clock, settings: Settings, generation_id: str) -> Milliseconds:
    """Give the inserted generation its timestamp (ms), as late as possible and once; keep its ID at the joining node.

    The ledger decides: whoever writes the generation's row first has chosen, everybody else takes that timestamp.

    Raises:
        StateError: not all of its V2 descriptions are there, or the clock is behind the newest generation.
    """
    event = inbox.event(lake, generation_id=generation_id)
    num_ranges = descriptions.complete_range_ends(lake, generation_id).size
    chosen = ledger.introduced_at_ms(lake, generation_id)
    if chosen is None:
        inbox.assert_next(lake, generation_id)
        after = rings(lake, generation_id)[1]
        hosts = [str(node.host_id) for node in after.nodes]
        chosen = register.switched_at_ms(lake, clock, settings, generation_id, str(event.node.host_id), hosts)
        if chosen is None:
            chosen = _choose(lake, clock, settings, always_delay=event.is_repair)
        _enter_ledger(lake, clock, chosen, event, num_ranges, int(after.shard_counts.sum()))
        failpoints.reached(failpoints.AFTER_SWITCH_LEDGER)
        chosen = ledger.introduced_at_ms(lake, generation_id)
    assert chosen is not None
    id_ = GenerationId(chosen, uuid.UUID(generation_id))
    cdc_local.keep_at_maker(lake, event.node.host_id, id_, joins=not event.is_repair)
    failpoints.reached(failpoints.AFTER_TIMESTAMP)
    return chosen


@in_turn(JOINS)
def choose_v1_timestamp(lake: Lake, clock: Clock, settings: Settings, generation_id: str) -> Milliseconds:
    """Give a generation of the first format its timestamp (ms), once: it is the key that its data is inserted under.

    Raises:
        StateError: an earlier join is unfinished, or the clock is behind the newest generation.
    """
    event = inbox.event(lake, generation_id=generation_id)
    chosen = ledger.introduced_at_ms(lake, generation_id)
    if chosen is None:
        inbox.assert_next(lake, generation_id)
        layout = layout_of(rings(lake, generation_id)[1], v1=True)
        chosen = _choose(lake, clock, settings, always_delay=event.is_repair)
        _enter_ledger(lake, clock, chosen, event, len(layout), layout.stream_total, "v1")
        chosen = ledger.introduced_at_ms(lake, generation_id)
    assert chosen is not None
    return chosen


def introduce_v1(lake: Lake, generation_id: str) -> Milliseconds:
    """Keep the ID of a generation of the first format at its node; answers with its timestamp (ms).

    The timestamp was chosen before the insert, and is refused without its data.

    Raises:
        NotFound: it was not inserted yet.
    """
    event = inbox.event(lake, generation_id=generation_id)
    id_ = ledger.introduced_id(lake, generation_id)
    if id_ is None:
        raise NotFound(f"generation {generation_id} has no V1 description; insert it first")
    generation_data.complete_range_ends(lake, id_)
    cdc_local.keep_at_maker(lake, event.node.host_id, id_, joins=not event.is_repair)
    failpoints.reached(failpoints.AFTER_TIMESTAMP)
    return id_.time_ms


def admit(lake: Lake, generation_id: str) -> Node:
    """The joining node becomes a NORMAL node of the ring; a repair leaves the ring as it is.

    Raises:
        StateError: its generation has no timestamp yet: the ring must not grow before the generation is known.
    """
    event = inbox.event(lake, generation_id=generation_id)
    node = replace(event.node, status=NORMAL)
    if ledger.introduced_at_ms(lake, generation_id) is None:
        raise StateError(f"generation {generation_id} has no timestamp yet; materialise cdc_local first")
    if not event.is_repair and ledger.published_at_ms(lake, generation_id) is None:
        put_nodes(lake, [node])
    return node


def _choose(lake: Lake, clock: Clock, settings: Settings, *, always_delay: bool) -> Milliseconds:
    return choose_generation_timestamp(
        clock.now_ms(),
        Timeline.read(lake).last_given_ms,
        ring_delay_ms=settings.ring_delay_ms,
        leeway_ms=settings.generation_leeway_ms,
        always_delay=always_delay or settings.first_generation_delay,
    )


def _enter_ledger(
    lake: Lake,
    clock: Clock,
    time_ms: Milliseconds,
    event: inbox.BootstrapEvent,
    num_ranges: int,
    num_streams: int,
    format: str | None = None,
) -> None:
    row = {
        "generation_id": event.generation_id,
        "time": ms_to_datetime(time_ms),
        "host_id": str(event.node.host_id),
        "event_id": event.event_id,
        "num_ranges": num_ranges,
        "num_streams": num_streams,
        "created_at": to_datetime(clock.now_us()),
        "published_at": None,
        "format": format,
    }
    lake.merge(GENERATIONS, pa.Table.from_pylist([row], schema=GENERATIONS.schema), update=False)
