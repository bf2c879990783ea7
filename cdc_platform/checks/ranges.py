"""Audits of a generation's ranges: coverage of the ring, refinement of vnodes, row counts, equality between tables.

Pure numpy, on columns without streams and on digests of rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cdc_platform.checks.invariants import REFINES_VNODES, RING_COVERED_ONCE, ROW_COUNT, InvariantTally
from cdc_platform.generations import find_uncovered_tokens
from cdc_platform.ring import GOLDEN_RATIO_64, MINIMUM_TOKEN, Int64s, UInt8s, UInt64s, mix_bits, unique_tokens
from cdc_platform.ring import range_starts as starts_of


def check_ring_coverage(range_ends: Int64s, range_starts: Int64s | None = None) -> InvariantTally:
    """Whether ranges cover the ring once: each starts where the one before ends, the first where the last ends.

    `range_ends` int64[n] ascending, with whatever comes twice; `range_starts` int64[n] beside them, where they are
    kept. Without them the ranges are what lies between two ends, and only an end that comes twice can be wrong.
    """
    previous = starts_of(range_ends)
    twice = (range_ends == previous) & (np.arange(len(range_ends)) > 0)
    wrong = twice | (range_ends == MINIMUM_TOKEN)
    if range_starts is not None:
        wrong |= range_starts != previous
    if not wrong.any():
        return InvariantTally(RING_COVERED_ONCE, len(range_ends), 0)
    row = int(np.argmax(wrong))
    end = int(range_ends[row])
    if twice[row]:
        why = "comes more than once"
    elif end == MINIMUM_TOKEN:
        why = "is no key's token"
    else:
        why = f"starts at {'' if range_starts is None else range_starts[row]}, the range before ends at {previous[row]}"
    return InvariantTally(RING_COVERED_ONCE, len(range_ends), int(wrong.sum()), end, f"range end {end} {why}")


def check_refinement(range_ends: Int64s, tokens: Int64s) -> InvariantTally:
    """Whether every token (int64[]) of the rings that a generation serves ends one of its ranges."""
    due = unique_tokens(tokens)
    missing = find_uncovered_tokens(range_ends, due)
    if not len(missing):
        return InvariantTally(REFINES_VNODES, len(due), 0)
    token = int(missing[0])
    return InvariantTally(REFINES_VNODES, len(due), len(missing), token, f"token {token} of the ring ends no range")


def check_row_count(rows: int, claims: Sequence[int | None], where: str) -> InvariantTally:
    """Whether a generation has as many rows as it should: all `claims` (what its rows or its ring say) are `rows`.

    The population is the claims, for rows that disagree are a violation each.
    """
    wrong = [claim for claim in claims if claim != rows]
    if not wrong:
        return InvariantTally(ROW_COUNT, len(claims), 0)
    claim = "null" if wrong[0] is None else wrong[0]
    return InvariantTally(ROW_COUNT, len(claims), len(wrong), 0, f"{where} claims {claim} rows, {rows} are there")


@dataclass(frozen=True, eq=False)
class RangeDigests:
    """A generation's rows in one table, each as a few numbers: int64[n] columns, ascending by `range_ends`.

    `ordered` int64[n] is a hash (64 bits) of the streams in their order, `unordered` int64[n] one of the streams as a
    set; `unknown_order` int64[]: the range ends whose order could not be told.
    """

    range_ends: Int64s
    ignore_msbs: Int64s
    ordered: Int64s
    unordered: Int64s
    unknown_order: Int64s


def compare_range_digests(one: RangeDigests, other: RangeDigests, *, with_msb: bool) -> tuple[int, Int64s]:
    """How many ranges two tables have together, and the ends of those that are not the same in both (int64[]).

    The order of streams counts, unless one of the tables could not tell it. A range that one of them has twice is
    not the same.
    """
    ends = unique_tokens(one.range_ends, other.range_ends)
    same = np.ones(len(ends), dtype=bool)
    places = []
    for digests in (one, other):
        first = np.searchsorted(digests.range_ends, ends)
        same &= np.searchsorted(digests.range_ends, ends, side="right") - first == 1
        places.append(np.minimum(first, max(len(digests.range_ends) - 1, 0)))
    if not len(one.range_ends) or not len(other.range_ends):
        return len(ends), ends
    here, there = places
    open_order = np.isin(ends, unique_tokens(one.unknown_order, other.unknown_order))
    as_sets = one.unordered[here] == other.unordered[there]
    in_order = one.ordered[here] == other.ordered[there]
    same &= np.where(open_order, as_sets, in_order)
    if with_msb:
        same &= one.ignore_msbs[here] == other.ignore_msbs[there]
    return len(ends), ends[~same]


def digest_stream_lists(
    lengths: Int64s, streams: UInt8s, damaged: Mapping[int, bytes | None], *, as_sets: bool
) -> tuple[Int64s, Int64s]:
    """Hashes of rows: (of their streams in order, of their streams as a set), int64[n] each; without `as_sets` zeros.

    `lengths` int64[n] say how many of `streams` (uint8[total, 16]) a row has, -1 that it has no list; `damaged` says
    by place in `streams` what is there instead of 16 bytes. Rows that differ in anything have the same hash once in
    2^64; nobody who makes rows can want that.
    """
    words = np.ascontiguousarray(streams).view(np.uint64)
    hashes = mix_bits(words[:, 0])
    hashes += words[:, 1]
    for place, value in damaged.items():
        told = b"null" if value is None else b"=" + value
        hashes[place] = int.from_bytes(hashlib.blake2b(told, digest_size=8).digest(), "little")
    counts = np.maximum(lengths, 0)
    sizes = mix_bits(lengths.view(np.uint64) + GOLDEN_RATIO_64)
    alike = len(counts) > 0 and bool((counts == counts[0]).all())
    ends = np.cumsum(counts)
    if alike:
        hashes = hashes.reshape(len(counts), -1)
        places = np.arange(counts[0], dtype=np.uint64)
    else:
        places = (np.arange(len(hashes)) - np.repeat(ends - counts, counts)).view(np.uint64)

    def summed(values: UInt64s) -> Int64s:
        if alike:
            return mix_bits(values.sum(axis=1) + sizes).view(np.int64)
        totals = np.append(np.uint64(0), np.cumsum(values))
        return mix_bits(totals[ends] - totals[ends - counts] + sizes).view(np.int64)

    ordered = summed(mix_bits(hashes + places * GOLDEN_RATIO_64))
    return ordered, summed(mix_bits(hashes)) if as_sets else np.zeros(len(lengths), dtype=np.int64)
