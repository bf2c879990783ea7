"""The nodes of a simulated cluster: tokens, rings, and the descriptions of generations over any of them.

A set of nodes is a bit mask: bit n is node n. Rings and descriptions are shared by all histories with these nodes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache, lru_cache
from uuid import UUID

from cdc_platform.generations import TopologyDescription, generate_description, get_ring_layout
from cdc_platform.ring import Node, Ring

NodeMask = int
VNODES = 3
_CACHED_DESCRIPTIONS = 512


class NodeSet:
    """Nodes by number. Compared by identity."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = tuple(nodes)
        self.number_of = {node.host_id: number for number, node in enumerate(self.nodes)}
        self.datacenters = sorted({node.datacenter for node in self.nodes if node.datacenter})
        """The names of the datacenters that the nodes are known to be in."""
        self.ring = lru_cache(maxsize=_CACHED_DESCRIPTIONS)(self._ring)
        self.description = lru_cache(maxsize=_CACHED_DESCRIPTIONS)(self._description)
        self.streams = lru_cache(maxsize=_CACHED_DESCRIPTIONS)(self._streams)

    def datacenter_of(self, number: int, drawn: int) -> int:
        """Return the datacenter of a node: where its ring says, or else one of `drawn` datacenters by its number."""
        name = self.nodes[number].datacenter if self.datacenters and drawn == 1 else ""
        return self.datacenters.index(name) if name else number % drawn

    def members(self, mask: NodeMask) -> list[int]:
        """Return the numbers in a mask, ascending."""
        return [number for number in range(mask.bit_length()) if mask >> number & 1]

    def mask_of(self, ring: Ring) -> NodeMask:
        """Return the mask of a ring's nodes."""
        return sum(1 << self.number_of[node.host_id] for node in ring.nodes)

    def _ring(self, mask: NodeMask) -> Ring:
        return Ring.of(self.nodes[number] for number in self.members(mask))

    def _description(self, mask: NodeMask, generation: UUID, v1: bool) -> TopologyDescription:
        return generate_description(get_ring_layout(self.ring(mask), v1=v1), generation)

    def _streams(self, mask: NodeMask, generation: UUID, v1: bool) -> frozenset[bytes]:
        return frozenset(stream.tobytes() for stream in self.description(mask, generation, v1).streams)


@cache
def drawn_nodes(count: int, shards: int) -> NodeSet:
    """Return `count` nodes with three random tokens each; node n is the same in every set."""
    return NodeSet([_drawn_node(number, shards) for number in range(count)])


def nodes_from_ring(ring: Ring, joining: int) -> NodeSet:
    """Return a ring's nodes, and `joining` more with random tokens, as many and as sharded as those of the first.

    Those that join are spread over the datacenters of the ring.
    """
    first = ring.nodes[0]
    taken = set(ring.tokens.tolist())
    source = random.Random(0)
    joined: list[Node] = []
    for index in range(joining):
        tokens: set[int] = set()
        while len(tokens) < max(len(first.tokens), 1):
            tokens |= {source.randrange(-(2**63) + 1, 2**63)} - taken
        taken |= tokens
        datacenter = ring.nodes[index % len(ring.nodes)].datacenter
        host_id = UUID(int=(1 << 127) + index)
        joined.append(Node(host_id, tuple(tokens), first.shard_count, first.ignore_msb, datacenter=datacenter))
    return NodeSet((*ring.nodes, *joined))


def _drawn_node(number: int, shards: int) -> Node:
    source = random.Random(number)
    tokens = tuple(source.randrange(-(2**63) + 1, 2**63) for _ in range(VNODES))
    return Node(UUID(int=number + 1), tokens, shards, 12)
