"""Conversion of columns between Arrow and Python."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest

from cdc_platform.delta import to_int64_array, to_milliseconds, to_milliseconds_without_nulls, to_python_values

MOMENTS = [datetime(2026, 1, 31, 12, 0, 0, 123000, UTC), datetime(1969, 12, 31, 23, 59, 59, 999000, UTC)]
COLUMNS = {
    "text": (["", "ä", "a\0b", "x" * 100], pa.string()),
    "long text": (["", "y"], pa.large_string()),
    "views": (["", "y" * 50], pa.string_view()),
    "bytes": ([b"", b"\0\xff"], pa.binary()),
    "fixed bytes": ([b"ab", b"\0\xff"], pa.binary(2)),
    "numbers": ([0, -(2**63), 2**63 - 1], pa.int64()),
    "unsigned": ([0, 2**64 - 1], pa.uint64()),
    "small numbers": ([0, -128], pa.int8()),
    "truths": ([True, False], pa.bool_()),
    "moments": (MOMENTS, pa.timestamp("us", "UTC")),
    "lists": ([[], [1, 2]], pa.list_(pa.int64())),
    "names": (["a", "b", "a"], pa.dictionary(pa.int32(), pa.string())),
}


@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize("name", COLUMNS)
def test_values_are_those_of_the_list(name: str, *, nulls: bool) -> None:
    """The values equal those of `to_pylist` in type and value, for arrays, slices, several chunks and no chunk."""
    values, kind = COLUMNS[name]
    array = pa.array([*values, *([None] if nulls else [])], kind)
    chunked = pa.chunked_array([array, array.slice(1), array.slice(0, 0)], kind)
    for column in (array, array.slice(1), array.slice(0, 0), chunked, chunked.slice(2), pa.chunked_array([], kind)):
        result = to_python_values(column)
        assert result == column.to_pylist()
        assert [type(value) for value in result] == [type(value) for value in column.to_pylist()]


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.int64()])
def test_nulls_get_the_given_number(kind: pa.DataType) -> None:
    """Integers of any width become int64, with and without nulls."""
    array = pa.array([-128, None, 127], kind)
    for column in (array, pa.chunked_array([array.slice(0, 1), array.slice(1)])):
        result = to_int64_array(column, -(2**63))
        assert (result.dtype, result.tolist()) == (np.int64, [-128, -(2**63), 127])
    assert to_int64_array(array.drop_null(), 5).tolist() == [-128, 127]
    assert to_int64_array(pa.chunked_array([], kind), 5).tolist() == []


def test_times_are_whole_milliseconds() -> None:
    """Times become whole milliseconds, exact for the tables' values, and None for null."""
    expected = [1_769_860_800_123, -1]
    assert to_milliseconds_without_nulls(pa.chunked_array([pa.array(MOMENTS, pa.timestamp("us", "UTC"))])) == expected
    for nulls in ([], [None]):
        moments = pa.chunked_array([pa.array([*MOMENTS, *nulls], pa.timestamp("us", "UTC"))])
        assert to_milliseconds(moments) == expected + nulls
