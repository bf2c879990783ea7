"""What the stream IDs of a generation's rows tell of rows that are missing: their index, and where the first begins.

Nothing else is asked: neither how many rows there should be, nor who has them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cdc_platform.generations.stream_ids import VERSION, decode
from cdc_platform.ring import FIRST, LAST
from cdc_platform.ring.tokens import Int64s, UInt8s


def missing_rows(range_ends: Int64s, offsets: Int64s, streams: UInt8s) -> str | None:
    """Why a generation has to have more rows than these, in words; None where its IDs do not tell.

    `range_ends` int64[n] ascending; the streams (uint8[k, 16]) of range i begin at `offsets[i]` (int64[n + 1]). The
    index of a stream is the rank of its row. A range's streams begin right after the end of the range before, so that
    the first range, which wraps, tells the last range end. IDs that are not of version 1 tell nothing.
    """
    ids = decode(streams)
    first = offsets[:-1]
    if np.any(ids.versions != VERSION) or np.any(np.repeat(ids.indexes[first], np.diff(offsets)) != ids.indexes):
        return None
    ranks = np.arange(len(range_ends))
    indexes = ids.indexes[first]
    if np.any(indexes >= len(range_ends)):
        row = int(np.argmax(indexes != ranks))
        return f"the range that ends with {range_ends[row]} has index {indexes[row]} and is row {row}"
    # A single row with index 0 is too little to tell that its index is a rank.
    if len(range_ends) == 1 or not np.array_equal(indexes, ranks):
        return None
    last = int(range_ends[-1])
    expected = FIRST if last == LAST else last + 1
    begin = min(ids.tokens[: offsets[1]].tolist(), key=_ring_order(expected))
    if begin != expected and _is_between(begin, last, int(range_ends[0])):
        return (
            f"its first range begins with token {begin}, so its last range ends right before; the last row there is"
            f" ends with {last}"
        )
    return None


def _ring_order(start: int) -> Callable[[int], int]:
    return lambda token: (token - start) % (1 << 64)


def _is_between(token: int, start: int, end: int) -> bool:
    """Whether the token lies in `(start, end]`, walking the ring upwards."""
    from_start = _ring_order(start + 1)
    return from_start(token) <= from_start(end)
