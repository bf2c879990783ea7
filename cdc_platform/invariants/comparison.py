"""The comparison of tables that have to agree about a generation: the same ranges, each with the same streams in order.

Pure numpy, on digests of rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cdc_platform.ring.mixing import ODD, mixed
from cdc_platform.ring.tokens import Int64s, UInt8s, UInt64s, distinct


@dataclass(frozen=True, eq=False)
class Digests:
    """A generation's rows in one table, each as a few numbers: int64[n] columns, ascending by `range_ends`.

    `ordered` int64[n] is a hash (64 bits) of the streams in their order, `unordered` int64[n] one of the streams as a
    set; `unknown_order` int64[]: the range ends whose order could not be told.
    """

    range_ends: Int64s
    ignore_msbs: Int64s
    ordered: Int64s
    unordered: Int64s
    unknown_order: Int64s


def differing(one: Digests, other: Digests, *, with_msb: bool) -> tuple[int, Int64s]:
    """How many ranges two tables have together, and the ends of those that are not the same in both (int64[]).

    The order of streams counts, unless one of the tables could not tell it. A range that one of them has twice is
    not the same.
    """
    ends = distinct(one.range_ends, other.range_ends)
    same = np.ones(len(ends), dtype=bool)
    places = []
    for digests in (one, other):
        first = np.searchsorted(digests.range_ends, ends)
        same &= np.searchsorted(digests.range_ends, ends, side="right") - first == 1
        places.append(np.minimum(first, max(len(digests.range_ends) - 1, 0)))
    if not len(one.range_ends) or not len(other.range_ends):
        return len(ends), ends
    here, there = places
    open_order = np.isin(ends, distinct(one.unknown_order, other.unknown_order))
    as_sets = one.unordered[here] == other.unordered[there]
    in_order = one.ordered[here] == other.ordered[there]
    same &= np.where(open_order, as_sets, in_order)
    if with_msb:
        same &= one.ignore_msbs[here] == other.ignore_msbs[there]
    return len(ends), ends[~same]


def row_digests(
    lengths: Int64s, streams: UInt8s, damaged: Mapping[int, bytes | None], *, as_sets: bool
) -> tuple[Int64s, Int64s]:
    """Hashes of rows: (of their streams in order, of their streams as a set), int64[n] each; without `as_sets` zeros.

    `lengths` int64[n] say how many of `streams` (uint8[total, 16]) a row has, -1 that it has no list; `damaged` says
    by place in `streams` what is there instead of 16 bytes. Rows that differ in anything have the same hash once in
    2^64; nobody who makes rows can want that.
    """
    words = np.ascontiguousarray(streams).view(np.uint64)
    hashes = mixed(words[:, 0])
    hashes += words[:, 1]
    for place, value in damaged.items():
        told = b"null" if value is None else b"=" + value
        hashes[place] = int.from_bytes(hashlib.blake2b(told, digest_size=8).digest(), "little")
    counts = np.maximum(lengths, 0)
    sizes = mixed(lengths.view(np.uint64) + ODD)
    alike = len(counts) > 0 and bool((counts == counts[0]).all())
    ends = np.cumsum(counts)
    if alike:
        hashes = hashes.reshape(len(counts), -1)
        places = np.arange(counts[0], dtype=np.uint64)
    else:
        places = (np.arange(len(hashes)) - np.repeat(ends - counts, counts)).view(np.uint64)

    def summed(values: UInt64s) -> Int64s:
        if alike:
            return mixed(values.sum(axis=1) + sizes).view(np.int64)
        totals = np.append(np.uint64(0), np.cumsum(values))
        return mixed(totals[ends] - totals[ends - counts] + sizes).view(np.int64)

    ordered = summed(mixed(hashes + places * ODD))
    return ordered, summed(mixed(hashes)) if as_sets else np.zeros(len(lengths), dtype=np.int64)
