"""A node's way through the register of switches: read, promise, store the promise, acknowledge, decide.

The node is handed the register's rows and returns the row that it wants to write. Its creator reads the register,
writes by compare-and-set, and decides when.
"""

from __future__ import annotations

from collections.abc import Sequence

from cdc_platform.clock import Milliseconds, ms_from_us
from cdc_platform.errors import PlatformError, StateError
from cdc_platform.generations import AcceptancePolicy, GenerationSwitch, SwitchTimes
from cdc_platform.generations import switch as rules
from cdc_platform.node.interfaces import MicrosecondClock, PromiseDisk, RoutedGenerationReader
from cdc_platform.node.participant import SwitchParticipant


class SwitchMember:
    """One node in the switches of a register. Not thread-safe.

    `participant` decides on writes. It begins with the promises that the disk has.
    """

    def __init__(
        self,
        host_id: str,
        times: SwitchTimes,
        reader: RoutedGenerationReader,
        disk: PromiseDisk,
        now_us: MicrosecondClock,
        *,
        policy: AcceptancePolicy = "strict",
    ) -> None:
        self.host_id = host_id
        self._times = times
        self._reader = reader
        self._disk = disk
        self._now_us = now_us
        self.participant = SwitchParticipant(host_id, times, policy, disk.load_promises())

    def step(self, switches: Sequence[GenerationSwitch]) -> GenerationSwitch | None:
        """Apply the register's rows; return the row that the node writes next, None if there is nothing to write.

        The caller writes it by compare-and-set to the version of the register that it has read.
        """
        # The newest first: once it operates, the earlier ones need not be read.
        for switch in sorted(switches, key=lambda row: row.time_ms or Milliseconds(0), reverse=True):
            self._learn(switch)
        self._store_promises()
        newest_ms = max((switch.time_ms for switch in switches if switch.time_ms is not None), default=None)
        for switch in switches:
            if not switch.is_decided:
                return self._advance(switch, newest_ms)
        return None

    def _learn(self, switch: GenerationSwitch) -> None:
        if self.participant.learn(switch, self._now_us()) or switch.time_ms is None:
            return
        try:
            description, ring = self._reader(switch.generation_id)
        except (PlatformError, OSError):
            return
        self.participant.know(switch.time_ms, description, ring, self._now_us())
        self.participant.learn(switch, self._now_us())

    def _advance(self, switch: GenerationSwitch, newest_ms: Milliseconds | None) -> GenerationSwitch | None:
        """Acknowledge an undecided switch, or decide it if that is due."""
        if self.host_id in switch.missing and ms_from_us(self._now_us()) < switch.deadline_ms:
            try:
                description, ring = self._reader(switch.generation_id)
            except (PlatformError, OSError):
                return None
            promise = self.participant.promise(switch, description, ring, self._now_us())
            self._store_promises()
            try:
                now_ms = ms_from_us(self._now_us())
                return rules.acknowledge_switch(switch, self.host_id, promise.lease_end_ms, self._times, now_ms)
            except StateError:
                return None  # the promise has expired: the switch will be aborted
        now_ms = ms_from_us(self._now_us())
        decided = rules.decide_switch(switch, self._times, now_ms=now_ms, newest_ms=newest_ms, by=self.host_id)
        return None if decided is switch else decided

    def _store_promises(self) -> None:
        """Store the promises if they have changed, before anybody can learn of them."""
        if self._disk.load_promises() != self.participant.promises:
            self._disk.store_promises(self.participant.promises)
