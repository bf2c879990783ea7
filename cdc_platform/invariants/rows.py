"""The facts of rows: how many streams lie outside their range, off their shard, are misformed, are there again.

Pure numpy, on slices of one generation's rows; what it needs of the whole generation is the range ends. The rules
themselves are those of `ring` and `generations`, the very functions that place streams and look them up. What facts
have to be is for `models` to judge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from cdc_platform.generations.stream_ids import VERSION, StreamId, StreamIds, decode
from cdc_platform.invariants import models
from cdc_platform.invariants.facts import Facts, judged
from cdc_platform.invariants.families import Invariant
from cdc_platform.invariants.findings import (
    SHARD_COLOCATION,
    SHOWN,
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
from cdc_platform.ring.tokens import Bools, Int64s, UInt8s

# Streams worked on at once: their columns stay in the processor's second-level cache, and a call of numpy takes longer
# than threads wait for Python's lock between two of them.
_CHUNK = 1 << 16


@dataclass(frozen=True, eq=False)
class RangeEnds:
    """The ranges of the generation that the rows belong to: `ends` int64[n], ascending, each once."""

    ends: Int64s

    @cached_property
    def starts(self) -> Int64s:
        """The (exclusive) start of each range, int64[n]."""
        return range_starts(self.ends)

    def holds(self, ranks: Int64s, tokens: Int64s) -> Bools:
        """Whether the range of each rank has the token (int64, broadcast). The minimum token is in none: no key has it.

        Positions are counted from the range's first one on, so that the ring's end is no case of its own; the range
        that starts where it ends is the whole ring. To look up the range of each token takes four times as long.
        """
        first = unbias(self.starts[ranks]) + np.uint64(1)
        length = unbias(self.ends[ranks]) - first
        return (unbias(tokens) - first <= length) & (tokens != MINIMUM)


@dataclass(frozen=True, eq=False)
class Rows:
    """Some rows of one generation, in any order; `range_ends` has one entry a row, `streams` one a stream.

    `range_ends` int64[n] (all of them in the generation's range ends); `ignore_msbs` int64[n], -1 for null;
    `stream_counts` int64[n]; `streams` uint8[total, 16], the rows' streams one after the other. `order_known` bool[n]:
    where it is False the shard of a stream cannot be told, so that shard colocation is not judged. `damaged` says by
    place in `streams` what is there instead of 16 bytes; the bytes at such a place mean nothing. `owners` has the
    owner of each row, where the table says it. `shard_counts` int64[n] are the shards of each row's owner where the
    generation has to have a stream for each of them, else -1. `sharding_known` bool[n]: whether ignore_msb is that of
    the generation; without it and without an order nothing is judged of the row's shards. None: it always is.
    """

    range_ends: Int64s
    ignore_msbs: Int64s
    stream_counts: Int64s
    streams: UInt8s
    order_known: Bools
    damaged: Mapping[int, str] = field(default_factory=dict)
    owners: np.ndarray | None = None
    shard_counts: Int64s | None = None
    sharding_known: Bools | None = None


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
    owners: Sequence[str | None]
    shard_counts: Int64s
    sharding_known: Bools

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


@dataclass(frozen=True, eq=False)
class _Look:
    """What a block says of one invariant: bool[rows, streams] are the streams that it is asked of and those that break
    it; `explain` says of one why it does.
    """

    invariant: Invariant
    among: Bools
    wrong: Bools
    explain: Callable[[int, int], str]
    unjudged: Bools | None = None


def audit_rows(rows: Rows, ranges: RangeEnds) -> list[Tally]:
    """The tallies of what facts of ranges tell, for some rows of a generation; none without rows.

    Whether a stream comes again in another row is not seen here: it can only where an index is wrong or a range end
    comes twice, and then stream_format or ring_covered_once tells.
    """
    facts = Facts()
    add_facts(facts, rows, ranges)
    return [tally for _, tally in judged(facts)]


def add_facts(facts: Facts, rows: Rows, ranges: RangeEnds, generation: int = 0) -> None:
    """Add the facts of some rows of a generation, under a number for it, a range a row."""
    _without_streams(facts, rows, ranges, generation)
    for block in _blocks(rows, ranges):
        inside = ranges.holds(block.ranks, block.fields.tokens)
        looks = (
            _vnode_colocation(block, inside),
            _shard_colocation(block, inside),
            _stream_format(block),
            _streams_unique(block),
        )
        columns = {
            "generation": np.full(len(block.range_ends), generation),
            "range_end": block.range_ends[:, 0],
            "index": block.ranks[:, 0],
            "streams": np.full(len(block.range_ends), block.width),
        }
        said: dict[tuple[str, int], str] = {}
        for look in looks:
            assert look.invariant.in_range is not None
            columns[look.invariant.in_range.among] = _counted(look.among)
            columns[look.invariant.in_range.wrong] = _counted(look.wrong)
            if look.invariant.in_range.unjudged is not None and look.unjudged is not None:
                columns[look.invariant.in_range.unjudged] = _counted(look.unjudged)
            said.update(((look.invariant, row), words) for row, words in _explained(block, look))
        facts.add(columns, block.owners, said)


def _without_streams(facts: Facts, rows: Rows, ranges: RangeEnds, generation: int) -> None:
    """A range without streams lacks one, in whatever format."""
    empty = np.flatnonzero(rows.stream_counts == 0)
    if not len(empty):
        return
    ends = rows.range_ends[empty]
    nothing, one = np.zeros_like(ends), np.ones_like(ends)
    assert STREAM_FORMAT.in_range is not None
    columns = dict.fromkeys(models.FACTS, nothing) | {
        "generation": np.full(len(empty), generation),
        "range_end": ends,
        "index": np.searchsorted(ranges.ends, ends),
        STREAM_FORMAT.in_range.among: one,
        STREAM_FORMAT.in_range.wrong: one,
    }
    first = np.argsort(ends, kind="stable")[:SHOWN].tolist()
    said: dict[tuple[str, int], str] = {(STREAM_FORMAT, row): f"range end {ends[row]} has no streams" for row in first}
    facts.add(columns, _owners(rows, empty), said)


def _counted(streams: Bools) -> Int64s:
    """How many of each row's streams are so: int64[n]. Nearly always it is all or none of them."""
    if streams.all():
        return np.full(len(streams), streams.shape[1])
    return np.count_nonzero(streams, axis=1) if streams.any() else np.zeros(len(streams), dtype=np.int64)


def _explained(block: _Block, look: _Look) -> Iterator[tuple[int, str]]:
    """The first rows on the ring that break an invariant, and what is wrong with the first stream that does."""
    if not look.wrong.any():
        return
    rows = np.flatnonzero(look.wrong.any(axis=1))
    for row in rows[np.argsort(block.range_ends[rows, 0], kind="stable")][:SHOWN].tolist():
        stream = int(np.argmax(look.wrong[row]))
        yield row, f"{block.name(row, stream)}: {look.explain(row, stream)}"


def _vnode_colocation(block: _Block, inside: Bools) -> _Look:
    def explain(row: int, stream: int) -> str:
        token, start, end = block.fields.tokens[row, stream], block.starts[row, 0], block.range_ends[row, 0]
        return f"its token {token} is outside its range ({start}, {end}]"

    return _Look(VNODE_COLOCATION, block.whole, block.whole & ~inside, explain)


def _shard_colocation(block: _Block, inside: Bools) -> _Look:
    """Counted are the pairs of row and shard in which the shard owns a token of the range.

    That it does is proven by its stream where that is in place; only where some stream is not, the first token of the
    shards in the range has to be found.
    """
    msbs = np.where(block.width == 1, 0, block.ignore_msbs)  # one shard owns everything, whatever bits it ignores
    legal = (msbs >= 0) & (msbs <= MAX_IGNORE_MSB) & (block.range_ends != MINIMUM) & (block.width <= MAX_SHARD_COUNT)
    lacking = (block.shard_counts >= 0) & (block.shard_counts != block.width)
    positional = (block.order_known | (block.width == 1)) & ~lacking
    judged = positional & block.whole
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
    as_sets = ~positional & ~lacking & block.sharding_known & legal
    for row in np.flatnonzero(as_sets[:, 0]).tolist():
        owns[row] = wrong[row] = _not_of_the_set(block, row) & block.whole[row]
    # A range that lacks a stream has none that could be relied on.
    owns, wrong = owns | (lacking & block.whole), wrong | (lacking & block.whole)
    unjudged = ~positional & ~lacking & ~as_sets & block.whole

    def explain(row: int, stream: int) -> str:
        if lacking[row, 0]:
            return f"the range has {block.width} streams, and its owner has {block.shard_counts[row, 0]} shards"
        if as_sets[row, 0]:
            return f"its token {block.fields.tokens[row, stream]} is not where a shard of the range begins"
        if not legal[row, 0]:
            msb = "null" if block.ignore_msbs[row, 0] == -1 else block.ignore_msbs[row, 0]
            return f"its shard cannot be told from ignore_msb {msb} and {block.width} shards"
        if not owns[row, stream]:
            return f"shard {stream} owns nothing in the range, so its token has to be the range end"
        shard = shard_of(block.fields.tokens[row, stream], width, bits[row, 0])
        return f"its token {block.fields.tokens[row, stream]} is on shard {shard}, not on shard {stream}"

    return _Look(SHARD_COLOCATION, owns, wrong, explain, np.broadcast_to(unjudged, owns.shape))


def _not_of_the_set(block: _Block, row: int) -> Bools:
    """The streams (bool[streams]) of a row of unknown order that no shard of the range has, by their tokens.

    Those that are left may be in any order, so that none of them is counted as judged.
    """
    start, end, msb = block.starts[row, 0], block.range_ends[row, 0], block.ignore_msbs[row, 0]
    shards = np.arange(block.width)
    due = first_token_for_shard(np.full(block.width, start), np.full(block.width, end), shards, block.width, msb)
    left = Counter(due.tolist())
    wrong = np.zeros(block.width, dtype=bool)
    for stream, token in enumerate(block.fields.tokens[row].tolist()):
        left[token] -= 1
        wrong[stream] = left[token] < 0
    return wrong


def _stream_format(block: _Block) -> _Look:
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

    return _Look(STREAM_FORMAT, np.ones(wrong.shape, dtype=bool), wrong, explain)


def _streams_unique(block: _Block) -> _Look:
    """Streams that are equal have equal random bits: only rows in which some are need a look at whole IDs."""
    again = np.zeros(block.whole.shape, dtype=bool)
    in_order = np.sort(block.fields.randoms, axis=1)
    for row in np.flatnonzero((in_order[:, 1:] == in_order[:, :-1]).any(axis=1)):
        places = np.flatnonzero(block.whole[row])
        _, first = np.unique(block.ids[row, places], axis=0, return_index=True)
        again[row, np.delete(places, first)] = True

    def explain(row: int, stream: int) -> str:
        return "the range has the same stream before it already"

    return _Look(STREAMS_UNIQUE, block.whole, again, explain)


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
                owners=_owners(rows, chunk),
                shard_counts=_column(rows.shard_counts, chunk, -1),
                sharding_known=_column(rows.sharding_known, chunk, True),
            )


def _column(values: np.ndarray | None, chosen: Int64s, default: int | bool) -> np.ndarray:
    """Values of chosen rows as a column [rows, 1]; the default where there are none."""
    return np.full((len(chosen), 1), default) if values is None else values[chosen, None]


def _damaged(rows: Rows, places: Int64s) -> dict[tuple[int, int], str]:
    found = np.argwhere(np.isin(places, list(rows.damaged)))
    return {(row, stream): rows.damaged[int(places[row, stream])] for row, stream in found.tolist()}


def _owners(rows: Rows, chosen: Int64s) -> Sequence[str | None]:
    return [None] * len(chosen) if rows.owners is None else rows.owners[chosen].tolist()
