"""The audit of rows: where a stream's token lies, which shard it is on, how its ID is made, that it is there once.

Pure numpy, on slices of one generation's rows; what it needs of the whole generation is the range ends. The rules
themselves are those of `ring` and `generations`, the very functions that place streams and look them up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from cdc_platform.generations.stream_ids import VERSION, StreamId, StreamIds, decode
from cdc_platform.invariants.findings import (
    SHARD_COLOCATION,
    STREAM_FORMAT,
    STREAMS_UNIQUE,
    VNODE_COLOCATION,
    Tally,
)
from cdc_platform.ring import (
    LAST,
    MAX_IGNORE_MSB,
    MAX_SHARD_COUNT,
    MINIMUM,
    first_token_for_shard,
    range_starts,
    shard_of,
    unbias,
)
from cdc_platform.ring.lookup import RangeLookup
from cdc_platform.ring.tokens import Bools, Int64s, UInt8s

# Streams worked on at once: their columns stay in the processor's second-level cache.
_CHUNK = 1 << 14


@dataclass(frozen=True, eq=False)
class RangeEnds:
    """The ranges of the generation that the rows belong to: `ends` int64[n], ascending, each once."""

    ends: Int64s

    @cached_property
    def starts(self) -> Int64s:
        """The (exclusive) start of each range, int64[n]."""
        return range_starts(self.ends)

    @cached_property
    def lookup(self) -> RangeLookup:
        """Finds the range of a token, as writes do."""
        return RangeLookup(self.ends)

    def __reduce__(self) -> tuple[type[RangeEnds], tuple[Int64s]]:
        return RangeEnds, (self.ends,)  # workers make their lookup themselves: it is larger than the column


@dataclass(frozen=True, eq=False)
class Rows:
    """Some rows of one generation, in any order; `range_ends` has one entry a row, `streams` one a stream.

    `range_ends` int64[n] (all of them in the generation's range ends); `ignore_msbs` int64[n], -1 for null;
    `stream_counts` int64[n]; `streams` uint8[total, 16], the rows' streams one after the other. `order_known` bool[n]:
    where it is False the shard of a stream cannot be told, so that shard colocation is not judged. `damaged` says by
    place in `streams` what is there instead of 16 bytes; the bytes at such a place mean nothing.
    """

    range_ends: Int64s
    ignore_msbs: Int64s
    stream_counts: Int64s
    streams: UInt8s
    order_known: Bools
    damaged: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _Block:
    """Rows with the same number of streams: columns are [rows, 1] or [rows, streams]."""

    range_ends: Int64s
    starts: Int64s
    ranks: Int64s
    ignore_msbs: Int64s
    order_known: Bools
    ids: UInt8s
    whole: Bools
    damaged: Mapping[tuple[int, int], str]

    @cached_property
    def fields(self) -> StreamIds:
        found = decode(self.ids.reshape(-1, 16))
        shape = self.ids.shape[:2]
        return StreamIds(
            found.tokens.reshape(shape),
            found.versions.reshape(shape),
            found.indexes.reshape(shape),
            found.randoms.reshape(shape),
        )

    @property
    def width(self) -> int:
        return self.ids.shape[1]

    def name(self, row: int, stream: int) -> str:
        value = self.damaged.get((row, stream)) or str(StreamId(self.ids[row, stream].tobytes()))
        return f"range end {self.range_ends[row, 0]}, stream {stream} ({value})"


def audit_rows(rows: Rows, ranges: RangeEnds) -> Iterator[Tally]:
    """Tallies of vnode_colocation, shard_colocation, stream_format and streams_unique for some rows of a generation.

    Whether a stream comes again in another row is not seen here: it can only where an index is wrong or a range end
    comes twice, and then stream_format or ring_covered_once tells.
    """
    yield from _without_streams(rows)
    for block in _blocks(rows, ranges):
        inside = _inside(block)
        yield _vnode_colocation(block, inside)
        yield _shard_colocation(block, inside)
        yield _stream_format(block)
        yield _streams_unique(block)


def _without_streams(rows: Rows) -> Iterator[Tally]:
    empty = np.flatnonzero(rows.stream_counts == 0)
    if len(empty):
        first = int(rows.range_ends[empty].min())
        yield Tally(STREAM_FORMAT, len(empty), len(empty), first, f"range end {first} has no streams")


def _inside(block: _Block) -> Bools:
    """Which tokens lie in the range of their row. The minimum token lies in none: no key has it.

    Positions are counted from the range's first one on, so that the ring's end is no case of its own; the range that
    starts where it ends is the whole ring.
    """
    first = unbias(block.starts) + np.uint64(1)
    length = unbias(block.range_ends) - first
    return (unbias(block.fields.tokens) - first <= length) & (block.fields.tokens != MINIMUM)


def _vnode_colocation(block: _Block, inside: Bools) -> Tally:
    def explain(row: int, stream: int) -> str:
        token, start, end = block.fields.tokens[row, stream], block.starts[row, 0], block.range_ends[row, 0]
        return f"its token {token} is outside its range ({start}, {end}]"

    return _tally(VNODE_COLOCATION, block, int(block.whole.sum()), block.whole & ~inside, explain)


def _shard_colocation(block: _Block, inside: Bools) -> Tally:
    """Counted are the pairs of row and shard in which the shard owns a token of the range.

    That it does is proven by its stream where that is in place; only where some stream is not, the first token of the
    shards in the range has to be found.
    """
    msbs = np.where(block.width == 1, 0, block.ignore_msbs)  # one shard owns everything, whatever bits it ignores
    legal = (msbs >= 0) & (msbs <= MAX_IGNORE_MSB) & (block.range_ends != MINIMUM) & (block.width <= MAX_SHARD_COUNT)
    judged = (block.order_known | (block.width == 1)) & block.whole
    judgeable = judged & legal
    width = min(block.width, MAX_SHARD_COUNT)
    bits = np.where(legal, msbs, 0)
    shards = np.arange(block.width)
    on_shard = shard_of(block.fields.tokens, width, bits) == shards
    owns = judgeable & on_shard & inside
    wrong = judged & ~legal
    if not owns.all():
        ends = np.where(legal, block.range_ends, LAST)
        first = first_token_for_shard(block.starts, ends, np.minimum(shards, width - 1), width, bits)
        owns = judgeable & ((first != ends) | (shard_of(ends, width, bits) == shards))
        wrong |= judgeable & np.where(owns, ~on_shard, block.fields.tokens != ends)

    def explain(row: int, stream: int) -> str:
        if not legal[row, 0]:
            msb = "null" if block.ignore_msbs[row, 0] == -1 else block.ignore_msbs[row, 0]
            return f"its shard cannot be told from ignore_msb {msb} and {block.width} shards"
        if not owns[row, stream]:
            return f"shard {stream} owns nothing in the range, so its token has to be the range end"
        shard = shard_of(block.fields.tokens[row, stream], width, bits[row, 0])
        return f"its token {block.fields.tokens[row, stream]} is on shard {shard}, not on shard {stream}"

    return _tally(SHARD_COLOCATION, block, int(owns.sum()), wrong, explain)


def _stream_format(block: _Block) -> Tally:
    fields = block.fields
    wrong = (fields.versions != VERSION) | (fields.indexes != block.ranks) | ~block.whole

    def explain(row: int, stream: int) -> str:
        if not block.whole[row, stream]:
            return "a stream ID has 16 bytes"
        if fields.versions[row, stream] > VERSION:
            return f"a legacy stream ID: its version is {fields.versions[row, stream]}, not {VERSION}"
        if fields.versions[row, stream] != VERSION:
            return f"its version is {fields.versions[row, stream]}, not {VERSION}"
        return f"its index is {fields.indexes[row, stream]}, the range is number {block.ranks[row, 0]}"

    return _tally(STREAM_FORMAT, block, wrong.size, wrong, explain)


def _streams_unique(block: _Block) -> Tally:
    """Streams that are equal have equal random bits: only rows in which some are need a look at whole IDs."""
    again = np.zeros(block.whole.shape, dtype=bool)
    in_order = np.sort(block.fields.randoms, axis=1)
    for row in np.flatnonzero((in_order[:, 1:] == in_order[:, :-1]).any(axis=1)):
        places = np.flatnonzero(block.whole[row])
        _, first = np.unique(block.ids[row, places], axis=0, return_index=True)
        again[row, np.delete(places, first)] = True

    def explain(row: int, stream: int) -> str:
        return "the range has the same stream before it already"

    return _tally(STREAMS_UNIQUE, block, int(block.whole.sum()), again, explain)


def _tally(invariant: str, block: _Block, population: int, wrong: Bools, explain: Callable[[int, int], str]) -> Tally:
    violations = int(wrong.sum())
    if not violations:
        return Tally(invariant, population, 0)
    rows = np.flatnonzero(wrong.any(axis=1))
    row = int(rows[np.argmin(block.range_ends[rows, 0])])
    stream = int(np.argmax(wrong[row]))
    sample = f"{block.name(row, stream)}: {explain(row, stream)}"
    return Tally(invariant, population, violations, int(block.range_ends[row, 0]), sample)


def _blocks(rows: Rows, ranges: RangeEnds) -> Iterator[_Block]:
    offsets = np.cumsum(rows.stream_counts) - rows.stream_counts
    ranks = np.searchsorted(ranges.ends, rows.range_ends)
    whole = np.ones(len(rows.streams), dtype=bool)
    whole[list(rows.damaged)] = False
    for width in np.unique(rows.stream_counts[rows.stream_counts > 0]).tolist():
        alike = np.flatnonzero(rows.stream_counts == width)
        step = max(1, _CHUNK // width)
        for chunk in (alike[at : at + step] for at in range(0, len(alike), step)):
            places = offsets[chunk, None] + np.arange(width)
            adjacent = chunk[-1] - chunk[0] == len(chunk) - 1
            taken = slice(places[0, 0], places[-1, -1] + 1) if adjacent else places.ravel()
            shape = (len(chunk), width)
            yield _Block(
                range_ends=rows.range_ends[chunk, None],
                starts=ranges.starts[ranks[chunk], None],
                ranks=ranks[chunk, None],
                ignore_msbs=rows.ignore_msbs[chunk, None],
                order_known=rows.order_known[chunk, None],
                ids=rows.streams[taken].reshape(*shape, 16),
                whole=whole[taken].reshape(shape),
                damaged=_damaged(rows, places) if rows.damaged else {},
            )


def _damaged(rows: Rows, places: Int64s) -> dict[tuple[int, int], str]:
    found = np.argwhere(np.isin(places, list(rows.damaged)))
    return {(row, stream): rows.damaged[int(places[row, stream])] for row, stream in found.tolist()}
