"""What an observer who sees everything records of a history. Times in µs of the simulated time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from cdc_platform.clock import Microseconds, Milliseconds


class SimulatedGeneration(NamedTuple):
    """A generation: its number in this history, its UUID, its timestamp and the mask of the nodes it describes.

    The stream set of a table with tablets counts as one, too: it has no nodes, and `tablets` is how many it has.
    """

    number: int
    uuid: UUID
    time_ms: Milliseconds
    members: int
    tablets: int = 0


class Committed(NamedTuple):
    """Other nodes may learn of the generation from now on; by `node`."""

    at_us: Microseconds
    node: int
    generation: SimulatedGeneration


class Learned(NamedTuple):
    """A node knows the generation's ID; `readable`: and its description."""

    at_us: Microseconds
    node: int
    generation: int
    readable: bool


class AcceptedRow(NamedTuple):
    """A node accepted a write. Readers see its row from `visible_us` on.

    `routed`: the mask of the nodes of the ring it used; of a table with tablets, the number of the newest stream set.
    """

    at_us: Microseconds
    node: int
    row: int
    token: int
    ts_us: Microseconds
    stream: bytes
    routed: int
    visible_us: Microseconds


class RefusedWrite(NamedTuple):
    """A node refused a write."""

    at_us: Microseconds
    node: int
    token: int
    ts_us: Microseconds
    verdict: str


class Stored(NamedTuple):
    """A replica stored batch `batch` of `batches` of a generation's streams or timestamp (`table`) for readers."""

    at_us: Microseconds
    replica: int
    table: str
    generation: int
    batch: int
    batches: int


class Removed(NamedTuple):
    """A generation was removed from the tables that readers use."""

    at_us: Microseconds
    generation: int


class Read(NamedTuple):
    """The reader delivered a row."""

    at_us: Microseconds
    row: int


class Advanced(NamedTuple):
    """The reader finished a window: it has read everything up to `position_us`, last in the generation that began at
    `generation_us`."""

    at_us: Microseconds
    position_us: Microseconds
    generation_us: Microseconds


class Decided(NamedTuple):
    """The register of switches shows a decision; `time_ms` None: aborted."""

    at_us: Microseconds
    generation: int
    time_ms: Milliseconds | None


class Noted(NamedTuple):
    """Something else that people want to see in a trace."""

    at_us: Microseconds
    node: int
    text: str


Observation = Committed | Learned | AcceptedRow | RefusedWrite | Stored | Removed | Read | Advanced | Decided | Noted


class History:
    """The observations of one history, in their order, and who else is shown each of them."""

    def __init__(self) -> None:
        self.observations: list[Observation] = []
        self._observers: list[Callable[[Observation], object]] = []

    def add_observer(self, observer: Callable[[Observation], object]) -> None:
        """Call `observer` with every later observation, at the step at which it is made."""
        self._observers.append(observer)

    def add(self, observation: Observation) -> None:
        """Record an observation."""
        self.observations.append(observation)
        for observer in self._observers:
            observer(observation)

    def digest(self) -> str:
        """Return a SHA-256 of all observations: equal histories have equal digests, in any process."""
        hashed = hashlib.sha256()
        for observation in self.observations:
            hashed.update(f"{type(observation).__name__}{tuple(observation)!r}\n".encode())
        return hashed.hexdigest()
