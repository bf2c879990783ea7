"""Run one plan: build the cluster, schedule what the plan says, and record the history."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cdc_platform.clock import Microseconds, seconds_from_us
from cdc_platform.errors import WriteRefused
from cdc_platform.simulation.expiry import Expiry, TabletExpiry
from cdc_platform.simulation.gossip import GossipRounds
from cdc_platform.simulation.gossip_node import GossipNode
from cdc_platform.simulation.group_zero import GroupZero
from cdc_platform.simulation.log_reader import LogReader, TabletLogReader
from cdc_platform.simulation.machine import Disk, Machine
from cdc_platform.simulation.node_set import NodeSet, drawn_nodes
from cdc_platform.simulation.observations import History, Observation, RefusedWrite
from cdc_platform.simulation.operations import CreateGeneration
from cdc_platform.simulation.plan import (
    ClockOffset,
    HistoryPlan,
    OperationKind,
    Outage,
    OutageKind,
    Partition,
    PlannedOperation,
    PlannedWrite,
)
from cdc_platform.simulation.process import Process, WritableProcess
from cdc_platform.simulation.publisher import Publisher
from cdc_platform.simulation.register import Register
from cdc_platform.simulation.replicas import BATCHES
from cdc_platform.simulation.tablet_node import ResizeTablets, TabletNode
from cdc_platform.simulation.two_phase_node import TwoPhaseNode
from cdc_platform.simulation.world import START_US, World


@dataclass(frozen=True)
class Parts:
    """The classes of the parts of a world. Tests replace one by a broken one, which the judge must find.

    `reader` and `expiry` None: those of the protocol.
    """

    disk: type[Disk] = Disk
    publisher: type[Publisher] = Publisher
    reader: type[LogReader] | None = None
    expiry: type[Expiry] | None = None


DEFAULT_PARTS = Parts()
_Operation = CreateGeneration | ResizeTablets


class Simulation:
    """One history, from its plan to its observations."""

    def __init__(
        self,
        plan: HistoryPlan,
        nodes: NodeSet | None = None,
        parts: Parts = DEFAULT_PARTS,
        observer: Callable[[Observation], object] | None = None,
    ) -> None:
        self.plan = plan
        self.history = History()
        if observer is not None:
            self.history.add_observer(observer)
        cluster = drawn_nodes(plan.node_total, plan.shards) if nodes is None else nodes
        self.world = World(plan, cluster, self.history, self._restart, parts.disk)
        self.rounds = GossipRounds(self.world.scheduler, self.world.network, self.world.chance("gossip"))
        self.register = Register(self.world)
        self.group = GroupZero(self.world)
        self.publisher = parts.publisher(self.world)
        tablets = plan.rules.protocol == "tablets"
        self.reader = (parts.reader or (TabletLogReader if tablets else LogReader))(self.world)
        self.expiry = (parts.expiry or (TabletExpiry if tablets else Expiry))(self.world, self.reader)
        self._processes: dict[int, WritableProcess] = {}
        self._operations: dict[int, list[_Operation]] = {}

    def run(self) -> History:
        """Run the plan to its end and return what was observed."""
        with _quiet_nodes():
            self._begin()
            self._schedule()
            self.world.scheduler.run(Microseconds(START_US + self.plan.duration_us))
            self._end_faults()
            self.world.scheduler.run(Microseconds(START_US + self.plan.duration_us + self.plan.settle_us))
        return self.history

    # The cluster at the start.

    def _begin(self) -> None:
        world = self.world
        initial = world.machines[: self.plan.nodes]
        for machine in initial:
            machine.up = machine.joined = True
            machine.ring_mask = world.first_members
        if self.plan.rules.protocol == "tablets":
            self.group.begin()
        else:
            self._begin_generation(initial)
        for change in self.plan.clocks:
            if change.at_us <= 0:
                self._set_clock(change)
        for machine in initial:
            self._start(machine)
            machine.serving = True
        self.reader.start()
        self.expiry.start()

    def _begin_generation(self, initial: list[Machine]) -> None:
        """Let all nodes know and use a published generation."""
        world = self.world
        first = world.first_generation()
        world.commit(0, first.number)
        for table in (world.descriptions, world.streams):
            for batch in range(BATCHES):
                table.write(initial[0], world.key(first), batch, BATCHES)
        world.timestamps.write(initial[0], world.key(first))
        self.register.begin(first.number, [machine.number for machine in initial])
        if self.plan.rules.protocol == "gossip":
            for machine in initial:
                machine.disk.start_with(world.id_of(first))

    def _start(self, machine: Machine) -> None:
        process: WritableProcess
        match self.plan.rules.protocol:
            case "gossip":
                process = GossipNode(self.world, machine, self.rounds, self.publisher)
            case "two-phase":
                process = TwoPhaseNode(self.world, machine, self.register, self.publisher)
            case "tablets":
                process = TabletNode(self.world, machine, self.group)
        self._processes[machine.number] = process
        self.world.guard(machine, process.start)

    def _restart(self, machine: Machine) -> None:
        if machine.up or machine.has(OutageKind.DOWN):
            return
        machine.up = True
        self.world.note(machine.number, "restarts")
        operations = self._operations.get(machine.number, [])
        for operation in operations:
            operation.prepare_restart()
        self._start(machine)
        for operation in operations:
            self.world.guard(machine, operation.run)

    # What the plan says.

    def _schedule(self) -> None:
        scheduler = self.world.scheduler

        def at(offset_us: Microseconds, action: Callable[..., object], *arguments: object) -> None:
            scheduler.at(Microseconds(START_US + offset_us), action, *arguments)

        for change in self.plan.clocks:
            if change.at_us > 0:
                at(change.at_us, self._set_clock, change)
        for outage in self.plan.outages:
            at(outage.at_us, self._begin_outage, outage)
            at(Microseconds(outage.at_us + outage.duration_us), self._end_outage, outage)
        for partition in self.plan.partitions:
            at(partition.at_us, self.world.network.partitions.append, partition)
            at(Microseconds(partition.at_us + partition.duration_us), self._heal, partition)
        for operation in self.plan.operations:
            at(operation.at_us, self._operate, operation)
        for write in self.plan.writes:
            at(write.at_us, self._write, write)
        if self.plan.late_publication_us and self.plan.operations:
            begin_us = self.plan.operations[0].at_us
            at(begin_us, setattr, self.world, "publication_blocked", True)
            end_us = Microseconds(begin_us + self.plan.late_publication_us)
            at(end_us, setattr, self.world, "publication_blocked", False)

    def _set_clock(self, change: ClockOffset) -> None:
        clock = self.world.clock_of(change.node)
        clock.set_offset(change.offset_us, change.drift_ppm)
        if change.at_us > 0:
            self.world.note(change.node, f"clock is set to {change.offset_us:+} µs")

    def _begin_outage(self, outage: Outage) -> None:
        machine = self.world.machines[outage.node]
        machine.begin(outage.kind)
        self.world.note(outage.node, f"{outage.kind} for {seconds_from_us(outage.duration_us):g} s")
        if outage.kind is OutageKind.DOWN:
            self.world.stop(machine)

    def _end_outage(self, outage: Outage) -> None:
        machine = self.world.machines[outage.node]
        machine.end(outage.kind)
        if outage.kind is OutageKind.DOWN and self._has_started(machine):
            self._restart(machine)

    def _heal(self, partition: Partition) -> None:
        self.world.network.partitions.remove(partition)

    def _end_faults(self) -> None:
        self.world.publication_blocked = False
        for machine in self.world.machines:
            machine.disk.end_crashes()
            if self._has_started(machine):
                self._restart(machine)

    def _has_started(self, machine: Machine) -> bool:
        return machine.number in self._processes

    def _operate(self, operation: PlannedOperation) -> None:
        machine = self.world.machines[operation.node]
        if self.world.planned_chance is not None:
            self.world.planned_chance.started = True
        started = self._new_operation(operation)
        self._operations.setdefault(machine.number, []).append(started)
        if operation.kind is OperationKind.JOIN and not machine.has(OutageKind.DOWN):
            machine.up = True
            machine.ring_mask = self.world.first_members
            self.world.note(machine.number, "begins to join")
            self._start(machine)
        if machine.up:
            self.world.guard(machine, started.run)

    def _new_operation(self, operation: PlannedOperation) -> _Operation:
        if operation.kind in (OperationKind.SPLIT, OperationKind.MERGE):
            return ResizeTablets(self.world, operation, self.group)
        return CreateGeneration(self.world, operation, self._creating_process)

    def _creating_process(self, machine: Machine) -> Process:
        process = self._processes[machine.number]
        assert isinstance(process, GossipNode | TwoPhaseNode)
        return process

    def _write(self, write: PlannedWrite) -> None:
        for number in (write.node,) if write.twin is None else (write.node, write.twin):
            machine = self.world.machines[number]
            if not machine.serving:
                continue
            clock = machine.clock if write.age_us is None else self.world.client_clock
            ts_us = Microseconds(clock.now_us() - (write.age_us or 0))
            try:
                stream, routed = self._processes[number].accept(ts_us, write.token)
            except WriteRefused as refused:
                self.history.add(RefusedWrite(self.world.now_us, number, write.token, ts_us, str(refused.verdict)))
            else:
                self.world.accept(machine, write.token, ts_us, stream, routed)


@contextmanager
def _quiet_nodes() -> Iterator[None]:
    """Silence the log messages of nodes, whose faults are planned."""
    loggers = [logging.getLogger(name) for name in ("cdc_platform.node", "cdc_platform.generations")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
