"""Tables whose partitions three nodes each replicate; they are written and read at a quorum of these nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence

from cdc_platform.errors import StateError
from cdc_platform.simulation.machine import Machine
from cdc_platform.simulation.network import SimulatedNetwork
from cdc_platform.simulation.plan import OutageKind

REPLICAS = 3
BATCHES = 2
"""A generation's rows are written in that many batches."""


class ReplicatedTable:
    """One table. A partition is a number of batches; a replica may have any of them.

    Of `machines`, three are the replicas of a partition: the one at index `place(key)` and those after it.
    `on_stored(replica, key, batch, batches)` is called for every batch that a replica stores.
    """

    def __init__(
        self,
        network: SimulatedNetwork,
        machines: Sequence[Machine],
        place: Callable[[Hashable], int],
        on_stored: Callable[[int, Hashable, int, int], object] = lambda *_: None,
    ) -> None:
        self._network = network
        self._machines = machines
        self._place = place
        self._on_stored = on_stored
        self._batches: dict[Hashable, int] = {}
        self._stored: defaultdict[tuple[int, Hashable], int] = defaultdict(int)
        self._replica_count = min(REPLICAS, len(machines))
        self._quorum = self._replica_count // 2 + 1

    def _replicas(self, key: Hashable, first: int = 0) -> list[Machine]:
        """Return the replicas of a partition; `first` chooses which of them is asked first."""
        place, count = self._place(key), self._replica_count
        return [self._machines[(place + (first + index) % count) % len(self._machines)] for index in range(count)]

    def write(self, writer: Machine, key: Hashable, batch: int = 0, batches: int = 1) -> None:
        """Write one batch of a partition to all replicas that can be reached.

        Raises:
            TimeoutError: they are no quorum; those that were reached have the batch.
        """
        self._batches[key] = batches
        reached = [replica for replica in self._replicas(key) if self._network.answers(writer, replica)]
        for replica in reached:
            self._stored[replica.number, key] |= 1 << batch
            self._on_stored(replica.number, key, batch, batches)
        if len(reached) < self._quorum:
            raise TimeoutError(f"{len(reached)} of {self._replica_count} replicas answered a write")

    def read(self, reader: Machine | None, key: Hashable) -> bool:
        """Return True if a partition exists; `reader` None is a client that reaches every node that is up.

        Raises:
            TimeoutError: no quorum of replicas answers.
            StateError: rows of the partition are missing.
        """
        if reader is not None and reader.has(OutageKind.UNREADABLE):
            raise TimeoutError(f"node {reader.number} cannot read the tables")
        reached = [
            replica
            for replica in self._replicas(key, 0 if reader is None else reader.number)
            if (replica.up if reader is None else self._network.answers(reader, replica))
        ]
        if len(reached) < self._quorum:
            raise TimeoutError(f"{len(reached)} of {self._replica_count} replicas answered a read")
        stored = 0
        for replica in reached[: self._quorum]:
            stored |= self._stored[replica.number, key]
        if stored and stored.bit_count() < self._batches[key]:
            raise StateError(f"{stored.bit_count()} of {self._batches[key]} batches of the generation are there")
        return stored != 0

    def remove(self, key: Hashable) -> None:
        """Remove a partition from all replicas."""
        for replica in self._replicas(key):
            self._stored.pop((replica.number, key), None)
