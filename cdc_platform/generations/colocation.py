"""How much of the ring a generation colocates, as exact shares; and how much of it changes streams at a switch.

Shards repeat every window of the ring, so that the tokens which two shardings put on given shards are counted in
closed form: no stream is made for it, and no window walked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

import numpy as np

from cdc_platform.generations.comparison import compare
from cdc_platform.generations.description import RingLayout, TopologyDescription, generate, generate_streams
from cdc_platform.ring.ring import Ring
from cdc_platform.ring.sharding import MAX_IGNORE_MSB, MAX_SHARD_COUNT, first_token_for_shard, shard_of, shard_starts
from cdc_platform.ring.tokens import Int64s, UInt64s, are_among, distinct, unbias

# Position 0 is no key's token.
_TOKENS = 2**64 - 1
_LAST = np.uint64(2**64 - 1)
_HALF = np.uint64(32)
_LOW_HALF = np.uint64(2**32 - 1)
# Streams looked at together.
_CHUNK = 1 << 18


@dataclass(frozen=True)
class Colocation:
    """Shares (0 to 1) of the ring whose keys have their stream in the same vnode, and on the same shard of its owner.

    Shard colocation is part of vnode colocation: the same shard number at another node is worth nothing.
    """

    vnode: float
    shard: float


def colocation(layout: RingLayout, ring: Ring) -> Colocation:
    """What a generation that was made from `layout` colocates while writes go by `ring`; neither may be empty.

    A range inside one vnode that is sharded as its owner is colocated whole: the stream of a shard lies on that shard,
    wherever the shard owns anything. Only the other ranges are counted stream by stream.
    """
    vnodes = np.searchsorted(ring.tokens, layout.range_ends) % len(ring.tokens)
    whole = (
        (layout.shard_counts == ring.shard_counts[vnodes])
        & (layout.ignore_msbs == ring.ignore_msbs[vnodes])
        & ~_split(layout, ring)
    )
    if whole.all():
        return Colocation(1.0, 1.0)
    widths = unbias(layout.range_ends) - unbias(layout.range_starts)
    certain = _total(widths[whole]) - int(whole[0])  # range 0 goes across position 0
    in_vnode = on_shard = certain
    cuts = distinct(layout.range_ends, ring.tokens)
    for rows, shards in _streams(layout, np.flatnonzero(~whole)):
        vnode_count, shard_count = _colocated(layout, ring, cuts, rows, shards)
        in_vnode, on_shard = in_vnode + vnode_count, on_shard + shard_count
    return Colocation(in_vnode / _TOKENS, on_shard / _TOKENS)


@dataclass(frozen=True, eq=False)
class ShardColocation:
    """By node of the ring and shard, int64[k] each, ascending: how many tokens lie there, and how many are colocated.

    `tokens`, `on_shard` uint64[k]: the keys of the shard, and those of them whose stream lies on it too. `in_vnode`
    uint64[n]: by node, the keys whose stream lies in their vnode.
    """

    nodes: Int64s
    shards: Int64s
    tokens: UInt64s
    on_shard: UInt64s
    in_vnode: UInt64s


def colocation_by_shard(layout: RingLayout, ring: Ring, streams: Int64s | None = None) -> ShardColocation:
    """What `colocation` says as one share, for each shard of each node; exact, and counted stream by stream.

    `streams` int64[total] are the tokens that the streams have, range by range in shard order; None: those that the
    layout gives them. A stream outside its range colocates nothing.
    """
    widest = int(max(node.shard_count for node in ring.nodes))
    tokens, on_shard = (np.zeros((len(ring.nodes), widest), dtype=np.uint64) for _ in range(2))
    in_vnode = np.zeros(len(ring.nodes), dtype=np.uint64)
    own = RingLayout.of(ring)
    # As if the generation had been made for this ring: then every key is colocated, and counted where it lies.
    for whose, into, vnodes, actual in ((own, tokens, None, None), (layout, on_shard, in_vnode, streams)):
        cuts = distinct(whose.range_ends, ring.tokens)
        for rows, shards in _streams(whose, np.arange(len(whose))):
            placed = _placed(whose, rows, shards, actual)
            for counted in _counts(whose, ring, cuts, *placed):
                owners = ring.owner_index[counted.vnodes]
                np.add.at(into, (owners, counted.shards), counted.on_shard)
                if vnodes is not None:
                    np.add.at(vnodes, owners, counted.in_vnode)
    nodes, shards = np.nonzero(np.arange(widest) < np.array([[node.shard_count] for node in ring.nodes]))
    return ShardColocation(nodes, shards, tokens[nodes, shards], on_shard[nodes, shards], in_vnode)


def _placed(
    layout: RingLayout, rows: Int64s, shards: Int64s, streams: Int64s | None
) -> tuple[Int64s, Int64s, Int64s | None]:
    """Those of these streams (row and shard, int64[k] each) that lie in their ranges, and the tokens that they have."""
    if streams is None:
        return rows, shards, None
    offsets = np.cumsum(layout.shard_counts) - layout.shard_counts
    tokens = streams[offsets[rows] + shards]
    first = unbias(layout.range_starts[rows]) + np.uint64(1)
    length = unbias(layout.range_ends[rows]) - first
    inside = unbias(tokens) - first <= length
    return rows[inside], shards[inside], tokens[inside]


Streams = UUID | TopologyDescription
"""Whose streams: those that `generate` makes for this UUID, or these."""


def changed_share(old: RingLayout, old_streams: Streams, new: RingLayout, new_streams: Streams) -> float:
    """The share (0 to 1) of the ring whose writes go to another stream ID in the new generation than in the old one.

    Exact. A stream ID holds the index of its range and its token: two generations can only share one where ranges of
    the same index overlap, so that only those streams are made. Fresh random bits make it 1 all but always.
    """
    for lo, hi in _same_index(old, new):
        if np.intersect1d(_low_words(old, old_streams, lo, hi), _low_words(new, new_streams, lo, hi)).size:
            return compare(_whole(old, old_streams), _whole(new, new_streams)).changed_share
    return 1.0


def _whole(layout: RingLayout, streams: Streams) -> TopologyDescription:
    return streams if isinstance(streams, TopologyDescription) else generate(layout, streams)


def _split(layout: RingLayout, ring: Ring) -> np.ndarray:
    """Which ranges (bool[n]) hold tokens of the ring before their end, and so belong to several vnodes."""
    inner = ring.tokens[~are_among(ring.tokens, layout.range_ends)]
    split = np.zeros(len(layout), dtype=bool)
    split[np.searchsorted(layout.range_ends, inner) % len(layout)] = True
    return split


def _streams(layout: RingLayout, rows: Int64s) -> Iterator[tuple[Int64s, Int64s]]:
    """Every stream of these ranges as (row, shard), int64[k] each, in chunks."""
    step = max(1, _CHUNK // int(layout.shard_counts[rows].max()))
    for at in range(0, len(rows), step):
        part = rows[at : at + step]
        counts = layout.shard_counts[part]
        starts = np.cumsum(counts) - counts
        yield np.repeat(part, counts), np.arange(int(counts.sum())) - np.repeat(starts, counts)


def _colocated(layout: RingLayout, ring: Ring, cuts: Int64s, rows: Int64s, shards: Int64s) -> tuple[int, int]:
    """How many tokens have one of these streams and lie in its vnode, and how many of them on its shard too."""
    in_vnode = on_shard = 0
    for counted in _counts(layout, ring, cuts, rows, shards):
        in_vnode += _total(counted.in_vnode)
        on_shard += _total(counted.on_shard)
    return in_vnode, on_shard


@dataclass(frozen=True, eq=False)
class _Counted:
    """Of some streams: the vnode that each lies in and its shard there, and how many tokens it has there in common.

    `vnodes`, `shards` int64[k]; `in_vnode`, `on_shard` uint64[k]: tokens that have the stream and lie in its vnode,
    and those of them on its shard.
    """

    vnodes: Int64s
    shards: Int64s
    in_vnode: UInt64s
    on_shard: UInt64s


def _counts(
    layout: RingLayout, ring: Ring, cuts: Int64s, rows: Int64s, shards: Int64s, tokens: Int64s | None = None
) -> Iterator[_Counted]:
    counts, msbs = layout.shard_counts[rows], layout.ignore_msbs[rows]
    if len(rows) == 0:
        return
    if tokens is None:
        tokens = first_token_for_shard(layout.range_starts[rows], layout.range_ends[rows], shards, counts, msbs)
    # Between two cuts everything is in one range and in one vnode.
    piece = np.searchsorted(cuts, tokens) % len(cuts)
    vnode = np.searchsorted(ring.tokens, tokens) % len(ring.tokens)
    owner_counts, owner_msbs = ring.shard_counts[vnode], ring.ignore_msbs[vnode]
    owner_shards = shard_of(tokens, owner_counts, owner_msbs)
    again, twice = _other_end(layout, ring, cuts, rows, piece)
    for mine in _alike(counts, msbs, owner_counts, owner_msbs):
        first = mine[0]
        ours = _Shards.of(int(counts[first]), int(msbs[first]))
        owners = _Shards.of(int(owner_counts[first]), int(owner_msbs[first]))
        for pieces, part in ((piece, mine), (again, mine[twice[mine]])):
            start, end = unbias(cuts[pieces[part] - 1]), unbias(cuts[pieces[part]])
            any_shard = _Both.of(ours, shards[part], _ALL, np.zeros_like(part))
            same_shard = _Both.of(ours, shards[part], owners, owner_shards[part])
            yield _Counted(
                vnode[part], owner_shards[part], any_shard.between(start, end), same_shard.between(start, end)
            )


def _other_end(layout: RingLayout, ring: Ring, cuts: Int64s, rows: Int64s, piece: Int64s) -> tuple[Int64s, np.ndarray]:
    """The second piece that a range and the vnode of one of its pieces have in common (int64[k]), and where there is
    one (bool[k]): a vnode that goes round the rest of the ring meets a range at both of its ends.
    """
    last = np.searchsorted(cuts, layout.range_ends[rows])
    first = (np.searchsorted(cuts, layout.range_starts[rows]) + 1) % len(cuts)
    vnode_of = np.searchsorted(ring.tokens, cuts) % len(ring.tokens)
    both = (first != last) & (vnode_of[first] == vnode_of[last])
    return np.where(piece == first, last, first), both & ((piece == first) | (piece == last))


def _alike(counts: Int64s, msbs: Int64s, owner_counts: Int64s, owner_msbs: Int64s) -> Iterator[Int64s]:
    """Indexes (int64[]) of the entries that are alike in all columns, group by group."""
    pair, width = MAX_IGNORE_MSB + 1, (MAX_SHARD_COUNT + 1) * (MAX_IGNORE_MSB + 1)
    keys = (counts * pair + msbs) * width + owner_counts * pair + owner_msbs
    if np.ptp(keys) == 0:
        yield np.arange(len(keys))
        return
    for key in np.unique(keys):
        yield np.flatnonzero(keys == key)


def _divided(position: UInt64s, bits: int) -> tuple[UInt64s, UInt64s]:
    """The window of a position and its offset in it; a shift by 64 is undefined."""
    return (np.zeros_like(position) if bits == 64 else position >> np.uint64(bits)), position & _mask(bits)


def _mask(bits: int) -> np.uint64:
    return np.uint64((1 << bits) - 1)


@dataclass(frozen=True, eq=False)
class _Shards:
    """One sharding: its window is `2^bits` positions, shard j has the offsets first[j]..last[j] in each."""

    bits: int
    first: UInt64s
    last: UInt64s

    @classmethod
    def of(cls, shard_count: int, ignore_msb: int) -> _Shards:
        bits = 64 if shard_count == 1 else 64 - ignore_msb  # one shard has no windows
        first = shard_starts(shard_count, 64 - bits)
        return cls(bits, first, np.append(first[1:] - np.uint64(1), _mask(bits)))


_ALL = _Shards.of(1, 0)


@dataclass(frozen=True, eq=False)
class _Both:
    """Positions that a wide sharding puts on shards `wide[k]` and a narrow one, whose windows fit into the wide one's,
    on `narrow[k]`. All counts are uint64[k] modulo 2^64; true ones are below that.
    """

    wide: _Shards
    wide_shards: Int64s
    narrow: _Shards
    narrow_shards: Int64s

    @classmethod
    def of(cls, one: _Shards, one_shards: Int64s, other: _Shards, other_shards: Int64s) -> _Both:
        if one.bits >= other.bits:
            return cls(one, one_shards, other, other_shards)
        return cls(other, other_shards, one, one_shards)

    def between(self, start: UInt64s, end: UInt64s) -> UInt64s:
        """How many lie in `(start, end]`, which wraps where start >= end; position 0 is never counted."""
        count = self._up_to(end) - self._up_to(start)
        around = self._up_to(np.full_like(end, _LAST)) - self._up_to(np.zeros_like(end))
        return np.where(start < end, count, count + around)

    @np.errstate(over="ignore")
    def _up_to(self, position: UInt64s) -> UInt64s:
        """How many lie at or before a position."""
        first, last = self.wide.first[self.wide_shards], self.wide.last[self.wide_shards]
        window, offset = _divided(position, self.wide.bits)
        inside = self._narrow_from(first, np.minimum(offset, last))
        return window * self._narrow_from(first, last) + np.where(offset < first, np.uint64(0), inside)

    @np.errstate(over="ignore")
    def _narrow_from(self, first: UInt64s, last: UInt64s) -> UInt64s:
        """How many of first..last the narrow sharding puts on its shards."""
        _, offset = _divided(first, self.narrow.bits)
        low, high = self.narrow.first[self.narrow_shards], self.narrow.last[self.narrow_shards]
        itself = ((offset >= low) & (offset <= high)).astype(np.uint64)
        return self._narrow_up_to(last) - self._narrow_up_to(first) + itself

    @np.errstate(over="ignore")
    def _narrow_up_to(self, position: UInt64s) -> UInt64s:
        low, high = self.narrow.first[self.narrow_shards], self.narrow.last[self.narrow_shards]
        window, offset = _divided(position, self.narrow.bits)
        inside = np.minimum(offset, high) - low + np.uint64(1)
        return window * (high - low + np.uint64(1)) + np.where(offset < low, np.uint64(0), inside)


def _total(counts: UInt64s) -> int:
    """Their sum, which may be beyond 64 bits."""
    return (int((counts >> _HALF).sum()) << 32) + int((counts & _LOW_HALF).sum())


def _same_index(old: RingLayout, new: RingLayout) -> Iterator[tuple[int, int]]:
    """Slices lo..hi-1 of the rows in which ranges of the same index overlap, each of a bounded number of streams."""
    count = min(len(old), len(new))
    overlap = (old.range_starts[:count] < new.range_ends[:count]) & (new.range_starts[:count] < old.range_ends[:count])
    overlap[:1] = True  # both wrap
    rows = np.flatnonzero(overlap)
    ends = np.flatnonzero(np.diff(rows, append=count + 1) > 1)
    for lo, hi in zip(rows[np.append(0, ends[:-1] + 1)].tolist(), (rows[ends] + 1).tolist(), strict=True):
        step = max(1, _CHUNK // int(max(old.shard_counts[lo:hi].max(), new.shard_counts[lo:hi].max())))
        for at in range(lo, hi, step):
            yield at, min(at + step, hi)


def _low_words(layout: RingLayout, streams: Streams, lo: int, hi: int) -> UInt64s:
    """Version, index and random bits of the streams of rows lo..hi-1: what differs where two stream IDs do."""
    if isinstance(streams, TopologyDescription):
        ids = streams.streams[streams.offsets[lo] : streams.offsets[hi]]
    else:
        _, ids = generate_streams(layout, streams, lo, hi)
    return np.ascontiguousarray(ids).view(">u8").reshape(-1, 2)[:, 1].astype(np.uint64)
