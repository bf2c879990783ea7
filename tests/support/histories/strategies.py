"""Hypothesis strategies for the rules: tokens, shardings and rings, with the corner cases of the rules."""

from __future__ import annotations

from hypothesis import strategies as st
from support.oracles.oracle import FIRST, LAST

CORNERS = [FIRST, FIRST + 1, FIRST + 2, -(2**62), -101, -1, 0, 1, 100, 2**52, 2**62, LAST - 1, LAST]

tokens = st.one_of(st.sampled_from(CORNERS), st.integers(FIRST, LAST), st.integers(-300, 300))
shard_counts = st.one_of(st.sampled_from([1, 2, 3, 7, 8, 64]), st.integers(1, 40), st.sampled_from([1000, 4095, 4096]))
few_shards = st.one_of(st.sampled_from([1, 2, 3, 4, 7, 8]), st.integers(1, 20))
ignored_bits = st.one_of(st.sampled_from([0, 1, 2, 10, 12, 31]), st.integers(0, 31))


def rings(largest: int = 12) -> st.SearchStrategy[dict[int, tuple[int, int]]]:
    """Return rings as token -> (shard_count, ignore_msb) of the owner; in some rings all ranges have one sharding."""
    mixed = st.dictionaries(tokens, st.tuples(few_shards, ignored_bits), min_size=1, max_size=largest)
    ends = st.sets(tokens, min_size=1, max_size=largest)
    alike = st.builds(_sharded_alike, ends, st.tuples(few_shards, ignored_bits))
    nearly = st.builds(_sharded_nearly_alike, ends, few_shards, st.tuples(ignored_bits, ignored_bits))
    return st.one_of(mixed, alike, nearly)


def _sharded_alike(ends: set[int], sharding: tuple[int, int]) -> dict[int, tuple[int, int]]:
    return dict.fromkeys(ends, sharding)


def _sharded_nearly_alike(ends: set[int], shard_count: int, msbs: tuple[int, int]) -> dict[int, tuple[int, int]]:
    return {end: (shard_count, msbs[end % 2]) for end in ends}
