"""Grouping and sorting of many integers at once."""

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
    """The group numbers have no gap, whether the integers are close or far apart; each group has a member's index."""
    numbers, indexes = number_groups(np.array(values, np.int64))
    assert sorted(set(numbers.tolist())) == list(range(len(set(values))))
    assert [values[index] for index in indexes[numbers].tolist()] == values
    assert len(indexes) == len(set(values))


@given(st.lists(_ROWS), st.integers(1, 3))
@example([(0, 0, 0), (0, 2**62 - 1, 0), (0, 1, 0)], 2)
@example([(1, 2**62, 0), (1, 0, 0), (0, 1, 0)], 2)
def test_rows_stand_in_the_order_of_their_columns(rows: list[tuple[int, int, int]], columns: int) -> None:
    """Equal rows stay in their original order, however far apart the numbers of a column are."""
    order = sort_order([np.array([row[index] for row in rows], np.int64) for index in range(columns)]).tolist()
    assert order == sorted(range(len(rows)), key=lambda index: rows[index][:columns])
