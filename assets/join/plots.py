"""Plots of a join's assets: ring ownership, streams per node and shard, timeline of generations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from dagster import MarkdownMetadataValue

from cdc_platform.clock import Clock
from cdc_platform.delta import Lake
from cdc_platform.plots import GenerationBar, plot_ring, plot_streams, plot_timeline
from cdc_platform.ring import Node, Ring, first_token_for_shard, range_starts, shard_of
from cdc_platform.timeline import Generation
from cdc_platform_assets.metadata import build_plot_metadata

# Beyond this many streams, ranges are sampled evenly: the plot would look the same but take longer.
_MAX_SAMPLED_STREAMS = 1 << 21


def build_ring_plot(lake: Lake, ring: Ring, joining: Node | None) -> MarkdownMetadataValue:
    """Plot the ring with the owners of its ranges, and highlight those of the joining node if there is one."""
    hosts = [node.host_id for node in ring.nodes]
    set_off = None if joining is None else hosts.index(joining.host_id)
    return build_plot_metadata(
        lake, plot_ring(ring.tokens, ring.owner_index, _node_names(ring), joining=set_off), "ring"
    )


def build_streams_plot(lake: Lake, ring: Ring) -> MarkdownMetadataValue:
    """Plot the number of streams on each shard of each node."""
    return build_plot_metadata(
        lake, plot_streams(count_streams_by_shard(ring), _node_names(ring)), "streams a node and a shard"
    )


def build_timeline_plot(lake: Lake, generations: Sequence[Generation], clock: Clock) -> MarkdownMetadataValue:
    """Plot when each generation operates. `generations` are ordered oldest first."""
    bars = [GenerationBar(known.name, known.time_ms, known.published) for known in generations]
    return build_plot_metadata(lake, plot_timeline(bars, clock.now_ms()), "timeline of generations")


def count_streams_by_shard(ring: Ring) -> np.ndarray:
    """Count the streams on each shard of each node, as int64[nodes, shards]; -1 if a node has no such shard.

    A shard that owns nothing in a range still has a stream there, which lies on the range end. It is not counted,
    because no write ever gets it.
    """
    most = max(node.shard_count for node in ring.nodes)
    counts = np.full((len(ring.nodes), most), -1, dtype=np.int64)
    for number, node in enumerate(ring.nodes):
        counts[number, : node.shard_count] = 0
    every = -(-int(ring.shard_counts.sum()) // _MAX_SAMPLED_STREAMS)
    rows = np.repeat(np.arange(0, ring.tokens.size, every), ring.shard_counts[::every])
    ends, shards = ring.tokens[rows], _ranges_from_lengths(ring.shard_counts[::every])
    sharding = ring.shard_counts[rows], ring.ignore_msbs[rows]
    first = first_token_for_shard(range_starts(ring.tokens)[rows], ends, shards, *sharding)
    owned = (first != ends) | (shard_of(ends, *sharding) == shards)
    np.add.at(counts, (ring.owner_index[rows][owned], shards[owned]), every)
    return counts


def _ranges_from_lengths(lengths: np.ndarray) -> np.ndarray:
    """Return 0, 1, ... length - 1 for each length, concatenated."""
    return np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def _node_names(ring: Ring) -> list[str]:
    return [node.address or str(node.host_id) for node in ring.nodes]
