"""Pages that are taken apart by whole columns: the cells are those that the driver finds, row by row."""

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
    """Rows that are cut alike: a column has one length, or nulls."""
    lengths = draw(st.lists(st.none() | st.integers(0, 20), min_size=columns, max_size=columns))
    count = draw(st.integers(1, 300))
    return [
        tuple(None if each is None else bytes([row % 256, place] * each)[:each] for place, each in enumerate(lengths))
        for row in range(count)
    ]


@st.composite
def pages(draw: st.DrawFn) -> tuple[int, list[Row]]:
    """Rows of so many columns, runs of which are cut alike."""
    columns = draw(st.integers(1, 5))
    return columns, list(chain.from_iterable(draw(st.lists(alike(columns), max_size=8))))


def _body(rows: Sequence[Row]) -> bytes:
    cells = (b"\xff" * 4 if cell is None else struct.pack(">i", len(cell)) + cell for row in rows for cell in row)
    return struct.pack(">i", len(rows)) + b"".join(cells)


def _page(columns: int, body: bytes) -> RawPage:
    """The page that the session has of a server's answer, whose columns have two types."""

    def text(value: str) -> bytes:
        return struct.pack(">H", len(value)) + value.encode()

    heads = (text(f"c{place}") + struct.pack(">H", (_BLOB, _VARCHAR)[place % 2]) for place in range(columns))
    frame = struct.pack(">iii", _ROWS_KIND, _GLOBAL, columns) + text("ks") + text("t") + b"".join(heads) + body
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
    """However its rows are cut; and by whole columns, where those that are cut alike come in few runs."""
    columns, rows = page
    body = _body(rows)
    found = _page(columns, body)
    assert (found.names, found.rows) == (tuple(f"c{place}" for place in range(columns)), len(rows))
    assert _rows(found.columns) == rows
    at_once = split_page(body, columns)
    if at_once is not None:
        assert at_once.rows == len(rows)
        assert _rows(at_once.columns) == rows


@pytest.mark.parametrize(("unlike", "by_columns"), [(0, True), (3, True), (400, False)])
def test_rows_are_cut_by_columns_where_enough_are_alike(unlike: int, by_columns: bool) -> None:
    """A page of a few rows that differ from those before them, and one of which each does."""
    rows: list[Row] = [(bytes([row % 256]) * (row % 7 if row < unlike else 4), None) for row in range(500)]
    assert (split_page(_body(rows), 2) is not None) == by_columns


@given(alike(3), st.data())
def test_a_page_that_ends_too_early_is_none(rows: list[Row], data: st.DataObject) -> None:
    """What came of it is not taken for the whole; the driver says what is wrong."""
    body = _body(rows)
    short = body[: data.draw(st.integers(4, len(body) - 1))]
    assert split_page(short, 3) is None
    with pytest.raises(EOFError):
        _page(3, short)
