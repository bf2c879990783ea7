"""What changes from one generation to the next: ranges, streams, and how much of the ring gets other streams.

Exact: the ring is cut at every boundary of either generation, and the pieces are weighed in tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cdc_platform.generations.description import TopologyDescription
from cdc_platform.generations.stream_ids import comparable
from cdc_platform.ring import LAST, MINIMUM, bias, distinct, range_starts, shard_starts, unbias
from cdc_platform.ring.tokens import Int64s, UInt64s

_RING = 2**64


@dataclass(frozen=True, eq=False)
class Comparison:
    """`ranges_added` and `ranges_removed` are range ends (int64[]); `changed_share` is the part (0 to 1) of the ring
    whose writes go to another stream ID; `streams_kept` counts the stream IDs that both generations have.
    """

    ranges_added: Int64s
    ranges_removed: Int64s
    streams_kept: int
    changed_share: float


def compare(old: TopologyDescription, new: TopologyDescription) -> Comparison:
    """What changes from `old` to `new`."""
    kept = np.intersect1d(comparable(old.streams), comparable(new.streams)).size
    # Generations draw fresh random bits: without a common stream ID there is nothing to look for.
    share = _changed_share(old, new) if kept else 1.0
    return Comparison(
        np.setdiff1d(new.range_ends, old.range_ends), np.setdiff1d(old.range_ends, new.range_ends), int(kept), share
    )


def _changed_share(old: TopologyDescription, new: TopologyDescription) -> float:
    last_tokens = distinct(_boundaries(old), _boundaries(new))
    widths = unbias(last_tokens) - unbias(range_starts(last_tokens))
    same = (old.streams_of(last_tokens) == new.streams_of(last_tokens)).all(axis=1)
    if last_tokens.size == 1:
        return 0.0 if same[0] else 1.0
    return sum(widths[~same].tolist()) / _RING


def _boundaries(description: TopologyDescription) -> Int64s:
    """Every token after which the next one may go to another stream: int64[], ascending."""
    # Shards begin anew where the ring does: the wrapping range has a boundary at its top, whatever its sharding.
    parts = [description.range_ends, np.array([LAST])]
    sharding = np.unique(np.stack([description.stream_counts, description.ignore_msbs], axis=1), axis=0)
    for shard_count, ignore_msb in sharding.tolist():
        rows = np.flatnonzero((description.stream_counts == shard_count) & (description.ignore_msbs == ignore_msb))
        parts.append(_shard_ends(description, rows, shard_count, ignore_msb))
    return distinct(*parts)


def _shard_ends(description: TopologyDescription, rows: Int64s, shard_count: int, ignore_msb: int) -> Int64s:
    """The last tokens of shards that lie inside the ranges `rows`, which share one sharding."""
    starts = shard_starts(shard_count, ignore_msb)
    found: list[Int64s] = []
    for start, end in zip(description.range_starts[rows].tolist(), description.range_ends[rows].tolist(), strict=True):
        pieces = [(start, end)] if start < end else [(start, LAST), (MINIMUM, end)]
        for low, high in pieces:
            found.append(bias(_starts_between(starts, ignore_msb, low - MINIMUM, high - MINIMUM) - np.uint64(1)))
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


def _starts_between(starts: UInt64s, ignore_msb: int, low: int, high: int) -> UInt64s:
    """Positions in (low + 1, high] at which a shard begins."""
    to_window = 64 - ignore_msb
    windows = [window << to_window for window in range(low >> to_window, (high >> to_window) + 1)]
    positions = (np.array(windows, dtype=np.uint64)[:, None] + starts).ravel()
    return positions[(positions > low + 1) & (positions <= high)] if high > low else positions[:0]
