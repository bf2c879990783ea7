"""Interfaces that a node's creator implements: reading descriptions, the disk, the clock, waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from cdc_platform.clock import Microseconds
from cdc_platform.generations import GenerationId, TopologyDescription
from cdc_platform.ring import Ring

if TYPE_CHECKING:
    from cdc_platform.node.participant import LeasePromise

GenerationReader = Callable[[GenerationId], TopologyDescription]
"""Reads the whole description of a generation, or raises a PlatformError or an OSError if it is not available yet."""

RoutedGenerationReader = Callable[[str], tuple[TopologyDescription, Ring]]
"""Reads a switch's whole generation by its ID, and the ring that it is for; raises like `GenerationReader`."""

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


class PromiseDisk(Protocol):
    """What survives a restart of the node: the promises whose decision it does not know."""

    def load_promises(self) -> tuple[LeasePromise, ...]:
        """Return the stored promises."""
        ...

    def store_promises(self, promises: tuple[LeasePromise, ...]) -> None:
        """Replace the stored promises; they are on disk when this returns."""
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
