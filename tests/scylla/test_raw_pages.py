"""Splitting a page by whole columns gives the cells that the driver finds row by row."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import chain

import pyarrow as pa
import pytest
from cassandra.protocol import ResultMessage
from hypothesis import example, given
from hypothesis import strategies as st

from cdc_platform.scylla import RawPage
from cdc_platform.scylla.raw_pages import RawProtocol, build_raw_pages, split_page

Row = tuple[bytes | None, ...]
_ROWS_KIND, _GLOBAL, _BLOB, _VARCHAR = 2, 1, 3, 13


@st.composite
def alike(draw: st.DrawFn, columns: int) -> list[Row]:
    """Draw rows of equal layout: each column has one length, or nulls."""
    lengths = draw(st.lists(st.none() | st.integers(0, 20), min_size=columns, max_size=columns))
    count = draw(st.integers(1, 300))
    return [
        tuple(
            None if length is None else bytes([row % 256, index] * length)[:length]
            for index, length in enumerate(lengths)
        )
        for row in range(count)
    ]


@st.composite
def pages(draw: st.DrawFn) -> tuple[int, list[Row]]:
    """Draw rows of several columns, in runs of equal layout."""
    columns = draw(st.integers(1, 5))
    return columns, list(chain.from_iterable(draw(st.lists(alike(columns), max_size=8))))


def _body(rows: Sequence[Row]) -> bytes:
    cells = (b"\xff" * 4 if cell is None else struct.pack(">i", len(cell)) + cell for row in rows for cell in row)
    return struct.pack(">i", len(rows)) + b"".join(cells)


def _page(columns: int, body: bytes) -> RawPage:
    """Return the page that the session builds from a server's response, whose columns have two types."""

    def text(value: str) -> bytes:
        return struct.pack(">H", len(value)) + value.encode()

    column_heads = (text(f"c{index}") + struct.pack(">H", (_BLOB, _VARCHAR)[index % 2]) for index in range(columns))
    frame = struct.pack(">iii", _ROWS_KIND, _GLOBAL, columns) + text("ks") + text("t") + b"".join(column_heads) + body
    message = RawProtocol.decode_message(4, None, {}, 0, 0, ResultMessage.opcode, frame, None, None)
    (page,) = build_raw_pages(message.column_names, message.parsed_rows)
    return page


def _rows(columns: Sequence[pa.BinaryArray]) -> list[Row]:
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


@given(pages())
@example((1, []))
@example((2, [(b"", None)] * 1_000))
@example((1, [(b"x" * (row % 2),) for row in range(500)]))
def test_the_cells_are_those_of_the_answer(page: tuple[int, list[Row]]) -> None:
    """This holds for any layout, and for the split by columns if rows of equal layout form few runs."""
    columns, rows = page
    body = _body(rows)
    built = _page(columns, body)
    assert (built.names, built.rows) == (tuple(f"c{index}" for index in range(columns)), len(rows))
    assert _rows(built.columns) == rows
    by_columns = split_page(body, columns)
    if by_columns is not None:
        assert by_columns.rows == len(rows)
        assert _rows(by_columns.columns) == rows


@pytest.mark.parametrize(("unlike", "by_columns"), [(0, True), (3, True), (400, False)])
def test_rows_are_split_by_columns_if_enough_are_alike(unlike: int, by_columns: bool) -> None:
    """In one page a few rows differ from those before them, in the other each does."""
    rows: list[Row] = [(bytes([row % 256]) * (row % 7 if row < unlike else 4), None) for row in range(500)]
    assert (split_page(_body(rows), 2) is not None) == by_columns


@given(alike(3), st.data())
def test_a_page_that_ends_too_early_is_none(rows: list[Row], data: st.DataObject) -> None:
    """A truncated page does not count as complete, and the driver reports the error."""
    body = _body(rows)
    truncated = body[: data.draw(st.integers(4, len(body) - 1))]
    assert split_page(truncated, 3) is None
    with pytest.raises(EOFError):
        _page(3, truncated)
