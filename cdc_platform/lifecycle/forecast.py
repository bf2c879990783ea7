"""Forecast of the size of the generation tables after more nodes join, with and without expiry.

It appends the future joins to the known generations and applies the expiry rule to all. Sizes are measured in the files
of the lake.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cdc_platform.clock import Clock, Milliseconds, us_from_ms
from cdc_platform.delta import Lake
from cdc_platform.errors import StateError
from cdc_platform.generations import NEVER_US, ClockMargins, estimate_rows_bytes, expires_at_us
from cdc_platform.lifecycle import expiry
from cdc_platform.metastore import cdc_tables, read_current_ring
from cdc_platform.ring import Ring
from cdc_platform.settings import Settings
from cdc_platform.timeline import read_generation_sizes

KNOWN_ABORT_BYTES = sum(estimate_rows_bytes(256 * nodes, 256 * 2 * nodes) for nodes in range(1, 97))
"""The bytes of cdc_streams_descriptions_v2 when the 97th node of an empty cluster aborted at start (scylladb#24727).

Its nodes had 256 tokens and 2 shards each. This is not a limit of ScyllaDB, which depends on a shard's memory.
"""


@dataclass(frozen=True)
class GrowthStep:
    """The stored size after `nodes` more nodes have joined.

    `num_ranges` and `num_streams` describe the newest generation. `streams` and `bytes` count all generations in all
    tables if none is ever removed; bytes are those of the files of the lake. `published_bytes` is the size of
    cdc_streams_descriptions_v2 in ScyllaDB, which removes nothing. `..._with_expiry` is the size if each generation is
    removed as soon as possible.
    """

    nodes: int
    num_ranges: int
    num_streams: int
    streams: int
    bytes: int
    published_bytes: int
    streams_with_expiry: int
    bytes_with_expiry: int

    @property
    def is_known_to_abort(self) -> bool:
        """Return True if the published size reaches that at which a node is known to have aborted at start."""
        return self.published_bytes >= KNOWN_ABORT_BYTES


def forecast_growth(
    lake: Lake, clock: Clock, settings: Settings, nodes: int, *, every_ms: Milliseconds
) -> list[GrowthStep]:
    """Return the stored sizes after 0, 1, ... `nodes` more nodes, one every `every_ms`; the first joins now.

    Future nodes are like the average node of the ring; tables keep their TTLs, and readers and nodes keep up.

    Raises:
        StateError: no node is known, so that the size of the next one cannot be estimated.
    """
    ring = read_current_ring(lake)
    if not ring.has_tokens:
        raise _no_ring_error()
    sizes = read_generation_sizes(lake)
    streams_by_time = {generation.time_ms: generation.num_streams for generation in sizes}
    size = sum(part.bytes for part in expiry.read_generation_sizes(lake).values())
    now_us = clock.now_us()
    later = np.arange(1, nodes + 1, dtype=np.int64)
    ranges, streams = _future_sizes(ring.tokens.size, int(ring.shard_counts.sum()), _count_owners(ring), later)
    starts = now_us + us_from_ms((later - 1) * every_ms)
    times = np.concatenate([us_from_ms(np.array(list(streams_by_time), dtype=np.int64)), starts])
    counts = np.concatenate([np.array(list(streams_by_time.values()), dtype=np.int64), streams])
    order = np.argsort(times, kind="stable")
    moments = np.concatenate([[now_us], starts])
    forever = sum(streams_by_time.values()) + np.concatenate([[0], np.cumsum(streams)])
    all_ranges = sum(generation.num_ranges for generation in sizes) + np.concatenate([[0], np.cumsum(ranges[1:])])
    removed = _removed_streams(lake, settings, times[order], counts[order], moments)
    bytes_a_stream = (
        size / sum(streams_by_time.values()) if any(streams_by_time.values()) and size else estimate_rows_bytes(1, 1)
    )
    return [
        GrowthStep(
            number,
            int(ranges[number]),
            int(streams[number - 1]) if number else int(ring.shard_counts.sum()),
            int(total),
            round(int(total) * bytes_a_stream),
            estimate_rows_bytes(int(all_ranges[number]), int(total)),
            int(total - less),
            round(int(total - less) * bytes_a_stream),
        )
        for number, (total, less) in enumerate(zip(forever, removed, strict=True))
    ]


def forecast_next_size(ring: Ring, nodes: int) -> tuple[int, int]:
    """Return the ranges and streams of the generation after `nodes` more nodes like the average node of the ring.

    Raises:
        StateError: there is no node, so that the size of the next one cannot be estimated.
    """
    if not ring.has_tokens:
        raise _no_ring_error()
    ranges, streams = _future_sizes(
        ring.tokens.size, int(ring.shard_counts.sum()), _count_owners(ring), np.arange(1, nodes + 1)
    )
    return int(ranges[-1]), int(streams[-1])


def _no_ring_error() -> StateError:
    return StateError(
        "no node of a ring that owns tokens is known, so its growth cannot be computed; import a ring snapshot first"
    )


def _count_owners(ring: Ring) -> int:
    """Return the number of nodes that own tokens; future nodes are modelled on them."""
    return len(ring.nodes) - len(ring.zero_token_nodes)


def _future_sizes(ranges: int, streams: int, nodes: int, later: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ranges of the ring (int64[n + 1], today's first) and the streams per future generation (int64[n])."""
    tokens, shards = -(-ranges // nodes), -(-streams // ranges)
    return np.concatenate([[ranges], ranges + later * tokens]), streams + later * tokens * shards


def _removed_streams(
    lake: Lake, settings: Settings, times: np.ndarray, counts: np.ndarray, moments: np.ndarray
) -> np.ndarray:
    """Return the streams (int64[m]) of the generations that may be removed by each moment."""
    if not cdc_tables.are_cdc_tables_known(lake):
        return np.zeros(len(moments), dtype=np.int64)
    margins = ClockMargins.of(
        settings.policy, us_from_ms(settings.generation_leeway_ms), us_from_ms(settings.expiry_skew_margin_ms)
    )
    logs = list(expiry.read_generation_log_histories(lake).values())
    expires = expires_at_us(times, logs, margins)
    removable = np.where(
        expires == NEVER_US, NEVER_US, np.minimum(expires, NEVER_US - 1) + us_from_ms(settings.expiry_grace_ms)
    )
    by_time = np.argsort(removable, kind="stable")
    return np.concatenate([[0], np.cumsum(counts[by_time])])[np.searchsorted(removable[by_time], moments, side="right")]
