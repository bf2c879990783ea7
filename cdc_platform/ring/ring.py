"""Nodes and the ring of their tokens: the owner of each range and how that owner shards it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from uuid import UUID

import numpy as np

from cdc_platform.errors import InputError
from cdc_platform.ring.sharding import MAX_IGNORE_MSB, MAX_SHARD_COUNT
from cdc_platform.ring.tokens import Int64s, check_tokens

MAX_RANGES = 1 << 22
"""A stream ID's index has 22 bits, so a generation describes at most 4,194,304 ranges."""


@dataclass(frozen=True)
class Node:
    """A node of the ring. `tokens` are stored in ascending order, given in any order.

    A zero-token node (ScyllaDB 6.2 and later) is a member without tokens: it coordinates and learns of generations, and
    has no vnode and no stream.

    Raises:
        InputError: a token is duplicated or out of range, shard_count is outside 1..4096, or ignore_msb outside 0..31.
    """

    host_id: UUID
    tokens: tuple[int, ...]
    shard_count: int
    ignore_msb: int
    address: str = ""
    datacenter: str = ""
    rack: str = ""
    features: tuple[str, ...] = ()
    status: str = "NORMAL"

    def __post_init__(self) -> None:
        _check_number(f"node {self.host_id}: shard_count", self.shard_count, 1, MAX_SHARD_COUNT)
        _check_number(f"node {self.host_id}: ignore_msb", self.ignore_msb, 0, MAX_IGNORE_MSB)
        tokens = np.sort(check_tokens(self.tokens, f"node {self.host_id}"))
        duplicates = np.flatnonzero(tokens[1:] == tokens[:-1])
        if len(duplicates):
            raise InputError(
                f"node {self.host_id}: token {tokens[duplicates[0]]} is listed twice; list each token once"
            )
        object.__setattr__(self, "tokens", tuple(tokens.tolist()))
        object.__setattr__(self, "features", tuple(self.features))


@dataclass(frozen=True, eq=False)
class Ring:
    """The token ring: every token of every node, ascending, with its owner's sharding. Built by `Ring.of`.

    All columns are int64[n], read-only, with one entry for each token; `owner_index` points into `nodes`.
    """

    nodes: tuple[Node, ...]
    tokens: Int64s
    owner_index: Int64s
    shard_counts: Int64s
    ignore_msbs: Int64s

    @property
    def has_tokens(self) -> bool:
        """Return True if a node owns a token. A ring of members without tokens has no vnode to describe."""
        return len(self.tokens) > 0

    @property
    def zero_token_nodes(self) -> tuple[Node, ...]:
        """Return the members without tokens."""
        return tuple(node for node in self.nodes if not node.tokens)

    @classmethod
    def of(cls, nodes: Iterable[Node]) -> Ring:
        """Return the ring of `nodes`; without nodes, the empty ring.

        Raises:
            InputError: a host is duplicated, a token has two owners, or there are more than 4,194,304 tokens.
        """
        return _build_ring(tuple(nodes))

    def join(self, node: Node) -> Ring:
        """Return the ring after `node` has joined.

        Raises:
            InputError: the host or one of its tokens is already on the ring, or the ring grows too large.
        """
        return Ring.of((*self.nodes, node))

    def owner_of(self, token: int) -> Node:
        """Return the owner of the range that contains `token`: the owner of the first ring token at or after it.

        Raises:
            InputError: the ring is empty.
        """
        if len(self.tokens) == 0:
            raise InputError(f"token {token} has no owner: the ring is empty; let a node join first")
        row = int(np.searchsorted(self.tokens, token, side="left")) % len(self.tokens)
        return self.nodes[self.owner_index[row]]


# The steps of a join need the same two rings a dozen times; building one takes ten times as long as a cache hit.
@lru_cache(maxsize=4)
def _build_ring(members: tuple[Node, ...]) -> Ring:
    _check_unique_hosts(members)
    counts = np.array([len(node.tokens) for node in members], dtype=np.int64)
    if counts.sum() > MAX_RANGES:
        raise InputError(f"{counts.sum()} tokens on the ring; a stream's index allows at most {MAX_RANGES} ranges")
    tokens = np.array([token for node in members for token in node.tokens], dtype=np.int64)
    owners = np.repeat(np.arange(len(members), dtype=np.int64), counts)
    order = np.argsort(tokens, kind="stable")
    tokens, owners = tokens[order], owners[order]
    _check_unique_owners(members, tokens, owners)
    shard_counts = np.array([node.shard_count for node in members], dtype=np.int64)
    ignore_msbs = np.array([node.ignore_msb for node in members], dtype=np.int64)
    columns = tokens, owners, shard_counts[owners], ignore_msbs[owners]
    for column in columns:
        column.flags.writeable = False  # callers share the cached columns
    return Ring(members, *columns)


def _check_number(what: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not low <= value <= high:
        raise InputError(f"{what} {value!r} is out of range; it has to be a whole number {low} to {high}")


def _check_unique_hosts(nodes: tuple[Node, ...]) -> None:
    seen: set[UUID] = set()
    for node in nodes:
        if node.host_id in seen:
            raise InputError(f"node {node.host_id} is on the ring twice; a host joins once")
        seen.add(node.host_id)


def _check_unique_owners(nodes: tuple[Node, ...], tokens: Int64s, owners: Int64s) -> None:
    duplicates = np.flatnonzero(tokens[1:] == tokens[:-1])
    if len(duplicates):
        row = int(duplicates[0])
        one, other = (nodes[owners[i]].host_id for i in (row, row + 1))
        raise InputError(f"token {tokens[row]} is owned by both {one} and {other}; a token has one owner")
