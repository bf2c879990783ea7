"""Rows in which two tables differ, counted as multisets, whatever the form of their columns."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_platform.delta import row_hash as module
from cdc_platform.delta import row_hash as numbers
from cdc_platform.delta.row_hash import find_differing_rows, hash_rows_words

SCHEMA = pa.schema(
    {
        "n": pa.int64(),
        "t": pa.string(),
        "b": pa.binary(),
        "f": pa.float64(),
        "l": pa.list_(pa.string()),
        "s": pa.struct({"x": pa.int32(), "y": pa.string()}),
        "m": pa.map_(pa.string(), pa.int32()),
    }
)
texts = st.sampled_from(["", "a", "b", "\0", "a" * 7, "a" * 8, "a" * 9, "é" * 5, "ab" * 9])
ROW = st.fixed_dictionaries(
    {
        "n": st.none() | st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63)]),
        "t": st.none() | texts,
        "b": st.none() | st.sampled_from([b"", b"\0", b"\0\0", b"x" * 16, b"x" * 17]),
        "f": st.none() | st.sampled_from([0.0, 1.5, -2.25]),
        "l": st.none() | st.lists(st.none() | texts, max_size=3),
        "s": st.none() | st.fixed_dictionaries({"x": st.none() | st.integers(0, 2), "y": st.none() | texts}),
        "m": st.none() | st.dictionaries(texts, st.none() | st.integers(0, 2), max_size=2).map(lambda m: [*m.items()]),
    }
)
# Few distinct rows, so that many are in both tables and repeat.
ROWS = st.lists(ROW, min_size=1, max_size=6).flatmap(lambda few: st.lists(st.sampled_from(few), max_size=12))


@pytest.fixture(autouse=True)
def all_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare rows however few they are, three at a time."""
    monkeypatch.setattr(module, "_FEW_ROWS", -1)
    monkeypatch.setattr(numbers, "_WORDS_CHUNK_ROWS", 3)


def counted(rows: list[dict[str, Any]]) -> Counter[str]:
    """Return the count of each row."""
    return Counter(map(repr, rows))


@given(both=st.lists(ROW, max_size=4), mine=ROWS, theirs=ROWS)
def test_common_rows_cancel_out_by_their_number(
    both: list[dict[str, Any]], mine: list[dict[str, Any]], theirs: list[dict[str, Any]]
) -> None:
    """Multisets: if one table has a row twice and the other once, one remains."""
    one, other = (pa.Table.from_pylist([*both, *rows], SCHEMA) for rows in (mine, theirs))
    remaining = [counted(table.to_pylist()) for table in find_differing_rows(one, other)]
    ones, others = counted(one.to_pylist()), counted(other.to_pylist())
    assert remaining == [ones - others, others - ones]


@given(rows=ROWS)
def test_the_form_of_a_column_is_no_difference(rows: list[dict[str, Any]]) -> None:
    """Chunks, views, a dictionary, a missing all-null column or another column order make no difference."""
    plain = pa.Table.from_pylist(rows, SCHEMA)
    whole = [row for row in rows if row["t"] is not None]
    cut = pa.concat_tables([plain.slice(0, 2), plain.slice(2)])
    views = plain.set_column(1, "t", plain["t"].cast(pa.string_view())).set_column(2, "b", plain["b"].cast("binary"))
    coded = plain.set_column(1, "t", plain["t"].dictionary_encode())
    # A table has at least one column, so the first one stays.
    non_null = [name for name in reversed(SCHEMA.names) if name == "n" or plain[name].null_count < len(rows)]
    bare = plain.select(non_null)
    for form in (cut, views, coded, bare):
        assert hash_rows_words(form).tolist() == hash_rows_words(plain).tolist()
    # A column with some nulls is encoded differently from one without nulls.
    hashes = dict(zip(map(repr, rows), hash_rows_words(plain).tolist(), strict=True))
    alone = pa.Table.from_pylist(whole, SCHEMA)
    assert hash_rows_words(alone).tolist() == [hashes[repr(row)] for row in whole]


def test_few_rows_are_returned_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows are returned without hashing, which would take as long."""
    monkeypatch.setattr(module, "_FEW_ROWS", 2)
    one, other = (pa.table({"n": range(count)}) for count in (2, 5))
    assert find_differing_rows(one, other) == (one, other)
    differing = find_differing_rows(pa.table({"n": range(3)}), other)
    assert [table["n"].to_pylist() for table in differing] == [[], [3, 4]]
