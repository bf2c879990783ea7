"""The comparison of tables that have to agree about a generation: the same ranges, each with the same streams in order.

Pure numpy, on digests of rows; how the digests are made is `one_pass`'s business.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cdc_platform.ring.tokens import Int64s


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
    ends = np.union1d(one.range_ends, other.range_ends)
    same = np.ones(len(ends), dtype=bool)
    places = []
    for digests in (one, other):
        first = np.searchsorted(digests.range_ends, ends)
        same &= np.searchsorted(digests.range_ends, ends, side="right") - first == 1
        places.append(np.minimum(first, max(len(digests.range_ends) - 1, 0)))
    if not len(one.range_ends) or not len(other.range_ends):
        return len(ends), ends
    here, there = places
    open_order = np.isin(ends, np.union1d(one.unknown_order, other.unknown_order))
    as_sets = one.unordered[here] == other.unordered[there]
    in_order = one.ordered[here] == other.ordered[there]
    same &= np.where(open_order, as_sets, in_order)
    if with_msb:
        same &= one.ignore_msbs[here] == other.ignore_msbs[there]
    return len(ends), ends[~same]
