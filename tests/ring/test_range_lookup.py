"""Which range holds a token."""

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
    """The first end at or after the token; beyond the last one, the wrapping range."""
    column = sorted(ends)
    asked += column
    expected = [bisect_left(column, token) % len(column) for token in asked]
    assert RangeLookup(np.array(column, dtype=np.int64)).row_of(asked).tolist() == expected


@pytest.mark.parametrize(
    "ends", [range(5, 3000), range(FIRST_TOKEN, FIRST_TOKEN + 90), range(LAST_TOKEN - 90, LAST_TOKEN + 1)]
)
def test_clumped_rings(ends: range) -> None:
    """Rings whose tokens lie in one spot are looked up as well as random ones."""
    column = np.array(ends, dtype=np.int64)
    asked = [FIRST_TOKEN, ends[0], ends[1], ends[40], ends[-2], ends[-1], 0, LAST_TOKEN]
    assert RangeLookup(column).row_of(asked).tolist() == [bisect_left(ends, t) % len(ends) for t in asked]


def test_large_rings() -> None:
    """Thousands of random ends and tokens, in the shape they are asked in."""
    draw = np.random.default_rng(5)
    ends = np.unique(draw.integers(FIRST_TOKEN, LAST_TOKEN, 20_000))
    asked = np.concatenate([draw.integers(FIRST_TOKEN, LAST_TOKEN, 5_000), ends[:2_500], ends[-2_500:] + 1]).reshape(
        2, -1
    )
    assert np.array_equal(RangeLookup(ends).row_of(asked), np.searchsorted(ends, asked) % len(ends))


def test_no_ranges_hold_no_token() -> None:
    """An empty column is told."""
    with pytest.raises(InputError, match="no ranges"):
        RangeLookup(np.zeros(0, dtype=np.int64)).row_of(0)
