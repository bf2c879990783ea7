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
    """Check that ranges cover the ring once: each starts where the previous one ends, the first where the last ends.

    `range_ends` int64[n] ascending, including duplicates; `range_starts` int64[n] in the same order, if stored. Without
    them each range lies between two ends, and only a repeated end can be wrong.
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
    """Check that every token (int64[]) of the rings that a generation serves ends one of its ranges."""
    expected = unique_tokens(tokens)
    missing = find_uncovered_tokens(range_ends, expected)
    if not len(missing):
        return InvariantTally(REFINES_VNODES, len(expected), 0)
    token = int(missing[0])
    return InvariantTally(
        REFINES_VNODES, len(expected), len(missing), token, f"token {token} of the ring ends no range"
    )


def check_row_count(rows: int, claims: Sequence[int | None], where: str) -> InvariantTally:
    """Check that a generation has as many rows as all `claims` (from its rows or its ring) state.

    The population is the number of claims, since each claim that disagrees is one violation.
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
    set; `unknown_order` int64[] are the range ends whose order is unknown.
    """

    range_ends: Int64s
    ignore_msbs: Int64s
    ordered: Int64s
    unordered: Int64s
    unknown_order: Int64s


def compare_range_digests(one: RangeDigests, other: RangeDigests, *, with_msb: bool) -> tuple[int, Int64s]:
    """Return the number of ranges of two tables together, and the ends of those that differ (int64[]).

    The order of streams counts unless it is unknown in one of the tables. A range that a table has twice differs.
    """
    ends = unique_tokens(one.range_ends, other.range_ends)
    same = np.ones(len(ends), dtype=bool)
    rows = []
    for digests in (one, other):
        first = np.searchsorted(digests.range_ends, ends)
        same &= np.searchsorted(digests.range_ends, ends, side="right") - first == 1
        rows.append(np.minimum(first, max(len(digests.range_ends) - 1, 0)))
    if not len(one.range_ends) or not len(other.range_ends):
        return len(ends), ends
    one_rows, other_rows = rows
    unknown_order = np.isin(ends, unique_tokens(one.unknown_order, other.unknown_order))
    as_sets = one.unordered[one_rows] == other.unordered[other_rows]
    in_order = one.ordered[one_rows] == other.ordered[other_rows]
    same &= np.where(unknown_order, as_sets, in_order)
    if with_msb:
        same &= one.ignore_msbs[one_rows] == other.ignore_msbs[other_rows]
    return len(ends), ends[~same]


def digest_stream_lists(
    lengths: Int64s, streams: UInt8s, damaged: Mapping[int, bytes | None], *, as_sets: bool
) -> tuple[Int64s, Int64s]:
    """Return hashes of rows, int64[n] each: of their streams in order, and as a set (zeros without `as_sets`).

    `lengths` int64[n] are how many of `streams` (uint8[total, 16]) each row has, -1 if it has no list; `damaged` maps
    positions in `streams` to the value that is there instead of 16 bytes. Different rows have the same hash once in
    2^64; nobody who writes rows benefits from a collision.
    """
    words = np.ascontiguousarray(streams).view(np.uint64)
    hashes = mix_bits(words[:, 0])
    hashes += words[:, 1]
    for place, value in damaged.items():
        content = b"null" if value is None else b"=" + value
        hashes[place] = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
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
