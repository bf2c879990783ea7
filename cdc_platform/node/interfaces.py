"""Interfaces that a node's creator implements: reading descriptions, the disk, the clock, waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from cdc_platform.clock import Microseconds
from cdc_platform.generations import GenerationId, TopologyDescription

GenerationReader = Callable[[GenerationId], TopologyDescription]
"""Reads the whole description of a generation, or raises a PlatformError or an OSError: it may be there later."""

MicrosecondClock = Callable[[], Microseconds]
"""What the node's clock shows, in µs since 1970 UTC."""


class NodeDisk(Protocol):
    """What survives a restart of the node: the newest generation ID that it could use."""

    def kept_id(self) -> GenerationId | None:
        """The ID that is kept, None where there is none."""
        ...

    def keep(self, id: GenerationId) -> bool:
        """Keep an ID in place of an older one or none; whether it was."""
        ...


class RetryWaiter(Protocol):
    """What the background waits with between two attempts. `threading.Event` is one."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds, for ever if None, or until `set` is called; True if it was."""
        ...

    def set(self) -> None:
        """End the wait that is, or else the next one."""
        ...

    def clear(self) -> None:
        """Forget that `set` was called."""
        ...
