"""Each partition of a replicated table belongs, with all its rows, to the token range that has its token."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from support.oracles.oracle import token_of

from cdc_platform.ingest.replica.tables import ranges_from_keys, split_ring


@given(st.lists(st.tuples(st.binary(max_size=20), st.integers(1, 4))), st.integers(1, 9), st.integers(0, 3))
def test_rows_are_in_the_slice_of_their_token(partitions: list[tuple[bytes, int]], slices: int, left_out: int) -> None:
    """Rows of one partition need not be adjacent, and the column may be a slice of a longer one."""
    keys = [key for key, rows in partitions for _ in range(rows)]
    column = pa.array(keys, pa.binary()).slice(left_out)
    expected = [
        next(index for index, (_, last) in enumerate(split_ring(slices)) if token_of(key) <= last)
        for key in keys[left_out:]
    ]
    assert ranges_from_keys(column, slices).tolist() == expected
