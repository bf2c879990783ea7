"""The inbox: which nodes want to join or ask for a repair, in which order, and which of them is next.

It knows bootstrap events and who is finished; what a join does is in `bootstrap`, when a repair is needed in `repair`.
What is queued was judged by the inbox as it is when it goes in, and by a ring that no import replaces meanwhile.
No Spark: it runs in sensors.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from cdc_platform.clock import ONE_US, Clock, Microseconds, from_datetime, to_datetime
from cdc_platform.errors import InputError, NotFound, StateError, UnfinishedJoin
from cdc_platform.lake.arrow import values
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import BOOTSTRAP_EVENTS, GENERATION_SWITCHES, GENERATIONS
from cdc_platform.lake.turns import JOINS, in_turn
from cdc_platform.records.ring import current_ring, node_rows, nodes_of
from cdc_platform.ring import FIRST, LAST, MAX_RANGES, Node, Ring

if TYPE_CHECKING:
    from cdc_platform.records.join_request import JoinRequest

JOIN = "join"
REPAIR = "repair"
WITHDRAW = "withdraw"
MAKING = (JOIN, REPAIR)
"""The kinds of event that make a generation."""


@dataclass(frozen=True)
class BootstrapEvent:
    """A node that wants to join, or a node of the ring that repairs the streams, as it stands in the inbox.

    `generation_id` is the random UUID that the node draws; `created_at_us` (µs) orders the inbox.
    """

    event_id: str
    generation_id: str
    node: Node
    created_at_us: Microseconds
    kind: str = JOIN

    @property
    def is_repair(self) -> bool:
        """Whether its generation is made for the ring as it stands, without a joining node."""
        return self.kind == REPAIR


@dataclass(frozen=True)
class WaitingJoin:
    """An event that is not finished, without its tokens: what a sensor needs to know of it."""

    event_id: str
    generation_id: str
    host_id: str
    kind: str = JOIN


@in_turn(JOINS)
def queue(lake: Lake, clock: Clock, request: JoinRequest, *, to_run_now: bool = False) -> BootstrapEvent:
    """Put a joining node into the inbox and answer with its event. The same request is the same event.

    A withdrawn request may be queued again; that is a new event with a new generation. Who means to run the join at
    once says so with `to_run_now`: behind an unfinished one nothing is queued.

    Raises:
        InputError: the host is in the ring or waits already with other content, or a token has an owner.
        StateError: the join is to run now, and an earlier one is unfinished.
    """
    assert not request.is_zero_token, "a zero-token node makes no generation: lifecycle.join.bootstrap.join_zero_token"

    def judged() -> pa.Table | None:
        event_id, known = _event_id(lake, request.event_id)
        if known is not None:
            return None
        # Who waits is read before the ring: a join that ends in between is then in both, and in none never.
        ahead = waiting(lake)
        if to_run_now and ahead:
            raise UnfinishedJoin(f"host {request.host_id} cannot join now: {_in_the_way(ahead[0])}")
        ring = _ring_with(lake, ahead)
        generation_id = uuid.uuid4()
        node = _node(request, ring, generation_id)
        ring.join(node)
        return _row(lake, clock, event_id, JOIN, str(generation_id), node)

    lake.merge_judged(BOOTSTRAP_EVENTS, judged)
    return event(lake, event_id=_event_id(lake, request.event_id)[0])


def ring_to_come(lake: Lake) -> Ring:
    """The ring as it stands with all nodes that wait to join."""
    return _ring_with(lake, waiting(lake))


def _ring_with(lake: Lake, ahead: Sequence[WaitingJoin]) -> Ring:
    members = {node.host_id: node for node in current_ring(lake).nodes}
    joining = [each.node for each in _joins(lake, ahead) if each.node.host_id not in members]
    return Ring.of([*members.values(), *joining])


@in_turn(JOINS)
def queue_repair(lake: Lake, clock: Clock, request_id: str, node: Node) -> BootstrapEvent:
    """Put a repair into the inbox, asked for at `node` of the ring, and answer with its event.

    The same `request_id` (a UUID) is the same event, whichever node asks: the first to write it has drawn the
    generation's UUID, everybody else gets that one. A withdrawn repair may be queued again.
    """

    def judged() -> pa.Table | None:
        event_id, known = _event_id(lake, request_id)
        return None if known is not None else _row(lake, clock, event_id, REPAIR, str(uuid.uuid4()), node)

    lake.merge_judged(BOOTSTRAP_EVENTS, judged)
    return event(lake, event_id=_event_id(lake, request_id)[0])


@in_turn(JOINS)
def withdraw(lake: Lake, clock: Clock, event_id: str) -> None:
    """Take a waiting join back, so that those behind it can go on. Withdrawing twice changes nothing.

    Raises:
        NotFound: there is no such event.
        StateError: its generation has its timestamp already, or nodes are switching to it: it can't be taken back.
    """
    event(lake, event_id=event_id)
    lake.merge_judged(BOOTSTRAP_EVENTS, lambda: _withdrawal(lake, clock, event_id))


def waiting(lake: Lake) -> list[WaitingJoin]:
    """The joins and repairs that are not finished, oldest first. Reads no tokens: 10,000 events cost milliseconds."""
    inbox = lake.read(BOOTSTRAP_EVENTS, ["event_id", "kind", "generation_id", "host_id", "created_at"])
    inbox = inbox.sort_by([("created_at", "ascending"), ("event_id", "ascending")])
    ledger = lake.read(GENERATIONS, ["generation_id", "published_at"])
    published = set(values(ledger["generation_id"].filter(ledger["published_at"].is_valid())))
    columns = [values(inbox[name]) for name in ("event_id", "kind", "generation_id", "host_id")]
    rows = list(zip(*columns, strict=True))
    withdrawn = {generation for _, kind, generation, _ in rows if kind == WITHDRAW}
    return [
        WaitingJoin(event_id, generation, host, kind)
        for event_id, kind, generation, host in rows
        if kind in MAKING and generation not in published and generation not in withdrawn
    ]


def event(lake: Lake, *, event_id: str | None = None, generation_id: str | None = None) -> BootstrapEvent:
    """The join or repair with this ID, or the one whose node introduces this generation.

    Raises:
        NotFound: the inbox has no such event.
    """
    column, value = ("event_id", event_id) if event_id is not None else ("generation_id", generation_id)
    found = _events(lake, [(column, "=", value), ("kind", "in", MAKING)])
    if not found:
        raise NotFound(f"no bootstrap event has {column} {value}; queue one with: cdc-platform bootstrap FILE")
    return found[0]


def assert_next(lake: Lake, generation_id: str) -> None:
    """Joins are taken one at a time in the order of the inbox: refuse one that has an unfinished one before it.

    Two joins at once would each refine a ring without the other's tokens, and their timestamps could come out in
    the other order: either loses colocation.

    Raises:
        StateError: an earlier join is unfinished, or this one was withdrawn.
    """
    head = waiting(lake)
    if any(join.generation_id == generation_id for join in head[1:]):
        raise UnfinishedJoin(f"generation {generation_id} must wait: {_in_the_way(head[0])}")
    if not any(join.generation_id == generation_id for join in head) and not _introduced(lake, generation_id):
        raise StateError(f"generation {generation_id}: its bootstrap event was withdrawn; queue the node again")


def _withdrawal(lake: Lake, clock: Clock, event_id: str) -> pa.Table:
    """The row that takes an event back, where that can be."""
    taken_back = event(lake, event_id=event_id)
    if lake.read(GENERATIONS, ["generation_id"], [("generation_id", "=", taken_back.generation_id)]).num_rows:
        finish = "repair with repair --run" if taken_back.is_repair else "join with bootstrap --run"
        raise StateError(
            f"event {event_id}: generation {taken_back.generation_id} has its timestamp and cannot be withdrawn; "
            f"finish the {finish}"
        )
    switched = [("generation_id", "=", taken_back.generation_id), ("phase", "!=", "aborted")]
    if lake.read(GENERATION_SWITCHES, ["generation_id"], switched).num_rows:
        raise StateError(
            f"event {event_id}: generation {taken_back.generation_id} is being switched to and cannot be withdrawn "
            f"before that is aborted; look at: cdc-platform switch show {taken_back.generation_id}"
        )
    return _row(lake, clock, _withdrawal_id(event_id), WITHDRAW, taken_back.generation_id, taken_back.node)


def _in_the_way(join: WaitingJoin) -> str:
    if join.kind == REPAIR:
        return (
            f"a repair (event {join.event_id}, generation {join.generation_id}) comes first; finish it with "
            f"repair --run, or take it back with bootstrap --withdraw {join.event_id}"
        )
    return (
        f"host {join.host_id} (event {join.event_id}, generation {join.generation_id}) joins first; finish it with "
        f"bootstrap --run, or take it back with bootstrap --withdraw {join.event_id}"
    )


def _event_id(lake: Lake, event_id: str) -> tuple[str, BootstrapEvent | None]:
    """The ID under which a request stands or would stand in the inbox, and its event if it is there."""
    while True:
        found = _events(lake, [("event_id", "=", event_id), ("kind", "in", MAKING)])
        if not found:
            return event_id, None
        withdrawal = _withdrawal_id(event_id)
        if not lake.read(BOOTSTRAP_EVENTS, ["event_id"], [("event_id", "=", withdrawal)]).num_rows:
            return event_id, found[0]
        event_id = str(uuid.uuid5(uuid.UUID(event_id), "queued again"))


def _withdrawal_id(event_id: str) -> str:
    return str(uuid.uuid5(uuid.UUID(event_id), WITHDRAW))


def _events(lake: Lake, filters: list[tuple[str, str, object]]) -> list[BootstrapEvent]:
    rows = lake.read(BOOTSTRAP_EVENTS, filters=filters)
    told = rows.select(["event_id", "generation_id", "created_at", "kind"]).to_pylist()
    return [
        BootstrapEvent(row["event_id"], row["generation_id"], node, from_datetime(row["created_at"]), row["kind"])
        for row, node in zip(told, nodes_of(rows), strict=True)
    ]


def _joins(lake: Lake, unfinished: Sequence[WaitingJoin]) -> list[BootstrapEvent]:
    """The joins among what is unfinished, with their tokens, in no order."""
    generations = [each.generation_id for each in unfinished if each.kind == JOIN]
    return _events(lake, [("generation_id", "in", generations), ("kind", "=", JOIN)]) if generations else []


def _introduced(lake: Lake, generation_id: str) -> bool:
    return lake.read(GENERATIONS, ["generation_id"], [("generation_id", "=", generation_id)]).num_rows > 0


def assert_new_host(host_id: uuid.UUID, ring: Ring) -> None:
    """Refuse a host that is in a ring already.

    Raises:
        InputError: it is.
    """
    if any(node.host_id == host_id for node in ring.nodes):
        raise InputError(
            f"host_id {host_id} is in the ring or waits to join already, with other content; "
            "a node joins once: give the new node its own host_id"
        )


def _node(request: JoinRequest, ring: Ring, generation_id: uuid.UUID) -> Node:
    assert_new_host(request.host_id, ring)
    tokens = request.tokens
    wanted = len(tokens) if tokens is not None else request.num_tokens or 0
    check_room(ring, wanted)
    if tokens is None:
        tokens = draw_tokens(request.num_tokens or 0, ring, generation_id)
    return requested_node(request, tokens, "JOINING")


def requested_node(request: JoinRequest, tokens: Sequence[int], status: str) -> Node:
    """The node that a request describes, with these tokens and this status."""
    return Node(
        host_id=request.host_id,
        tokens=tuple(tokens),
        shard_count=request.shard_count,
        ignore_msb=request.ignore_msb,
        address=request.address,
        datacenter=request.datacenter,
        rack=request.rack,
        features=tuple(request.features),
        status=status,
    )


def check_room(ring: Ring, wanted: int) -> None:
    """Refuse more tokens than a generation could describe, before any is drawn.

    Raises:
        InputError: the ring would have more than 4,194,304 tokens.
    """
    if len(ring.tokens) + wanted > MAX_RANGES:
        raise InputError(
            f"{wanted} tokens more on a ring of {len(ring.tokens)} make more than {MAX_RANGES} ranges, the most that a "
            "stream's index can number; bring fewer tokens"
        )


def draw_tokens(count: int, ring: Ring, generation_id: uuid.UUID) -> list[int]:
    """`count` random tokens that nobody owns, drawn from the generation's UUID."""
    source = np.random.default_rng(generation_id.int)
    drawn: np.ndarray = np.empty(0, dtype=np.int64)
    while drawn.size < count:
        more = source.integers(FIRST, LAST, size=count - drawn.size, endpoint=True, dtype=np.int64)
        drawn = np.union1d(drawn, np.setdiff1d(more, ring.tokens))
    return drawn.tolist()


def _row(lake: Lake, clock: Clock, event_id: str, kind: str, generation_id: str, node: Node) -> pa.Table:
    """One inbox row. `created_at` grows strictly, so that the order survives a stopped or turned-back clock."""
    earlier = lake.read(BOOTSTRAP_EVENTS, ["created_at"])["created_at"].to_pylist()
    after = max((from_datetime(moment) for moment in earlier), default=-ONE_US)
    row = node_rows([node]).drop_columns(["status"]).to_pylist()[0]
    row |= {
        "event_id": event_id,
        "kind": kind,
        "generation_id": generation_id,
        "created_at": to_datetime(max(clock.now_us(), after + ONE_US)),
    }
    return pa.Table.from_pylist([row], schema=BOOTSTRAP_EVENTS.schema)
