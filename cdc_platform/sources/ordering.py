"""Exported streams back in shard order, as far as what is known of their owners' sharding tells it.

The rule is `generations.shard_order`; where an ignore_msb comes from is chosen by `import_plan`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cdc_platform.generations import restore_shard_orders
from cdc_platform.generations.shard_order import UNKNOWN
from cdc_platform.ring import Ring, range_starts
from cdc_platform.sources.range_rows import RangeRows


@dataclass(frozen=True, eq=False)
class OrderedRows:
    """The rows of a partition with their streams (uint8[total, 16]) back in shard order where that can be told.

    `reasons` says for each range end why it cannot be told there; what is uncertain is in unsigned byte order.
    """

    rows: RangeRows
    streams: np.ndarray
    reasons: Mapping[int, str]


def put_back(rows: RangeRows, ignore_msbs: np.ndarray) -> OrderedRows:
    """Put the streams of every range in shard order; `ignore_msbs` (int64[n]) holds UNKNOWN where it is not known."""
    starts = range_starts(rows.range_ends)
    restored = restore_shard_orders(starts, rows.range_ends, rows.stream_counts, rows.streams, ignore_msbs)
    reasons = {
        int(rows.range_ends[row]): _reason(rows, row, int(ignore_msbs[row]), restored.settled)
        for row in np.flatnonzero(~restored.order_known).tolist()
    }
    return OrderedRows(rows, restored.streams, reasons)


def msbs_of_owners(rows: RangeRows, ring: Ring) -> np.ndarray:
    """The ignore_msb (int64[n]) of the node that has the range end as a token, or UNKNOWN.

    A node with another number of shards than the range has streams was sharded otherwise then, and tells nothing.
    """
    if len(ring.tokens) == 0:
        return np.full(len(rows), UNKNOWN)
    at = np.minimum(np.searchsorted(ring.tokens, rows.range_ends), len(ring.tokens) - 1)
    owned = (ring.tokens[at] == rows.range_ends) & (ring.shard_counts[at] == rows.stream_counts)
    return np.where(owned, ring.ignore_msbs[at], UNKNOWN)


def _reason(rows: RangeRows, row: int, ignore_msb: int, settled: np.ndarray) -> str:
    if ignore_msb == UNKNOWN:
        return "the ignore_msb of the range's owner is not known"
    lo, hi = rows.offsets[row], rows.offsets[row + 1]
    tokens = np.ascontiguousarray(rows.streams[lo:hi, :8]).view(">i8").ravel()
    open_places = int(np.count_nonzero(~settled[lo:hi]))
    if np.count_nonzero(tokens == rows.range_ends[row]) >= open_places:
        return f"{open_places} shards own nothing before the range end, so their streams all have its token"
    return "the streams do not lie where the shards of the range begin"
