"""Publication of generations for readers: the streams first, then the timestamp, by every node that has read them."""

from __future__ import annotations

from cdc_platform.clock import MINUTE_US, SECOND_US
from cdc_platform.errors import StateError
from cdc_platform.simulation.machine import Machine
from cdc_platform.simulation.observations import SimulatedGeneration
from cdc_platform.simulation.replicas import BATCHES
from cdc_platform.simulation.world import World

RETRY_US = MINUTE_US
ORDER_US = SECOND_US * 5
"""How long a node waits for an earlier generation to be published."""


class Publisher:
    """Publishes generations, the oldest first, as ScyllaDB's topology coordinator and the platform's joins do.

    Every step is idempotent, since many nodes publish the same generation.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self._published: set[int] = set()

    def publish(self, machine: Machine, generation: SimulatedGeneration) -> None:
        """Begin to publish a generation that a node has read."""
        self.world.on_node(machine, self.world.read_delay_us(machine), self._step, machine, generation, 0)

    def steps(self) -> tuple[tuple[str, int], ...]:
        """Return the writes in their order: (table, batch)."""
        return (*(("streams", batch) for batch in range(BATCHES)), ("timestamps", 0))

    def _step(self, machine: Machine, generation: SimulatedGeneration, step: int) -> None:
        try:
            if self._is_published(machine, generation):
                return
            if any(not self._is_published(machine, older) for older in self.earlier(generation)):
                self.world.on_node(machine, ORDER_US, self._step, machine, generation, 0)
                return
            self._write(machine, generation, *self.steps()[step])
        except (TimeoutError, StateError):
            self.world.on_node(machine, RETRY_US, self._step, machine, generation, 0)
            return
        if step + 1 < len(self.steps()):
            self.world.on_node(machine, self.world.read_delay_us(machine), self._step, machine, generation, step + 1)

    def earlier(self, generation: SimulatedGeneration) -> list[SimulatedGeneration]:
        """Return the generations that must be published before this one."""
        committed = [self.world.generations[number] for number in sorted(self.world.committed)]
        return [each for each in committed if each.time_ms < generation.time_ms]

    def _is_published(self, machine: Machine, generation: SimulatedGeneration) -> bool:
        number = generation.number
        if number not in self._published and self.world.timestamps.read(machine, self.world.key(generation)):
            self._published.add(number)
        return number in self._published

    def _write(self, machine: Machine, generation: SimulatedGeneration, table: str, batch: int) -> None:
        if self.world.publication_blocked:
            raise TimeoutError("the tables that clients read cannot be written")
        key = self.world.key(generation)
        if table == "streams":
            machine.disk.durable(lambda: self.world.streams.write(machine, key, batch, BATCHES))
        else:
            machine.disk.durable(lambda: self.world.timestamps.write(machine, key))
