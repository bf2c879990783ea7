"""The simulated cluster that all parts of a history share: time, machines, network, tables, generations, the log."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple
from uuid import UUID

from cdc_platform.clock import HOUR_MS, SECOND_US, Microseconds, Milliseconds, ms_from_us
from cdc_platform.generations import GenerationId, TopologyDescription
from cdc_platform.simulation.chance import Chance, PlannedChance, SeededChance
from cdc_platform.simulation.clocks import SimulatedClock
from cdc_platform.simulation.machine import Crash, Disk, Machine
from cdc_platform.simulation.network import SimulatedNetwork
from cdc_platform.simulation.node_set import NodeMask, NodeSet
from cdc_platform.simulation.observations import AcceptedRow, Committed, History, Noted, SimulatedGeneration, Stored
from cdc_platform.simulation.plan import CLIENT, READER, HistoryPlan, OutageKind
from cdc_platform.simulation.replicas import ReplicatedTable
from cdc_platform.simulation.scheduler import Scheduler
from cdc_platform.simulation.tablet_sets import tablet_streams

START_US = SECOND_US * 1_700_000_000
SLOW_READ_US = SECOND_US * 10


class LogRow(NamedTuple):
    """A row of the CDC log: readers see it from `visible_us` until its TTL has passed at `expires_us`."""

    ts_us: Microseconds
    row: int
    visible_us: Microseconds
    expires_us: Microseconds | None


class World:
    """What one history consists of. `start_process` starts a node again; `disk` makes the disks of the machines."""

    def __init__(
        self,
        plan: HistoryPlan,
        nodes: NodeSet,
        history: History,
        start_process: Callable[[Machine], object],
        disk: type[Disk] = Disk,
    ) -> None:
        self.plan = plan
        self.start_process = start_process
        self.rules = plan.rules
        self.nodes = nodes
        self.history = history
        self.scheduler = Scheduler(START_US)
        self.planned_chance = None if plan.choices is None else PlannedChance(plan.choices)
        self.network = SimulatedNetwork(plan.network, self.scheduler, self.chance("network"))
        self.machines = [self._machine(number, disk) for number in range(plan.node_total)]
        self.client_clock = SimulatedClock(self.scheduler)
        self.reader_clock = SimulatedClock(self.scheduler)
        replicas = self.machines[: plan.nodes]
        self.descriptions = ReplicatedTable(self.network, replicas, self._place)
        self.streams = ReplicatedTable(self.network, replicas, self._place, self._stored("streams"))
        self.timestamps = ReplicatedTable(self.network, replicas, self._place, self._stored("timestamp"))
        self.publication_blocked = False
        self.generations: list[SimulatedGeneration] = []
        self.committed: set[int] = set()
        self.removed: set[int] = set()
        self.known: list[set[int]] = [set() for _ in self.machines]
        """By node, the numbers of the generations that it has heard of."""
        self.log: dict[int, list[LogRow]] = {}
        self._by_key: dict[Hashable, SimulatedGeneration] = {}
        self._generation_of_stream: dict[bytes, int] = {}
        self._rows = 0

    def chance(self, part: str) -> Chance:
        """Return the chance of network or gossip: the plan's numbers, or those of its seed."""
        return self.planned_chance or SeededChance(f"{part} {self.plan.seed}")

    def _machine(self, number: int, disk: type[Disk]) -> Machine:
        crashes = [crash for crash in self.plan.crashes if crash.node == number]
        datacenter = self.nodes.datacenter_of(number, self.plan.network.datacenters)
        return Machine(number, SimulatedClock(self.scheduler), disk(crashes), datacenter)

    def _place(self, key: Hashable) -> int:
        return self._by_key[key].number

    def _stored(self, table: str) -> Callable[[int, Hashable, int, int], None]:
        def record(replica: int, key: Hashable, batch: int, batches: int) -> None:
            number = self._by_key[key].number
            self.history.add(Stored(self.now_us, replica, table, number, batch, batches))

        return record

    @property
    def now_us(self) -> Microseconds:
        """Return the simulated time (µs since 1970 UTC)."""
        return self.scheduler.now_us

    def clock_of(self, node: int) -> SimulatedClock:
        """Return the clock of a node, of the CLIENT or of the READER."""
        return {CLIENT: self.client_clock, READER: self.reader_clock}.get(node) or self.machines[node].clock

    # Generations.

    def new_generation(self, time_ms: Milliseconds, members: NodeMask) -> SimulatedGeneration:
        """Create a generation over these nodes; `time_ms` may be a placeholder until `set_time`."""
        number = len(self.generations)
        generation = SimulatedGeneration(number, UUID(int=number + 1), time_ms, members)
        self.generations.append(generation)
        self._by_key[self.key(generation)] = generation
        v1 = self.rules.format == "v1"
        self._generation_of_stream.update(dict.fromkeys(self.nodes.streams(members, generation.uuid, v1), number))
        return generation

    def new_stream_set(self, time_ms: Milliseconds, tablets: int) -> SimulatedGeneration:
        """Create a stream set of that many tablets, which begins at `time_ms`."""
        number = len(self.generations)
        created = SimulatedGeneration(number, UUID(int=number + 1), time_ms, 0, tablets)
        self.generations.append(created)
        self._generation_of_stream.update(dict.fromkeys(tablet_streams(time_ms, tablets), number))
        return created

    def set_time(self, number: int, time_ms: Milliseconds) -> SimulatedGeneration:
        """Give a generation its timestamp."""
        generation = self.generations[number]._replace(time_ms=time_ms)
        self.generations[number] = generation
        self._by_key[self.key(generation)] = generation
        return generation

    @property
    def first_members(self) -> NodeMask:
        """Return the nodes that exist at the start."""
        return (1 << self.plan.nodes) - 1

    def first_generation(self) -> SimulatedGeneration:
        """Create the generation of the nodes that exist at the start; it began an hour before."""
        return self.new_generation(Milliseconds(ms_from_us(START_US) - HOUR_MS), self.first_members)

    def first_stream_set(self, tablets: int) -> SimulatedGeneration:
        """Create the stream set of that many tablets that began an hour before the start."""
        return self.new_stream_set(Milliseconds(ms_from_us(START_US) - HOUR_MS), tablets)

    def commit(self, node: int, number: int) -> None:
        """Record that other nodes may learn of a generation."""
        if number not in self.committed:
            self.committed.add(number)
            self.history.add(Committed(self.now_us, node, self.generations[number]))

    def key(self, generation: SimulatedGeneration) -> Hashable:
        """Return the key of a generation's data: its timestamp in V1, its UUID as a number in V2."""
        return generation.time_ms if self.rules.format == "v1" else generation.uuid.int

    def id_of(self, generation: SimulatedGeneration) -> GenerationId:
        """Return the ID that nodes gossip."""
        return GenerationId(generation.time_ms, None if self.rules.format == "v1" else generation.uuid)

    def generation_by_id(self, id: GenerationId) -> SimulatedGeneration:
        """Return the generation with this ID."""
        return self._by_key[id.time_ms if id.uuid is None else id.uuid.int]

    def description(self, generation: SimulatedGeneration) -> TopologyDescription:
        """Return a generation's description, as it was generated."""
        return self.nodes.description(generation.members, generation.uuid, self.rules.format == "v1")

    def read_description(self, machine: Machine, generation: SimulatedGeneration) -> TopologyDescription:
        """Read a generation's description from the tables.

        Raises:
            TimeoutError: no quorum answers.
            StateError: rows are missing.
        """
        if not self.descriptions.read(machine, self.key(generation)):
            raise TimeoutError(f"the rows of generation {generation.number} are not there yet")
        return self.description(generation)

    # Events of a node.

    def on_node(self, machine: Machine, delay_us: Microseconds, action: Callable[..., object], *arguments: Any) -> None:
        """Run an action of a node's process after a delay, unless the process has ended by then."""
        self.scheduler.after(delay_us, self._run, machine, machine.incarnation, action, arguments)

    def _run(
        self, machine: Machine, incarnation: int, action: Callable[..., object], arguments: tuple[Any, ...]
    ) -> None:
        if machine.up and machine.incarnation == incarnation:
            self.guard(machine, action, *arguments)

    def guard(self, machine: Machine, action: Callable[..., object], *arguments: Any) -> None:
        """Run an action of a node's process, which may crash in it."""
        try:
            action(*arguments)
        except Crash as crash:
            self.stop(machine)
            self.scheduler.after(crash.down_us, self.start_process, machine)

    def stop(self, machine: Machine) -> None:
        """End a node's process."""
        if machine.up:
            machine.up = machine.serving = False
            machine.incarnation += 1
            self.note(machine.number, "crashes")

    def read_delay_us(self, machine: Machine) -> Microseconds:
        """Return how long a node needs to read a table."""
        if machine.has(OutageKind.SLOW_READS):
            return SLOW_READ_US
        return Microseconds(self.network.delay_us(machine, self.machines[0]) * 2)

    # The log.

    def accept(self, machine: Machine, token: int, ts_us: Microseconds, stream: bytes, routed: NodeMask) -> None:
        """Write the row of an accepted write to the log."""
        row, self._rows = self._rows, self._rows + 1
        visible_us = Microseconds(self.now_us + self.read_delay_us(machine))
        expires_us = Microseconds(visible_us + self.rules.ttl_us) if self.rules.ttl_us else None
        number = self._generation_of_stream[stream]
        self.log.setdefault(number, []).append(LogRow(ts_us, row, visible_us, expires_us))
        self.history.add(AcceptedRow(self.now_us, machine.number, row, token, ts_us, stream, routed, visible_us))

    def note(self, node: int, text: str) -> None:
        """Record something for the trace."""
        self.history.add(Noted(self.now_us, node, text))
