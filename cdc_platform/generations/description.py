"""Topology descriptions: the streams of a generation, the stream of a token, serialized sizes, and the format to use.

Design document 001. ScyllaDB's serialized sizes (bytes) bound a node's memory and its commit log. A compressed
Delta table needs less.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from uuid import UUID

import numpy as np
from numpy.typing import ArrayLike

from cdc_platform.errors import InputError
from cdc_platform.generations.stream_ids import STREAM_ID_BYTES, STREAM_ID_VERSION, encode_stream_ids_into, random_bits
from cdc_platform.ring import (
    MAX_IGNORE_MSB,
    MAX_RANGES,
    MAX_SHARD_COUNT,
    MINIMUM_TOKEN,
    Int64s,
    Node,
    RangeLookup,
    Ring,
    UInt8s,
    first_token_for_shard,
    isin_sorted_tokens,
    range_starts,
    shard_of,
    unique_tokens,
)

CDC_GENERATIONS_V2 = "CDC_GENERATIONS_V2"
"""The feature that a node announces if it reads V2 generations."""


def supports_v2(features: Iterable[str] | None) -> bool:
    """Return True if a node that announces these features reads V2 generations."""
    return CDC_GENERATIONS_V2 in (features or ())


def find_nodes_without_v2(nodes: Iterable[Node]) -> list[Node]:
    """Return the nodes that do not support V2 generations, ordered by host ID.

    A V2 generation is introduced only if every node can read it, so a single such node prevents it.
    """
    unsupported = [node for node in nodes if not supports_v2(node.features)]
    return sorted(unsupported, key=lambda node: node.host_id.int)


# A length, then the 16 bytes of the ID.
_STREAM_BYTES = 20
# The number of streams in the collection.
_COLLECTION_BYTES = 4
# An entry of a V1 description has three fields with a length each: a token, the streams, a byte of ignore_msb.
_V1_ENTRY_BYTES = 4 + (4 + 8) + (4 + _COLLECTION_BYTES) + (4 + 1)


def estimate_rows_bytes(num_ranges: int, num_streams: int) -> int:
    """Return the bytes of `streams` with one row per range, as in V2 descriptions and published streams."""
    return num_ranges * _COLLECTION_BYTES + num_streams * _STREAM_BYTES


def estimate_v1_cell_bytes(num_ranges: int, num_streams: int) -> int:
    """Return the bytes of the single cell of a V1 description."""
    return _COLLECTION_BYTES + num_ranges * _V1_ENTRY_BYTES + num_streams * _STREAM_BYTES


V1_STREAM_LIMIT = 4 * 1024 * 1024 // STREAM_ID_BYTES
"""The number of streams that fit into the single cell of a V1 description."""

# The number of streams processed at once: a chunk's columns stay in the processor's second-level cache.
_CHUNK = 1 << 14


@dataclass(frozen=True, eq=False)
class RangeDescription:
    """One entry: the range `(range_start, range_end]`, its streams (uint8[k, 16], j is shard j) and its ignore_msb."""

    range_start: int
    range_end: int
    streams: UInt8s
    ignore_msb: int


@dataclass(frozen=True, eq=False)
class RingLayout:
    """The input for generating a generation: int64[n] columns, one entry per range, ascending by range end.

    It is small and picklable, so workers receive all of it and generate their rows.

    Raises:
        InputError: columns of different lengths, range ends that don't ascend or are no tokens, sharding out of bounds,
            more than 4,194,304 ranges.
    """

    range_ends: Int64s
    range_starts: Int64s
    shard_counts: Int64s
    ignore_msbs: Int64s

    def __post_init__(self) -> None:
        for name in ("range_ends", "range_starts", "shard_counts", "ignore_msbs"):
            object.__setattr__(self, name, _check_column(name, getattr(self, name), len(self.range_ends)))
        _check_ring(self.range_ends)
        if not np.array_equal(self.range_starts, range_starts(self.range_ends)):
            raise InputError("range_starts are not the range ends before; each range starts where the one before ends")
        _check_bounds("shard_count", self.shard_counts, 1, MAX_SHARD_COUNT)
        _check_bounds("ignore_msb", self.ignore_msbs, 0, MAX_IGNORE_MSB)

    @classmethod
    def of(cls, ring: Ring) -> RingLayout:
        """Return the layout of a ring: every range sharded like the owner of the token that ends it."""
        return cls(ring.tokens, range_starts(ring.tokens), ring.shard_counts, ring.ignore_msbs)

    def __len__(self) -> int:
        return len(self.range_ends)

    @property
    def stream_total(self) -> int:
        """Return the number of streams of the whole generation."""
        return int(self.shard_counts.sum())


@dataclass(frozen=True, eq=False)
class TopologyDescription:
    """A generation's ranges and streams, columnar; entry i is the range `(range_ends[i - 1], range_ends[i]]`.

    `range_ends`, `stream_counts`, `ignore_msbs` are int64[n], ascending by range end. `streams` is uint8[total, 16]:
    the entries' streams concatenated, within an entry in shard order, which has a meaning and is not the order of
    bytes. The arrays are read-only views.

    Raises:
        InputError: the columns don't fit each other, range ends don't ascend, or a stream ID is older than the version
            field.
    """

    range_ends: Int64s
    stream_counts: Int64s
    ignore_msbs: Int64s
    streams: UInt8s

    def __post_init__(self) -> None:
        for name in ("range_ends", "stream_counts", "ignore_msbs"):
            object.__setattr__(self, name, _check_column(name, getattr(self, name), len(self.range_ends)))
        _check_ring(self.range_ends)
        _check_bounds("streams in a range:", self.stream_counts, 1, MAX_SHARD_COUNT)
        _check_bounds("ignore_msb", self.ignore_msbs, 0, MAX_IGNORE_MSB)
        streams = np.ascontiguousarray(self.streams, dtype=np.uint8).view()
        expected = (int(self.stream_counts.sum()), STREAM_ID_BYTES)
        if streams.shape != expected:
            raise InputError(f"streams of shape {streams.shape}; the ranges' stream counts make {expected}")
        streams.flags.writeable = False
        object.__setattr__(self, "streams", streams)
        legacy = np.flatnonzero((streams[:, -1] & 0x0F) > STREAM_ID_VERSION)
        if len(legacy):
            raise InputError(
                f"stream 0x{streams[legacy[0]].tobytes().hex()} is older than the version field;"
                " a generation is built from streams of version 1"
            )

    def __len__(self) -> int:
        return len(self.range_ends)

    @cached_property
    def offsets(self) -> Int64s:
        """Return where each entry's streams begin in `streams`, and finally their end: int64[n + 1]."""
        return _offsets(self.stream_counts)

    @cached_property
    def range_starts(self) -> Int64s:
        """Return the starts (exclusive) of the ranges, int64[n]; entry 0 wraps from the last end."""
        return range_starts(self.range_ends)

    @cached_property
    def _lookup(self) -> RangeLookup:
        return RangeLookup(self.range_ends)

    @cached_property
    def _uniform(self) -> tuple[int, int] | None:
        """Return the sharding of all entries if they agree, which saves two lookups per token, else None."""
        if len(self) and np.ptp(self.stream_counts) == 0 and np.ptp(self.ignore_msbs) == 0:
            return int(self.stream_counts[0]), int(self.ignore_msbs[0])
        return None

    def row_of(self, tokens: ArrayLike) -> Int64s:
        """Return the entry (int64, shape of `tokens`) whose range contains each token (int64).

        Raises:
            InputError: the description has no entries.
        """
        return self._lookup.row_of(tokens)

    def shards_of(self, tokens: ArrayLike, rows: ArrayLike) -> Int64s:
        """Return each token's position (int64) in its entry's streams; `rows` are from `row_of`."""
        if self._uniform is not None:
            return shard_of(tokens, *self._uniform)
        rows = np.asarray(rows, dtype=np.int64)
        return shard_of(tokens, self.stream_counts[rows], self.ignore_msbs[rows])

    def streams_of(self, tokens: ArrayLike) -> UInt8s:
        """Return the stream IDs (uint8[n, 16]) for writes with these tokens (int64[n]).

        Raises:
            InputError: the description has no entries.
        """
        tokens = np.atleast_1d(np.asarray(tokens, dtype=np.int64))
        ids = np.empty((len(tokens), STREAM_ID_BYTES), dtype=np.uint8)
        for lo in range(0, len(tokens), _CHUNK):
            part = tokens[lo : lo + _CHUNK]
            rows = self.row_of(part)
            ids[lo : lo + _CHUNK] = self.streams.take(self.offsets.take(rows) + self.shards_of(part, rows), axis=0)
        return ids

    def entry(self, row: int) -> RangeDescription:
        """Return entry `row`, counted from 0 for the wrapping range.

        Raises:
            InputError: there is no such entry.
        """
        if not 0 <= row < len(self):
            raise InputError(f"entry {row}: the description has entries 0 to {len(self) - 1}")
        streams = self.streams[self.offsets[row] : self.offsets[row + 1]]
        return RangeDescription(
            int(self.range_starts[row]), int(self.range_ends[row]), streams, int(self.ignore_msbs[row])
        )

    def equals(self, other: TopologyDescription) -> bool:
        """Return True if both have the same ranges, sharding and streams, byte for byte."""
        return (
            np.array_equal(self.range_ends, other.range_ends)
            and np.array_equal(self.stream_counts, other.stream_counts)
            and np.array_equal(self.ignore_msbs, other.ignore_msbs)
            and np.array_equal(self.streams, other.streams)
        )


def generate_description(layout: RingLayout, generation_id: UUID) -> TopologyDescription:
    """Return the topology description of a ring for a new generation; repeated calls return the same bytes.

    Raises:
        InputError: the layout has no ranges.
    """
    counts, streams = generate_streams(layout, generation_id)
    return TopologyDescription(layout.range_ends, counts, layout.ignore_msbs, streams)


def generate_streams(
    layout: RingLayout, generation_id: UUID, lo: int = 0, hi: int | None = None
) -> tuple[Int64s, UInt8s]:
    """Generate entries lo..hi-1 of the description: stream_counts int64[hi - lo] and streams uint8[k, 16].

    They equal those of `generate_description`. Slices are independent: workers generate theirs from the same layout.

    Raises:
        InputError: the layout has no ranges, or lo..hi is no slice of it.
    """
    hi = len(layout) if hi is None else hi
    if len(layout) == 0:
        raise InputError("no tokens to build a generation from; at least one node must own or add a token")
    if not 0 <= lo <= hi <= len(layout):
        raise InputError(f"entries {lo} to {hi} of a layout with {len(layout)} ranges")
    counts = layout.shard_counts[lo:hi]
    offsets = _offsets(counts)
    words = np.empty((offsets[-1], 2), dtype=">u8")
    for rows, shard_count, ignore_msb in _group_by_sharding(layout, lo, hi):
        shards = np.arange(shard_count, dtype=np.int64)
        contiguous = len(rows) == hi - lo
        for chunk in _chunks(rows, shard_count):
            ends = layout.range_ends[chunk, None]
            tokens = first_token_for_shard(layout.range_starts[chunk, None], ends, shards, shard_count, ignore_msb)
            random = random_bits(generation_id, ends, shards)
            offset = offsets[chunk - lo]
            if contiguous:
                target = words[offset[0] : offset[-1] + shard_count].reshape(len(chunk), shard_count, 2)
                encode_stream_ids_into(target, tokens, chunk[:, None], random)
            else:
                block = np.empty((len(chunk), shard_count, 2), dtype=">u8")
                encode_stream_ids_into(block, tokens, chunk[:, None], random)
                words[offset[:, None] + shards] = block
    return counts, words.view(np.uint8)


def limit_streams_for_v1(layout: RingLayout) -> RingLayout:
    """Return the layout for a V1 description, which must fit one cell, so large ones get fewer streams.

    If there are more streams than max(262144, ranges), every range with more than its equal share of that limit gets
    just that share; it retains vnode colocation and loses shard colocation.
    """
    limit = max(V1_STREAM_LIMIT, len(layout))
    if layout.stream_total <= limit:
        return layout
    counts = np.minimum(layout.shard_counts, limit // len(layout))
    return RingLayout(layout.range_ends, layout.range_starts, counts, layout.ignore_msbs)


def get_ring_layout(ring: Ring, *, v1: bool) -> RingLayout:
    """Return the layout from which a generation for this ring is generated; V1 limits its streams."""
    layout = RingLayout.of(ring)
    return limit_streams_for_v1(layout) if v1 else layout


def find_uncovered_tokens(range_ends: ArrayLike, ring_tokens: ArrayLike) -> Int64s:
    """Return the ring tokens (int64[], in their order) that end no range; empty if the ranges refine every vnode."""
    tokens = np.asarray(ring_tokens, dtype=np.int64)
    return tokens[~isin_sorted_tokens(tokens, unique_tokens(range_ends))]


def _group_by_sharding(layout: RingLayout, lo: int, hi: int) -> Iterator[tuple[Int64s, int, int]]:
    """Yield the rows lo..hi-1 in groups of one sharding: (rows int64[], shard_count, ignore_msb)."""
    sharding = layout.shard_counts[lo:hi] * (MAX_IGNORE_MSB + 1) + layout.ignore_msbs[lo:hi]
    for value in np.unique(sharding):
        shard_count, ignore_msb = divmod(int(value), MAX_IGNORE_MSB + 1)
        yield np.flatnonzero(sharding == value) + lo, shard_count, ignore_msb


def _chunks(rows: Int64s, width: int) -> Iterator[Int64s]:
    step = max(1, _CHUNK // width)
    for at in range(0, len(rows), step):
        yield rows[at : at + step]


def _offsets(counts: Int64s) -> Int64s:
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def _check_column(name: str, values: ArrayLike, length: int) -> Int64s:
    column = np.asarray(values, dtype=np.int64).view()
    if column.shape != (length,):
        raise InputError(f"{name} of shape {column.shape}; one value for each of {length} ranges is due")
    column.flags.writeable = False
    return column


def _check_ring(range_ends: Int64s) -> None:
    if len(range_ends) > MAX_RANGES:
        raise InputError(f"{len(range_ends)} ranges; a stream's index allows at most {MAX_RANGES}")
    if len(range_ends) and range_ends[0] == MINIMUM_TOKEN:
        raise InputError(f"range end {MINIMUM_TOKEN} is no key's token; tokens begin at {MINIMUM_TOKEN + 1}")
    falls = np.flatnonzero(range_ends[1:] <= range_ends[:-1])
    if len(falls):
        row = int(falls[0])
        raise InputError(f"range end {range_ends[row + 1]} follows {range_ends[row]}; range ends ascend, each once")


def _check_bounds(what: str, values: Int64s, low: int, high: int) -> None:
    wrong = (values < low) | (values > high)
    if np.any(wrong):
        raise InputError(f"{what} {values[wrong][0]} is out of range; it has to be {low} to {high}")
