"""Generating topology descriptions and mapping tokens to streams, compared with vectors and the oracle."""

from __future__ import annotations

import pickle
from itertools import pairwise
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.histories.strategies import rings, tokens
from support.oracles import oracle

from cdc_platform.errors import InputError
from cdc_platform.generations import (
    RingLayout,
    TopologyDescription,
    decode_stream_ids,
    generate_description,
    generate_streams,
    limit_streams_for_v1,
)
from cdc_platform.generations import description as implementation
from cdc_platform.ring import LAST_TOKEN, MINIMUM_TOKEN, Node, Ring, range_starts, shard_of

GENERATION = UUID("5f3d9c1e-8a6b-4c2d-9e0f-1a2b3c4d5e6f")
Owners = dict[int, tuple[int, int]]


def make_layout(owners: Owners) -> RingLayout:
    """Return the layout of a ring given as token -> (shard_count, ignore_msb)."""
    ends = np.array(sorted(owners), dtype=np.int64)
    counts, msbs = np.array([owners[int(end)] for end in ends], dtype=np.int64).reshape(-1, 2).T
    return RingLayout(ends, range_starts(ends), counts, msbs)


def without_random(streams: np.ndarray) -> list[str]:
    """Return hexadecimal stream IDs with their random bits set to zero."""
    words = streams.view(">u8") & np.array([2**64 - 1, 2**26 - 1], dtype=np.uint64)
    return [f"0x{high:016x}{low:016x}" for high, low in words.tolist()]


def vector_description(row: dict[str, Any]) -> TopologyDescription:
    """Return the description of a vector's ring: the existing tokens, then a node that joins with the others."""
    ring = Ring.of([Node(UUID(int=1), tuple(row["existing"]), row["shards"], row["ignore_msb"])])
    if row["bootstrap"]:
        ring = ring.join(Node(UUID(int=2), tuple(row["bootstrap"]), row["shards"], row["ignore_msb"]))
    return generate_description(RingLayout.of(ring), GENERATION)


def test_generations_of_the_vectors(vectors: dict[str, Any]) -> None:
    """Ranges, shard order, tokens and indexes equal ScyllaDB's; the vectors have no random bits."""
    for row in vectors["generation_rand0"]:
        description = vector_description(row)
        for i, entry in enumerate(row["entries"]):
            got = description.entry(i)
            assert (got.range_end, got.ignore_msb) == (entry["range_end"], entry["ignore_msb"])
            assert without_random(got.streams) == entry["streams"]
            assert decode_stream_ids(got.streams).tokens.tolist() == entry["stream_tokens"]
        assert len(description) == len(row["entries"])


def test_streams_picked_in_the_vectors(vectors: dict[str, Any]) -> None:
    """Each token gets the stream that ScyllaDB picks."""
    for row in vectors["pick_stream_rand0"]:
        assert without_random(vector_description(row).streams_of([row["token"]])) == [row["stream"]]


@given(rings())
def test_generations_as_the_oracle(owners: Owners) -> None:
    """Ranges, counts, tokens in shard order and indexes equal the oracle's, entry by entry."""
    description, expected = generate_description(make_layout(owners), GENERATION), oracle.generation(owners)
    ids = decode_stream_ids(description.streams)
    assert description.range_ends.tolist() == [entry.end for entry in expected]
    assert description.range_starts.tolist() == [entry.start for entry in expected]
    assert description.stream_counts.tolist() == [len(entry.stream_tokens) for entry in expected]
    assert description.ignore_msbs.tolist() == [entry.ignore_msb for entry in expected]
    assert ids.tokens.tolist() == [token for entry in expected for token in entry.stream_tokens]
    assert ids.indexes.tolist() == [i for i, entry in enumerate(expected) for _ in entry.stream_tokens]
    assert set(ids.versions.tolist()) == {1}


@given(rings(), st.lists(tokens, min_size=1))
def test_the_ring_is_covered_once(owners: Owners, asked: list[int]) -> None:
    """Every token is in the range of exactly one entry, to which it is mapped."""
    description = generate_description(make_layout(owners), GENERATION)
    for token, row in zip(asked, description.row_of(asked).tolist(), strict=True):
        entries = map(description.entry, range(len(description)))
        assert [i for i, e in enumerate(entries) if oracle.in_range(e.range_start, e.range_end, token)] == [row]


@given(rings(), st.sets(tokens))
def test_a_join_refines_the_ring_before_and_after(owners: Owners, brought: set[int]) -> None:
    """A join's generation has a range end at every old and new token; the earlier one has none at new tokens."""
    after = owners | dict.fromkeys(brought - set(owners), (3, 12))
    ends = generate_description(make_layout(after), GENERATION).range_ends
    assert implementation.find_uncovered_tokens(ends, sorted(owners)).tolist() == []
    assert implementation.find_uncovered_tokens(ends, sorted(after)).tolist() == []
    assert implementation.find_uncovered_tokens(sorted(owners), sorted(after)).tolist() == sorted(
        set(after) - set(owners)
    )


@given(rings(), st.lists(tokens, min_size=1))
def test_writes_are_colocated(owners: Owners, asked: list[int]) -> None:
    """A write's stream is in the write's range, hence in its vnode, and on its shard of the range's owner."""
    asked += list(owners)
    description = generate_description(make_layout(owners), GENERATION)
    picked = decode_stream_ids(description.streams_of(asked))
    entries = oracle.generation(owners)
    for token, stream_token, index in zip(asked, picked.tokens.tolist(), picked.indexes.tolist(), strict=True):
        row, shard = oracle.pick(entries, token)
        assert index == row
        assert stream_token == entries[row].stream_tokens[shard]
        assert oracle.in_range(entries[row].start, entries[row].end, stream_token)
        shard_count, ignore_msb = owners[entries[row].end]
        assert oracle.shard_of(stream_token, shard_count, ignore_msb) == shard


@given(rings(), st.uuids())
def test_no_stream_is_there_twice(owners: Owners, generation: UUID) -> None:
    """Even shards that own nothing, whose streams share a token, have distinct streams."""
    description = generate_description(make_layout(owners), generation)
    assert len(set(map(bytes, description.streams))) == len(description.streams)


@given(rings(), st.data())
def test_slices_are_the_whole(owners: Owners, data: st.DataObject) -> None:
    """Workers that generate parts, in chunks of any size, produce the bytes of the whole, each time."""
    layout = make_layout(owners)
    whole = generate_description(layout, GENERATION)
    cuts = [0, *sorted(data.draw(st.lists(st.integers(0, len(layout)), max_size=3))), len(layout)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(implementation, "_CHUNK", data.draw(st.integers(1, 40)))
        copy = pickle.loads(pickle.dumps(layout))
        parts = [generate_streams(copy, GENERATION, *bounds) for bounds in pairwise(cuts)]
    assert np.concatenate([counts for counts, _ in parts]).tolist() == whole.stream_counts.tolist()
    assert np.array_equal(np.concatenate([streams for _, streams in parts]), whole.streams)
    assert whole.equals(generate_description(layout, GENERATION))
    assert not whole.equals(generate_description(layout, UUID(int=1)))


def test_a_large_ring() -> None:
    """In many chunks of two shardings, every stream is in its range and on its shard or at the range end."""
    draw = np.random.default_rng(11)
    ends = np.unique(draw.integers(MINIMUM_TOKEN + 1, LAST_TOKEN, 1_500))
    counts = np.where(draw.random(len(ends)) < 0.5, 64, 30)
    description = generate_description(RingLayout(ends, range_starts(ends), counts, np.full(len(ends), 12)), GENERATION)
    rows = np.repeat(np.arange(len(ends)), counts)
    ids = decode_stream_ids(description.streams)
    shards = np.arange(len(rows)) - description.offsets[rows]
    assert np.array_equal(description.row_of(ids.tokens), rows)
    assert np.array_equal(ids.indexes, rows)
    assert ((shard_of(ids.tokens, counts[rows], 12) == shards) | (ids.tokens == ends[rows])).all()
    sampled_tokens = draw.integers(MINIMUM_TOKEN + 1, LAST_TOKEN, 40_000)
    by_one = decode_stream_ids(description.streams_of(sampled_tokens))
    assert np.array_equal(description.row_of(sampled_tokens), by_one.indexes)
    assert np.array_equal(
        shard_of(sampled_tokens, counts[by_one.indexes], 12), shard_of(by_one.tokens, counts[by_one.indexes], 12)
    )


def test_a_generation_needs_tokens() -> None:
    """An empty ring has a layout, but no generation."""
    layout = RingLayout.of(Ring.of([]))
    for attempt in (
        lambda: generate_description(layout, GENERATION),
        lambda: generate_streams(layout, GENERATION, 0, 0),
    ):
        with pytest.raises(InputError, match="no tokens"):
            attempt()


@pytest.mark.parametrize("bounds", [(-1, 1), (2, 1), (0, 3)])
def test_slices_outside_the_layout_are_refused(bounds: tuple[int, int]) -> None:
    """A worker with invalid bounds stops."""
    with pytest.raises(InputError, match="2 ranges"):
        generate_streams(make_layout({0: (1, 0), 5: (1, 0)}), GENERATION, *bounds)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"range_ends": [5, 0]}, "ascend"),
        ({"range_ends": [5, 5]}, "ascend"),
        ({"range_ends": [MINIMUM_TOKEN, 5]}, "no key's token"),
        ({"range_starts": [0, 5]}, "one before ends"),
        ({"shard_counts": [1, 0]}, "shard_count 0"),
        ({"shard_counts": [1]}, "shard_counts of shape"),
        ({"ignore_msbs": [12, 32]}, "ignore_msb 32"),
    ],
)
def test_bad_layouts_are_refused(change: dict[str, Any], rule: str) -> None:
    """Each column is checked."""
    fields: dict[str, Any] = {"range_ends": [0, 5], "shard_counts": [1, 2], "ignore_msbs": [12, 12]} | change
    fields.setdefault("range_starts", range_starts(fields["range_ends"]))
    with pytest.raises(InputError, match=rule):
        RingLayout(**fields)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"range_ends": [5, 0]}, "ascend"),
        ({"stream_counts": [3, 0]}, "streams in a range: 0"),
        ({"stream_counts": [1, 3]}, "stream counts make"),
        ({"ignore_msbs": [12]}, "ignore_msbs of shape"),
        ({"ignore_msbs": [12, -1]}, "ignore_msb -1"),
        ({"streams": np.zeros((3, 15), np.uint8)}, "stream counts make"),
        ({"streams": np.full((3, 16), 0x52, np.uint8)}, "older than the version field"),
    ],
)
def test_bad_descriptions_are_refused(change: dict[str, Any], rule: str) -> None:
    """Each column is checked, and streams older than the version field are refused."""
    fields: dict[str, Any] = {
        "range_ends": [0, 5],
        "stream_counts": [1, 2],
        "ignore_msbs": [12, 12],
        "streams": np.ones((3, 16), np.uint8),
    }
    TopologyDescription(**fields)
    with pytest.raises(InputError, match=rule):
        TopologyDescription(**(fields | change))


def test_an_empty_description_maps_nothing() -> None:
    """An empty description is valid, but maps no token to a stream."""
    none = np.zeros(0, np.int64)
    empty = TopologyDescription(none, none, none, np.zeros((0, 16), np.uint8))
    for attempt in (lambda: empty.row_of(0), lambda: empty.streams_of([0]), lambda: empty.entry(0)):
        with pytest.raises(InputError, match=r"range|entr"):
            attempt()


def test_descriptions_cannot_be_changed() -> None:
    """The arrays of a description are read-only, so an audited description cannot change."""
    description = generate_description(make_layout({0: (2, 12), 9: (3, 0)}), GENERATION)
    for array in (description.range_ends, description.streams, description.stream_counts, description.entry(1).streams):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_the_v1_limit_of_the_vectors(vectors: dict[str, Any]) -> None:
    """Large generations are limited to the size of one V1 cell, and small ones are unchanged."""
    assert vectors["limits"]["v1_stream_limit"] == implementation.V1_STREAM_LIMIT
    for example in vectors["limits"]["example"]:
        counts = np.broadcast_to(example["streams_per_vnode"], example["vnodes"]).tolist()
        after = 1 if isinstance(example["after"], str) else example["after"]
        assert oracle.limit_for_v1(counts) == np.broadcast_to(after, example["vnodes"]).tolist()


@pytest.mark.parametrize(("ranges", "shards"), [(64, 4096), (65, 4096), (3_000, 87), (3_000, 88), (1, 4096)])
def test_the_v1_limit_as_the_oracle(ranges: int, shards: int) -> None:
    """A limited range retains its position and ignored bits; a layout within the limit is unchanged."""
    ends = np.arange(ranges, dtype=np.int64)
    counts = np.where(ends % 3 == 1, 5, shards)
    layout = RingLayout(ends, range_starts(ends), counts, np.full(ranges, 12))
    limited = limit_streams_for_v1(layout)
    assert limited.shard_counts.tolist() == oracle.limit_for_v1(counts.tolist())
    assert limited.ignore_msbs.tolist() == layout.ignore_msbs.tolist()
    assert (limited is layout) == (counts.sum() <= implementation.V1_STREAM_LIMIT)


def test_a_v1_description_has_a_stream_for_every_range() -> None:
    """More ranges than the limit get one stream each."""
    ends = np.arange(300_000, dtype=np.int64)
    layout = RingLayout(ends, range_starts(ends), np.full(len(ends), 2), np.full(len(ends), 12))
    assert set(limit_streams_for_v1(layout).shard_counts.tolist()) == {1}
