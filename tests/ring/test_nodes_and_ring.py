"""Nodes, and the ring of their tokens."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.histories.strategies import tokens

from cdc_platform.errors import InputError
from cdc_platform.ring import FIRST_TOKEN, LAST_TOKEN, MAX_RANGES, MINIMUM_TOKEN, Node, Ring
from cdc_platform.ring import ring as implementation


def node(number: int, *owned: int, **changes: Any) -> Node:
    """Return a node, by default with two shards."""
    fields: dict[str, Any] = {"shard_count": 2, "ignore_msb": 12} | changes
    return Node(UUID(int=number), owned, **fields)


@given(st.sets(tokens, min_size=1), st.integers(1, 4))
def test_every_token_keeps_its_owner(owned: set[int], nodes: int) -> None:
    """However tokens are distributed, each entry has its owner and the owner's sharding."""
    distributed = {number: tuple(owned)[number::nodes] for number in range(nodes)}
    members = [
        node(n, *node_tokens, shard_count=n + 1, ignore_msb=n) for n, node_tokens in distributed.items() if node_tokens
    ]
    ring = Ring.of(members)
    owner = {token: member for member in members for token in member.tokens}
    assert ring.tokens.tolist() == sorted(owned)
    assert [ring.nodes[i] for i in ring.owner_index] == [owner[token] for token in sorted(owned)]
    assert ring.shard_counts.tolist() == [owner[token].shard_count for token in sorted(owned)]
    assert ring.ignore_msbs.tolist() == [owner[token].ignore_msb for token in sorted(owned)]
    assert all(ring.owner_of(token) == owner[token] for token in owned)


def test_tokens_of_a_node_are_sorted() -> None:
    """Two nodes that differ only in the order of their tokens are equal."""
    assert node(1, 7, -3, 5) == node(1, -3, 5, 7)
    assert Node(UUID(int=1), np.array([7, -3]), 2, 12).tokens == (-3, 7)  # pyrefly: ignore[bad-argument-type]


def test_owners_own_the_range_before_their_tokens() -> None:
    """A boundary token belongs to the range that ends there; the first token's owner has the wrapping range."""
    ring = Ring.of([node(1, -100, 100), node(2, 0)])
    looked_up = [FIRST_TOKEN, -100, -99, 0, 1, 100, 101, LAST_TOKEN]
    assert [ring.owner_of(token).host_id.int for token in looked_up] == [1, 1, 2, 2, 1, 1, 1, 1]


def test_joining() -> None:
    """A join returns a larger ring and leaves the old one unchanged."""
    empty = Ring.of([])
    one = empty.join(node(1, 5))
    two = one.join(node(2, -5))
    assert [ring.tokens.tolist() for ring in (empty, one, two)] == [[], [5], [-5, 5]]
    with pytest.raises(InputError, match="the ring is empty"):
        empty.owner_of(0)


def test_a_token_has_one_owner() -> None:
    """The message names the token and both claimants."""
    with pytest.raises(InputError) as refused:
        Ring.of([node(1, 3, 5), node(2, 5)])
    assert all(text in str(refused.value) for text in ("token 5", str(UUID(int=1)), str(UUID(int=2))))


def test_a_host_joins_once() -> None:
    """A host cannot join twice, even with other tokens."""
    with pytest.raises(InputError, match="twice"):
        Ring.of([node(1, 3)]).join(node(1, 4))


def test_rings_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream ID's index has 22 bits; the test lowers the limit to reach it."""
    assert MAX_RANGES == 4_194_304
    monkeypatch.setattr(implementation, "MAX_RANGES", 3)
    Ring.of([node(1, 1, 2, 3)])
    with pytest.raises(InputError, match="at most 3"):
        Ring.of([node(1, 1, 2, 3), node(2, 4)])


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"tokens": (1, 2, 1)}, "token 1 is listed twice"),
        ({"tokens": (MINIMUM_TOKEN,)}, "out of range"),
        ({"tokens": (LAST_TOKEN + 1,)}, "out of range"),
        ({"tokens": (0.5,)}, "no integer"),
        ({"shard_count": 0}, "shard_count 0"),
        ({"shard_count": 4097}, "shard_count 4097"),
        ({"shard_count": True}, "shard_count True"),
        ({"ignore_msb": -1}, "ignore_msb -1"),
        ({"ignore_msb": 32}, "ignore_msb 32"),
    ],
)
def test_bad_nodes_are_refused(change: dict[str, Any], rule: str) -> None:
    """The message names the node, the value and the rule."""
    fields: dict[str, Any] = {"tokens": (1,), "shard_count": 2, "ignore_msb": 12} | change
    with pytest.raises(InputError, match=rule) as refused:
        Node(UUID(int=9), **fields)
    assert str(UUID(int=9)) in str(refused.value)
