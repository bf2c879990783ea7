"""Integers that are told apart and put in order, many at once."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from cdc_platform.cdclog.state.merge import number_groups, sort_order

_INT64 = st.integers(-(2**63), 2**63 - 1)
_ROWS = st.tuples(st.integers(0, 3), _INT64 | st.integers(-2, 2), st.sampled_from([-(2**63), 0, 2**63 - 1]))


@given(st.lists(st.integers(0, 9)) | st.lists(st.sampled_from([0, 1, 2**40, 2**63 - 1])))
@example([2**62, 2**62])
def test_numbers_are_equal_where_the_integers_are(values: list[int]) -> None:
    """They leave none out, whether the integers lie close together or far apart; each has a place of one of its own."""
    numbers, places = number_groups(np.array(values, np.int64))
    assert sorted(set(numbers.tolist())) == list(range(len(set(values))))
    assert [values[place] for place in places[numbers].tolist()] == values
    assert len(places) == len(set(values))


@given(st.lists(_ROWS), st.integers(1, 3))
@example([(0, 0, 0), (0, 2**62 - 1, 0), (0, 1, 0)], 2)
@example([(1, 2**62, 0), (1, 0, 0), (0, 1, 0)], 2)
def test_rows_stand_in_the_order_of_their_columns(rows: list[tuple[int, int, int]], columns: int) -> None:
    """Those that are alike stay in the order in which they came, however far apart the numbers of a column are."""
    found = sort_order([np.array([row[place] for row in rows], np.int64) for place in range(columns)]).tolist()
    assert found == sorted(range(len(rows)), key=lambda place: rows[place][:columns])
