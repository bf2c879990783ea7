"""A node that takes part in two-phase switches: the project's switch member, handed a simulated world."""

from __future__ import annotations

import random

from cdc_platform.clock import SECOND_US, Microseconds, ms_from_us, us_from_ms
from cdc_platform.errors import PlatformError
from cdc_platform.generations import GenerationSwitch, SwitchPhase, TopologyDescription
from cdc_platform.generations import switch as rules
from cdc_platform.node import SwitchMember
from cdc_platform.ring import Ring
from cdc_platform.simulation.machine import Machine
from cdc_platform.simulation.node_set import NodeMask
from cdc_platform.simulation.observations import Learned, SimulatedGeneration
from cdc_platform.simulation.plan import OutageKind
from cdc_platform.simulation.publisher import Publisher
from cdc_platform.simulation.register import Register
from cdc_platform.simulation.world import World

POLL_US = SECOND_US * 2
"""How often a node reads the register."""
CONFLICT_US = SECOND_US
"""The longest pause of a node after another one has written the register first."""


class TwoPhaseNode:
    """One start of a node's process."""

    def __init__(self, world: World, machine: Machine, register: Register, publisher: Publisher) -> None:
        self.world = world
        self.machine = machine
        self._register = register
        self._publisher = publisher
        self._random = random.Random(f"node {machine.number} {machine.incarnation} {world.plan.seed}")
        self._seen_version = -1
        self.member = SwitchMember(
            str(machine.number),
            world.rules.switch,
            self._read,
            machine.disk,
            machine.clock.now_us,
            policy=world.rules.policy,
        )

    def start(self) -> None:
        """Read the register, and serve clients."""
        self.machine.serving = self.machine.joined
        self._poll(Microseconds(0))

    def accept(self, ts_us: Microseconds, token: int) -> tuple[bytes, NodeMask]:
        """Return a write's stream, and the ring of its generation."""
        accepted = self.member.participant.accept(ts_us, token, self.machine.clock.now_us())
        return accepted.stream_id, self.world.nodes.mask_of(accepted.ring)

    def choose_time(self, generation: SimulatedGeneration) -> SimulatedGeneration:
        """Return the generation unchanged: the commit gives it its timestamp."""
        return generation

    def create(self, generation: SimulatedGeneration) -> None:
        """Send the switch to a generation to the register, unless it is there.

        Raises:
            StateError: another switch is undecided, or the clock is behind.
            TimeoutError: the register cannot be read.
        """
        version = self._read_register()
        if self._register.get(str(generation.uuid)) is not None:
            return
        members = self.world.nodes.members(generation.members)
        switch = rules.prepare_switch(
            self._register.rows(),
            str(generation.uuid),
            str(self.machine.number),
            [str(number) for number in members],
            self.world.rules.switch,
            now_ms=ms_from_us(self.machine.clock.now_us()),
            newest_ms=self._register.newest_ms,
        )
        self._send(version, switch)

    def is_introduced(self, generation: int) -> bool | None:
        """Return the decision on a generation's switch, None without one."""
        switch = self._register.get(str(self.world.generations[generation].uuid))
        return None if switch is None or not switch.is_decided else switch.phase is SwitchPhase.COMMITTED

    def _poll(self, delay_us: Microseconds) -> None:
        self.world.on_node(self.machine, Microseconds(delay_us + self.world.read_delay_us(self.machine)), self._step)

    def _step(self) -> None:
        pause_us = Microseconds(POLL_US)
        if self._register.version != self._seen_version or self._register.undecided is not None:
            try:
                version = self._read_register()
            except (PlatformError, OSError):
                self._poll(pause_us)
                return
            change = self.member.step(self._register.rows())
            known = self._note_known()
            self._seen_version = version if known else -1
            if change is not None:
                self._send(version, change)
                pause_us = Microseconds(int(self._random.random() * CONFLICT_US))
        self._poll(pause_us)

    def _send(self, version: int, row: GenerationSwitch) -> None:
        """Send a compare-and-set; it arrives even if this node crashes meanwhile."""
        if self.machine.sends:
            delay_us = self.world.read_delay_us(self.machine)
            self.world.scheduler.after(delay_us, self._register.compare_and_set, version, row)

    def _read_register(self) -> int:
        """Return the register's version.

        Raises:
            TimeoutError: this node cannot read it now.
        """
        if self.machine.has(OutageKind.UNREADABLE) or not (self.machine.sends and self.machine.receives):
            raise TimeoutError(f"node {self.machine.number} cannot read the register")
        return self._register.version

    def _read(self, generation_id: str) -> tuple[TopologyDescription, Ring]:
        generation = self.world.generations[self._register.number_of(generation_id)]
        description = self.world.read_description(self.machine, generation)
        return description, self.world.nodes.ring(generation.members)

    def _note_known(self) -> bool:
        """Record the committed generations that the node can write to now; return True if these are all."""
        known = self.world.known[self.machine.number]
        for row in self._register.rows():
            if row.time_ms is None:
                continue
            generation = self.world.generations[self._register.number_of(row.generation_id)]
            readable = us_from_ms(generation.time_ms) in self.member.participant.times_us
            if readable and generation.number not in known:
                known.add(generation.number)
                self.machine.ring_mask |= generation.members
                self.world.history.add(Learned(self.world.now_us, self.machine.number, generation.number, True))
                self._publisher.publish(self.machine, generation)
        newest_ms = self._register.newest_ms
        return newest_ms is not None and us_from_ms(newest_ms) in self.member.participant.times_us
