"""The stream sets of the simulated table with tablets, by their begin and the number of tablets."""

from __future__ import annotations

from functools import lru_cache
from uuid import UUID

from cdc_platform.clock import Milliseconds
from cdc_platform.generations import StreamSet, merge_tablet_ends, split_tablet_ends, uniform_tablet_ends
from cdc_platform.generations import tablets as rules
from cdc_platform.ring import Int64s

FIRST_TABLETS = 8
"""The tablets of the table at the start of a history."""
MOST_TABLETS = 1 << 12
TABLE_ID = UUID(int=1)


@lru_cache(maxsize=16)
def tablet_ends(count: int) -> Int64s:
    """Return the last tokens (int64[count]) of the table's tablets after splits or merges to `count`."""
    first = uniform_tablet_ends(FIRST_TABLETS)
    return split_tablet_ends(first, count) if count >= FIRST_TABLETS else merge_tablet_ends(first, count)


@lru_cache(maxsize=512)
def stream_set(time_ms: Milliseconds, tablets: int) -> StreamSet:
    """Return the stream set of that many tablets that begins at `time_ms`."""
    return StreamSet.of(time_ms, rules.generate_tablet_streams(TABLE_ID, time_ms, tablet_ends(tablets)))


@lru_cache(maxsize=512)
def tablet_streams(time_ms: Milliseconds, tablets: int) -> frozenset[bytes]:
    """Return the streams of that stream set."""
    return frozenset(stream.tobytes() for stream in stream_set(time_ms, tablets).ids)
