"""A node's computer: its clock, its disk, its outages, and the crashes of its process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

from cdc_platform.clock import Microseconds
from cdc_platform.generations import GenerationId
from cdc_platform.node import LeasePromise
from cdc_platform.simulation.clocks import SimulatedClock
from cdc_platform.simulation.plan import CrashAtStep, OutageKind

_Result = TypeVar("_Result")


class Crash(Exception):
    """The process of a node ends here; it restarts after `down_us`."""

    def __init__(self, down_us: Microseconds) -> None:
        super().__init__("the process has crashed")
        self.down_us = down_us


class Disk:
    """What survives a crash. Every write is a durable step, at which the plan may let the process crash."""

    def __init__(self, crashes: Iterable[CrashAtStep]) -> None:
        self._crashes = {crash.step: crash for crash in crashes}
        self._steps = 0
        self._id: GenerationId | None = None
        self._promises: tuple[LeasePromise, ...] = ()
        self._applied = 1

    def durable(self, action: Callable[[], _Result]) -> _Result:
        """Run a durable step.

        Raises:
            Crash: the plan lets the process crash before or after this step.
        """
        self._steps += 1
        crash = self._crashes.get(self._steps)
        if crash is not None and crash.before:
            raise Crash(crash.down_us)
        result = action()
        if crash is not None:
            raise Crash(crash.down_us)
        return result

    def load_id(self) -> GenerationId | None:
        """Return the stored generation ID, or None."""
        return self._id

    def store_id(self, id: GenerationId) -> bool:
        """Store an ID unless a newer one is stored."""
        if self._id is not None and self._id.time_ms >= id.time_ms:
            return False
        self.durable(lambda: setattr(self, "_id", id))
        return True

    def end_crashes(self) -> None:
        """Let no later step crash."""
        self._crashes.clear()

    def start_with(self, id: GenerationId) -> None:
        """Contain an ID from before the history."""
        self._id = id

    def erase_id(self) -> None:
        """Forget the ID, as a node does whose unfinished join starts from the beginning."""
        self._id = None

    def load_applied(self) -> int:
        """Return how many entries of group 0 the node has applied; the first is from before the history."""
        return self._applied

    def store_applied(self, count: int) -> None:
        """Apply entries of group 0 up to this number of them."""
        self.durable(lambda: setattr(self, "_applied", count))

    def load_promises(self) -> tuple[LeasePromise, ...]:
        """Return the stored promises of two-phase switches."""
        return self._promises

    def store_promises(self, promises: tuple[LeasePromise, ...]) -> None:
        """Replace the stored promises."""
        self.durable(lambda: setattr(self, "_promises", promises))


class Machine:
    """Node `number`. `incarnation` counts the starts of its process: events of an earlier process are dropped.

    `serving`: clients can write through it. `ring_mask`: the nodes whose tokens it knows, which it also stores.
    """

    def __init__(self, number: int, clock: SimulatedClock, disk: Disk, datacenter: int = 0) -> None:
        self.number = number
        self.datacenter = datacenter
        self.clock = clock
        self.disk = disk
        self.up = False
        self.joined = False
        self.serving = False
        self.incarnation = 0
        self.ring_mask = 0
        self._outages: Counter[OutageKind] = Counter()

    def begin(self, kind: OutageKind) -> None:
        """Begin an outage; outages of one kind may overlap."""
        self._outages[kind] += 1

    def end(self, kind: OutageKind) -> None:
        """End an outage."""
        self._outages[kind] -= 1

    def has(self, kind: OutageKind) -> bool:
        """Return True during an outage of this kind."""
        return self._outages[kind] > 0

    @property
    def sends(self) -> bool:
        """Return True if its messages leave it."""
        return self.up and not (self._outages[OutageKind.CUT_OFF] or self._outages[OutageKind.MUTE])

    @property
    def receives(self) -> bool:
        """Return True if messages reach it."""
        return self.up and not (self._outages[OutageKind.CUT_OFF] or self._outages[OutageKind.DEAF])
