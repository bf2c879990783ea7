"""Shares of the ring that a generation colocates, and the share that changes streams at a switch. All are exact.

Shards repeat in every window of the ring, so a closed formula counts the tokens that two shardings have in common.
`compare_generations` cuts the ring at every boundary of either generation and weighs the pieces in tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

import numpy as np

from cdc_platform.generations.description import RingLayout, TopologyDescription, generate_description, generate_streams
from cdc_platform.generations.stream_ids import as_comparable_ids
from cdc_platform.ring import (
    LAST_TOKEN,
    MAX_IGNORE_MSB,
    MAX_SHARD_COUNT,
    MINIMUM_TOKEN,
    Int64s,
    Ring,
    UInt64s,
    bias,
    first_token_for_shard,
    isin_sorted_tokens,
    range_starts,
    shard_of,
    shard_starts,
    unbias,
    unique_tokens,
)

_RING_POSITIONS = 2**64


@dataclass(frozen=True, eq=False)
class GenerationComparison:
    """The difference between two generations.

    `ranges_added` and `ranges_removed` are range ends (int64[]); `changed_share` is the share (0 to 1) of the ring
    whose writes go to another stream ID; `streams_kept` counts the stream IDs that both generations have.
    """

    ranges_added: Int64s
    ranges_removed: Int64s
    streams_kept: int
    changed_share: float


def compare_generations(old: TopologyDescription, new: TopologyDescription) -> GenerationComparison:
    """Compare two generations."""
    common = np.intersect1d(as_comparable_ids(old.streams), as_comparable_ids(new.streams)).size
    # Generations draw fresh random bits, so without a common stream ID the whole ring changes.
    share = _weigh_changed_pieces(old, new) if common else 1.0
    return GenerationComparison(
        np.setdiff1d(new.range_ends, old.range_ends), np.setdiff1d(old.range_ends, new.range_ends), int(common), share
    )


def _weigh_changed_pieces(old: TopologyDescription, new: TopologyDescription) -> float:
    last_tokens = unique_tokens(_boundaries(old), _boundaries(new))
    widths = unbias(last_tokens) - unbias(range_starts(last_tokens))
    same = (old.streams_of(last_tokens) == new.streams_of(last_tokens)).all(axis=1)
    if last_tokens.size == 1:
        return 0.0 if same[0] else 1.0
    return sum(widths[~same].tolist()) / _RING_POSITIONS


def _boundaries(description: TopologyDescription) -> Int64s:
    """Return every token after which the next one may go to another stream: int64[], ascending."""
    # Shard numbering restarts with the ring: the wrapping range has a boundary at its top, whatever its sharding.
    parts = [description.range_ends, np.array([LAST_TOKEN])]
    sharding = np.unique(np.stack([description.stream_counts, description.ignore_msbs], axis=1), axis=0)
    for shard_count, ignore_msb in sharding.tolist():
        rows = np.flatnonzero((description.stream_counts == shard_count) & (description.ignore_msbs == ignore_msb))
        parts.append(_shard_ends(description, rows, shard_count, ignore_msb))
    return unique_tokens(*parts)


def _shard_ends(description: TopologyDescription, rows: Int64s, shard_count: int, ignore_msb: int) -> Int64s:
    """Return the last tokens of shards inside the ranges `rows`, which share one sharding."""
    starts = shard_starts(shard_count, ignore_msb)
    ends_found: list[Int64s] = []
    for start, end in zip(description.range_starts[rows].tolist(), description.range_ends[rows].tolist(), strict=True):
        pieces = [(start, end)] if start < end else [(start, LAST_TOKEN), (MINIMUM_TOKEN, end)]
        for low, high in pieces:
            ends_found.append(
                bias(_starts_between(starts, ignore_msb, low - MINIMUM_TOKEN, high - MINIMUM_TOKEN) - np.uint64(1))
            )
    return np.concatenate(ends_found) if ends_found else np.empty(0, dtype=np.int64)


def _starts_between(starts: UInt64s, ignore_msb: int, low: int, high: int) -> UInt64s:
    """Return the positions in (low + 1, high] at which a shard begins."""
    to_window = 64 - ignore_msb
    windows = [window << to_window for window in range(low >> to_window, (high >> to_window) + 1)]
    positions = (np.array(windows, dtype=np.uint64)[:, None] + starts).ravel()
    return positions[(positions > low + 1) & (positions <= high)] if high > low else positions[:0]


# Position 0 is no key's token.
_TOKEN_COUNT = 2**64 - 1
_LAST_POSITION = np.uint64(2**64 - 1)
_HALF = np.uint64(32)
_LOW_HALF = np.uint64(2**32 - 1)
# The number of streams processed together.
_CHUNK = 1 << 18


@dataclass(frozen=True)
class Colocation:
    """Shares (0 to 1) of the ring whose keys have their stream in the same vnode, and on the same shard of its owner.

    Shard colocation is part of vnode colocation: the same shard number on another node is useless.
    """

    vnode: float
    shard: float


def compute_colocation(layout: RingLayout, ring: Ring) -> Colocation:
    """Return the colocation of a generation made from `layout` while writes follow `ring`; neither may be empty.

    A range inside one vnode with its owner's sharding is fully colocated: the stream of a shard lies on that shard
    wherever the shard owns anything. Only the other ranges are counted stream by stream.
    """
    vnodes = np.searchsorted(ring.tokens, layout.range_ends) % len(ring.tokens)
    whole = (
        (layout.shard_counts == ring.shard_counts[vnodes])
        & (layout.ignore_msbs == ring.ignore_msbs[vnodes])
        & ~_find_split_ranges(layout, ring)
    )
    if whole.all():
        return Colocation(1.0, 1.0)
    widths = unbias(layout.range_ends) - unbias(layout.range_starts)
    certain = _sum_counts(widths[whole]) - int(whole[0])  # range 0 spans position 0
    in_vnode = on_shard = certain
    cuts = unique_tokens(layout.range_ends, ring.tokens)
    for rows, shards in _iterate_streams(layout, np.flatnonzero(~whole)):
        vnode_count, shard_count = _count_colocated(layout, ring, cuts, rows, shards)
        in_vnode, on_shard = in_vnode + vnode_count, on_shard + shard_count
    return Colocation(in_vnode / _TOKEN_COUNT, on_shard / _TOKEN_COUNT)


@dataclass(frozen=True, eq=False)
class ShardColocation:
    """Tokens by node of the ring and shard (int64[k] each, ascending): how many there are, and how many are colocated.

    `tokens`, `on_shard` uint64[k]: the keys of the shard, and those of them whose stream lies on it too. `in_vnode`
    uint64[n]: by node, the keys whose stream lies in their vnode.
    """

    nodes: Int64s
    shards: Int64s
    tokens: UInt64s
    on_shard: UInt64s
    in_vnode: UInt64s


def compute_colocation_by_shard(layout: RingLayout, ring: Ring, streams: Int64s | None = None) -> ShardColocation:
    """Return the colocation of `compute_colocation` for each shard of each node; exact, counted stream by stream.

    `streams` int64[total] are the actual tokens of the streams, range by range in shard order; None: those that the
    layout gives them. A stream outside its range colocates nothing.
    """
    widest = int(max(node.shard_count for node in ring.nodes))
    tokens, on_shard = (np.zeros((len(ring.nodes), widest), dtype=np.uint64) for _ in range(2))
    in_vnode = np.zeros(len(ring.nodes), dtype=np.uint64)
    own = RingLayout.of(ring)
    # A generation made for this very ring colocates every key, so it counts the keys of each shard.
    for whose, into, vnodes, actual in ((own, tokens, None, None), (layout, on_shard, in_vnode, streams)):
        cuts = unique_tokens(whose.range_ends, ring.tokens)
        for rows, shards in _iterate_streams(whose, np.arange(len(whose))):
            placed = _streams_in_range(whose, rows, shards, actual)
            for counted in _count_common_tokens(whose, ring, cuts, *placed):
                owners = ring.owner_index[counted.vnodes]
                np.add.at(into, (owners, counted.shards), counted.on_shard)
                if vnodes is not None:
                    np.add.at(vnodes, owners, counted.in_vnode)
    nodes, shards = np.nonzero(np.arange(widest) < np.array([[node.shard_count] for node in ring.nodes]))
    return ShardColocation(nodes, shards, tokens[nodes, shards], on_shard[nodes, shards], in_vnode)


def _streams_in_range(
    layout: RingLayout, rows: Int64s, shards: Int64s, streams: Int64s | None
) -> tuple[Int64s, Int64s, Int64s | None]:
    """Return the streams (row and shard, int64[k] each) that lie in their ranges, and their actual tokens."""
    if streams is None:
        return rows, shards, None
    offsets = np.cumsum(layout.shard_counts) - layout.shard_counts
    tokens = streams[offsets[rows] + shards]
    first = unbias(layout.range_starts[rows]) + np.uint64(1)
    length = unbias(layout.range_ends[rows]) - first
    inside = unbias(tokens) - first <= length
    return rows[inside], shards[inside], tokens[inside]


StreamOrigin = UUID | TopologyDescription
"""The origin of streams: those that `generate_description` makes for a UUID, or those of a description."""


def compute_changed_share(
    old: RingLayout, old_streams: StreamOrigin, new: RingLayout, new_streams: StreamOrigin
) -> float:
    """Return the exact share (0 to 1) of the ring whose writes go to another stream ID in the new generation.

    A stream ID contains the index of its range and its token, so two generations can share one only where ranges with
    the same index overlap. Only those streams are generated. Fresh random bits make the share 1 almost always.
    """
    for lo, hi in _find_same_index_rows(old, new):
        if np.intersect1d(
            _stream_id_low_words(old, old_streams, lo, hi), _stream_id_low_words(new, new_streams, lo, hi)
        ).size:
            return compare_generations(
                _full_description(old, old_streams), _full_description(new, new_streams)
            ).changed_share
    return 1.0


def _full_description(layout: RingLayout, streams: StreamOrigin) -> TopologyDescription:
    return streams if isinstance(streams, TopologyDescription) else generate_description(layout, streams)


def _find_split_ranges(layout: RingLayout, ring: Ring) -> np.ndarray:
    """Return which ranges (bool[n]) contain tokens of the ring before their end, and so belong to several vnodes."""
    inner = ring.tokens[~isin_sorted_tokens(ring.tokens, layout.range_ends)]
    split = np.zeros(len(layout), dtype=bool)
    split[np.searchsorted(layout.range_ends, inner) % len(layout)] = True
    return split


def _iterate_streams(layout: RingLayout, rows: Int64s) -> Iterator[tuple[Int64s, Int64s]]:
    """Yield every stream of these ranges as (row, shard), int64[k] each, in chunks."""
    step = max(1, _CHUNK // int(layout.shard_counts[rows].max()))
    for at in range(0, len(rows), step):
        part = rows[at : at + step]
        counts = layout.shard_counts[part]
        starts = np.cumsum(counts) - counts
        yield np.repeat(part, counts), np.arange(int(counts.sum())) - np.repeat(starts, counts)


def _count_colocated(layout: RingLayout, ring: Ring, cuts: Int64s, rows: Int64s, shards: Int64s) -> tuple[int, int]:
    """Return how many tokens have one of these streams and lie in its vnode, and how many of them on its shard too."""
    in_vnode = on_shard = 0
    for counted in _count_common_tokens(layout, ring, cuts, rows, shards):
        in_vnode += _sum_counts(counted.in_vnode)
        on_shard += _sum_counts(counted.on_shard)
    return in_vnode, on_shard


@dataclass(frozen=True, eq=False)
class _CommonTokens:
    """The vnode and the shard of each stream, and its numbers of tokens there.

    `vnodes`, `shards` int64[k]; `in_vnode`, `on_shard` uint64[k]: tokens that have the stream and lie in its vnode, and
    those of them on its shard.
    """

    vnodes: Int64s
    shards: Int64s
    in_vnode: UInt64s
    on_shard: UInt64s


def _count_common_tokens(
    layout: RingLayout, ring: Ring, cuts: Int64s, rows: Int64s, shards: Int64s, tokens: Int64s | None = None
) -> Iterator[_CommonTokens]:
    counts, msbs = layout.shard_counts[rows], layout.ignore_msbs[rows]
    if len(rows) == 0:
        return
    if tokens is None:
        tokens = first_token_for_shard(layout.range_starts[rows], layout.range_ends[rows], shards, counts, msbs)
    # Everything between two cuts is in one range and in one vnode.
    piece = np.searchsorted(cuts, tokens) % len(cuts)
    vnode = np.searchsorted(ring.tokens, tokens) % len(ring.tokens)
    owner_counts, owner_msbs = ring.shard_counts[vnode], ring.ignore_msbs[vnode]
    owner_shards = shard_of(tokens, owner_counts, owner_msbs)
    other_piece, has_other = _find_other_end(layout, ring, cuts, rows, piece)
    for group in _group_by_shardings(counts, msbs, owner_counts, owner_msbs):
        first = group[0]
        ours = _ShardWindows.of(int(counts[first]), int(msbs[first]))
        owners = _ShardWindows.of(int(owner_counts[first]), int(owner_msbs[first]))
        for pieces, part in ((piece, group), (other_piece, group[has_other[group]])):
            start, end = unbias(cuts[pieces[part] - 1]), unbias(cuts[pieces[part]])
            any_shard = _ShardOverlap.of(ours, shards[part], _SINGLE_SHARD, np.zeros_like(part))
            same_shard = _ShardOverlap.of(ours, shards[part], owners, owner_shards[part])
            yield _CommonTokens(
                vnode[part], owner_shards[part], any_shard.between(start, end), same_shard.between(start, end)
            )


def _find_other_end(
    layout: RingLayout, ring: Ring, cuts: Int64s, rows: Int64s, piece: Int64s
) -> tuple[Int64s, np.ndarray]:
    """Return the second piece that a range shares with the vnode of one of its pieces, and whether there is one.

    The pieces are int64[k], the flags bool[k]. A vnode that spans the rest of the ring meets a range at both of its
    ends.
    """
    last = np.searchsorted(cuts, layout.range_ends[rows])
    first = (np.searchsorted(cuts, layout.range_starts[rows]) + 1) % len(cuts)
    vnode_of = np.searchsorted(ring.tokens, cuts) % len(ring.tokens)
    both = (first != last) & (vnode_of[first] == vnode_of[last])
    return np.where(piece == first, last, first), both & ((piece == first) | (piece == last))


def _group_by_shardings(counts: Int64s, msbs: Int64s, owner_counts: Int64s, owner_msbs: Int64s) -> Iterator[Int64s]:
    """Yield the indexes (int64[]) of the entries that are equal in all columns, group by group."""
    pair, width = MAX_IGNORE_MSB + 1, (MAX_SHARD_COUNT + 1) * (MAX_IGNORE_MSB + 1)
    keys = (counts * pair + msbs) * width + owner_counts * pair + owner_msbs
    if np.ptp(keys) == 0:
        yield np.arange(len(keys))
        return
    for key in np.unique(keys):
        yield np.flatnonzero(keys == key)


def _split_position(position: UInt64s, bits: int) -> tuple[UInt64s, UInt64s]:
    """Return the window of a position and its offset in it; a shift by 64 is undefined."""
    return (np.zeros_like(position) if bits == 64 else position >> np.uint64(bits)), position & _mask(bits)


def _mask(bits: int) -> np.uint64:
    return np.uint64((1 << bits) - 1)


@dataclass(frozen=True, eq=False)
class _ShardWindows:
    """One sharding: its window is `2^bits` positions, and shard j has the offsets first[j]..last[j] in each."""

    bits: int
    first: UInt64s
    last: UInt64s

    @classmethod
    def of(cls, shard_count: int, ignore_msb: int) -> _ShardWindows:
        bits = 64 if shard_count == 1 else 64 - ignore_msb  # one shard has no windows
        first = shard_starts(shard_count, 64 - bits)
        return cls(bits, first, np.append(first[1:] - np.uint64(1), _mask(bits)))


_SINGLE_SHARD = _ShardWindows.of(1, 0)


@dataclass(frozen=True, eq=False)
class _ShardOverlap:
    """Positions that a wide sharding puts on shards `wide[k]` and a narrow one on `narrow[k]`.

    The narrow one's windows fit into the wide one's. All counts are uint64[k] modulo 2^64; true counts are below that.
    """

    wide: _ShardWindows
    wide_shards: Int64s
    narrow: _ShardWindows
    narrow_shards: Int64s

    @classmethod
    def of(cls, one: _ShardWindows, one_shards: Int64s, other: _ShardWindows, other_shards: Int64s) -> _ShardOverlap:
        if one.bits >= other.bits:
            return cls(one, one_shards, other, other_shards)
        return cls(other, other_shards, one, one_shards)

    def between(self, start: UInt64s, end: UInt64s) -> UInt64s:
        """Count the positions in `(start, end]`, which wraps where start >= end; position 0 is never counted."""
        count = self._up_to(end) - self._up_to(start)
        around = self._up_to(np.full_like(end, _LAST_POSITION)) - self._up_to(np.zeros_like(end))
        return np.where(start < end, count, count + around)

    @np.errstate(over="ignore")
    def _up_to(self, position: UInt64s) -> UInt64s:
        """Count the positions at or before a position."""
        first, last = self.wide.first[self.wide_shards], self.wide.last[self.wide_shards]
        window, offset = _split_position(position, self.wide.bits)
        inside = self._narrow_from(first, np.minimum(offset, last))
        return window * self._narrow_from(first, last) + np.where(offset < first, np.uint64(0), inside)

    @np.errstate(over="ignore")
    def _narrow_from(self, first: UInt64s, last: UInt64s) -> UInt64s:
        """Count how many of first..last the narrow sharding puts on its shards."""
        _, offset = _split_position(first, self.narrow.bits)
        low, high = self.narrow.first[self.narrow_shards], self.narrow.last[self.narrow_shards]
        itself = ((offset >= low) & (offset <= high)).astype(np.uint64)
        return self._narrow_up_to(last) - self._narrow_up_to(first) + itself

    @np.errstate(over="ignore")
    def _narrow_up_to(self, position: UInt64s) -> UInt64s:
        low, high = self.narrow.first[self.narrow_shards], self.narrow.last[self.narrow_shards]
        window, offset = _split_position(position, self.narrow.bits)
        inside = np.minimum(offset, high) - low + np.uint64(1)
        return window * (high - low + np.uint64(1)) + np.where(offset < low, np.uint64(0), inside)


def _sum_counts(counts: UInt64s) -> int:
    """Return the sum of counts, which may exceed 64 bits."""
    return (int((counts >> _HALF).sum()) << 32) + int((counts & _LOW_HALF).sum())


def _find_same_index_rows(old: RingLayout, new: RingLayout) -> Iterator[tuple[int, int]]:
    """Yield bounded slices lo..hi-1 of the rows in which ranges with the same index overlap."""
    count = min(len(old), len(new))
    overlap = (old.range_starts[:count] < new.range_ends[:count]) & (new.range_starts[:count] < old.range_ends[:count])
    overlap[:1] = True  # both wrap
    rows = np.flatnonzero(overlap)
    ends = np.flatnonzero(np.diff(rows, append=count + 1) > 1)
    for lo, hi in zip(rows[np.append(0, ends[:-1] + 1)].tolist(), (rows[ends] + 1).tolist(), strict=True):
        step = max(1, _CHUNK // int(max(old.shard_counts[lo:hi].max(), new.shard_counts[lo:hi].max())))
        for at in range(lo, hi, step):
            yield at, min(at + step, hi)


def _stream_id_low_words(layout: RingLayout, streams: StreamOrigin, lo: int, hi: int) -> UInt64s:
    """Return version, index and random bits of the streams of rows lo..hi-1: different stream IDs differ in these."""
    if isinstance(streams, TopologyDescription):
        ids = streams.streams[streams.offsets[lo] : streams.offsets[hi]]
    else:
        _, ids = generate_streams(layout, streams, lo, hi)
    return np.ascontiguousarray(ids).view(">u8").reshape(-1, 2)[:, 1].astype(np.uint64)
