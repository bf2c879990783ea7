"""Exact shares of the ring, compared with an oracle that visits every boundary with big integers."""

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
# The oracle visits every window, so the windows are few.
few_windows = st.dictionaries(
    st.one_of(
        st.sampled_from([FIRST_TOKEN, -1, 0, 1, LAST_TOKEN - 1, LAST_TOKEN]), st.integers(FIRST_TOKEN, LAST_TOKEN)
    ),
    st.tuples(st.integers(1, 6), st.integers(0, 3)),
    min_size=1,
    max_size=6,
)


def make_ring(owners: Owners) -> Ring:
    """Return a ring in which every token has its own node."""
    return Ring.of(Node(UUID(int=number), (token,), *owners[token]) for number, token in enumerate(owners, start=1))


def boundaries(owners: Owners) -> set[int]:
    """Return the last tokens before a shard of any owner begins, and every range end."""
    last_tokens = {*owners, LAST_TOKEN}
    for shards, msb in set(owners.values()):
        for window in range(1 << msb):
            for start in oracle.shard_starts(shards, msb):
                last_tokens.add((window << (64 - msb)) + start - 2**63 - 1)
    return {token for token in last_tokens if FIRST_TOKEN <= token <= LAST_TOKEN}


def owner_at(owners: Owners, token: int) -> int:
    """Return the token that ends the range with `token`."""
    return min((end for end in owners if end >= token), default=min(owners))


def slow(layout: Owners, ring: Owners) -> tuple[Fraction, Fraction]:
    """Return the shares of vnode and shard colocation, computed piece by piece."""
    parts = list(pieces(layout, ring))
    in_vnode = sum(width * same_vnode for _, _, width, same_vnode, _ in parts)
    on_shard = sum(width * same_shard for _, _, width, _, same_shard in parts)
    return Fraction(in_vnode, RING_SIZE), Fraction(on_shard, RING_SIZE)


def pieces(layout: Owners, ring: Owners) -> Iterator[tuple[int, int, int, bool, bool]]:
    """Yield the ring in pieces: vnode end, shard, number of keys, and whether the stream is in that vnode and shard."""
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
    """With other tokens, other sharding and wrapping ranges, the shares equal those computed piece by piece."""
    colocation = compute_colocation(RingLayout.of(make_ring(layout)), make_ring(ring))
    assert (colocation.vnode, colocation.shard) == tuple(map(float, slow(layout, ring)))


@given(few_windows, few_windows)
def test_each_shard_of_each_node_has_its_part(layout: Owners, owners: Owners) -> None:
    """Every key is on one shard of one node; the colocated keys per shard equal those computed piece by piece."""
    ring = make_ring(owners)
    by_shard = compute_colocation_by_shard(RingLayout.of(make_ring(layout)), ring)
    totals: dict[tuple[int, int], tuple[int, int]] = {}
    for end, shard, width, _, same_shard in pieces(layout, owners):
        number = list(owners).index(end)
        so_far = totals.get((number, shard), (0, 0))
        totals[number, shard] = so_far[0] + width, so_far[1] + width * same_shard
    columns = zip(
        by_shard.nodes.tolist(),
        by_shard.shards.tolist(),
        by_shard.tokens.tolist(),
        by_shard.on_shard.tolist(),
        strict=True,
    )
    hosts = [node.host_id.int - 1 for node in ring.nodes]
    assert {(hosts[node], shard): (total, same) for node, shard, total, same in columns if total} == totals
    assert sum(by_shard.in_vnode.tolist()) == sum(width * same for _, _, width, same, _ in pieces(layout, owners))


@given(few_windows, st.data())
def test_a_resharded_node_and_a_node_that_left(layout: Owners, data: st.DataObject) -> None:
    """After resharding and removals, vnodes stay colocated, and shards as computed piece by piece."""
    remaining_tokens = data.draw(st.lists(st.sampled_from(sorted(layout)), min_size=1, unique=True))
    ring = {token: data.draw(st.sampled_from([layout[token], (2, 0), (5, 2), (1, 3)])) for token in remaining_tokens}
    colocation = compute_colocation(RingLayout.of(make_ring(layout)), make_ring(ring))
    assert (colocation.vnode, colocation.shard) == (1.0, float(slow(layout, ring)[1]))


@given(rings())
def test_a_fresh_generation_colocates_everything(owners: Owners) -> None:
    """A fresh generation colocates all keys, whatever the ring's sharding."""
    ring = make_ring(owners)
    colocation = compute_colocation(RingLayout.of(ring), ring)
    assert (colocation.vnode, colocation.shard) == (1.0, 1.0)


@pytest.mark.parametrize("msbs", [(12, 12), (12, 31), (31, 31), (0, 31)])
def test_windows_are_never_walked(msbs: tuple[int, int]) -> None:
    """The share of a ring with 2^31 windows is computed at once, and equals that of a random sample."""
    layout = RingLayout.of(Ring.of([Node(UUID(int=1), (0,), 64, msbs[0])]))
    ring = Ring.of([Node(UUID(int=1), (0,), 48, msbs[1])])
    description = generate_description(layout, UUID(int=9))
    tokens = np.random.default_rng(3).integers(FIRST_TOKEN, LAST_TOKEN, 200_000, dtype=np.int64)
    streams = np.ascontiguousarray(description.streams_of(tokens)[:, :8]).view(">i8").ravel()
    from cdc_platform.ring import shard_of

    sampled = float((shard_of(streams.astype(np.int64), 48, msbs[1]) == shard_of(tokens, 48, msbs[1])).mean())
    assert compute_colocation(layout, ring).shard == pytest.approx(sampled, abs=0.004)


def test_a_joining_node_splits_vnodes_that_the_old_generation_does_not_know() -> None:
    """While gossip spreads, only part of the keys of a split range are colocated."""
    old = Ring.of([Node(UUID(int=1), (0,), 1, 0)])
    after = old.join(Node(UUID(int=2), (-(2**62),), 1, 0))
    # One stream at token 1 shares the vnode of (0, -2^62], three quarters of the ring; the rest is not colocated.
    colocation = compute_colocation(RingLayout.of(old), after)
    assert (colocation.vnode, colocation.shard) == (pytest.approx(0.75), pytest.approx(0.75))


@given(few_windows, few_windows)
def test_two_generations_share_no_stream(old: Owners, new: Owners) -> None:
    """With fresh random bits every write gets another stream, as a comparison of all streams confirms."""
    layouts = [RingLayout.of(make_ring(owners)) for owners in (old, new)]
    ids = UUID(int=1), UUID(int=2)
    expected = compare_generations(
        *(generate_description(layout, id) for layout, id in zip(layouts, ids, strict=True))
    ).changed_share
    assert compute_changed_share(layouts[0], ids[0], layouts[1], ids[1]) == expected == 1.0


@given(few_windows, few_windows)
def test_streams_that_are_shared_are_found(old: Owners, brought: Owners) -> None:
    """With equal random bits, ranges of one index share the streams that a full comparison finds."""
    layouts = [RingLayout.of(make_ring(owners)) for owners in (old, brought | old)]
    expected = compare_generations(*(generate_description(layout, UUID(int=1)) for layout in layouts)).changed_share
    assert compute_changed_share(layouts[0], UUID(int=1), layouts[1], UUID(int=1)) == pytest.approx(expected, abs=1e-12)


def test_a_large_ring_is_counted_without_its_streams() -> None:
    """In a ring of 1,638,400 streams with one of a hundred nodes resharded, only that node's part is counted."""
    tokens = np.random.default_rng(5).integers(FIRST_TOKEN, LAST_TOKEN, 25_600, dtype=np.int64)
    nodes = [Node(UUID(int=n + 1), tuple(tokens[n::100].tolist()), 64, 12) for n in range(100)]
    layout = RingLayout.of(Ring.of(nodes))
    resharded = Ring.of([Node(nodes[0].host_id, nodes[0].tokens, 48, 12), *nodes[1:]])
    colocation = compute_colocation(layout, resharded)
    assert colocation.vnode == 1.0
    assert 0.99 < colocation.shard < 0.9999
