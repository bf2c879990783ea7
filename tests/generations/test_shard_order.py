"""Putting sorted streams back into shard order, and saying where that cannot be done."""

from __future__ import annotations

from random import Random
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.histories.strategies import rings
from support.oracles import oracle

from cdc_platform.errors import InputError
from cdc_platform.generations import (
    UNKNOWN_IGNORE_MSB,
    RingLayout,
    TopologyDescription,
    generate_description,
    restore_shard_order,
    restore_shard_orders,
)
from cdc_platform.ring import range_starts

GENERATION = UUID("5f3d9c1e-8a6b-4c2d-9e0f-1a2b3c4d5e6f")
Owners = dict[int, tuple[int, int]]


def description_of(owners: Owners) -> TopologyDescription:
    """The generation of a ring given as token -> (shard_count, ignore_msb)."""
    ends = np.array(sorted(owners), dtype=np.int64)
    counts, msbs = np.array([owners[int(end)] for end in ends], dtype=np.int64).T
    return generate_description(RingLayout(ends, range_starts(ends), counts, msbs), GENERATION)


def as_cql_sorts(streams: np.ndarray) -> np.ndarray:
    """The streams as a CQL client gets them: a set, sorted by unsigned bytes."""
    return np.frombuffer(b"".join(sorted(map(bytes, streams))), dtype=np.uint8).reshape(-1, 16)


def entries(description: TopologyDescription) -> list[tuple[int, int, np.ndarray, int]]:
    """Start, end, streams and ignore_msb of each entry."""
    found = map(description.entry, range(len(description)))
    return [(entry.range_start, entry.range_end, entry.streams, entry.ignore_msb) for entry in found]


def sampled(start: int, end: int) -> list[int]:
    """Tokens of the range `(start, end]`, both ends of it among them."""
    width = (end - start) % 2**64 or 2**64
    steps = {1, width, *(width * part // 50 for part in range(1, 50))} - {0}
    tokens = [(start + step + 2**63) % 2**64 - 2**63 for step in steps]
    return [token for token in tokens if token != -(2**63)]


@given(rings(8))
def test_shard_order_is_restored(owners: Owners) -> None:
    """Known exactly when no write can reach one of several streams at the range end; the others are back anyway."""
    for start, end, streams, ignore_msb in entries(description_of(owners)):
        restored, known = restore_shard_order(start, end, as_cql_sorts(streams), ignore_msb)
        at_end = [oracle.unpack_stream_id(bytes(stream))[0] == end for stream in streams]
        reaches_end = at_end[oracle.shard_of(end, len(streams), ignore_msb)]
        assert known == (sum(at_end) <= 1 or not reaches_end)
        if known:
            used = {oracle.shard_of(token, len(streams), ignore_msb) for token in sampled(start, end)}
            assert all(bytes(restored[shard]) == bytes(streams[shard]) for shard in used)
        assert all(at_end[j] or bytes(restored[j]) == bytes(streams[j]) for j in range(len(streams)))
        assert sorted(map(bytes, restored)) == sorted(map(bytes, streams))


@given(rings(5), st.randoms(use_true_random=False))
def test_any_order_of_input_gives_one_result(owners: Owners, random: Random) -> None:
    """The streams may come in any order; what cannot be told is left in the order of unsigned bytes."""
    for start, end, streams, ignore_msb in entries(description_of(owners)):
        shuffled = list(map(bytes, streams))
        random.shuffle(shuffled)
        given = np.frombuffer(b"".join(shuffled), dtype=np.uint8).reshape(-1, 16)
        restored, _ = restore_shard_order(start, end, given, ignore_msb)
        assert np.array_equal(restored, restore_shard_order(start, end, as_cql_sorts(streams), ignore_msb)[0])
        open_streams = [s for s in map(bytes, restored) if oracle.unpack_stream_id(s)[0] == end]
        assert open_streams == sorted(open_streams)


@given(rings(8))
def test_whole_generations_as_range_by_range(owners: Owners) -> None:
    """Many ranges at once: the same streams, the same verdicts; in an unknown range some place is open."""
    description = description_of(owners)
    rows = entries(description)
    given = np.concatenate([as_cql_sorts(streams) for _, _, streams, _ in rows])
    msbs = np.where(np.arange(len(rows)) % 3 == 2, UNKNOWN_IGNORE_MSB, description.ignore_msbs)
    starts, ends, counts = description.range_starts, description.range_ends, description.stream_counts
    restored = restore_shard_orders(starts, ends, counts, given, msbs)
    for i, (start, end, streams, _) in enumerate(rows):
        alone, known = restore_shard_order(start, end, as_cql_sorts(streams), None if msbs[i] < 0 else int(msbs[i]))
        place = slice(description.offsets[i], description.offsets[i + 1])
        assert np.array_equal(restored.streams[place], alone)
        assert restored.order_known[i] == known
        assert known or not restored.settled[place].all()
        assert (restored.streams[place] == streams)[restored.settled[place]].all()


def test_negative_tokens_sort_last_as_bytes() -> None:
    """Four shards on the wrapping range: CQL's order is not the shards' order, and is put right."""
    streams = description_of({0: (4, 0), 100: (4, 0)}).entry(0).streams
    assert [oracle.unpack_stream_id(bytes(s))[0] for s in streams] == [-(2**63) + 1, -(2**62), 101, 2**62]
    by_bytes = as_cql_sorts(streams)
    assert not np.array_equal(by_bytes, streams)
    restored, known = restore_shard_order(100, 0, by_bytes, 0)
    assert known
    assert np.array_equal(restored, streams)


def test_without_ignored_bits_the_order_is_unknown() -> None:
    """Then everything stays in the order of bytes; a single stream needs no order."""
    streams = description_of({0: (4, 0), 100: (4, 0)}).entry(0).streams
    restored, known = restore_shard_order(100, 0, as_cql_sorts(streams), None)
    assert not known
    assert np.array_equal(restored, as_cql_sorts(streams))
    assert restore_shard_order(100, 0, streams[:1], None)[1]


def test_streams_that_lie_elsewhere_make_the_order_unknown() -> None:
    """Wrong ignored bits, a token outside the range, two streams for one place: told, and the rest put in place."""
    streams = description_of({0: (4, 0), 100: (4, 0)}).entry(0).streams
    assert not restore_shard_order(100, 0, streams, 12)[1]
    outside = streams.copy()
    outside[1] = np.frombuffer(oracle.pack_stream_id(50, 0, 1), dtype=np.uint8)
    twice = streams.copy()
    twice[1] = np.frombuffer(oracle.pack_stream_id(2**62, 0, 1), dtype=np.uint8)
    for wrong, sure in ((outside, [0, 2, 3]), (twice, [0, 2])):
        restored = restore_shard_orders([100], [0], [4], wrong, [0])
        assert not restored.order_known[0]
        assert np.flatnonzero(restored.settled).tolist() == sure
        assert np.array_equal(restored.streams[sure], streams[sure])
        assert sorted(map(bytes, restored.streams)) == sorted(map(bytes, wrong))


def test_a_stream_at_the_range_end_may_be_any_idle_shards() -> None:
    """Even where it is the only one there, as long as another place is open."""
    end = -(2**62)
    tokens = [end, 5]  # both shards' streams belong at the end: one owns it alone, the other owns nothing
    streams = np.array([list(oracle.pack_stream_id(token, 1, 1)) for token in tokens], dtype=np.uint8)
    assert {oracle.first_token_for_shard(end - 1, end, shard, 2, 0) for shard in range(2)} == {end}
    assert not restore_shard_orders([end - 1], [end], [2], streams, [0]).settled.any()


def test_a_shard_without_tokens_is_reported() -> None:
    """Its stream is the only one at the range end, and one place is left for it."""
    streams = description_of({0: (2, 12), 100: (2, 12)}).entry(1).streams
    restored, known = restore_shard_order(0, 100, streams[::-1], 12)
    assert known
    assert np.array_equal(restored, streams)


def test_columns_that_do_not_fit_are_refused() -> None:
    """Ranges without streams, and streams without a range."""
    streams = np.ones((3, 16), np.uint8)
    for counts in ([3, 0], [1, 1]):
        with pytest.raises(InputError, match="streams for ranges"):
            restore_shard_orders([5, 0], [0, 5], counts, streams, [0, 0])
    with pytest.raises(InputError, match="at least one stream"):
        restore_shard_order(0, 5, streams[:0], 0)
    with pytest.raises(InputError, match="ignore_msb"):
        restore_shard_order(0, 5, streams, 32)
