"""Changes between generations, compared with the streams of many sampled tokens in both."""

from uuid import UUID

import numpy as np
import pytest

from cdc_platform.generations import RingLayout, TopologyDescription, compare_generations, generate_description
from cdc_platform.ring import FIRST_TOKEN, LAST_TOKEN, Node, Ring

HOST = UUID(int=1)


def description(tokens: list[int], shard_count: int = 4, ignore_msb: int = 3, seed: int = 7) -> TopologyDescription:
    """Return a generation over one node's tokens."""
    ring = Ring.of([Node(HOST, tuple(tokens), shard_count, ignore_msb)])
    return generate_description(RingLayout.of(ring), UUID(int=seed))


def sampled_share(old: TopologyDescription, new: TopologyDescription) -> float:
    """Return the share of random tokens whose stream differs."""
    tokens = np.random.default_rng(11).integers(FIRST_TOKEN, LAST_TOKEN, 400_000, dtype=np.int64)
    return float((old.streams_of(tokens) != new.streams_of(tokens)).any(axis=1).mean())


def test_a_generation_does_not_differ_from_itself() -> None:
    """An equal generation has no changed tokens and shares all streams."""
    one = description([-5, 10, 2**60])
    comparison = compare_generations(one, description([-5, 10, 2**60]))
    assert (comparison.changed_share, comparison.streams_kept) == (0.0, 12)
    assert not comparison.ranges_added.size
    assert not comparison.ranges_removed.size


def test_fresh_random_bits_change_the_whole_ring() -> None:
    """Two generations share no stream, so every write gets another one."""
    comparison = compare_generations(description([-5, 10]), description([-5, 7, 10], seed=8))
    assert (comparison.changed_share, comparison.streams_kept) == (1.0, 0)
    assert comparison.ranges_added.tolist() == [7]


@pytest.mark.parametrize("stream", range(12))
def test_one_changed_stream_counts_for_its_shards_tokens(stream: int) -> None:
    """The changed share is that of a large random sample."""
    old = description([-(2**62), 0, 2**61])
    streams = old.streams.copy()
    streams[stream, 8] ^= 1
    new = TopologyDescription(old.range_ends, old.stream_counts, old.ignore_msbs, streams)
    assert compare_generations(old, new).changed_share == pytest.approx(sampled_share(old, new), abs=0.004)


def test_another_sharding_moves_tokens_between_the_same_streams() -> None:
    """Shard boundaries of both generations divide the ring, not only the range ends."""
    old = description([0])
    new = TopologyDescription(old.range_ends, old.stream_counts, np.array([0]), old.streams)
    assert compare_generations(old, new).changed_share == pytest.approx(sampled_share(old, new), abs=0.004)
