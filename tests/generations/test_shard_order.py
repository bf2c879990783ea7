"""Restoring the shard order of sorted streams, and reporting where it is ambiguous."""

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


def describe(owners: Owners) -> TopologyDescription:
    """Return the generation of a ring given as token -> (shard_count, ignore_msb)."""
    ends = np.array(sorted(owners), dtype=np.int64)
    counts, msbs = np.array([owners[int(end)] for end in ends], dtype=np.int64).T
    return generate_description(RingLayout(ends, range_starts(ends), counts, msbs), GENERATION)


def sort_as_cql(streams: np.ndarray) -> np.ndarray:
    """Return the streams as a CQL client gets them: a set, sorted by unsigned bytes."""
    return np.frombuffer(b"".join(sorted(map(bytes, streams))), dtype=np.uint8).reshape(-1, 16)


def entries(description: TopologyDescription) -> list[tuple[int, int, np.ndarray, int]]:
    """Return start, end, streams and ignore_msb of each entry."""
    described_entries = map(description.entry, range(len(description)))
    return [(entry.range_start, entry.range_end, entry.streams, entry.ignore_msb) for entry in described_entries]


def sampled(start: int, end: int) -> list[int]:
    """Return tokens of the range `(start, end]`, with the first and the last."""
    width = (end - start) % 2**64 or 2**64
    steps = {1, width, *(width * part // 50 for part in range(1, 50))} - {0}
    tokens = [(start + step + 2**63) % 2**64 - 2**63 for step in steps]
    return [token for token in tokens if token != -(2**63)]


@given(rings(8))
def test_shard_order_is_restored(owners: Owners) -> None:
    """The order is known if no write can reach one of several streams at the range end; others are restored anyway."""
    for start, end, streams, ignore_msb in entries(describe(owners)):
        restored, known = restore_shard_order(start, end, sort_as_cql(streams), ignore_msb)
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
    """The input order has no effect; streams in unknown order are sorted by unsigned bytes."""
    for start, end, streams, ignore_msb in entries(describe(owners)):
        shuffled = list(map(bytes, streams))
        random.shuffle(shuffled)
        input_streams = np.frombuffer(b"".join(shuffled), dtype=np.uint8).reshape(-1, 16)
        restored, _ = restore_shard_order(start, end, input_streams, ignore_msb)
        assert np.array_equal(restored, restore_shard_order(start, end, sort_as_cql(streams), ignore_msb)[0])
        open_streams = [s for s in map(bytes, restored) if oracle.unpack_stream_id(s)[0] == end]
        assert open_streams == sorted(open_streams)


@given(rings(8))
def test_whole_generations_as_range_by_range(owners: Owners) -> None:
    """Restoring many ranges at once gives each range's streams and verdict; an unknown range has open positions."""
    description = describe(owners)
    rows = entries(description)
    input_streams = np.concatenate([sort_as_cql(streams) for _, _, streams, _ in rows])
    msbs = np.where(np.arange(len(rows)) % 3 == 2, UNKNOWN_IGNORE_MSB, description.ignore_msbs)
    starts, ends, counts = description.range_starts, description.range_ends, description.stream_counts
    restored = restore_shard_orders(starts, ends, counts, input_streams, msbs)
    for i, (start, end, streams, _) in enumerate(rows):
        alone, known = restore_shard_order(start, end, sort_as_cql(streams), None if msbs[i] < 0 else int(msbs[i]))
        positions = slice(description.offsets[i], description.offsets[i + 1])
        assert np.array_equal(restored.streams[positions], alone)
        assert restored.order_known[i] == known
        assert known or not restored.settled[positions].all()
        assert (restored.streams[positions] == streams)[restored.settled[positions]].all()


def test_negative_tokens_sort_last_as_bytes() -> None:
    """With four shards in the wrapping range, CQL's order differs from the shards' order and is corrected."""
    streams = describe({0: (4, 0), 100: (4, 0)}).entry(0).streams
    assert [oracle.unpack_stream_id(bytes(s))[0] for s in streams] == [-(2**63) + 1, -(2**62), 101, 2**62]
    by_bytes = sort_as_cql(streams)
    assert not np.array_equal(by_bytes, streams)
    restored, known = restore_shard_order(100, 0, by_bytes, 0)
    assert known
    assert np.array_equal(restored, streams)


def test_without_ignored_bits_the_order_is_unknown() -> None:
    """The streams remain in byte order; a single stream needs no order."""
    streams = describe({0: (4, 0), 100: (4, 0)}).entry(0).streams
    restored, known = restore_shard_order(100, 0, sort_as_cql(streams), None)
    assert not known
    assert np.array_equal(restored, sort_as_cql(streams))
    assert restore_shard_order(100, 0, streams[:1], None)[1]


def test_misplaced_streams_make_the_order_unknown() -> None:
    """Wrong ignored bits, a token outside the range, or two streams for one position leave the rest in place."""
    streams = describe({0: (4, 0), 100: (4, 0)}).entry(0).streams
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
    """Even the only stream at the range end is ambiguous if another position is open."""
    end = -(2**62)
    tokens = [end, 5]  # both shards' streams belong at the end: one shard owns it alone, the other owns nothing
    streams = np.array([list(oracle.pack_stream_id(token, 1, 1)) for token in tokens], dtype=np.uint8)
    assert {oracle.first_token_for_shard(end - 1, end, shard, 2, 0) for shard in range(2)} == {end}
    assert not restore_shard_orders([end - 1], [end], [2], streams, [0]).settled.any()


def test_a_shard_without_tokens_gets_the_remaining_position() -> None:
    """Its stream is the only one at the range end, and one position remains for it."""
    streams = describe({0: (2, 12), 100: (2, 12)}).entry(1).streams
    restored, known = restore_shard_order(0, 100, streams[::-1], 12)
    assert known
    assert np.array_equal(restored, streams)


def test_columns_that_do_not_fit_are_refused() -> None:
    """Ranges without streams and streams without a range are refused."""
    streams = np.ones((3, 16), np.uint8)
    for counts in ([3, 0], [1, 1]):
        with pytest.raises(InputError, match="streams for ranges"):
            restore_shard_orders([5, 0], [0, 5], counts, streams, [0, 0])
    with pytest.raises(InputError, match="at least one stream"):
        restore_shard_order(0, 5, streams[:0], 0)
    with pytest.raises(InputError, match="ignore_msb"):
        restore_shard_order(0, 5, streams, 32)
