"""Made-up clusters of any size: nodes with random tokens from a fixed seed, and a lake in which the last is to join."""

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
    """How large a cluster is."""

    nodes: int
    vnodes: int
    shards: int

    @property
    def streams(self) -> int:
        """Streams of a generation of the whole cluster."""
        return self.nodes * self.vnodes * self.shards

    def __str__(self) -> str:
        return f"{self.nodes} nodes x {self.vnodes} vnodes x {self.shards} shards = {self.streams:,} streams"


def nodes_of(size: Size, seed: int = 1) -> list[Node]:
    """The nodes, each with its own tokens; the same for the same seed."""
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
    """The ring of all nodes; made once, since making clusters up is no part of what is measured."""
    return Ring.of(nodes_of(size))


def lake_before_join(folder: Path | str, size: Size, clock: Clock) -> tuple[Lake, str]:
    """A lake whose ring has all nodes but the last, which waits in the inbox; and the generation ID of its join."""
    lake = Lake(folder)
    *members, joining = nodes_of(size)
    write_nodes(lake, members)
    return lake, queue(lake, clock, joining)


def lake_before_next_join(lake: Lake, size: Size, turn: int, clock: Clock) -> str:
    """Take the node that joined last out of the ring again and queue another one; answers with its generation ID.

    So a join of the same size can be measured again, in a lake whose tables are there, as all but the first find it.
    """
    last = nodes_of(size)[-1]
    before = replace(last, host_id=_stand_in(last, turn - 1))
    lake.delete(NODES, [("host_id", "=", str(before.host_id))])
    tokens = tuple(token + turn for token in last.tokens)
    return queue(lake, clock, replace(last, host_id=_stand_in(last, turn), tokens=tokens))


def grow(workers: TaskRunner, lake: Lake, nodes: Sequence[Node], joining: int, clock: Clock) -> Clock:
    """Let the last `joining` nodes join a ring of those before them, an hour apart from `clock` on; the next hour."""
    write_nodes(lake, nodes[:-joining])
    for hour, node in enumerate(nodes[-joining:]):
        at = Clock(clock.now_us() + HOUR_US * hour)
        run_join(workers, lake, at, Settings(), queue(lake, at, node))
    return Clock(clock.now_us() + HOUR_US * joining)


def _stand_in(node: Node, turn: int) -> uuid.UUID:
    return node.host_id if turn == 0 else uuid.uuid5(node.host_id, str(turn))


def queue(lake: Lake, clock: Clock, node: Node) -> str:
    """Put a node into the inbox; answers with the generation ID of its join."""
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
