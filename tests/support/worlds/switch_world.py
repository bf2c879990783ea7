"""A cluster in which nodes join while others write: the world of the two-phase switch, and of gossip for comparison.

The world gives nodes differing clocks, deafness, pauses, restarts and late or lost messages, and records every
accepted write. The judgements (`wrong_generation`, `lost_colocation`, ...) are plain Python on the decisions of the
register or gossip, and share nothing with the rules.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from dataclasses import dataclass, field
from functools import lru_cache
from uuid import UUID

from cdc_platform.clock import HOUR_MS, HOUR_US, ONE_MS, SECOND_US, Microseconds, Milliseconds, ms_from_us, us_from_ms
from cdc_platform.errors import StateError, WriteRefused
from cdc_platform.generations import (
    CdcMetadata,
    GenerationSwitch,
    RingLayout,
    SwitchPhase,
    SwitchTimes,
    TopologyDescription,
    generate_description,
    new_generation_timestamp,
)
from cdc_platform.generations import switch as rules
from cdc_platform.node.participant import LeasePromise, SwitchParticipant
from cdc_platform.ring import Node, Ring

SECOND = SECOND_US
START = SECOND * 1_700_000_000
HEARTBEAT_MS = Milliseconds(5_000)
"""The interval at which a healthy node reads the register or hears gossip."""
INITIAL = 3
RING_DELAY_MS = Milliseconds(30_000)


@lru_cache(maxsize=64)
def node_of(number: int) -> Node:
    """Return node `number` with three tokens of its own."""
    source = random.Random(number)
    tokens = tuple(source.randrange(-(2**63) + 1, 2**63) for _ in range(3))
    return Node(UUID(int=number), tokens, 1 + number % 3, 12 * (number % 2))


@lru_cache(maxsize=4096)
def described(members: tuple[int, ...], generation: int) -> tuple[TopologyDescription, Ring]:
    """Return generation `generation` over these nodes, with its ring, cached because all histories share it."""
    ring = Ring.of(node_of(number) for number in members)
    return generate_description(RingLayout.of(ring), UUID(int=generation)), ring


@lru_cache(maxsize=4096)
def streams_in(members: tuple[int, ...], generation: int) -> frozenset[bytes]:
    """Return every stream ID of a generation."""
    return frozenset(stream.tobytes() for stream in described(members, generation)[0].streams)


@lru_cache(maxsize=4096)
def owners(members: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return (token, number of its owner) of a ring, ascending."""
    return sorted((token, number) for number in members for token in node_of(number).tokens)


def vnode(members: tuple[int, ...], token: int) -> tuple[int, int]:
    """Return the vnode (its last token, its owner's number) that contains a token."""
    ring = owners(members)
    return ring[bisect_left(ring, (token, -1)) % len(ring)]


@dataclass(frozen=True)
class Generation:
    """A generation in the tables: the nodes that it is described for. `number` is its UUID."""

    number: int
    members: tuple[int, ...]


@dataclass(frozen=True)
class Write:
    """A write that a node accepted: timestamp (µs), token and stream, and the nodes of the ring that routed it."""

    ts_us: Microseconds
    token: int
    node: int
    stream: bytes
    routed: tuple[int, ...]


@dataclass
class Machine:
    """A node's machine: the offset of its clock, its faults, and what survives a restart."""

    number: int
    offset_us: Microseconds = Microseconds(0)
    deaf: bool = False
    paused: bool = False
    dead: bool = False
    disk: list[LeasePromise] = field(default_factory=list)
    outbox: list[tuple[int, GenerationSwitch]] = field(default_factory=list)
    ill_at_us: Microseconds = Microseconds(-1)
    """The last time at which it was not healthy."""

    @property
    def hears(self) -> bool:
        """Return True if it can read the tables or hear gossip."""
        return not (self.deaf or self.paused or self.dead)


class World:
    """Shared parts of both ways of switching: time, machines, tables, writes and their judgement."""

    def __init__(self, times: SwitchTimes) -> None:
        self.times = times
        self.now_us = START
        self.machines = {number: Machine(number) for number in range(1, INITIAL + 1)}
        self.tables: dict[int, Generation] = {0: Generation(0, tuple(self.machines))}
        self.started: dict[int, Microseconds] = {0: START - HOUR_US}
        """Committed generations: number -> timestamp (µs)."""
        self.writes: list[Write] = []
        self.refused: list[tuple[int, int, str]] = []
        self.calm = True

    def clock_us(self, machine: Machine) -> Microseconds:
        """Return the time of a node's clock."""
        return self.now_us + machine.offset_us

    def tick(self, ms: Milliseconds) -> None:
        """Advance time; healthy nodes look at the register or gossip every heartbeat."""
        remaining = ms
        while remaining > 0:
            step = min(remaining, HEARTBEAT_MS)
            remaining -= step
            self.now_us += us_from_ms(step)
            for machine in list(self.machines.values()):
                if machine.hears:
                    self.look(machine.number)
                else:
                    machine.ill_at_us = self.now_us

    def ail(self, number: int, what: str) -> None:
        """Change a machine's state: deaf, hears, paused, resumed, restarted or dead."""
        machine = self.machines[number]
        self.calm = False
        machine.ill_at_us = self.now_us
        if what in ("deaf", "hears"):
            machine.deaf = what == "deaf"
        elif what in ("paused", "resumed"):
            machine.paused = what == "paused"
        elif what == "dead":
            machine.dead = True
        elif not machine.dead:
            machine.paused = False
            self.restart(machine)

    def set_clock(self, number: int, offset_us: Microseconds) -> None:
        """Set a clock; it may go back."""
        self.calm = False
        self.machines[number].offset_us = offset_us

    def heal(self) -> None:
        """Heal every machine that is not dead."""
        for machine in self.machines.values():
            machine.deaf = machine.paused = False

    def write(self, number: int, token: int, ts_us: Microseconds) -> bool:
        """Let a client send a write to a node; return False if the node is paused or dead."""
        machine = self.machines[number]
        if machine.paused or machine.dead:
            return False
        try:
            stream, routed = self.accept(number, token, ts_us)
        except WriteRefused as refusal:
            self.refused.append((number, ts_us, refusal.verdict))
        else:
            self.writes.append(Write(ts_us, token, number, stream, routed))
        return True

    def moments_us(self) -> list[Microseconds]:
        """Return times at which something ends or begins, where a write is worth trying."""
        return list(self.started.values())

    # Judgement, from the writes and the decisions alone.

    def wrong_generation(self) -> list[Write]:
        """Return writes whose stream is not in the generation with the greatest timestamp at or before theirs."""
        return [write for write in self.writes if write.stream not in self.streams_due(write.ts_us)]

    def streams_due(self, ts_us: Microseconds) -> frozenset[bytes]:
        """Return the streams of the generation that a write with this timestamp belongs to."""
        _, number = max((time, number) for number, time in self.started.items() if time <= ts_us)
        return streams_in(self.tables[number].members, number)

    def lost_colocation(self) -> list[Write]:
        """Return writes whose stream is in another vnode than the write, in the ring that routed it."""
        return [
            write
            for write in self.writes
            if vnode(write.routed, write.token)
            != vnode(write.routed, int.from_bytes(write.stream[:8], "big", signed=True))
        ]

    def not_refined(self) -> list[Write]:
        """Return writes that use a generation whose ranges do not refine the ring that routed them."""
        used = {
            stream: generation
            for generation in self.tables.values()
            for stream in streams_in(generation.members, generation.number)
        }
        return [write for write in self.writes if not set(write.routed) <= set(used[write.stream].members)]

    # The differences between the two ways.

    def join(self, *, late: bool = False) -> bool:
        """Let a node begin to join; return False if it must wait. `late`: its message is still on its way."""
        raise NotImplementedError

    def look(self, number: int, *, late: bool = False) -> None:
        """Let a healthy node look around and do what is due."""
        raise NotImplementedError

    def deliver(self, number: int, *, lost: bool = False) -> None:
        """Deliver the oldest message of a node, or lose it."""
        raise NotImplementedError

    def restart(self, machine: Machine) -> None:
        """Clear a node's memory."""
        raise NotImplementedError

    def accept(self, number: int, token: int, ts_us: Microseconds) -> tuple[bytes, tuple[int, ...]]:
        """Return the stream of a write, and the nodes of the ring that routes it."""
        raise NotImplementedError


class SwitchWorld(World):
    """Two-phase: one register, which every node reads and changes by compare-and-set."""

    def __init__(self, times: SwitchTimes) -> None:
        super().__init__(times)
        self.version = 0
        self.register: dict[str, GenerationSwitch] = {}
        self.decisions: dict[str, tuple[SwitchPhase, int | None]] = {}
        self.told: dict[int, dict[str, tuple[SwitchPhase, int | None]]] = {}
        self.nodes: dict[int, SwitchParticipant] = {}
        for machine in self.machines.values():
            self.restart(machine)
            self.look(machine.number)

    def join(self, *, late: bool = False) -> bool:
        number = len(self.machines) + 1
        generation = len(self.tables)
        ring = self.committed_members()
        clock_ms = ms_from_us(self.now_us)
        machine = Machine(number)
        try:
            switch = rules.prepare_switch(
                self.register.values(),
                str(generation),
                str(number),
                [str(member) for member in (*ring, number)],
                self.times,
                now_ms=Milliseconds(clock_ms),
                newest_ms=self.newest_ms(),
            )
        except StateError:
            return False
        self.tables[generation] = Generation(generation, (*ring, number))
        self.machines[number] = machine
        self.restart(machine)
        self.send(machine, switch, late=late)
        return True

    def look(self, number: int, *, late: bool = False) -> None:
        machine = self.machines[number]
        if not machine.hears:
            return
        node = self.nodes[number]
        if number <= INITIAL:
            self.tell(number, 0, ms_from_us(START) - HOUR_MS)
        for switch in list(self.register.values()):
            if str(number) in switch.participants and not node.learn(switch, self.clock_us(machine)):
                assert switch.time_ms is not None
                self.tell(number, int(switch.generation_id), switch.time_ms)
                assert node.learn(switch, self.clock_us(machine))
            if switch.is_decided and str(number) in switch.participants:
                self.told.setdefault(number, {})[switch.generation_id] = (switch.phase, switch.time_ms)
        machine.disk = list(node.promises)
        if late:
            machine.ill_at_us = self.now_us
            self.calm = False
        for generation in list(self.register):
            self.act(machine, generation, late=late)

    def act(self, machine: Machine, generation: str, *, late: bool) -> None:
        """Acknowledge what is to be acknowledged, then decide what is to be decided."""
        clock_us = self.clock_us(machine)
        switch = self.register[generation]
        host = str(machine.number)
        if switch.is_decided:
            return
        if host in switch.missing and ms_from_us(clock_us) < switch.deadline_ms:
            promise = self.promise(machine, switch)
            try:
                acknowledged = rules.acknowledge_switch(
                    switch, host, promise.lease_end_ms, self.times, ms_from_us(clock_us)
                )
            except StateError:
                return  # its promise has expired before it could respond
            self.send(machine, acknowledged, late=late)
            if late:
                return
            switch = self.register[generation]
        decided = self.decide(switch, ms_from_us(clock_us), host)
        if decided is not switch:
            self.send(machine, decided, late=late)
            if not late:
                self.look(machine.number)

    def promise(self, machine: Machine, switch: GenerationSwitch) -> LeasePromise:
        """Store the prepared generation and the participant's promise on its disk before it responds."""
        description = self.read(int(switch.generation_id))
        promise = self.nodes[machine.number].promise(switch, *description, self.clock_us(machine))
        machine.disk = list(self.nodes[machine.number].promises)
        return promise

    def decide(self, switch: GenerationSwitch, now_ms: Milliseconds, by: str) -> GenerationSwitch:
        """Decide what is due."""
        return rules.decide_switch(switch, self.times, now_ms=now_ms, newest_ms=self.newest_ms(), by=by)

    def send(self, machine: Machine, switch: GenerationSwitch, *, late: bool) -> None:
        """Send a compare-and-set against the register as it was read, at once or delayed."""
        machine.outbox.append((self.version, switch))
        if late:
            machine.ill_at_us = self.now_us
            self.calm = False
        else:
            self.arrive(*machine.outbox.pop())

    def arrive(self, version: int, switch: GenerationSwitch) -> None:
        """Apply a row to the register if it has not changed since it was read."""
        if version == self.version:
            self.version += 1
            self.register[switch.generation_id] = switch

    def deliver(self, number: int, *, lost: bool = False) -> None:
        machine = self.machines[number]
        if machine.outbox:
            sent = machine.outbox.pop(0)
            if not lost:
                self.arrive(*sent)

    def restart(self, machine: Machine) -> None:
        self.nodes[machine.number] = SwitchParticipant(str(machine.number), self.times, promises=machine.disk)

    def accept(self, number: int, token: int, ts_us: Microseconds) -> tuple[bytes, tuple[int, ...]]:
        accepted = self.nodes[number].accept(ts_us, token, self.clock_us(self.machines[number]))
        return accepted.stream_id, tuple(node.host_id.int for node in accepted.ring.nodes)

    def moments_us(self) -> list[Microseconds]:
        leases = [us_from_ms(end) for switch in self.register.values() for _, end in switch.leases]
        return [*super().moments_us(), *leases]

    def read(self, generation: int) -> tuple[TopologyDescription, Ring]:
        """Return a generation's description and ring from the tables."""
        return described(self.tables[generation].members, generation)

    def tell(self, number: int, generation: int, time_ms: Milliseconds) -> None:
        """Let a node read a committed generation."""
        self.nodes[number].know(time_ms, *self.read(generation), self.clock_us(self.machines[number]))

    def newest_ms(self) -> Milliseconds:
        """Return the timestamp of the newest generation."""
        return Milliseconds(
            max([ms_from_us(time) for time in self.started.values()] + [s.time_ms or 0 for s in self.register.values()])
        )

    def committed_members(self) -> tuple[int, ...]:
        """Return the nodes of the ring: the initial ones, and those of committed switches."""
        joined = [int(switch.initiator) for switch in self.register.values() if switch.phase is SwitchPhase.COMMITTED]
        return (*range(1, INITIAL + 1), *sorted(joined))

    def note_decisions(self) -> None:
        """Record the register's decisions, and assert that none changes."""
        for generation, switch in self.register.items():
            if not switch.is_decided:
                assert generation not in self.decisions, f"{generation}: a decision was taken back"
                continue
            decision = (switch.phase, switch.time_ms)
            assert self.decisions.setdefault(generation, decision) == decision, f"{generation}: decided twice"
            if switch.phase is SwitchPhase.COMMITTED:
                assert switch.time_ms is not None
                assert len(switch.leases) == len(switch.participants)
                self.started.setdefault(int(generation), us_from_ms(switch.time_ms))


class GossipWorld(World):
    """The way of the documents: a joining node gossips its tokens and its generation's timestamp, and hopes."""

    def __init__(self, times: SwitchTimes) -> None:
        super().__init__(times)
        self.gossip: list[int] = []
        self.heard: dict[int, set[int]] = {}
        self.rings: dict[int, tuple[int, ...]] = {}
        self.memory: dict[int, CdcMetadata] = {}
        for machine in self.machines.values():
            self.restart(machine)

    def join(self, *, late: bool = False) -> bool:
        number = len(self.machines) + 1
        generation = len(self.tables)
        ring = tuple(range(1, number))
        time_ms = new_generation_timestamp(
            ms_from_us(self.now_us), ring_delay_ms=RING_DELAY_MS, leeway_ms=self.times.leeway_ms
        )
        time_ms = max([time_ms, *(ms_from_us(time) + ONE_MS for time in self.started.values())])
        self.tables[generation] = Generation(generation, (*ring, number))
        self.started[generation] = us_from_ms(time_ms)
        self.machines[number] = Machine(number)
        self.restart(self.machines[number])
        self.gossip.append(generation)
        self.look(number, late=late)
        return True

    def look(self, number: int, *, late: bool = False) -> None:
        machine = self.machines[number]
        if not machine.hears or late:
            return
        for generation in self.gossip:
            if generation not in self.heard[number]:
                self.hear(machine, generation)

    def hear(self, machine: Machine, generation: int) -> None:
        """Use the new tokens at once and the generation from its timestamp on."""
        self.heard[machine.number].add(generation)
        newest = max(self.heard[machine.number])
        self.rings[machine.number] = self.tables[newest].members
        description, _ = described(self.tables[generation].members, generation)
        self.memory[machine.number].insert(Microseconds(self.started[generation]), description, self.clock_us(machine))

    def deliver(self, number: int, *, lost: bool = False) -> None:
        self.look(number, late=lost)

    def restart(self, machine: Machine) -> None:
        # cdc_local and the tokens are on its disk: a restart loses nothing.
        if machine.number in self.memory:
            return
        first = machine.number <= INITIAL
        self.memory[machine.number] = CdcMetadata(us_from_ms(self.times.leeway_ms))
        self.heard[machine.number] = set()
        self.rings[machine.number] = self.tables[0].members
        if first:
            self.hear(machine, 0)

    def accept(self, number: int, token: int, ts_us: Microseconds) -> tuple[bytes, tuple[int, ...]]:
        machine = self.machines[number]
        return self.memory[number].get_stream(ts_us, token, self.clock_us(machine)), self.rings[number]
