"""The process of a node: it learns, accepts writes, and, where generations are used, publishes what it has read."""

from __future__ import annotations

from typing import Protocol

from cdc_platform.clock import Microseconds
from cdc_platform.simulation.machine import Machine
from cdc_platform.simulation.node_set import NodeMask
from cdc_platform.simulation.observations import SimulatedGeneration


class WritableProcess(Protocol):
    """One start of a node's process."""

    machine: Machine

    def start(self) -> None:
        """Begin to work, with what the disk has."""
        ...

    def accept(self, ts_us: Microseconds, token: int) -> tuple[bytes, NodeMask]:
        """Return the stream of a write, and the nodes of the ring (or the stream set) by which it is routed.

        Raises:
            WriteRefused: the acceptance rule refuses it.
        """
        ...


class Process(WritableProcess, Protocol):
    """One start of a process that introduces generations."""

    def choose_time(self, generation: SimulatedGeneration) -> SimulatedGeneration:
        """Give a generation its timestamp, before its data is inserted (V1).

        Raises:
            StateError: the clock is behind.
        """
        ...

    def create(self, generation: SimulatedGeneration) -> None:
        """Introduce a generation whose data is inserted. V2 chooses its timestamp here.

        Raises:
            StateError: not now; the caller tries again with a new generation.
        """
        ...

    def is_introduced(self, generation: int) -> bool | None:
        """Return True once the generation is committed, False if it never will be, None while that is undecided."""
        ...
