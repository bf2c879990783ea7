"""The audit of a generation's ranges: that they cover the ring once, refine the vnodes, and are all there.

Pure numpy, on columns without streams.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cdc_platform.generations import refines
from cdc_platform.invariants.findings import REFINES_VNODES, RING_COVERED_ONCE, ROW_COUNT, Tally
from cdc_platform.ring import MINIMUM
from cdc_platform.ring import range_starts as starts_of
from cdc_platform.ring.tokens import Int64s, distinct


def covered_once(range_ends: Int64s, range_starts: Int64s | None = None) -> Tally:
    """Whether ranges cover the ring once: each starts where the one before ends, the first where the last ends.

    `range_ends` int64[n] ascending, with whatever comes twice; `range_starts` int64[n] beside them, where they are
    kept. Without them the ranges are what lies between two ends, and only an end that comes twice can be wrong.
    """
    previous = starts_of(range_ends)
    twice = (range_ends == previous) & (np.arange(len(range_ends)) > 0)
    wrong = twice | (range_ends == MINIMUM)
    if range_starts is not None:
        wrong |= range_starts != previous
    if not wrong.any():
        return Tally(RING_COVERED_ONCE, len(range_ends), 0)
    row = int(np.argmax(wrong))
    end = int(range_ends[row])
    if twice[row]:
        why = "comes more than once"
    elif end == MINIMUM:
        why = "is no key's token"
    else:
        why = f"starts at {'' if range_starts is None else range_starts[row]}, the range before ends at {previous[row]}"
    return Tally(RING_COVERED_ONCE, len(range_ends), int(wrong.sum()), end, f"range end {end} {why}")


def refined(range_ends: Int64s, tokens: Int64s) -> Tally:
    """Whether every token (int64[]) of the rings that a generation serves ends one of its ranges."""
    due = distinct(tokens)
    missing = refines(range_ends, due)
    if not len(missing):
        return Tally(REFINES_VNODES, len(due), 0)
    token = int(missing[0])
    return Tally(REFINES_VNODES, len(due), len(missing), token, f"token {token} of the ring ends no range")


def row_count(rows: int, claims: Sequence[int | None], where: str) -> Tally:
    """Whether a generation has as many rows as it should: all `claims` (what its rows or its ring say) are `rows`.

    The population is the claims, for rows that disagree are a violation each.
    """
    wrong = [claim for claim in claims if claim != rows]
    if not wrong:
        return Tally(ROW_COUNT, len(claims), 0)
    claim = "null" if wrong[0] is None else wrong[0]
    return Tally(ROW_COUNT, len(claims), len(wrong), 0, f"{where} claims {claim} rows, {rows} are there")
