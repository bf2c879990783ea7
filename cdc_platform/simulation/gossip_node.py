"""A node that learns of generations by gossip: the project's coordinator and retry loop, handed a simulated world."""

from __future__ import annotations

from uuid import UUID

from cdc_platform.clock import SECOND_US, Microseconds, ms_from_us
from cdc_platform.generations import GenerationId, TopologyDescription, next_generation_timestamp
from cdc_platform.node import Coordinator, RetryLoop
from cdc_platform.simulation.gossip import GossipedId, Gossiper, GossipRounds
from cdc_platform.simulation.machine import Machine
from cdc_platform.simulation.node_set import NodeMask
from cdc_platform.simulation.observations import Learned, SimulatedGeneration
from cdc_platform.simulation.publisher import Publisher
from cdc_platform.simulation.world import World

SETTLE_US = SECOND_US * 5
"""How long a restarted node waits for gossip before clients may use it."""


class ScheduledWaiter:
    """The waiter of a retry loop: setting it schedules the loop's next step."""

    def __init__(self, node: GossipNode) -> None:
        self._node = node

    def wait(self, timeout: float | None = None) -> bool:
        """Do not wait: the scheduler calls `step` when it is due."""
        return False

    def set(self) -> None:
        """Let the loop look at once when it is due next."""
        self._node.world.on_node(self._node.machine, Microseconds(0), self._node.retry)

    def clear(self) -> None:
        """Nothing remains to be cleared."""


class GossipNode:
    """One start of a node's process."""

    def __init__(self, world: World, machine: Machine, rounds: GossipRounds, publisher: Publisher) -> None:
        self.world = world
        self.machine = machine
        self._rounds = rounds
        self._publisher = publisher
        self._retries_at_us: Microseconds | None = None
        self.gossiper = Gossiper(machine, self._hear, self._add_tokens)
        self.coordinator = Coordinator(
            UUID(int=machine.number + 1),
            self._read_description,
            _AnnouncingDisk(self),
            machine.clock.now_us,
            leeway_us=world.rules.leeway_us,
            policy=world.rules.policy,
        )
        self._retry_loop = RetryLoop(self.coordinator, machine.clock.now_us, ScheduledWaiter(self))

    def start(self) -> None:
        """Learn the stored ID, gossip it, and serve clients once gossip has settled."""
        self._rounds.start(self.gossiper)
        stored_id = self.coordinator.start()
        if stored_id is not None:
            generation = self.world.generation_by_id(stored_id)
            self._note_known(generation)
            self.announce(generation)
        if self.machine.joined:
            self.world.on_node(self.machine, SETTLE_US, self._serve)

    def _serve(self) -> None:
        alone = len(self.world.machines) == 1
        self.machine.serving = self.gossiper.heard or alone
        if not self.machine.serving:
            self.world.on_node(self.machine, SECOND_US, self._serve)

    def accept(self, ts_us: Microseconds, token: int) -> tuple[bytes, NodeMask]:
        """Return a write's stream and the ring as this node knows it."""
        return self.coordinator.get_stream(ts_us, token), self.machine.ring_mask

    def create(self, generation: SimulatedGeneration) -> None:
        """Choose the timestamp (V2), store the ID and gossip it."""
        if generation.number in self.world.committed:
            return
        if self.world.rules.format == "v2":
            generation = self.choose_time(generation)
        self._note_known(generation)
        self.coordinator.learn(self.world.id_of(generation))
        self.announce(generation)
        self.gossiper.announce((generation.time_ms, generation.number), 1 << self.machine.number)

    def choose_time(self, generation: SimulatedGeneration) -> SimulatedGeneration:
        """Give a generation its timestamp: the delay from now, and after every generation that this node knows.

        Raises:
            ClockRefused: this clock is too far behind the newest generation.
        """
        rules = self.world.rules
        known = [self.world.generations[number].time_ms for number in self.world.known[self.machine.number]]
        candidate_ms = ms_from_us(self.machine.clock.now_us()) + rules.delay_ms
        time_ms = next_generation_timestamp(candidate_ms, max(known, default=None), rules.delay_ms)
        return self.world.set_time(generation.number, time_ms)

    def is_introduced(self, generation: int) -> bool | None:
        """Return True if the generation was gossiped; nobody can veto it."""
        return generation in self.world.committed or None

    def announce(self, generation: SimulatedGeneration) -> None:
        """Gossip a generation as this node's current one."""
        self.gossiper.announce((generation.time_ms, generation.number))
        self.world.commit(self.machine.number, generation.number)

    def retry(self) -> None:
        """Run a step of the retry loop, and schedule the next."""
        due_us = self._retry_loop.step()
        if due_us is not None and due_us != self._retries_at_us:
            self._retries_at_us = due_us
            wait_us = Microseconds(max(due_us - self.machine.clock.now_us(), 0))
            self.world.on_node(self.machine, Microseconds(wait_us + self.world.read_delay_us(self.machine)), self.retry)

    def _hear(self, heard: GossipedId) -> None:
        self.world.guard(self.machine, self._learn, self.world.generations[heard[1]])

    def _learn(self, generation: SimulatedGeneration) -> None:
        self._note_known(generation)
        id = self.world.id_of(generation)
        if self.coordinator.hear(id.gossip_text):
            self.world.on_node(self.machine, self.world.read_delay_us(self.machine), self.coordinator.read, id)

    def _note_known(self, generation: SimulatedGeneration) -> None:
        known = self.world.known[self.machine.number]
        if generation.number not in known:
            known.add(generation.number)
            self.world.history.add(Learned(self.world.now_us, self.machine.number, generation.number, False))

    def _add_tokens(self, tokens: NodeMask) -> None:
        self.machine.ring_mask |= tokens

    def _read_description(self, id: GenerationId) -> TopologyDescription:
        generation = self.world.generation_by_id(id)
        description = self.world.read_description(self.machine, generation)
        self.world.history.add(Learned(self.world.now_us, self.machine.number, generation.number, True))
        self._publisher.publish(self.machine, generation)
        return description


class _AnnouncingDisk:
    """The machine's disk; a newer ID that was stored is gossiped, so that it outlives the node that created it."""

    def __init__(self, node: GossipNode) -> None:
        self._node = node

    def load_id(self) -> GenerationId | None:
        return self._node.machine.disk.load_id()

    def store_id(self, id: GenerationId) -> bool:
        stored = self._node.machine.disk.store_id(id)
        if stored and self._node.machine.joined:
            self._node.announce(self._node.world.generation_by_id(id))
        return stored
