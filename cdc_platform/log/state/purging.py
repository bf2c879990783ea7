"""Rows of a state that can matter no longer: what is deleted or has expired, and what says so.

When that is so, whoever keeps the state knows: a tombstone is needed as long as an older write may still come.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from cdc_platform.clock import Microseconds
from cdc_platform.log.state.selecting import Shown
from cdc_platform.log.state.shape import Kind

_TOMBSTONES = (Kind.PARTITION_TOMBSTONE, Kind.RANGE_TOMBSTONE, Kind.ROW_TOMBSTONE, Kind.COLLECTION_TOMBSTONE)


def purged(state: pa.Table, found: Shown, sure_us: Microseconds, now_us: Microseconds) -> pa.Table:
    """A merged state without what no write later than `sure_us` (µs) can meet, nothing older coming any more.

    `found` is what it shows. Cells and markers that a tombstone covers go at once; tombstones, dead cells, and what has
    expired by `now_us`, if they are not younger than that. What is inexact stays: it may be compared with what is read
    again.
    """
    state = state.combine_chunks()
    if state.num_rows == 0:
        return state
    covered = ~_tombstones(state) & (np.asarray(state["timestamp"]) <= found.deleted)
    gone = covered | spent(state, sure_us, now_us)
    return state.filter(pa.array(~gone)) if gone.any() else state


def spent(state: pa.Table, sure_us: Microseconds, now_us: Microseconds) -> np.ndarray:
    """Which rows (bool) of a state go by themselves, whatever else it has: see `purged`."""
    times, expires = np.asarray(state["timestamp"]), np.asarray(state["expires"])
    over = _tombstones(state) | np.asarray(state["dead"]) | ((expires > 0) & (expires <= now_us))
    return over & (times <= sure_us) & ~np.asarray(state["inexact"])


def _tombstones(state: pa.Table) -> np.ndarray:
    return np.isin(np.asarray(state["kind"]), _TOMBSTONES)
