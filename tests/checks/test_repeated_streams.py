"""Repeated streams without Spark: how they are counted, and which ranges need comparing."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.histories.strategies import tokens
from support.oracles import oracle

from cdc_platform.checks.uniqueness import (
    StreamFingerprints,
    contested_ranges,
    count_repeated_streams,
    fingerprint_part,
)
from cdc_platform.generations import encode_stream_ids

# Few tokens and few random bits, so that streams are often equal, or equal in one half only.
few_streams = st.builds(oracle.pack_stream_id, st.integers(-2, 2), st.integers(0, 1), st.integers(0, 3))
streams_with_generations = st.lists(st.tuples(few_streams, st.integers(0, 3)), max_size=30)


def columns(streams: list[tuple[bytes, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return streams and their generations as arrays."""
    ids = np.frombuffer(b"".join(stream for stream, _ in streams), dtype=np.uint8).reshape(-1, 16)
    return ids, np.array([generation for _, generation in streams], dtype=np.int64)


@given(streams=streams_with_generations)
def test_every_repetition_counts_within_a_generation(streams: list[tuple[bytes, int]]) -> None:
    """A stream that occurs three times is two violations, and the sample is one of them."""
    violations, pair = count_repeated_streams(*columns(streams), None)
    counted = Counter(stream for stream, _ in streams)
    assert violations == sum(counted.values()) - len(counted)
    if violations:
        assert streams[pair[0]][0] == streams[pair[1]][0]
        assert pair[0] != pair[1]


@given(streams=streams_with_generations, limit=st.integers(1, 4))
def test_a_stream_counts_once_across_generations(streams: list[tuple[bytes, int]], limit: int) -> None:
    """A stream counts if a generation below the limit and any other generation have it."""
    violations, pair = count_repeated_streams(*columns(streams), limit)
    holders = defaultdict(set)
    for stream, generation in streams:
        holders[stream].add(generation)
    assert violations == sum(len(generations) > 1 and min(generations) < limit for generations in holders.values())
    if violations:
        (one, first), (other, last) = streams[pair[0]], streams[pair[1]]
        assert one == other
        assert first < limit
        assert first != last


@given(parts=st.lists(st.lists(few_streams, max_size=9), max_size=3), asked=st.lists(few_streams, max_size=9))
def test_no_stream_is_met_that_is_not_there(parts: list[list[bytes]], asked: list[bytes]) -> None:
    """Each requested stream that is present is counted as often as it is requested, also if others share one half."""
    fingerprints = StreamFingerprints(fingerprint_part(columns([(stream, 0) for stream in part])[0]) for part in parts)
    known = {stream for part in parts for stream in part}
    assert fingerprints.count_present(
        fingerprints.filter_candidates(columns([(stream, 0) for stream in asked])[0])
    ) == sum(stream in known for stream in asked)


def test_few_streams_are_mistaken_for_others() -> None:
    """Of as many streams of the same ranges with other random bits, at most a tenth remain as candidates."""
    ranges, randoms = np.repeat(np.arange(500), 64), np.random.default_rng(7).integers(0, 2**38, (2, 32_000))
    one, other = (encode_stream_ids(ranges * 2**40, ranges, random) for random in randoms)
    fingerprints = StreamFingerprints([fingerprint_part(one[:10_000]), fingerprint_part(one[10_000:])])
    assert len(fingerprints.filter_candidates(other)) < 3_200
    assert fingerprints.count_present(fingerprints.filter_candidates(one)) == len(one)


rings = st.lists(st.sets(tokens, min_size=1, max_size=6).map(sorted), min_size=1, max_size=5)


@given(rings=rings, limit=st.integers(1, 5))
def test_ranges_that_share_a_token_are_contested(rings: list[list[int]], limit: int) -> None:
    """Ranges are contested exactly if they share a token that ends one of them and one of them is below the limit."""
    contested = contested_ranges([np.array(ends) for ends in rings], limit)
    for one, ends in enumerate(rings):
        assert contested[one].tolist() == [
            any(
                all(oracle.in_range(ring_ends[number - 1], ring_ends[number], probe) for ring_ends in (ends, other))
                for two, other in enumerate(rings)
                if two != one and min(one, two) < limit and number < len(other)
                for probe in (ends[number], other[number])
            )
            for number in range(len(ends))
        ]


def test_shifted_ranges_are_not_contested() -> None:
    """After a join most ranges have a higher index, so that hardly any needs comparing."""
    before = np.array([10, 20, 30, 40], dtype=np.int64)
    after = np.array([5, 10, 20, 30, 40], dtype=np.int64)
    contested = contested_ranges([before, after], 1)
    assert [flags.tolist() for flags in contested] == [[True, False, False, False], [True, False, False, False, False]]
