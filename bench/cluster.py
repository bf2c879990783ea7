"""Synthetic clusters of any size: nodes with random tokens by a fixed seed, and a lake before the last node's join."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from cdc_platform.clock import HOUR_US, Clock
from cdc_platform.delta import Lake, TaskRunner
from cdc_platform.lifecycle import run_join
from cdc_platform.metastore import JoinRequest, inbox, write_nodes
from cdc_platform.ring import FIRST_TOKEN, LAST_TOKEN, Node, Ring
from cdc_platform.settings import Settings
from cdc_platform.tables import NODES

IGNORE_MSB = 12
FEATURES = ("CDC_GENERATIONS_V2",)


@dataclass(frozen=True)
class Size:
    """The size of a cluster."""

    nodes: int
    vnodes: int
    shards: int

    @property
    def streams(self) -> int:
        """The number of streams of a generation of the whole cluster."""
        return self.nodes * self.vnodes * self.shards

    def __str__(self) -> str:
        return f"{self.nodes} nodes x {self.vnodes} vnodes x {self.shards} shards = {self.streams:,} streams"


def nodes_of(size: Size, seed: int = 1) -> list[Node]:
    """Return the nodes, each with its own tokens, which depend on the seed alone."""
    source = np.random.default_rng(seed)
    tokens = np.empty(0, dtype=np.int64)
    while tokens.size < size.nodes * size.vnodes:
        more = source.integers(
            FIRST_TOKEN, LAST_TOKEN, size=size.nodes * size.vnodes - tokens.size, endpoint=True, dtype=np.int64
        )
        tokens = np.union1d(tokens, more)
    shares = source.permutation(tokens).reshape(size.nodes, size.vnodes)
    return [
        Node(
            host_id=uuid.UUID(bytes=source.bytes(16), version=4),
            tokens=tuple(np.sort(share).tolist()),
            shard_count=size.shards,
            ignore_msb=IGNORE_MSB,
            address=f"10.0.{number // 256}.{number % 256}",
            datacenter="datacenter1",
            rack=f"rack{number % 3 + 1}",
            features=FEATURES,
        )
        for number, share in enumerate(shares)
    ]


@lru_cache(maxsize=4)
def ring_of(size: Size) -> Ring:
    """Return the ring of all nodes, cached because creating clusters is not part of any measurement."""
    return Ring.of(nodes_of(size))


def lake_before_join(folder: Path | str, size: Size, clock: Clock) -> tuple[Lake, str]:
    """Create a lake whose ring has all nodes but the last, which is queued; return it and the join's generation ID."""
    lake = Lake(folder)
    *members, joining = nodes_of(size)
    write_nodes(lake, members)
    return lake, queue(lake, clock, joining)


def lake_before_next_join(lake: Lake, size: Size, number: int, clock: Clock) -> str:
    """Remove the node that joined last from the ring and queue another one; return its generation ID.

    The next join then has the same size and finds its tables, as all joins but the first do.
    """
    last = nodes_of(size)[-1]
    before = replace(last, host_id=_stand_in(last, number - 1))
    lake.delete(NODES, [("host_id", "=", str(before.host_id))])
    tokens = tuple(token + number for token in last.tokens)
    return queue(lake, clock, replace(last, host_id=_stand_in(last, number), tokens=tokens))


def grow(workers: TaskRunner, lake: Lake, nodes: Sequence[Node], joining: int, clock: Clock) -> Clock:
    """Let the last `joining` nodes join the others, an hour apart from `clock` on; return the hour after them."""
    write_nodes(lake, nodes[:-joining])
    for hour, node in enumerate(nodes[-joining:]):
        at = Clock(clock.now_us() + HOUR_US * hour)
        run_join(workers, lake, at, Settings(), queue(lake, at, node))
    return Clock(clock.now_us() + HOUR_US * joining)


def _stand_in(node: Node, number: int) -> uuid.UUID:
    return node.host_id if number == 0 else uuid.uuid5(node.host_id, str(number))


def queue(lake: Lake, clock: Clock, node: Node) -> str:
    """Queue a node; return the generation ID of its join."""
    request = JoinRequest(
        host_id=node.host_id,
        address=node.address,
        datacenter=node.datacenter,
        rack=node.rack,
        tokens=tuple(np.asarray(node.tokens).tolist()),
        shard_count=node.shard_count,
        ignore_msb=node.ignore_msb,
        features=node.features,
    )
    return inbox.queue_join(lake, clock, request).generation_id
