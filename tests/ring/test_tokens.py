"""Tokens, positions and the ranges between them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.histories.strategies import tokens
from support.oracles import oracle

from cdc_platform.errors import InputError
from cdc_platform.ring import (
    FIRST_TOKEN,
    LAST_TOKEN,
    MINIMUM_TOKEN,
    bias,
    check_tokens,
    isin_sorted_tokens,
    range_starts,
    unbias,
    uniform_last_tokens,
    unique_tokens,
)


@given(st.lists(st.integers(MINIMUM_TOKEN, LAST_TOKEN)))
def test_positions_count_tokens_from_zero(values: list[int]) -> None:
    """A position is the token plus 2^63, and subtracting it returns the token."""
    positions = unbias(np.array(values, dtype=np.int64))
    assert positions.tolist() == [value + 2**63 for value in values]
    assert bias(positions).tolist() == values


@given(st.lists(tokens), st.lists(tokens))
def test_distinct_tokens_come_once_ascending(some: list[int], others: list[int]) -> None:
    """From one or several columns, also empty ones."""
    assert unique_tokens(some).tolist() == sorted(set(some))
    assert unique_tokens(some, others).tolist() == sorted({*some, *others})


@given(st.lists(st.integers(-3, 3) | tokens), st.lists(st.integers(-3, 3) | tokens))
def test_tokens_are_among_others_as_in_a_set(some: list[int], others: list[int]) -> None:
    """In order, also repeated tokens; an empty column contains none."""
    assert isin_sorted_tokens(some, unique_tokens(others)).tolist() == [token in set(others) for token in some]


def test_one_value_is_an_array_without_dimensions() -> None:
    """The functions accept a single value, too."""
    assert unbias(MINIMUM_TOKEN) == 0
    assert unbias(LAST_TOKEN) == 2**64 - 1
    assert bias(np.uint64(1)) == FIRST_TOKEN


def test_each_range_starts_where_the_one_before_ends() -> None:
    """Range 0 wraps; the only range of one token is the whole ring."""
    assert range_starts([-5, 0, 7]).tolist() == [7, -5, 0]
    assert range_starts([3]).tolist() == [3]
    assert range_starts([]).tolist() == []


@given(st.lists(tokens))
def test_legal_tokens_keep_their_order(values: list[int]) -> None:
    """A check changes nothing."""
    assert check_tokens(values, "node a").tolist() == values
    assert check_tokens(np.array(values, dtype=np.int64), "node a").tolist() == values


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (MINIMUM_TOKEN, "range"),
        (LAST_TOKEN + 1, "range"),
        (1.0, "no integer"),
        ("7", "no integer"),
        (True, "no integer"),
    ],
)
def test_illegal_tokens_are_refused(value: object, rule: str) -> None:
    """The message names owner, token and rule."""
    with pytest.raises(InputError, match=rule) as refused:
        check_tokens([1, value], "node a")
    assert "node a" in str(refused.value)
    assert repr(value) in str(refused.value)


def test_tablets_end_at_the_vectors(vectors: dict[str, dict[str, list[int]]]) -> None:
    """Uniform tablets end at ScyllaDB's tokens."""
    for count, expected in vectors["uniform_tablet_last_tokens"].items():
        assert uniform_last_tokens(int(count)).tolist() == expected


@given(st.integers(1, 3000))
def test_tablets_end_as_the_oracle_says(count: int) -> None:
    """Every count divides like integers, and the last tablet ends the ring."""
    ends = uniform_last_tokens(count).tolist()
    assert ends == oracle.uniform_last_tokens(count)
    assert ends[-1] == LAST_TOKEN


@pytest.mark.parametrize("count", [0, -1, 2**31 + 1])
def test_tablet_counts_out_of_bounds_are_refused(count: int) -> None:
    """A table has at least one tablet."""
    with pytest.raises(InputError, match="tablets"):
        uniform_last_tokens(count)
