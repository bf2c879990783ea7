"""Interfaces that a node's creator implements: reading descriptions, the disk, the clock, waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from cdc_platform.clock import Microseconds
from cdc_platform.generations import GenerationId, TopologyDescription

GenerationReader = Callable[[GenerationId], TopologyDescription]
"""Reads the whole description of a generation, or raises a PlatformError or an OSError if it is not available yet."""

MicrosecondClock = Callable[[], Microseconds]
"""The node's clock, in µs since 1970 UTC."""


class NodeDisk(Protocol):
    """What survives a restart of the node: the newest generation ID that it could use."""

    def load_id(self) -> GenerationId | None:
        """Return the stored ID, or None."""
        ...

    def store_id(self, id: GenerationId) -> bool:
        """Store an ID if none or an older one is stored; return True if it was stored."""
        ...


class RetryWaiter(Protocol):
    """What `RetryLoop` waits with between two attempts, such as a `threading.Event`."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until `set` is called, at most `timeout` seconds (forever if None); return True if it was called."""
        ...

    def set(self) -> None:
        """End the current wait, or else the next one."""
        ...

    def clear(self) -> None:
        """Clear the effect of `set`."""
        ...
