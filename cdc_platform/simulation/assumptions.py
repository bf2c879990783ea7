"""Assumptions on a cluster and its faults, and the random plans that meet them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from cdc_platform.clock import HOUR_US, MINUTE_US, SECOND_US, Microseconds, seconds_from_us, us_from_ms
from cdc_platform.errors import InputError
from cdc_platform.simulation.clocks import PARTS_PER_MILLION
from cdc_platform.simulation.plan import (
    CLIENT,
    READER,
    ClockOffset,
    CrashAtStep,
    HistoryPlan,
    Network,
    OperationKind,
    Outage,
    OutageKind,
    Partition,
    PlannedOperation,
    PlannedWrite,
    Rules,
)

_PARTIAL_OUTAGES = tuple(kind for kind in OutageKind if kind is not OutageKind.DOWN)
_MAX_NODES = 1_000
_MAX_WRITES = 1_000_000
_MAX_FAULTS = 1_000
_DRIFT_PPM = 50
_REPEATED_KEYS = 0.75
"""The share of writes to a key that another write has, too."""


@dataclass(frozen=True)
class Assumptions:
    """What may happen in the histories that are tried.

    `skew_us`: the clocks of nodes, clients and the reader differ by at most this, however they drift and jump.
    Generations are created at least `spacing_us` apart. `outages` nodes have an outage of at most `outage_us`,
    `partitions` times the network splits for at most that long, and `crashes` times a node crashes at a durable step.
    `fixed_outages` happen in every history; their times count from the
    creation of its first generation. Half of the writes have the clients' timestamps, which may be off
    the clients' clock by `client_error_us`, None: by the leeway; `server_timestamps`: none has.

    Raises:
        InputError: a number is out of range, or an operation does not go with the protocol.
    """

    rules: Rules = field(default_factory=Rules)
    network: Network = field(default_factory=lambda: Network(loss=0.01))
    nodes: int = 3
    shards: int = 2
    joins: int = 1
    repairs: int = 0
    splits: int = 0
    merges: int = 0
    writes: int = 100
    skew_us: Microseconds = SECOND_US
    outages: int = 0
    partitions: int = 0
    crashes: int = 0
    outage_us: Microseconds = SECOND_US * 20
    fixed_outages: tuple[Outage, ...] = ()
    late_publication_us: Microseconds = Microseconds(0)
    server_timestamps: bool = False
    client_error_us: Microseconds | None = None
    spacing_us: Microseconds = MINUTE_US
    duration_us: Microseconds = MINUTE_US * 5

    def __post_init__(self) -> None:
        for name, low, high in (
            ("nodes", 1, _MAX_NODES),
            ("shards", 1, 256),
            ("joins", 0, 100),
            ("repairs", 0, 100),
            ("splits", 0, 100),
            ("merges", 0, 100),
            ("writes", 0, _MAX_WRITES),
            ("outages", 0, _MAX_FAULTS),
            ("partitions", 0, _MAX_FAULTS),
            ("crashes", 0, _MAX_FAULTS),
        ):
            if not low <= getattr(self, name) <= high:
                raise InputError(f"{name} {getattr(self, name)} is out of range; it has to be {low} to {high}")
        for name, duration_us in (("skew", self.skew_us), ("longest outage", self.outage_us)):
            if not 0 <= duration_us <= HOUR_US:
                seconds = seconds_from_us(duration_us)
                raise InputError(
                    f"{name} {seconds:g} s is out of range; it has to be 0 to {seconds_from_us(HOUR_US):g} s"
                )
        if self.rules.protocol == "tablets" and (self.joins or self.repairs):
            raise InputError("joins and repairs create no stream set of tablets; simulate splits and merges")
        if self.rules.protocol != "tablets" and (self.splits or self.merges):
            raise InputError(
                f"tablets split and merge; simulate them with --protocol tablets, not {self.rules.protocol}"
            )
        for outage in self.fixed_outages:
            if not 0 <= outage.node < self.nodes + self.joins:
                last = self.nodes + self.joins - 1
                raise InputError(f"node {outage.node} is not in the simulated cluster; its nodes are 0 to {last}")

    @property
    def switch_delay_us(self) -> Microseconds:
        """Return how long after its creation a generation begins, about."""
        if self.rules.protocol == "two-phase":
            return us_from_ms(self.rules.switch.earliest_ms)
        return us_from_ms(self.rules.delay_ms)


def draw_plan(assumptions: Assumptions, seed: int) -> HistoryPlan:
    """Return a random plan; equal assumptions and seeds give equal plans."""
    return _Draw(assumptions, seed).plan()


class _Draw:
    """One drawing. Every part has its own source, so that one part does not change with the size of another."""

    def __init__(self, assumptions: Assumptions, seed: int) -> None:
        self._assumptions = assumptions
        self._seed = seed
        self._total = assumptions.nodes + assumptions.joins

    def plan(self) -> HistoryPlan:
        given = self._assumptions
        operations = self._operations()
        return HistoryPlan(
            self._seed,
            given.rules,
            given.network,
            given.nodes,
            given.shards,
            self._duration_us(),
            operations=operations,
            clocks=self._clocks(),
            outages=(*self._fixed_outages(operations), *self._outages()),
            partitions=self._partitions(),
            crashes=self._crashes(),
            writes=self._writes(operations),
            late_publication_us=given.late_publication_us,
        )

    def _source(self, part: str) -> random.Random:
        return random.Random(f"{part} {self._seed}")

    def _time(self, source: random.Random, share: float = 0.9) -> Microseconds:
        return Microseconds(int(source.random() * self._duration_us() * share))

    def _listens_us(self, kind: OperationKind) -> Microseconds:
        """Return how long an operation takes before it creates its generation."""
        joins = kind is OperationKind.JOIN
        return us_from_ms(self._assumptions.rules.ring_delay_ms) if joins else Microseconds(0)

    def _duration_us(self) -> Microseconds:
        """Return a duration in which every generation can begin and be read."""
        given = self._assumptions
        creations = given.joins + given.repairs + given.splits + given.merges
        needed_us = (
            self._listens_us(OperationKind.JOIN)
            + given.spacing_us * max(creations - 1, 0)
            + given.switch_delay_us
            + MINUTE_US
        )
        return Microseconds(max(given.duration_us, needed_us))

    def _operations(self) -> tuple[PlannedOperation, ...]:
        """Return the operations in any order, which create generations or stream sets at the given distance."""
        given, source = self._assumptions, self._source("operations")
        kinds = [(OperationKind.JOIN, given.nodes + index) for index in range(given.joins)]
        kinds += [(OperationKind.REPAIR, source.randrange(given.nodes)) for _ in range(given.repairs)]
        kinds += [(OperationKind.SPLIT, source.randrange(given.nodes)) for _ in range(given.splits)]
        kinds += [(OperationKind.MERGE, source.randrange(given.nodes)) for _ in range(given.merges)]
        source.shuffle(kinds)
        first_us = self._listens_us(OperationKind.JOIN)
        room_us = self._duration_us() - first_us - given.switch_delay_us - MINUTE_US // 2
        room_us -= given.spacing_us * max(len(kinds) - 1, 0)
        creations = sorted(int(source.random() * room_us) for _ in kinds)
        drawn = [
            PlannedOperation(
                Microseconds(first_us + create_us + given.spacing_us * index - self._listens_us(kind)), kind, node
            )
            for index, (create_us, (kind, node)) in enumerate(zip(creations, kinds, strict=True))
        ]
        return tuple(sorted(drawn, key=lambda operation: operation.at_us))

    def _clocks(self) -> tuple[ClockOffset, ...]:
        given, source = self._assumptions, self._source("clocks")
        drift_us = self._duration_us() * 2 * _DRIFT_PPM // PARTS_PER_MILLION
        bound = max(given.skew_us // 2 - drift_us, 0)
        drift = _DRIFT_PPM if given.skew_us // 2 > drift_us else 0

        def offset(at_us: Microseconds, node: int) -> ClockOffset:
            # The extremes are the interesting values.
            shift = source.choice((-bound, bound, source.randint(-bound, bound)))
            return ClockOffset(at_us, node, Microseconds(shift), source.randint(-drift, drift))

        clocks = [offset(Microseconds(0), node) for node in (CLIENT, READER, *range(self._total))]
        if given.outages or given.crashes:
            clocks += [offset(Microseconds(1 + self._time(source)), source.randrange(CLIENT, self._total))]
        return tuple(clocks)

    def _fixed_outages(self, operations: tuple[PlannedOperation, ...]) -> tuple[Outage, ...]:
        creations = [operation.at_us + self._listens_us(operation.kind) for operation in operations]
        first_us = min(creations, default=Microseconds(0))
        return tuple(replace(outage, at_us=outage.at_us + first_us) for outage in self._assumptions.fixed_outages)

    def _outages(self) -> tuple[Outage, ...]:
        given, source = self._assumptions, self._source("outages")
        outages: list[Outage] = []
        for _ in range(given.outages):
            at_us, duration_us = self._fault(source)
            kind = OutageKind.DOWN if source.random() < 0.2 else source.choice(_PARTIAL_OUTAGES)
            outages.append(Outage(at_us, source.randrange(self._total), kind, duration_us))
        return tuple(outages)

    def _fault(self, source: random.Random) -> tuple[Microseconds, Microseconds]:
        """Return when a fault begins and how long it lasts: none lasts beyond the duration."""
        at_us = self._time(source)
        duration_us = 1 + int(source.random() * self._assumptions.outage_us)
        return at_us, Microseconds(min(duration_us, self._duration_us() - at_us))

    def _partitions(self) -> tuple[Partition, ...]:
        given, source = self._assumptions, self._source("partitions")
        partitions: list[Partition] = []
        for _ in range(given.partitions):
            at_us, duration_us = self._fault(source)
            partitions.append(Partition(at_us, source.getrandbits(self._total), source.random() < 0.5, duration_us))
        return tuple(partitions)

    def _crashes(self) -> tuple[CrashAtStep, ...]:
        given, source = self._assumptions, self._source("crashes")
        joining = range(given.nodes, self._total)
        return tuple(
            CrashAtStep(
                source.choice(joining) if joining and source.random() < 0.7 else source.randrange(self._total),
                source.randint(1, 8),
                source.random() < 0.5,
                Microseconds(1 + int(source.random() * given.outage_us)),
            )
            for _ in range(given.crashes)
        )

    def _writes(self, operations: tuple[PlannedOperation, ...]) -> tuple[PlannedWrite, ...]:
        given, source, keys = self._assumptions, self._source("writes"), self._source("keys")
        error = given.rules.leeway_us if given.client_error_us is None else given.client_error_us
        writes: list[PlannedWrite] = []
        for _ in range(given.writes):
            at_us = self._time(source, 1.0)
            if operations and source.random() < 0.5:
                at_us = self._near_switch(source, operations)
            age_us = None
            if not given.server_timestamps and source.random() < 0.5:
                age_us = Microseconds(
                    source.choice((min(1 - error, 0), 0, max(error - 1, 0), source.randint(-error, error)))
                )
            twin = source.randrange(self._total) if age_us is not None and source.random() < 0.3 else None
            token = source.randrange(-(2**63) + 1, 2**63)
            if writes and keys.random() < _REPEATED_KEYS:
                token = keys.choice(writes).token
            writes.append(PlannedWrite(at_us, source.randrange(self._total), token, age_us, twin))
        return tuple(sorted(writes, key=lambda write: write.at_us))

    def _near_switch(self, source: random.Random, operations: tuple[PlannedOperation, ...]) -> Microseconds:
        """Return a time within ten seconds of the beginning of a generation, roughly."""
        given = self._assumptions
        operation = source.choice(operations)
        listens_us = self._listens_us(operation.kind)
        near = operation.at_us + listens_us + given.switch_delay_us + source.randint(-10_000_000, 10_000_000)
        return Microseconds(min(max(near, 0), self._duration_us() - 1))
