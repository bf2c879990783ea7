"""Partition keys in Arrow as bytes: column by column the same bytes as value by value."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_platform.cdclog import arrow_type
from cdc_platform.cdclog.column_codec import encode_canonical_partition_keys, encode_partition_keys
from cdc_platform.cql import CdcOptions, Column, TableSchema
from cdc_platform.cql.types import SCALAR_TYPES
from cdc_platform.errors import InputError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "tinyint": st.integers(-(2**7), 2**7 - 1),
    "smallint": st.integers(-(2**15), 2**15 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "boolean": st.booleans(),
    "text": st.text(max_size=5),
    "ascii": st.text(st.characters(max_codepoint=127), max_size=5),
    "blob": st.binary(max_size=5),
    "uuid": st.uuids().map(str),
    "date": st.integers(-(2**31), 2**31 - 1),
    "time": st.integers(0, 86_400 * 10**9 - 1),
    # Delta counts microseconds, CQL milliseconds: a time within a millisecond belongs to that millisecond.
    "timestamp": st.integers(-(10**15), 10**15).map(lambda us: _EPOCH + timedelta(microseconds=us)),
}


def table(*names: str) -> TableSchema:
    """Return a table with partition key columns of these types."""
    columns = [Column(f"p{index}", SCALAR_TYPES[name], "partition") for index, name in enumerate(names)]
    return TableSchema("ks", "t", (*columns, Column("v", SCALAR_TYPES["int"])), CdcOptions(enabled=True))


@given(st.data(), st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3))
def test_columns_give_what_values_give(data: st.DataObject, names: list[str]) -> None:
    """Keys of one column and of several, of every type that typed writes support, have the same bytes."""
    rows = data.draw(st.lists(st.tuples(*(VALUES[name] for name in names)), min_size=1, max_size=6))
    columns = [
        pa.array(list(column), pa.int32()).cast(pa.date32())
        if name == "date"
        else pa.array(list(column), arrow_type(SCALAR_TYPES[name]))
        for name, column in zip(names, zip(*rows, strict=True), strict=True)
    ]
    assert (
        encode_partition_keys(table(*names), columns).to_pylist()
        == encode_canonical_partition_keys(table(*names), columns).to_pylist()
    )
    parts = [column[1:] for column in columns]
    assert (
        encode_partition_keys(table(*names), parts).to_pylist()
        == encode_canonical_partition_keys(table(*names), columns).to_pylist()[1:]
    )


def test_types_without_columns_are_refused() -> None:
    """The error names another way to write such tables."""
    with pytest.raises(InputError, match="p0 of type varint; write its table by CQL statements"):
        encode_partition_keys(table("varint"), [pa.array(["1"])])
