"""Audits of a generation's ranges: coverage of the ring, refinement of vnodes, row counts, equality between tables.

The pandera models in `models` state the rules; this module builds their frames and words what fails.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cdc_platform.checks.invariants import (
    PUBLISHED_EQUALS_DESCRIPTION,
    REFINES_VNODES,
    RING_COVERED_ONCE,
    ROW_COUNT,
    InvariantTally,
)
from cdc_platform.checks.judge import failed_rows
from cdc_platform.ring import GOLDEN_RATIO_64, MINIMUM_TOKEN, Int64s, UInt8s, UInt64s, mix_bits, unique_tokens
from cdc_platform.ring import range_starts as starts_of


def check_ring_coverage(range_ends: Int64s, range_starts: Int64s | None = None) -> InvariantTally:
    """Check that ranges cover the ring once: each starts where the previous one ends, the first where the last ends.

    `range_ends` int64[n] ascending, including duplicates; `range_starts` int64[n] in the same order, if stored. Without
    them each range lies between two ends, and only a repeated end can be wrong.
    """
    from cdc_platform.checks.models import RangeModel

    previous = starts_of(range_ends)
    columns = {
        "range_start": previous if range_starts is None else range_starts,
        "range_end": range_ends,
        "previous_end": previous,
        "vnode_index": np.arange(len(range_ends)),
    }
    wrong = failed_rows(RangeModel, columns).get(RING_COVERED_ONCE)
    if wrong is None:
        return InvariantTally(RING_COVERED_ONCE, len(range_ends), 0)
    row = int(np.argmax(wrong))
    end = int(range_ends[row])
    if row and range_ends[row] == previous[row]:
        why = "comes more than once"
    elif end == MINIMUM_TOKEN:
        why = "is no key's token"
    else:
        why = f"starts at {columns['range_start'][row]}, the range before ends at {previous[row]}"
    return InvariantTally(RING_COVERED_ONCE, len(range_ends), int(wrong.sum()), end, f"range end {end} {why}")


def check_refinement(range_ends: Int64s, tokens: Int64s) -> InvariantTally:
    """Check that every token (int64[]) of the rings that a generation serves ends one of its ranges."""
    from cdc_platform.checks.models import RingTokenModel

    expected, ends = unique_tokens(tokens), unique_tokens(range_ends)
    containing = (
        ends[np.searchsorted(ends, expected) % len(ends)] if len(ends) else np.full(len(expected), MINIMUM_TOKEN)
    )
    columns = {"token": expected, "range_end": containing}
    wrong = failed_rows(RingTokenModel, columns).get(REFINES_VNODES)
    if wrong is None:
        return InvariantTally(REFINES_VNODES, len(expected), 0)
    token = int(expected[np.argmax(wrong)])
    return InvariantTally(
        REFINES_VNODES, len(expected), int(wrong.sum()), token, f"token {token} of the ring ends no range"
    )


def check_row_count(rows: int, claims: Sequence[int | None], where: str) -> InvariantTally:
    """Check that a generation has as many rows as all `claims` (from its rows or its ring) state.

    The population is the number of claims, since each claim that disagrees is one violation.
    """
    from cdc_platform.checks.models import RowCountModel

    claimed = np.array([-1 if claim is None else claim for claim in claims], dtype=np.int64)
    wrong = failed_rows(RowCountModel, {"claimed": claimed, "rows": np.full(len(claimed), rows)}).get(ROW_COUNT)
    if wrong is None:
        return InvariantTally(ROW_COUNT, len(claims), 0)
    claim = claims[int(np.argmax(wrong))]
    sample = f"{where} claims {'null' if claim is None else claim} rows, {rows} are there"
    return InvariantTally(ROW_COUNT, len(claims), int(wrong.sum()), 0, sample)


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
    from cdc_platform.checks.models import ComparedRangeModel

    ends = unique_tokens(one.range_ends, other.range_ends)
    unknown_order = np.isin(ends, unique_tokens(one.unknown_order, other.unknown_order))
    columns: dict[str, Int64s] = {}
    for name, digests in (("first", one), ("second", other)):
        first = np.searchsorted(digests.range_ends, ends)
        columns[f"{name}_rows"] = np.searchsorted(digests.range_ends, ends, side="right") - first
        row = np.minimum(first, max(len(digests.range_ends) - 1, 0))
        for column, values in (
            ("digest", np.where(unknown_order, _rows(digests.unordered, row), _rows(digests.ordered, row))),
            ("msb", _rows(digests.ignore_msbs, row) if with_msb else np.zeros(len(ends), dtype=np.int64)),
        ):
            columns[f"{name}_{column}"] = values
    in_order = {name: columns[name] for name in ComparedRangeModel.to_schema().columns}
    wrong = failed_rows(ComparedRangeModel, in_order).get(PUBLISHED_EQUALS_DESCRIPTION)
    return len(ends), ends[:0] if wrong is None else ends[wrong]


def _rows(column: Int64s, rows: Int64s) -> Int64s:
    """Return the rows of a column, or zeros if the column is empty."""
    return column[rows] if len(column) else np.zeros(len(rows), dtype=np.int64)


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
