"""Group 0: the log of stream sets that a majority of nodes agrees on, and that every node applies when it hears of it.

ScyllaDB replicates the topology and the stream sets of tablets by Raft. Elections are not simulated: any node that
exchanges messages with a majority can append, and answers the others.
"""

from __future__ import annotations

from cdc_platform.clock import SECOND_US, Microseconds, Milliseconds, ms_from_us
from cdc_platform.generations import tablets as rules
from cdc_platform.simulation.machine import Machine
from cdc_platform.simulation.observations import SimulatedGeneration
from cdc_platform.simulation.plan import OperationKind
from cdc_platform.simulation.tablet_sets import FIRST_TABLETS, MOST_TABLETS
from cdc_platform.simulation.world import World


class GroupZero:
    """The stream sets in the order of their commands."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.entries: list[SimulatedGeneration] = []
        self._leader: Machine | None = None
        self._elected_us: Microseconds | None = None

    def begin(self) -> None:
        """Enter the stream set that operates at the start."""
        self._append(0, self.world.first_stream_set(FIRST_TABLETS))

    def resize(self, machine: Machine, kind: OperationKind) -> None:
        """Append the stream set after a split or merge, unless the table has as many or as few tablets as can be.

        Raises:
            TimeoutError: the node reaches no majority.
        """
        if not self._has_majority(machine):
            raise TimeoutError(f"node {machine.number} reaches no majority of the nodes")
        last = self.entries[-1]
        tablets = last.tablets * 2 if kind is OperationKind.SPLIT else last.tablets // 2
        if not 1 <= tablets <= MOST_TABLETS:
            return
        time_ms = rules.next_set_timestamp(
            ms_from_us(machine.clock.now_us()),
            last.time_ms,
            ring_delay_ms=Milliseconds(0),
            leeway_ms=self.world.rules.delay_ms,
        )
        self._append(machine.number, self.world.new_stream_set(time_ms, tablets))

    def _append(self, node: int, entry: SimulatedGeneration) -> None:
        self.entries.append(entry)
        self.world.commit(node, entry.number)

    @property
    def leader(self) -> Machine | None:
        """Return a node that has all entries and reaches a majority, None if there is none. Elected each second."""
        now_us = self.world.now_us
        if self._elected_us is None or now_us - self._elected_us >= SECOND_US:
            self._elected_us = now_us
            self._leader = next(filter(self._has_majority, self.world.machines), None)
        return self._leader

    def _has_majority(self, machine: Machine) -> bool:
        members = [other for other in self.world.machines if other.joined]
        answering = sum(self.world.network.answers(machine, other) for other in members) if machine.up else 0
        return answering > len(members) // 2
