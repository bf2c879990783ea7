"""The inbox of joins and repairs: queue, order, withdrawal and progress of each event.

A request is checked and written in one transaction, against a ring that no import replaces meanwhile. The stage of a
join follows from the tables, so a killed join needs no record of its own. No Spark, because sensors use it.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from cdc_platform.clock import (
    ONE_US,
    Clock,
    Microseconds,
    Milliseconds,
    datetime_from_us,
    ms_from_datetime,
    us_from_datetime,
)
from cdc_platform.delta import JOINS_LOCK, Lake, exclusive, to_python_values
from cdc_platform.errors import InputError, NotFound, StateError, UnfinishedJoin
from cdc_platform.generations import SwitchPhase
from cdc_platform.metastore import generations, switches
from cdc_platform.metastore.ring import STATUS_NORMAL, node_rows, nodes_from_rows, read_current_ring, read_node_statuses
from cdc_platform.ring import FIRST_TOKEN, LAST_TOKEN, MAX_RANGES, Node, Ring
from cdc_platform.tables import (
    BOOTSTRAP_EVENTS,
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_SWITCHES,
    GENERATIONS,
    TOPOLOGY_DESCRIPTIONS,
    Table,
)

if TYPE_CHECKING:
    from cdc_platform.metastore.join_request import JoinRequest

JOIN_EVENT = "join"
REPAIR_EVENT = "repair"
WITHDRAWAL_EVENT = "withdraw"
GENERATION_EVENTS = (JOIN_EVENT, REPAIR_EVENT)
"""The kinds of event that make a generation."""


@dataclass(frozen=True)
class BootstrapEvent:
    """A join of a new node, or a repair of the streams requested by a node of the ring, as stored in the inbox.

    `generation_id` is the random UUID that the node draws; `created_at_us` (µs) orders the inbox.
    """

    event_id: str
    generation_id: str
    node: Node
    created_at_us: Microseconds
    kind: str = JOIN_EVENT

    @property
    def is_repair(self) -> bool:
        """Return True if the generation is made for the current ring, without a joining node."""
        return self.kind == REPAIR_EVENT


@dataclass(frozen=True)
class PendingEvent:
    """An unfinished event without its tokens, as sensors need it."""

    event_id: str
    generation_id: str
    host_id: str
    kind: str = JOIN_EVENT


@exclusive(JOINS_LOCK)
def queue_join(lake: Lake, clock: Clock, request: JoinRequest, *, to_run_now: bool = False) -> BootstrapEvent:
    """Queue a joining node in the inbox and return its event. The same request is the same event.

    A withdrawn request may be queued again as a new event with a new generation. With `to_run_now` the caller intends
    to run the join at once, so that nothing is queued behind an unfinished join.

    Raises:
        InputError: the host is in the ring or is queued with other content, or a token has an owner.
        StateError: `to_run_now`, and an earlier join is unfinished.
    """
    assert not request.is_zero_token, "a zero-token node makes no generation: lifecycle.join_zero_token_node"

    def judged() -> pa.Table | None:
        event_id, known = _find_event_id(lake, request.event_id)
        if known is not None:
            return None
        # Read the pending joins before the ring, so that a join that ends in between is in both rather than in neither.
        ahead = read_pending_events(lake)
        if to_run_now and ahead:
            raise UnfinishedJoin(f"host {request.host_id} cannot join now: {_pending_first(ahead[0])}")
        ring = _ring_with_joins(lake, ahead)
        generation_id = uuid.uuid4()
        node = _node_to_queue(request, ring, generation_id)
        ring.join(node)
        return _row(lake, clock, event_id, JOIN_EVENT, str(generation_id), node)

    lake.merge_judged(BOOTSTRAP_EVENTS, judged)
    return find_event(lake, event_id=_find_event_id(lake, request.event_id)[0])


def read_future_ring(lake: Lake) -> Ring:
    """Return the current ring with all nodes that wait to join."""
    return _ring_with_joins(lake, read_pending_events(lake))


def _ring_with_joins(lake: Lake, ahead: Sequence[PendingEvent]) -> Ring:
    members = {node.host_id: node for node in read_current_ring(lake).nodes}
    joining = [event.node for event in _joins(lake, ahead) if event.node.host_id not in members]
    return Ring.of([*members.values(), *joining])


@exclusive(JOINS_LOCK)
def queue_repair(lake: Lake, clock: Clock, request_id: str, node: Node) -> BootstrapEvent:
    """Queue a repair requested at `node` of the ring and return its event.

    The same `request_id` (a UUID) is the same event, whichever node asks: the first writer draws the generation's UUID
    and all others get that one. A withdrawn repair may be queued again.
    """

    def judged() -> pa.Table | None:
        event_id, known = _find_event_id(lake, request_id)
        return None if known is not None else _row(lake, clock, event_id, REPAIR_EVENT, str(uuid.uuid4()), node)

    lake.merge_judged(BOOTSTRAP_EVENTS, judged)
    return find_event(lake, event_id=_find_event_id(lake, request_id)[0])


@exclusive(JOINS_LOCK)
def withdraw_event(lake: Lake, clock: Clock, event_id: str) -> None:
    """Withdraw a pending join so that the joins behind it can proceed. Withdrawing twice changes nothing.

    Raises:
        NotFound: there is no such event.
        StateError: its generation already has a timestamp, or nodes are switching to it, so it cannot be withdrawn.
    """
    find_event(lake, event_id=event_id)
    lake.merge_judged(BOOTSTRAP_EVENTS, lambda: _withdrawal(lake, clock, event_id))


def read_pending_events(lake: Lake) -> list[PendingEvent]:
    """Return the unfinished joins and repairs, oldest first. Reads no tokens: 10,000 events cost milliseconds."""
    inbox = lake.read(BOOTSTRAP_EVENTS, ["event_id", "kind", "generation_id", "host_id", "created_at"])
    inbox = inbox.sort_by([("created_at", "ascending"), ("event_id", "ascending")])
    ledger = lake.read(GENERATIONS, ["generation_id", "published_at"])
    published = set(to_python_values(ledger["generation_id"].filter(ledger["published_at"].is_valid())))
    columns = [to_python_values(inbox[name]) for name in ("event_id", "kind", "generation_id", "host_id")]
    rows = list(zip(*columns, strict=True))
    withdrawn = {generation for _, kind, generation, _ in rows if kind == WITHDRAWAL_EVENT}
    return [
        PendingEvent(event_id, generation, host, kind)
        for event_id, kind, generation, host in rows
        if kind in GENERATION_EVENTS and generation not in published and generation not in withdrawn
    ]


def find_event(lake: Lake, *, event_id: str | None = None, generation_id: str | None = None) -> BootstrapEvent:
    """Return the join or repair with this ID, or the one that introduces this generation.

    Raises:
        NotFound: the inbox has no such event.
    """
    column, value = ("event_id", event_id) if event_id is not None else ("generation_id", generation_id)
    events = _events(lake, [(column, "=", value), ("kind", "in", GENERATION_EVENTS)])
    if not events:
        raise NotFound(f"no bootstrap event has {column} {value}; queue one with: cdc-platform bootstrap FILE")
    return events[0]


def assert_next_event(lake: Lake, generation_id: str) -> None:
    """Raise an error if an earlier event is unfinished: joins run one at a time in the order of the inbox.

    Two joins at once would each refine a ring without the other's tokens, and their timestamps could come out in the
    other order. Either loses colocation.

    Raises:
        StateError: an earlier join is unfinished, or this one was withdrawn.
    """
    head = read_pending_events(lake)
    if any(join.generation_id == generation_id for join in head[1:]):
        raise UnfinishedJoin(f"generation {generation_id} must wait: {_pending_first(head[0])}")
    if not any(join.generation_id == generation_id for join in head) and not _introduced(lake, generation_id):
        raise StateError(f"generation {generation_id}: its bootstrap event was withdrawn; queue the node again")


def _withdrawal(lake: Lake, clock: Clock, event_id: str) -> pa.Table:
    """Return the row that withdraws an event, if it can be withdrawn."""
    event = find_event(lake, event_id=event_id)
    if lake.read(GENERATIONS, ["generation_id"], [("generation_id", "=", event.generation_id)]).num_rows:
        finish = "repair with repair --run" if event.is_repair else "join with bootstrap --run"
        raise StateError(
            f"event {event_id}: generation {event.generation_id} has its timestamp and cannot be withdrawn; "
            f"finish the {finish}"
        )
    switched = [("generation_id", "=", event.generation_id), ("phase", "!=", "aborted")]
    if lake.read(GENERATION_SWITCHES, ["generation_id"], switched).num_rows:
        raise StateError(
            f"event {event_id}: generation {event.generation_id} is being switched to and cannot be withdrawn "
            f"before that is aborted; look at: cdc-platform switch show {event.generation_id}"
        )
    return _row(lake, clock, _withdrawal_id(event_id), WITHDRAWAL_EVENT, event.generation_id, event.node)


def _pending_first(join: PendingEvent) -> str:
    if join.kind == REPAIR_EVENT:
        return (
            f"a repair (event {join.event_id}, generation {join.generation_id}) comes first; finish it with "
            f"repair --run, or withdraw it with bootstrap --withdraw {join.event_id}"
        )
    return (
        f"host {join.host_id} (event {join.event_id}, generation {join.generation_id}) joins first; finish it with "
        f"bootstrap --run, or withdraw it with bootstrap --withdraw {join.event_id}"
    )


def _find_event_id(lake: Lake, event_id: str) -> tuple[str, BootstrapEvent | None]:
    """Return the ID that a request has or would get in the inbox, and its event if it is queued."""
    while True:
        events = _events(lake, [("event_id", "=", event_id), ("kind", "in", GENERATION_EVENTS)])
        if not events:
            return event_id, None
        withdrawal = _withdrawal_id(event_id)
        if not lake.read(BOOTSTRAP_EVENTS, ["event_id"], [("event_id", "=", withdrawal)]).num_rows:
            return event_id, events[0]
        event_id = str(uuid.uuid5(uuid.UUID(event_id), "queued again"))


def _withdrawal_id(event_id: str) -> str:
    return str(uuid.uuid5(uuid.UUID(event_id), WITHDRAWAL_EVENT))


def _events(lake: Lake, filters: list[tuple[str, str, object]]) -> list[BootstrapEvent]:
    rows = lake.read(BOOTSTRAP_EVENTS, filters=filters)
    columns = rows.select(["event_id", "generation_id", "created_at", "kind"]).to_pylist()
    return [
        BootstrapEvent(row["event_id"], row["generation_id"], node, us_from_datetime(row["created_at"]), row["kind"])
        for row, node in zip(columns, nodes_from_rows(rows), strict=True)
    ]


def _joins(lake: Lake, unfinished: Sequence[PendingEvent]) -> list[BootstrapEvent]:
    """Return the joins among the unfinished events, with their tokens, in no order."""
    generations = [event.generation_id for event in unfinished if event.kind == JOIN_EVENT]
    return _events(lake, [("generation_id", "in", generations), ("kind", "=", JOIN_EVENT)]) if generations else []


def _introduced(lake: Lake, generation_id: str) -> bool:
    return lake.read(GENERATIONS, ["generation_id"], [("generation_id", "=", generation_id)]).num_rows > 0


def assert_new_host(host_id: uuid.UUID, ring: Ring) -> None:
    """Raise an error if a host is already in a ring.

    Raises:
        InputError: the host is in the ring.
    """
    if any(node.host_id == host_id for node in ring.nodes):
        raise InputError(
            f"host_id {host_id} is in the ring or waits to join already, with other content; "
            "a node joins once: give the new node its own host_id"
        )


def _node_to_queue(request: JoinRequest, ring: Ring, generation_id: uuid.UUID) -> Node:
    assert_new_host(request.host_id, ring)
    tokens = request.tokens
    wanted = len(tokens) if tokens is not None else request.num_tokens or 0
    check_token_limit(ring, wanted)
    if tokens is None:
        tokens = draw_tokens(request.num_tokens or 0, ring, generation_id)
    return node_from_request(request, tokens, "JOINING")


def node_from_request(request: JoinRequest, tokens: Sequence[int], status: str) -> Node:
    """Return the node that a request describes, with these tokens and this status."""
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


def check_token_limit(ring: Ring, wanted: int) -> None:
    """Check, before any token is drawn, that a generation could describe that many tokens.

    Raises:
        InputError: the ring would have more than 4,194,304 tokens.
    """
    if len(ring.tokens) + wanted > MAX_RANGES:
        raise InputError(
            f"{wanted} tokens more on a ring of {len(ring.tokens)} make more than {MAX_RANGES} ranges, the most that a "
            "stream's index can number; use fewer tokens"
        )


def draw_tokens(count: int, ring: Ring, generation_id: uuid.UUID) -> list[int]:
    """Draw `count` random tokens without an owner, seeded with the generation's UUID."""
    source = np.random.default_rng(generation_id.int)
    drawn: np.ndarray = np.empty(0, dtype=np.int64)
    while drawn.size < count:
        candidates = source.integers(FIRST_TOKEN, LAST_TOKEN, size=count - drawn.size, endpoint=True, dtype=np.int64)
        drawn = np.union1d(drawn, np.setdiff1d(candidates, ring.tokens))
    return drawn.tolist()


def _row(lake: Lake, clock: Clock, event_id: str, kind: str, generation_id: str, node: Node) -> pa.Table:
    """Build one inbox row. `created_at` grows strictly, so that the order survives a stopped or turned-back clock."""
    earlier = lake.read(BOOTSTRAP_EVENTS, ["created_at"])["created_at"].to_pylist()
    previous_us = max((us_from_datetime(moment) for moment in earlier), default=-ONE_US)
    row = node_rows([node]).drop_columns(["status"]).to_pylist()[0]
    row |= {
        "event_id": event_id,
        "kind": kind,
        "generation_id": generation_id,
        "created_at": datetime_from_us(max(clock.now_us(), previous_us + ONE_US)),
    }
    return pa.Table.from_pylist([row], schema=BOOTSTRAP_EVENTS.schema)


class JoinStage(StrEnum):
    """The last completed step of an event, in the order of the steps."""

    QUEUED = "queued"
    DESCRIBED = "described"
    INSERTED = "inserted"
    SWITCHING = "nodes are switching"
    ABORTED = "its switch was aborted"
    TIMED = "has its timestamp"
    IN_RING = "in the ring"
    STREAMS_SHOWN = "streams published"
    LISTED = "timestamp published"
    FINISHED = "finished"
    WITHDRAWN = "withdrawn"


STAGES_AFTER_TIMESTAMP = frozenset({JoinStage.TIMED, JoinStage.IN_RING, JoinStage.STREAMS_SHOWN, JoinStage.LISTED})
"""The stages in which a join is unfinished and can no longer be withdrawn."""


@dataclass(frozen=True)
class JoinProgress:
    """An event of the inbox and its progress.

    `queued_at_us` is in µs. `time_ms` is the timestamp (ms) of its generation and `timed_at_ms` the time at which it
    was assigned; both are None before. `is_next` is True for the first unfinished event, which waits for no other.
    """

    event_id: str
    kind: str
    host_id: str
    generation_id: str
    queued_at_us: Microseconds
    reached: JoinStage
    time_ms: Milliseconds | None
    timed_at_ms: Milliseconds | None
    is_next: bool

    @property
    def is_open(self) -> bool:
        """Return True if the event is neither finished nor withdrawn."""
        return self.reached not in (JoinStage.FINISHED, JoinStage.WITHDRAWN)

    @property
    def do(self) -> str | None:
        """Return the command that ends the event, None if it is finished or withdrawn."""
        return f"cdc-platform {' '.join(self.ends)}" if self.is_open else None

    @property
    def ends(self) -> tuple[str, ...]:
        """Return the words of the command that ends the event: --withdraw if it cannot be finished, else --finish."""
        return ("bootstrap", "--withdraw" if self.reached is JoinStage.ABORTED else "--finish", self.event_id)


def read_join_progress(lake: Lake) -> list[JoinProgress]:
    """Return the progress of every event of the inbox, oldest first, including finished and withdrawn ones."""
    columns = ["event_id", "kind", "host_id", "generation_id", "created_at"]
    events = lake.read(BOOTSTRAP_EVENTS, columns).sort_by([("created_at", "ascending"), ("event_id", "ascending")])
    rows = events.to_pylist()
    if not rows:
        return []
    withdrawn = {row["generation_id"] for row in rows if row["kind"] == WITHDRAWAL_EVENT}
    tables = _JoinTables(lake)
    progress: list[JoinProgress] = []
    ahead = False
    for row in (row for row in rows if row["kind"] in GENERATION_EVENTS):
        event = tables.of(row, withdrawn=row["generation_id"] in withdrawn, is_next=not ahead)
        ahead = ahead or event.is_open
        progress.append(event)
    return progress


class _JoinTables:
    """The rows that joins have written to each table."""

    def __init__(self, lake: Lake) -> None:
        self._ledger = {row["generation_id"]: row for row in lake.read(GENERATIONS).to_pylist()}
        self._described = _partition_values(lake, TOPOLOGY_DESCRIPTIONS)
        self._inserted = _partition_values(lake, GENERATION_DESCRIPTIONS_V2)
        self._cells = set(generations.read_v1_times(lake).tolist())
        self._switching = {switch.generation_id for switch in switches.read_unfinished_switches(lake)}
        self._aborted = {
            outcome.generation_id
            for outcome in switches.read_switch_outcomes(lake)
            if outcome.phase is SwitchPhase.ABORTED
        }
        self._statuses = read_node_statuses(lake)
        self._shown, self._listed = generations.read_published_times(lake), generations.read_listed_times(lake)

    def of(self, event: dict[str, Any], *, withdrawn: bool, is_next: bool) -> JoinProgress:
        """Return the progress of an event."""
        entered = self._ledger.get(event["generation_id"])
        # In format V1 the ledger row precedes the data, and no node knows of the generation before the data exists.
        timed = entered is not None and (
            entered["format"] != "v1" or ms_from_datetime(entered["time"]) in {*self._cells, *self._listed}
        )
        reached = JoinStage.WITHDRAWN if withdrawn else self._reached(event, entered if timed else None)
        return JoinProgress(
            event["event_id"],
            event["kind"],
            event["host_id"],
            event["generation_id"],
            us_from_datetime(event["created_at"]),
            reached,
            None if entered is None else ms_from_datetime(entered["time"]),
            None if entered is None else ms_from_datetime(entered["created_at"]),
            is_next and reached not in (JoinStage.FINISHED, JoinStage.WITHDRAWN),
        )

    def _reached(self, event: dict[str, Any], entered: dict[str, Any] | None) -> JoinStage:
        id_ = event["generation_id"]
        if entered is None:
            if id_ in self._aborted:
                return JoinStage.ABORTED
            if id_ in self._switching:
                return JoinStage.SWITCHING
            return JoinStage.INSERTED if id_ in self._inserted else self._before(id_)
        time_ms = ms_from_datetime(entered["time"])
        if entered["published_at"] is not None:
            return JoinStage.FINISHED
        if time_ms in self._listed:
            return JoinStage.LISTED
        if time_ms in self._shown:
            return JoinStage.STREAMS_SHOWN
        joined = event["kind"] == JOIN_EVENT and self._statuses.get(event["host_id"]) == STATUS_NORMAL
        return JoinStage.IN_RING if joined else JoinStage.TIMED

    def _before(self, id_: str) -> JoinStage:
        return JoinStage.DESCRIBED if id_ in self._described else JoinStage.QUEUED


def _partition_values(lake: Lake, table: Table) -> set[object]:
    return {part.key[0] for part in lake.partitions(table) if part.rows}
