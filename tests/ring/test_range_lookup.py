"""Lookup of the range with a token."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.histories.strategies import tokens

from cdc_platform.errors import InputError
from cdc_platform.ring import FIRST_TOKEN, LAST_TOKEN, RangeLookup


@given(st.sets(tokens, min_size=1, max_size=40), st.lists(tokens, min_size=1))
def test_rows_as_a_binary_search(ends: set[int], asked: list[int]) -> None:
    """The result is the first end at or after the token, or the wrapping range beyond the last end."""
    column = sorted(ends)
    asked += column
    expected = [bisect_left(column, token) % len(column) for token in asked]
    assert RangeLookup(np.array(column, dtype=np.int64)).row_of(asked).tolist() == expected


@pytest.mark.parametrize(
    "ends", [range(5, 3000), range(FIRST_TOKEN, FIRST_TOKEN + 90), range(LAST_TOKEN - 90, LAST_TOKEN + 1)]
)
def test_clumped_rings(ends: range) -> None:
    """Rings with clustered tokens are looked up correctly, like random ones."""
    column = np.array(ends, dtype=np.int64)
    looked_up = [FIRST_TOKEN, ends[0], ends[1], ends[40], ends[-2], ends[-1], 0, LAST_TOKEN]
    assert RangeLookup(column).row_of(looked_up).tolist() == [bisect_left(ends, t) % len(ends) for t in looked_up]


def test_large_rings() -> None:
    """Thousands of random ends and tokens, in the shape of the request."""
    draw = np.random.default_rng(5)
    ends = np.unique(draw.integers(FIRST_TOKEN, LAST_TOKEN, 20_000))
    looked_up = np.concatenate(
        [draw.integers(FIRST_TOKEN, LAST_TOKEN, 5_000), ends[:2_500], ends[-2_500:] + 1]
    ).reshape(2, -1)
    assert np.array_equal(RangeLookup(ends).row_of(looked_up), np.searchsorted(ends, looked_up) % len(ends))


def test_a_lookup_without_ranges_is_refused() -> None:
    """An empty column raises an error."""
    with pytest.raises(InputError, match="no ranges"):
        RangeLookup(np.zeros(0, dtype=np.int64)).row_of(0)
