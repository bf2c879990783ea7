"""Joins and repairs: insert the data of a generation, introduce it, and start again if the node dies on the way."""

from __future__ import annotations

from collections.abc import Callable

from cdc_platform.clock import SECOND_US, Microseconds, Milliseconds, us_from_ms
from cdc_platform.errors import StateError
from cdc_platform.simulation.machine import Machine
from cdc_platform.simulation.observations import SimulatedGeneration
from cdc_platform.simulation.plan import OperationKind, PlannedOperation
from cdc_platform.simulation.process import Process
from cdc_platform.simulation.replicas import BATCHES
from cdc_platform.simulation.world import World

AGAIN_US = SECOND_US * 5
"""How long a node waits before it tries again to create a generation."""
STREAMING_US = SECOND_US * 5
"""How long a node that has joined copies data before clients can use it."""


class CreateGeneration:
    """One join or repair, on its machine. `process_of` returns a node's current process."""

    def __init__(self, world: World, operation: PlannedOperation, process_of: Callable[[Machine], Process]) -> None:
        self.world = world
        self.operation = operation
        self.machine = world.machines[operation.node]
        self.done = False
        self._process_of = process_of
        self._sent: int | None = None

    @property
    def is_join(self) -> bool:
        """Return True for a join."""
        return self.operation.kind is OperationKind.JOIN

    def run(self) -> None:
        """Begin, or begin again after a restart: an unfinished join has left nothing that counts."""
        if self.done:
            return
        if self._sent is not None:
            self._introduce(self.world.generations[self._sent])
            return
        # A joining node first listens to gossip for the ring delay.
        wait_us = us_from_ms(self.world.rules.ring_delay_ms) if self.is_join else Microseconds(0)
        self.world.on_node(self.machine, wait_us, self._insert_new)

    def prepare_restart(self) -> None:
        """Erase what an unfinished join has left on the disk, before the node's process starts again."""
        if self.is_join and not self.done:
            self.machine.disk.erase_id()

    def _insert_new(self) -> None:
        """Create a generation over the nodes that this node knows, and insert its data."""
        members = self.machine.ring_mask | 1 << self.machine.number
        generation = self.world.new_generation(Milliseconds(0), members)
        self.world.note(self.machine.number, f"creates generation {generation.number}")
        if self.world.rules.format == "v1":
            try:
                generation = self._process_of(self.machine).choose_time(generation)
            except StateError:
                self.world.on_node(self.machine, AGAIN_US, self._insert_new)
                return
        self._insert(generation, 0)

    def _insert(self, generation: SimulatedGeneration, batch: int) -> None:
        key = self.world.key(generation)
        try:
            self.machine.disk.durable(lambda: self.world.descriptions.write(self.machine, key, batch, BATCHES))
        except TimeoutError:
            self.world.on_node(self.machine, AGAIN_US, self._insert, generation, batch)
            return
        delay_us = self.world.read_delay_us(self.machine)
        if batch + 1 < BATCHES:
            self.world.on_node(self.machine, delay_us, self._insert, generation, batch + 1)
        else:
            self.world.on_node(self.machine, delay_us, self._introduce, generation)

    def _introduce(self, generation: SimulatedGeneration) -> None:
        """Introduce the generation; again until it is decided, since a message may be lost."""
        try:
            self._process_of(self.machine).create(generation)
            self._sent = generation.number
        except (StateError, TimeoutError):
            pass
        self._wait(generation)

    def _wait(self, generation: SimulatedGeneration) -> None:
        """Wait for the decision; if it is an abort, create another generation."""
        if self._is_settled():
            return
        if self._process_of(self.machine).is_introduced(generation.number) is False:
            self._sent = None
            self.world.on_node(self.machine, AGAIN_US, self._insert_new)
        else:
            self.world.on_node(self.machine, AGAIN_US, self._introduce, generation)

    def _is_settled(self) -> bool:
        """Return True if the generation is introduced; then the node belongs to the ring."""
        if self._sent is None or not self._process_of(self.machine).is_introduced(self._sent):
            return False
        self.done = True
        if self.is_join and not self.machine.joined:
            self.machine.joined = True
            self.machine.ring_mask |= 1 << self.machine.number
            self.world.on_node(self.machine, STREAMING_US, setattr, self.machine, "serving", True)
        return True
