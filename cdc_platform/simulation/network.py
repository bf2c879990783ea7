"""The network between nodes: delays, loss, distances and partitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cdc_platform.clock import Microseconds
from cdc_platform.simulation.chance import Chance
from cdc_platform.simulation.machine import Machine
from cdc_platform.simulation.plan import Network, Partition
from cdc_platform.simulation.scheduler import Scheduler


class SimulatedNetwork:
    """Delivers messages late, or not at all."""

    def __init__(self, rules: Network, scheduler: Scheduler, chance: Chance) -> None:
        self.partitions: list[Partition] = []
        self._rules = rules
        self._scheduler = scheduler
        self._chance = chance

    def delay_us(self, sender: Machine, receiver: Machine) -> Microseconds:
        """Return how long a message takes (µs)."""
        delay = 1 + int(self._chance.random() * self._rules.latency_us)
        if sender.datacenter != receiver.datacenter:
            delay += self._rules.distance_us
        return Microseconds(delay)

    def is_open(self, sender: Machine, receiver: Machine) -> bool:
        """Return True if a message that `sender` sends now can reach `receiver`."""
        return sender is receiver or (
            sender.sends
            and receiver.receives
            and not any(_is_blocked(partition, sender.number, receiver.number) for partition in self.partitions)
        )

    def answers(self, one: Machine, other: Machine) -> bool:
        """Return True if `one` gets an answer from `other`."""
        return self.is_open(one, other) and self.is_open(other, one)

    def send(self, sender: Machine, receiver: Machine, deliver: Callable[..., object], *arguments: Any) -> None:
        """Run `deliver(*arguments)` when the message arrives, if it does."""
        if self._rules.loss and self._chance.happens(self._rules.loss):
            return
        if sender.sends:
            delay_us = self.delay_us(sender, receiver)
            self._scheduler.after(delay_us, self._arrive, sender, receiver, deliver, arguments)

    def _arrive(
        self, sender: Machine, receiver: Machine, deliver: Callable[..., object], arguments: tuple[Any, ...]
    ) -> None:
        blocked = any(_is_blocked(partition, sender.number, receiver.number) for partition in self.partitions)
        if receiver.receives and not blocked:
            deliver(*arguments)


def _is_blocked(partition: Partition, sender: int, receiver: int) -> bool:
    from_group, to_group = partition.group >> sender & 1, partition.group >> receiver & 1
    return from_group != to_group and (bool(from_group) or not partition.one_way)
