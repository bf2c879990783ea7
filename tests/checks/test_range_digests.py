"""Digests that compare tables: equal for equal rows, whatever rows surround them, and different for others."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from cdc_platform.checks.ranges import digest_stream_lists
from cdc_platform.checks.scan import split_stream_lists
from cdc_platform.tables import STREAMS_TYPE

# Few values, so that rows often differ in one stream only; sound streams, damaged ones and none.
STREAM = st.sampled_from([b"a" * 16, b"b" * 16, b"a" * 15 + b"b", b"", b"a" * 17, b"a" * 30, b"a" * 29 + b"b", None])
ROWS = st.lists(st.none() | st.lists(STREAM, max_size=5), min_size=1, max_size=8)
Row = list[bytes | None] | None


def digests(rows: list[Row]) -> tuple[np.ndarray, np.ndarray]:
    """Return the digests of rows in one batch of a table."""
    lengths, streams, damaged = split_stream_lists(pa.array(rows, STREAMS_TYPE))
    return digest_stream_lists(lengths, streams, damaged, as_sets=True)


def sorted_row(row: Row) -> Row:
    """Return a row sorted as if its order were lost."""
    return None if row is None else sorted(row, key=lambda stream: (stream is None, stream or b""))


@given(ROWS)
def test_rows_are_alike_when_their_digests_are(rows: list[Row]) -> None:
    """Digests compare rows in order and as multisets, including every kind of damaged row."""
    ordered, unordered = digests(rows)
    for first, first_row in enumerate(rows):
        for second, second_row in enumerate(rows):
            assert (ordered[first] == ordered[second]) == (first_row == second_row)
            assert (unordered[first] == unordered[second]) == (sorted_row(first_row) == sorted_row(second_row))


@given(ROWS)
def test_a_digest_does_not_depend_on_the_rows_around(rows: list[Row]) -> None:
    """A digest does not depend on the split of rows into files and batches."""
    together = np.stack(digests(rows))
    alone = np.concatenate([np.stack(digests([row])) for row in rows], axis=1)
    assert np.array_equal(together, alone)
    assert np.array_equal(np.stack(digests(rows[::-1])), together[:, ::-1])


def test_without_sets_only_the_ordered_digest_is_computed() -> None:
    """The digests as sets are zeros if they are not requested."""
    lengths, streams, damaged = split_stream_lists(pa.array([[b"a" * 16], [b"b" * 16]], STREAMS_TYPE))
    ordered, unordered = digest_stream_lists(lengths, streams, damaged, as_sets=False)
    assert ordered[0] != ordered[1]
    assert unordered.tolist() == [0, 0]
