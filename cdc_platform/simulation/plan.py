"""A plan: everything that is decided before a simulated history runs, as plain lists that can be shortened.

A plan and its seed determine a history. Times in a plan are µs since the start of the history, durations µs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, get_args

from cdc_platform.clock import (
    DEFAULT_LEEWAY_MS,
    DEFAULT_RING_DELAY_MS,
    MILLISECOND_US,
    MINUTE_US,
    SECOND_US,
    Microseconds,
    Milliseconds,
    us_from_ms,
)
from cdc_platform.errors import InputError
from cdc_platform.generations import AcceptancePolicy, SwitchTimes

Protocol = Literal["gossip", "two-phase", "tablets"]
Format = Literal["v1", "v2"]
ReaderKind = Literal["platform", "client"]

_CHOICES = {
    "protocol": get_args(Protocol),
    "format": get_args(Format),
    "policy": get_args(AcceptancePolicy),
    "reader": get_args(ReaderKind),
}

MOST_LOST = 0.9
"""The greatest share of lost messages; with more, gossip all but stops."""
CLIENT = -1
"""The `node` of a clock that belongs to the writing clients."""
READER = -2
"""The `node` of a clock that belongs to the reader."""


@dataclass(frozen=True)
class Rules:
    """The protocol and the settings under test; they are the same for all nodes.

    `tablets`: the log's table has tablets, and nodes agree on its stream sets by Raft.
    `delay_ms`: how long after its creation a generation or a stream set starts; two-phase switches have no such delay.
    `window_us`: the reader's confidence window. `ttl_us`: the TTL of log rows; 0: they never expire, and no generation
    is removed.

    Raises:
        InputError: a value is none of those that there are, or only gossip introduces V1 generations.
    """

    protocol: Protocol = "gossip"
    format: Format = "v2"
    policy: AcceptancePolicy = "strict"
    ring_delay_ms: Milliseconds = DEFAULT_RING_DELAY_MS
    delay_ms: Milliseconds = DEFAULT_RING_DELAY_MS * 2 + DEFAULT_LEEWAY_MS
    leeway_ms: Milliseconds = DEFAULT_LEEWAY_MS
    switch: SwitchTimes = field(default_factory=SwitchTimes)
    reader: ReaderKind = "platform"
    window_us: Microseconds = SECOND_US * 30
    ttl_us: Microseconds = Microseconds(0)
    expiry_grace_us: Microseconds = MINUTE_US
    expiry_skew_us: Microseconds = SECOND_US * 10

    def __post_init__(self) -> None:
        for name, values in _CHOICES.items():
            if (value := getattr(self, name)) not in values:
                raise InputError(f"{name} {value!r} is none of {', '.join(values)}")
        if self.protocol == "two-phase" and self.format == "v1":
            raise InputError("a two-phase switch needs V2 generations; simulate V1 with --protocol gossip")
        if self.protocol == "tablets" and self.format == "v1":
            raise InputError("stream sets of tablets have one format; simulate V1 with --protocol gossip")

    @property
    def leeway_us(self) -> Microseconds:
        """Return the leeway in µs."""
        return us_from_ms(self.leeway_ms)


@dataclass(frozen=True)
class Network:
    """Message delays: uniform up to `latency_us`; `loss` is the share of lost messages.

    Drawn node n is in datacenter n modulo `datacenters`; real nodes are where their ring says. A message between two
    datacenters takes `distance_us` longer.

    Raises:
        InputError: the loss is out of range, or there is no datacenter.
    """

    latency_us: Microseconds = MILLISECOND_US * 50
    loss: float = 0.0
    datacenters: int = 1
    distance_us: Microseconds = Microseconds(0)

    def __post_init__(self) -> None:
        if not 0 <= self.loss <= MOST_LOST:
            raise InputError(f"loss {self.loss} is out of range; it has to be 0 to {MOST_LOST}")
        if self.datacenters < 1:
            raise InputError(f"{self.datacenters} datacenters; there is one at least")


class OperationKind(StrEnum):
    """What creates a generation, or a stream set."""

    JOIN = "join"
    REPAIR = "repair"
    SPLIT = "split"
    """The table has twice as many tablets."""
    MERGE = "merge"
    """The table has half as many tablets."""


@dataclass(frozen=True)
class PlannedOperation:
    """A join of node `node`, or a repair, split or merge that runs on it."""

    at_us: Microseconds
    kind: OperationKind
    node: int


@dataclass(frozen=True)
class ClockOffset:
    """A clock is set to this distance from the simulated time. `node` may be CLIENT or READER."""

    at_us: Microseconds
    node: int
    offset_us: Microseconds
    drift_ppm: int = 0


class OutageKind(StrEnum):
    """What is wrong with a node for a while."""

    CUT_OFF = "cut-off"
    """No message reaches it, and none of its own arrives."""
    DEAF = "deaf"
    """No message reaches it; its own arrive."""
    MUTE = "mute"
    """None of its messages arrives; it hears the others."""
    UNREADABLE = "unreadable"
    """It cannot read the tables of descriptions and switches."""
    SLOW_READS = "slow-reads"
    """It needs ten seconds to read a table."""
    DOWN = "down"
    """Its process has crashed and restarts afterwards."""


@dataclass(frozen=True)
class Outage:
    """Something is wrong with a node from `at_us` on, for `duration_us`."""

    at_us: Microseconds
    node: int
    kind: OutageKind
    duration_us: Microseconds


@dataclass(frozen=True)
class Partition:
    """No message from the nodes in the mask `group` reaches the others; unless `one_way`, nor the other way round."""

    at_us: Microseconds
    group: int
    one_way: bool
    duration_us: Microseconds


@dataclass(frozen=True)
class CrashAtStep:
    """A node crashes right before or after its durable step number `step` (from 1), and restarts after `down_us`."""

    node: int
    step: int
    before: bool
    down_us: Microseconds


@dataclass(frozen=True)
class PlannedWrite:
    """A client writes `token` through `node`.

    `age_us`: how far its timestamp is behind the client's clock (negative: ahead); None: the server chooses it.
    `twin`: the client sends the same write to this node, too, as after a timeout.
    """

    at_us: Microseconds
    node: int
    token: int
    age_us: Microseconds | None = None
    twin: int | None = None


@dataclass(frozen=True)
class HistoryPlan:
    """One history: `nodes` nodes at the start; nodes that join have the numbers after those.

    After `duration_us` no fault is active; the history runs for `settle_us` more.
    """

    seed: int
    rules: Rules = field(default_factory=Rules)
    network: Network = field(default_factory=Network)
    nodes: int = 3
    shards: int = 2
    duration_us: Microseconds = MINUTE_US * 5
    settle_us: Microseconds = MINUTE_US * 4
    operations: tuple[PlannedOperation, ...] = ()
    clocks: tuple[ClockOffset, ...] = ()
    outages: tuple[Outage, ...] = ()
    partitions: tuple[Partition, ...] = ()
    crashes: tuple[CrashAtStep, ...] = ()
    writes: tuple[PlannedWrite, ...] = ()
    late_publication_us: Microseconds = Microseconds(0)
    """How long nobody can write the tables that clients read, from the first operation on."""
    choices: tuple[float, ...] | None = None
    """The random numbers (0 to below 1) of network and gossip from the first operation on; None: by the seed."""

    @property
    def node_total(self) -> int:
        """Return how many nodes the plan speaks of: those of the start, those that join, and others it refers to."""
        numbers = [operation.node for operation in self.operations]
        numbers += [outage.node for outage in self.outages]
        numbers += [crash.node for crash in self.crashes]
        numbers += [change.node for change in self.clocks]
        for write in self.writes:
            numbers += [write.node] if write.twin is None else [write.node, write.twin]
        return max(self.nodes, max(numbers, default=0) + 1)
