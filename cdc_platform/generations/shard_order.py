"""Puts streams that a CQL client has sorted back into shard order, and says where that cannot be done.

A `set<blob>` comes back sorted by unsigned bytes; a range's streams mean something only in shard order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from cdc_platform.errors import InputError
from cdc_platform.generations.stream_ids import decode, ordered_words
from cdc_platform.ring.sharding import first_token_for_shard, shard_of
from cdc_platform.ring.tokens import Bools, Int64s, UInt8s, UInt64s

UNKNOWN = -1
"""Stands for an ignore_msb that is not known, in columns of int64."""


@dataclass(frozen=True, eq=False)
class RestoredOrder:
    """Streams put back: `streams` uint8[total, 16]; `order_known` bool[n] a range; `settled` bool[total] a position.

    Positions that are not settled hold, in unsigned byte order, the streams left over. A range's order is known when
    every position that a write can reach is settled. Shards that own nothing in the range take no writes, and their
    streams all have the range end's token: which of them comes first means nothing. That is so in almost every range
    of a large ring, whose 64 shards don't all own a piece of each. A position that is settled may be relied on even
    in a range whose order is not known.
    """

    streams: UInt8s
    order_known: Bools
    settled: Bools


def restore_shard_order(start: int, end: int, streams: UInt8s, ignore_msb: int | None) -> tuple[UInt8s, bool]:
    """The streams (uint8[k, 16], any order) of the range `(start, end]` in shard order, and whether that is certain.

    It is not when `ignore_msb` is None (and k > 1), when a stream is not where its shard's stream lies, or when the
    shard that owns the range end owns nothing before it and another shard owns nothing at all: their streams have
    the same token. What is certain is put in place even then; the rest keeps unsigned byte order. A single stream is
    always in order.

    Raises:
        InputError: the streams are not uint8[k, 16] with 1 <= k <= 4096, or ignore_msb is out of bounds.
    """
    known = UNKNOWN if ignore_msb is None else ignore_msb
    restored = restore_shard_orders([start], [end], [len(streams)], streams, [known])
    return restored.streams, bool(restored.order_known[0])


def restore_shard_orders(
    range_starts: ArrayLike, range_ends: ArrayLike, stream_counts: ArrayLike, streams: UInt8s, ignore_msbs: ArrayLike
) -> RestoredOrder:
    """As `restore_shard_order`, for many ranges at once: columns int64[n], streams one range after the other.

    An ignore_msb of UNKNOWN (-1) stands for one that is not known.

    Raises:
        InputError: the columns don't fit each other, or a sharding is out of bounds.
    """
    starts, ends, counts, msbs = (
        np.asarray(c, dtype=np.int64) for c in (range_starts, range_ends, stream_counts, ignore_msbs)
    )
    words = ordered_words(streams)
    if counts.sum() != len(streams) or np.any(counts < 1):
        raise InputError(f"{len(streams)} streams for ranges of {counts.sum()}; every range has at least one stream")
    rows = np.repeat(np.arange(len(counts)), counts)
    first = np.cumsum(counts) - counts
    given = np.where(msbs == UNKNOWN, 0, msbs)
    shards = np.arange(len(streams)) - first[rows]
    expected = first_token_for_shard(starts[rows], ends[rows], shards, counts[rows], given[rows])
    told = (msbs != UNKNOWN) | (counts == 1)
    source = _sources(words, rows, first, counts, given, ends, expected, told)
    settled = source >= 0
    settled_sources = source[settled]
    left = np.ones(len(streams), dtype=bool)
    left[settled_sources] = False
    source[~settled] = _in_byte_order(words, rows, np.flatnonzero(left))
    # One stream left for one place can only belong there, if it also lies where that place's stream lies.
    open_places = np.bincount(rows[~settled], minlength=len(counts))
    tokens = decode(streams).tokens[source]
    settled |= (open_places == 1)[rows] & (tokens == expected)
    settled |= (counts == 1)[rows]
    reached = (expected != ends[rows]) | (shard_of(ends[rows], counts[rows], given[rows]) == shards) | ~told[rows]
    order_known = np.bincount(rows[~settled & reached], minlength=len(counts)) == 0
    return RestoredOrder(np.ascontiguousarray(streams)[source], order_known, settled)


def _sources(
    words: UInt64s,
    rows: Int64s,
    first: Int64s,
    counts: Int64s,
    msbs: Int64s,
    ends: Int64s,
    expected: Int64s,
    told: Bools,
) -> Int64s:
    """For each place the stream that belongs there beyond doubt, or -1."""
    tokens = words[:, 0].view(np.int64)
    place = first[rows] + shard_of(tokens, counts[rows], msbs[rows])
    fits = (tokens == expected[place]) & (tokens != ends[rows]) & told[rows]
    claims = np.bincount(place[fits], minlength=len(words))
    fits &= claims[place] == 1
    source = np.full(len(words), -1, dtype=np.int64)
    source[place[fits]] = np.flatnonzero(fits)
    return source


def _in_byte_order(words: UInt64s, rows: Int64s, streams: Int64s) -> Int64s:
    """Indexes of streams, sorted by range and then as unsigned bytes."""
    return streams[np.lexsort((words[streams, 1], words[streams, 0], rows[streams]))]
