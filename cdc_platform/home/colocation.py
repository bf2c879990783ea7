"""How much of each node's and shard's keys have their stream on the same vnode and shard."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

import numpy as np

from cdc_platform.delta import Lake
from cdc_platform.errors import StateError
from cdc_platform.generations import (
    RingLayout,
    compute_colocation_by_shard,
    decode_stream_ids,
    find_misplaced_streams,
)
from cdc_platform.metastore import (
    read_generation_description,
    read_topology_transition,
    read_unordered_ranges,
)
from cdc_platform.ring import Int64s, Ring
from cdc_platform.timeline import Generation


@dataclass(frozen=True)
class ShardShares:
    """A shard's share of the ring (0 to 1), and the share of its keys whose stream is on it; None without keys."""

    shard: int
    share_of_ring: float
    colocation: float | None


@dataclass(frozen=True)
class NodeShares:
    """A node's share of the ring (0 to 1), and the shares of its keys whose stream is colocated.

    `vnode_colocation`: the stream is in the key's vnode; `shard_colocation`: it is on the key's shard. Both are None if
    the node has no keys.
    """

    host_id: UUID
    address: str
    share_of_ring: float
    vnode_colocation: float | None
    shard_colocation: float | None
    shards: tuple[ShardShares, ...]


@dataclass(frozen=True)
class ColocationReport:
    """What a generation colocates on the current ring, as shares of the ring from 0 to 1.

    `excess_ranges` and `excess_streams` count ranges that end at no token of the ring, and their streams.
    `misplaced_streams` describes streams that are not where their range and shard put them, None if there are none.
    `unordered_ranges` counts ranges whose shard order is unknown. Either makes the shares unreliable.
    """

    generation: Generation
    vnode_colocation: float | None
    shard_colocation: float | None
    nodes: tuple[NodeShares, ...]
    excess_ranges: int
    excess_streams: int
    misplaced_streams: str | None
    unordered_ranges: int

    @property
    def is_reliable(self) -> bool:
        """Return True if every stream is where its range and shard put it, and the order of all streams is known."""
        return self.misplaced_streams is None and not self.unordered_ranges


def require_tokens(ring: Ring) -> None:
    """Raise StateError if no node of a ring owns tokens."""
    if not ring.has_tokens:
        raise StateError("no node in the ring owns tokens; import a ring snapshot first")


def measure_colocation(lake: Lake, ring: Ring, generation: Generation) -> ColocationReport:
    """Return what a generation colocates on a ring, of which a node owns tokens.

    Raises:
        NotFound: the generation's description is not stored.
        StateError: the description is incomplete, or the topology is changing and the generation has ranges of nodes
            that are not here yet.
    """
    description = read_generation_description(lake, generation.gossiped)
    layout = RingLayout(
        description.range_ends, description.range_starts, description.stream_counts, description.ignore_msbs
    )
    is_excess = ~np.isin(layout.range_ends, ring.tokens)
    transition = read_topology_transition(lake)
    if is_excess.any() and transition is not None:
        raise StateError(
            f"{transition}, and {int(is_excess.sum())} ranges of the generation belong to nodes that are not here yet; "
            "observe the cluster again when its topology is stable"
        )
    misplaced = find_misplaced_streams(description)
    total, nodes = _measure_nodes(layout, ring, decode_stream_ids(description.streams).tokens)
    return ColocationReport(
        generation,
        *total,
        nodes,
        int(is_excess.sum()),
        int(layout.shard_counts[is_excess].sum()),
        misplaced[0].detail if misplaced else None,
        len(read_unordered_ranges(lake, generation.gossiped)),
    )


def _measure_nodes(
    layout: RingLayout, ring: Ring, stream_tokens: Int64s
) -> tuple[tuple[float | None, float | None], tuple[NodeShares, ...]]:
    """Return the shares in vnodes and on shards of the whole ring, and those of each node."""
    colocation = compute_colocation_by_shard(layout, ring, stream_tokens)
    ring_size = sum(colocation.tokens.tolist())
    rows = list(zip(colocation.shards.tolist(), colocation.tokens.tolist(), colocation.on_shard.tolist(), strict=True))
    owners = colocation.nodes.tolist()
    nodes = []
    for index, node in enumerate(ring.nodes):
        shards = [row for row, owner in zip(rows, owners, strict=True) if owner == index]
        owned = sum(tokens for _, tokens, _ in shards)
        nodes.append(
            NodeShares(
                node.host_id,
                node.address,
                owned / ring_size,
                _ratio(int(colocation.in_vnode[index]), owned),
                _ratio(sum(on_shard for _, _, on_shard in shards), owned),
                tuple(ShardShares(shard, tokens / ring_size, _ratio(same, tokens)) for shard, tokens, same in shards),
            )
        )
    in_vnode, on_shard = sum(colocation.in_vnode.tolist()), sum(colocation.on_shard.tolist())
    return (_ratio(in_vnode, ring_size), _ratio(on_shard, ring_size)), tuple(nodes)


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
