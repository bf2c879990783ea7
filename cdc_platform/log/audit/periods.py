"""Which streams a table's log rows can have, and when: generation after generation, or stream set after stream set.

It is small and travels to executors; streams are read where they are needed. How rows are judged is `log_rows`'.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from cdc_platform.clock import format_ms, format_us
from cdc_platform.errors import StateError
from cdc_platform.generations import GenerationId, TopologyDescription
from cdc_platform.generations.tablets import StreamSet
from cdc_platform.lake.arrow import flat_streams
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import (
    GENERATION_DESCRIPTIONS,
    GENERATION_DESCRIPTIONS_V2,
    STREAMS_DESCRIPTIONS_V2,
    UNORDERED_RANGES,
)
from cdc_platform.records import generation_data, reading, tablet_ledger, tablet_rows, tablet_sets
from cdc_platform.ring import RangeLookup
from cdc_platform.ring.tokens import Bools, Int64s, UInt8s

_KEPT = 8
"""Descriptions that a worker keeps; one of 1.6 million streams takes 26 MB."""


@dataclass(frozen=True)
class Period:
    """A generation or a stream set, from `begin_us` (µs) to the next one's.

    `removed`: its streams are gone. `unreadable` says why streams that should be there are not. `versions` are those
    of the tables that its streams are read from, so that nobody takes the streams of an older one for these.
    """

    begin_us: int
    generation_id: GenerationId | None = None
    tablets: StreamSet | None = None
    removed: bool = False
    unreadable: str = ""
    versions: tuple[int | None, ...] = ()

    @property
    def name(self) -> str:
        """How messages call it."""
        return f"the {'stream set' if self.tablets is not None else 'generation'} of {format_us(self.begin_us)}"


@dataclass(frozen=True, eq=False)
class KnownStreams:
    """The streams of a period: `streams` uint8[k, 16] by range, those of range i from `offsets[i]` on; int64[n + 1].

    `given` is the rule: from tokens to their streams. `by_range` (bool[n]): ranges in which it does not hold, because
    the order of their streams is not known.
    """

    range_ends: Int64s
    offsets: Int64s
    streams: UInt8s
    by_range: Bools
    given: Callable[[Int64s], UInt8s]

    @cached_property
    def _lookup(self) -> RangeLookup:
        return RangeLookup(self.range_ends)

    def range_of(self, tokens: Int64s) -> Int64s:
        """The range (int64[k]) that each token lies in."""
        return self._lookup.row_of(tokens)

    def has(self, streams: UInt8s, ranges: Int64s) -> Bools:
        """Which streams (uint8[k, 16]) are among those of a range (int64[k])."""
        found = np.zeros(len(streams), dtype=bool)
        counts = np.diff(self.offsets)[ranges]
        for place in range(int(counts.max(initial=0))):
            rows = np.flatnonzero((counts > place) & ~found)
            found[rows] = (self.streams[self.offsets[ranges[rows]] + place] == streams[rows]).all(axis=1)
        return found


def periods(lake: Lake, keyspace: str, table: str) -> list[Period]:
    """The periods of a table's log, oldest first: its tablets' sets, or all generations there ever were."""
    if tablet_sets.is_tablet_based(lake, keyspace, table):
        return _of_tablets(lake, keyspace, table)
    names = (GENERATION_DESCRIPTIONS, GENERATION_DESCRIPTIONS_V2, STREAMS_DESCRIPTIONS_V2, UNORDERED_RANGES)
    versions = tuple(lake.version(each) for each in names)
    return [
        Period(
            each.time_ms * 1000,
            generation_id=each.generation_id,
            removed=each.removed_ms is not None,
            versions=versions,
        )
        for each in reading.timeline(lake)
    ]


def _of_tablets(lake: Lake, keyspace: str, table: str) -> list[Period]:
    try:
        sets = tablet_sets.stream_sets(lake, keyspace, table)
    except StateError as error:
        times = tablet_rows.listed_times(lake, keyspace, table)
        return [Period(time * 1000, unreadable=str(error)) for time in times]
    found = [Period(each.timestamp_ms * 1000, tablets=each) for each in sets]
    begun = [
        each.timestamp_ms
        for each in tablet_ledger.layouts(lake, keyspace, table)
        if each.kind == tablet_ledger.CREATED and each.timestamp_ms is not None
    ]
    if begun and begun[-1] < sets[0].timestamp_ms:
        found.insert(0, Period(begun[-1] * 1000, removed=True))
    return found


@lru_cache(maxsize=_KEPT)
def streams_in(root: str, period: Period) -> KnownStreams:
    """The streams of a period that is not removed.

    Raises:
        StateError, NotFound: they are not there, not whole, or damaged.
        InputError: they are no streams of a generation.
    """
    if period.unreadable:
        raise StateError(period.unreadable)
    if period.tablets is not None:
        ids = period.tablets
        ordered = np.zeros(len(ids.tokens), dtype=bool)
        return KnownStreams(ids.tokens, np.arange(len(ids.tokens) + 1), ids.ids, ordered, ids.streams_of)
    lake = Lake(root)
    if period.generation_id is None:
        return _published(lake, period.begin_us // 1000)
    described = generation_data.description_of(lake, period.generation_id)
    return _described(described, np.isin(described.range_ends, _unordered(lake, period.generation_id)))


def _described(described: TopologyDescription, unordered: Bools) -> KnownStreams:
    return KnownStreams(
        described.range_ends,
        described.offsets,
        described.streams,
        unordered,
        lambda tokens: described.streams_of(tokens),
    )


def _published(lake: Lake, time_ms: int) -> KnownStreams:
    """The streams of a generation that is known by its streams rows alone, which say nothing of shards."""
    rows = reading.streams_rows(lake, time_ms).combine_chunks()
    counts, streams = flat_streams(rows["streams"])
    ends = rows["range_end"].to_numpy()
    offsets = np.concatenate([[0], np.cumsum(counts)])
    lookup = RangeLookup(ends)
    by_range = np.ones(len(ends), dtype=bool)
    return KnownStreams(ends, offsets, streams, by_range, lambda tokens: streams[offsets[lookup.row_of(tokens)]])


def _unordered(lake: Lake, id: GenerationId) -> list[int]:
    """The ends of a generation's ranges whose shard order could not be told when it was imported."""
    table, name = (
        (GENERATION_DESCRIPTIONS, format_ms(id.time_ms))
        if id.uuid is None
        else (GENERATION_DESCRIPTIONS_V2, str(id.uuid))
    )
    where = [("table_name", "=", table.full_name), ("generation", "=", name)]
    return lake.read(UNORDERED_RANGES, ["range_end"], where)["range_end"].to_pylist()
