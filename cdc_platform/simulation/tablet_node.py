"""A node that serves a table with tablets, and the splits and merges of its tablets."""

from __future__ import annotations

from cdc_platform.clock import SECOND_US, Microseconds, ms_from_us
from cdc_platform.errors import WriteRefused
from cdc_platform.generations import StreamSet, WriteVerdict
from cdc_platform.generations import tablets as rules
from cdc_platform.simulation.group_zero import GroupZero
from cdc_platform.simulation.machine import Machine
from cdc_platform.simulation.observations import Learned
from cdc_platform.simulation.plan import OperationKind, PlannedOperation
from cdc_platform.simulation.tablet_sets import stream_set
from cdc_platform.simulation.world import World

HEARTBEAT_US = SECOND_US
"""How often a node compares its entries with those of the leader."""
AGAIN_US = SECOND_US * 5
"""How long a node waits before it tries again to append a command."""


class TabletNode:
    """One start of a node's process. What it has applied survives a restart."""

    def __init__(self, world: World, machine: Machine, group: GroupZero) -> None:
        self.world = world
        self.machine = machine
        self._group = group
        self._incarnation = machine.incarnation
        self._sets: list[StreamSet] = []
        self._applied = 0

    def start(self) -> None:
        """Load what was applied before, and serve clients."""
        self._load(self.machine.disk.load_applied())
        self.machine.serving = self.machine.joined
        self._beat()

    def accept(self, ts_us: Microseconds, token: int) -> tuple[bytes, int]:
        """Return a write's stream, and the number of the newest stream set, whose tablets route the write."""
        times_ms = [applied.timestamp_ms for applied in self._sets]
        decision = rules.decide_tablet_write(
            times_ms, ts_us, self.machine.clock.now_us(), leeway_us=self.world.rules.leeway_us
        )
        if decision.verdict is not WriteVerdict.OK or decision.generation_us is None:
            raise WriteRefused(decision.verdict, decision.reason)
        index = times_ms.index(ms_from_us(decision.generation_us))
        return self._sets[index].streams_of(token)[0].tobytes(), self._applied - 1

    def _beat(self) -> None:
        self.world.on_node(self.machine, HEARTBEAT_US, self._beat)
        leader = self._group.leader
        if leader is not None and self._applied < len(self._group.entries):
            self.world.network.send(self.machine, leader, self._answer, leader)

    def _answer(self, leader: Machine) -> None:
        self.world.network.send(leader, self.machine, self._answered, len(self._group.entries))

    def _answered(self, count: int) -> None:
        if self.machine.incarnation == self._incarnation:
            self.world.guard(self.machine, self._apply, count)

    def _apply(self, count: int) -> None:
        if count > self._applied:
            self.machine.disk.store_applied(count)
            self._load(count)

    def _load(self, count: int) -> None:
        for entry in self._group.entries[self._applied : count]:
            self._sets.append(stream_set(entry.time_ms, entry.tablets))
            self.world.known[self.machine.number].add(entry.number)
            self.world.history.add(Learned(self.world.now_us, self.machine.number, entry.number, True))
        self._applied = count


class ResizeTablets:
    """One split or merge, which the node of its plan runs as topology coordinator."""

    def __init__(self, world: World, operation: PlannedOperation, group: GroupZero) -> None:
        self.world = world
        self.machine = world.machines[operation.node]
        self.done = False
        self._kind: OperationKind = operation.kind
        self._group = group

    def run(self) -> None:
        """Append the command; after a restart again, unless it is appended."""
        if self.done:
            return
        self.world.on_node(self.machine, self.world.read_delay_us(self.machine), self._append)

    def prepare_restart(self) -> None:
        """Do nothing: a command is in the log or is not."""

    def _append(self) -> None:
        if self.done:
            return
        try:
            self.machine.disk.durable(self._resize)
        except TimeoutError:
            self.world.on_node(self.machine, AGAIN_US, self._append)

    def _resize(self) -> None:
        self._group.resize(self.machine, self._kind)
        self.done = True
