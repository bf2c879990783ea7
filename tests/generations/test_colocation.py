"""Exact shares of the ring, held against an oracle that walks every boundary with big integers."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.histories.strategies import rings
from support.oracles import oracle

from cdc_platform.generations import (
    RingLayout,
    compare_generations,
    compute_changed_share,
    compute_colocation,
    compute_colocation_by_shard,
    generate_description,
)
from cdc_platform.ring import FIRST_TOKEN, LAST_TOKEN, Node, Ring

Owners = dict[int, tuple[int, int]]
RING_SIZE = 2**64 - 1
# The oracle walks every window, so it is asked for few of them.
few_windows = st.dictionaries(
    st.one_of(
        st.sampled_from([FIRST_TOKEN, -1, 0, 1, LAST_TOKEN - 1, LAST_TOKEN]), st.integers(FIRST_TOKEN, LAST_TOKEN)
    ),
    st.tuples(st.integers(1, 6), st.integers(0, 3)),
    min_size=1,
    max_size=6,
)


def ring_of(owners: Owners) -> Ring:
    """A ring in which every token has a node of its own."""
    return Ring.of(Node(UUID(int=number), (token,), *owners[token]) for number, token in enumerate(owners, start=1))


def boundaries(owners: Owners) -> set[int]:
    """The last tokens before a shard of any owner begins, and every range end."""
    found = {*owners, LAST_TOKEN}
    for shards, msb in set(owners.values()):
        for window in range(1 << msb):
            for start in oracle.shard_starts(shards, msb):
                found.add((window << (64 - msb)) + start - 2**63 - 1)
    return {token for token in found if FIRST_TOKEN <= token <= LAST_TOKEN}


def owner_at(owners: Owners, token: int) -> int:
    """The token that ends the range which holds `token`."""
    return min((end for end in owners if end >= token), default=min(owners))


def slow(layout: Owners, ring: Owners) -> tuple[Fraction, Fraction]:
    """Shares of vnode and shard colocation, piece by piece."""
    found = list(pieces(layout, ring))
    in_vnode = sum(width * same_vnode for _, _, width, same_vnode, _ in found)
    on_shard = sum(width * same_shard for _, _, width, _, same_shard in found)
    return Fraction(in_vnode, RING_SIZE), Fraction(on_shard, RING_SIZE)


def pieces(layout: Owners, ring: Owners) -> Iterator[tuple[int, int, int, bool, bool]]:
    """The ring in pieces: the end of their vnode, their shard, how many keys; whether the stream lies in both."""
    last_tokens = sorted(boundaries(layout) | boundaries(ring))
    ends = sorted(layout)
    before = FIRST_TOKEN - 1
    for token in last_tokens:
        end = owner_at(layout, token)
        shard = oracle.shard_of(token, *layout[end])
        start = ends[ends.index(end) - 1]
        stream = oracle.first_token_for_shard(start, end, shard, *layout[end])
        same_vnode = owner_at(ring, stream) == owner_at(ring, token)
        sharding = ring[owner_at(ring, token)]
        mine = oracle.shard_of(token, *sharding)
        same_shard = same_vnode and oracle.shard_of(stream, *sharding) == mine
        yield owner_at(ring, token), mine, token - before, same_vnode, same_shard
        before = token


@given(few_windows, few_windows)
def test_any_generation_on_any_ring(layout: Owners, ring: Owners) -> None:
    """Other tokens, other sharding, ranges that wrap: the same shares as piece by piece."""
    found = compute_colocation(RingLayout.of(ring_of(layout)), ring_of(ring))
    assert (found.vnode, found.shard) == tuple(map(float, slow(layout, ring)))


@given(few_windows, few_windows)
def test_each_shard_of_each_node_has_its_part(layout: Owners, owners: Owners) -> None:
    """Every key lies on one shard of one node; those whose stream lies there too are the ones found piece by piece."""
    ring = ring_of(owners)
    found = compute_colocation_by_shard(RingLayout.of(ring_of(layout)), ring)
    there: dict[tuple[int, int], tuple[int, int]] = {}
    for end, shard, width, _, same_shard in pieces(layout, owners):
        number = list(owners).index(end)
        so_far = there.get((number, shard), (0, 0))
        there[number, shard] = so_far[0] + width, so_far[1] + width * same_shard
    told = zip(found.nodes.tolist(), found.shards.tolist(), found.tokens.tolist(), found.on_shard.tolist(), strict=True)
    hosts = [node.host_id.int - 1 for node in ring.nodes]
    assert {(hosts[node], shard): (total, same) for node, shard, total, same in told if total} == there
    assert sum(found.in_vnode.tolist()) == sum(width * same for _, _, width, same, _ in pieces(layout, owners))


@given(few_windows, st.data())
def test_a_resharded_node_and_a_node_that_left(layout: Owners, data: st.DataObject) -> None:
    """Tokens of the same ring with other sharding, some of them gone: vnodes stay colocated, shards not all."""
    kept = data.draw(st.lists(st.sampled_from(sorted(layout)), min_size=1, unique=True))
    ring = {token: data.draw(st.sampled_from([layout[token], (2, 0), (5, 2), (1, 3)])) for token in kept}
    found = compute_colocation(RingLayout.of(ring_of(layout)), ring_of(ring))
    assert (found.vnode, found.shard) == (1.0, float(slow(layout, ring)[1]))


@given(rings())
def test_a_fresh_generation_colocates_everything(owners: Owners) -> None:
    """However a ring is sharded."""
    ring = ring_of(owners)
    found = compute_colocation(RingLayout.of(ring), ring)
    assert (found.vnode, found.shard) == (1.0, 1.0)


@pytest.mark.parametrize("msbs", [(12, 12), (12, 31), (31, 31), (0, 31)])
def test_windows_are_never_walked(msbs: tuple[int, int]) -> None:
    """A ring of 2^31 windows has its share at once, and it is the one that a random sample finds."""
    layout = RingLayout.of(Ring.of([Node(UUID(int=1), (0,), 64, msbs[0])]))
    ring = Ring.of([Node(UUID(int=1), (0,), 48, msbs[1])])
    made = generate_description(layout, UUID(int=9))
    tokens = np.random.default_rng(3).integers(FIRST_TOKEN, LAST_TOKEN, 200_000, dtype=np.int64)
    streams = np.ascontiguousarray(made.streams_of(tokens)[:, :8]).view(">i8").ravel()
    from cdc_platform.ring import shard_of

    sampled = float((shard_of(streams.astype(np.int64), 48, msbs[1]) == shard_of(tokens, 48, msbs[1])).mean())
    assert compute_colocation(layout, ring).shard == pytest.approx(sampled, abs=0.004)


def test_a_joining_node_splits_vnodes_that_the_old_generation_does_not_know() -> None:
    """The window of gossip: of the range that was split, keys before and after the token are colocated in one half."""
    old = Ring.of([Node(UUID(int=1), (0,), 1, 0)])
    after = old.join(Node(UUID(int=2), (-(2**62),), 1, 0))
    # One stream, at token 1: it shares the vnode of (0, -2^62], three quarters of the ring; the rest has lost it.
    found = compute_colocation(RingLayout.of(old), after)
    assert (found.vnode, found.shard) == (pytest.approx(0.75), pytest.approx(0.75))


@given(few_windows, few_windows)
def test_two_generations_share_no_stream(old: Owners, new: Owners) -> None:
    """Fresh random bits: every write goes to another stream, as comparing all of them says."""
    layouts = [RingLayout.of(ring_of(owners)) for owners in (old, new)]
    ids = UUID(int=1), UUID(int=2)
    expected = compare_generations(
        *(generate_description(layout, id) for layout, id in zip(layouts, ids, strict=True))
    ).changed_share
    assert compute_changed_share(layouts[0], ids[0], layouts[1], ids[1]) == expected == 1.0


@given(few_windows, few_windows)
def test_streams_that_are_shared_are_found(old: Owners, brought: Owners) -> None:
    """With the same random bits, ranges of the same index share streams: exactly those that a full comparison finds."""
    layouts = [RingLayout.of(ring_of(owners)) for owners in (old, brought | old)]
    expected = compare_generations(*(generate_description(layout, UUID(int=1)) for layout in layouts)).changed_share
    assert compute_changed_share(layouts[0], UUID(int=1), layouts[1], UUID(int=1)) == pytest.approx(expected, abs=1e-12)


def test_a_large_ring_is_counted_without_its_streams() -> None:
    """A ring of 1,638,400 streams, one of its hundred nodes resharded: only its hundredth is counted by stream."""
    tokens = np.random.default_rng(5).integers(FIRST_TOKEN, LAST_TOKEN, 25_600, dtype=np.int64)
    nodes = [Node(UUID(int=n + 1), tuple(tokens[n::100].tolist()), 64, 12) for n in range(100)]
    layout = RingLayout.of(Ring.of(nodes))
    resharded = Ring.of([Node(nodes[0].host_id, nodes[0].tokens, 48, 12), *nodes[1:]])
    found = compute_colocation(layout, resharded)
    assert found.vnode == 1.0
    assert 0.99 < found.shard < 0.9999
