"""Shards of tokens, shard boundaries and first tokens of shards, compared with the vectors and the plain oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.histories.strategies import ignored_bits, shard_counts, tokens
from support.oracles import oracle

from cdc_platform.errors import InputError
from cdc_platform.ring import (
    LAST_TOKEN,
    MINIMUM_TOKEN,
    first_token_for_shard,
    shard_of,
    shard_starts,
    token_for_next_shard,
)

ENDS = {"MIN": MINIMUM_TOKEN, "MAX": LAST_TOKEN}


def column(rows: list[dict[str, Any]], name: str) -> list[int]:
    """Return one field of the vectors, with the ends of the ring as tokens."""
    return [ENDS[row[name]] if row[name] in ENDS else row[name] for row in rows]


def test_shards_of_the_vectors(vectors: dict[str, Any]) -> None:
    """All vectors in one call: shard counts and ignored bits are columns like the tokens."""
    rows = vectors["shard_of"]
    shards = shard_of(column(rows, "token"), column(rows, "shard_count"), column(rows, "ignore_msb"))
    assert shards.tolist() == column(rows, "shard")


@given(st.lists(st.tuples(tokens, shard_counts, ignored_bits), min_size=1))
def test_shards_as_the_oracle(rows: list[tuple[int, int, int]]) -> None:
    """The 128-bit product in halves equals the oracle's product."""
    shards = shard_of(*np.array(rows, dtype=np.int64).T)
    assert shards.tolist() == [oracle.shard_of(*row) for row in rows]


def test_the_minimum_is_on_shard_0() -> None:
    """Shard 0 starts before all keys."""
    assert shard_of(MINIMUM_TOKEN, 7, 12) == 0


@given(st.integers(1, 200), ignored_bits)
def test_shard_starts_as_the_oracle(shard_count: int, ignore_msb: int) -> None:
    """The closed form equals the oracle's search with its rounding fix."""
    assert shard_starts(shard_count, ignore_msb).tolist() == oracle.shard_starts(shard_count, ignore_msb)


@pytest.mark.parametrize("ignore_msb", [0, 12, 31])
def test_shard_starts_are_boundaries(ignore_msb: int) -> None:
    """A start belongs to its shard and the position before it to the previous shard."""
    starts = shard_starts(4096, ignore_msb)
    assert [oracle.shard_of(int(start) - 2**63, 4096, ignore_msb) for start in starts] == list(range(4096))
    assert [oracle.shard_of(int(start) - 1 - 2**63, 4096, ignore_msb) for start in starts[1:]] == list(range(4095))


def test_next_boundaries_of_the_vectors(vectors: dict[str, Any]) -> None:
    """The flag is set exactly if the vectors reach the end of the ring."""
    rows = vectors["token_for_next_shard"]
    boundaries, maximum = token_for_next_shard(
        column(rows, "token"), column(rows, "target_shard"), column(rows, "shard_count"), column(rows, "ignore_msb")
    )
    assert maximum.tolist() == [row["result"] == "MAX" for row in rows]
    assert boundaries.tolist() == column(rows, "result")


@given(
    tokens | st.just(MINIMUM_TOKEN), shard_counts.flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1))),
    ignored_bits, st.integers(1, 5),
)  # fmt: skip
def test_next_boundaries_as_the_oracle(token: int, sharding: tuple[int, int], ignore_msb: int, spans: int) -> None:
    """One value with any number of spans."""
    n, shard = sharding
    if n > 200:
        n, shard = 200, shard % 200
    expected = oracle.token_for_next_shard(token, shard, n, ignore_msb, spans)
    boundary, maximum = token_for_next_shard(token, shard, n, ignore_msb, spans)
    assert (None if maximum else int(boundary)) == expected
    assert expected is None or token < expected


def test_first_tokens_of_the_vectors(vectors: dict[str, Any]) -> None:
    """All vectors in one call; "after all keys" as an end is the last token."""
    rows = vectors["find_first_token_for_shard"]
    names = ("start", "end", "shard", "shard_count", "ignore_msb")
    assert first_token_for_shard(*(column(rows, name) for name in names)).tolist() == column(rows, "result")


@given(st.lists(st.tuples(tokens, tokens), min_size=1, max_size=6), st.integers(1, 24), ignored_bits)
def test_first_tokens_as_the_oracle(ranges: list[tuple[int, int]], n: int, ignore_msb: int) -> None:
    """Ranges by shards: wrapping ones, the whole ring, and those without tokens of a shard."""
    starts, ends = np.array(ranges, dtype=np.int64).T
    first_tokens = first_token_for_shard(starts[:, None], ends[:, None], np.arange(n), n, ignore_msb)
    assert first_tokens.tolist() == [
        [oracle.first_token_for_shard(start, end, shard, n, ignore_msb) for shard in range(n)] for start, end in ranges
    ]


@given(st.integers(-20, 20), st.integers(0, 20), st.integers(2, 8), st.integers(0, 31))
def test_first_tokens_across_the_end_of_the_ring(start: int, length: int, n: int, ignore_msb: int) -> None:
    """Around the position where the last token meets the first."""

    def token(distance: int) -> int:
        return LAST_TOKEN + distance if distance <= 0 else -(2**63) + distance

    ends = (token(start), token(start + length))
    first_tokens = first_token_for_shard(*ends, np.arange(n), n, ignore_msb)
    assert first_tokens.tolist() == [oracle.first_token_for_shard(*ends, shard, n, ignore_msb) for shard in range(n)]


@given(tokens, tokens, shard_counts, ignored_bits)
def test_first_tokens_lie_in_their_range_on_their_shard(start: int, end: int, n: int, ignore_msb: int) -> None:
    """The token is in the range, and on the shard unless the shard owns nothing there."""
    first_tokens = first_token_for_shard(start, end, np.arange(n), n, ignore_msb)
    assert all(oracle.in_range(start, end, token) for token in first_tokens.tolist())
    assert ((shard_of(first_tokens, n, ignore_msb) == np.arange(n)) | (first_tokens == end)).all()


@pytest.mark.parametrize(
    ("n", "ignore_msb", "rule"),
    [(0, 0, "shard_count 0"), (4097, 0, "shard_count 4097"), (1, -1, "ignore_msb -1"), (1, 32, "ignore_msb 32")],
)
def test_sharding_out_of_bounds_is_refused(n: int, ignore_msb: int, rule: str) -> None:
    """Every function names the value and its bounds."""
    for call in (
        lambda: shard_of([0], n, ignore_msb),
        lambda: shard_starts(n, ignore_msb),
        lambda: token_for_next_shard(0, 0, n, ignore_msb),
        lambda: first_token_for_shard(0, 5, 0, n, ignore_msb),
    ):
        with pytest.raises(InputError, match=rule):
            call()


def test_missing_shards_are_refused() -> None:
    """Range ends that are no tokens and a span of 0 are refused, too."""
    with pytest.raises(InputError, match="shard out of range"):
        first_token_for_shard(0, 5, [0, 4], 4, 12)
    with pytest.raises(InputError, match="shard out of range"):
        token_for_next_shard(0, -1, 4, 12)
    with pytest.raises(InputError, match="spans"):
        token_for_next_shard(0, 0, 4, 12, spans=0)
    with pytest.raises(InputError, match="range end"):
        first_token_for_shard(0, MINIMUM_TOKEN, 0, 4, 12)
