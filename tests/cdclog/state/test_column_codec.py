"""Arrow columns as bytes of the CQL protocol: encoded, ordered and decoded as the types do with single values."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_platform.cdclog import (
    FIRST_DAY,
    FIRST_MS,
    LAST_DAY,
    LAST_MS,
    arrow_type,
    join_components,
    split_components,
    to_arrow_value,
)
from cdc_platform.cdclog.column_codec import decode_column, encode_column, rank_values
from cdc_platform.cdclog.state.select import find_exact_scalars
from cdc_platform.cdclog.values import decode_exact_value, to_canonical_values
from cdc_platform.cql import CqlType
from cdc_platform.cql import types as t
from cdc_platform.cql.types import get_scalar_type
from cdc_platform.delta import composite_keys_to_arrow

_UUID_BITS = st.integers(0, 2**128 - 1)
_FLOATS = st.floats() | st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan])
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "ascii": st.text(st.characters(max_codepoint=127), max_size=3),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "blob": st.binary(max_size=4),
    "boolean": st.booleans(),
    "date": st.integers(FIRST_DAY, LAST_DAY),
    "decimal": st.sampled_from([Decimal(text) for text in ("1.0", "1.00", "-3", "2e9", "0")]),
    "double": _FLOATS,
    "float": st.floats(width=32) | st.sampled_from([0.0, -0.0, math.nan]),
    "inet": st.ip_addresses(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "smallint": st.integers(-(2**15), 2**15 - 1),
    "text": st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
    "time": st.integers(0, 86_399_999_999_999),
    "timestamp": st.integers(FIRST_MS, LAST_MS),
    "timeuuid": _UUID_BITS.map(lambda bits: UUID(int=bits & ~(0xF << 76) | 1 << 76)),
    "tinyint": st.integers(-128, 127),
    "uuid": _UUID_BITS.map(lambda bits: UUID(int=bits)),
    "varint": st.integers(),
}
KINDS: dict[str, tuple[CqlType, st.SearchStrategy[Any]]] = {
    **{name: (get_scalar_type(name), SCALARS[name]) for name in SCALARS},
    "tuple": (t.TupleType((t.INT, t.TEXT)), st.tuples(st.none() | SCALARS["int"], st.none() | SCALARS["text"])),
    "set": (t.SetType(t.INT, True), st.sets(SCALARS["int"], max_size=3)),
}


@pytest.mark.parametrize("name", KINDS)
@given(data=st.data())
def test_a_column_is_as_its_values_are(name: str, data: st.DataObject) -> None:
    """Each type encodes, orders and decodes a column as it does with single values, some of which are null."""
    kind, values = KINDS[name]
    drawn = [kind.canonical(value) for value in data.draw(st.lists(values, max_size=6))]
    column = pa.array([to_arrow_value(kind, value) for value in drawn], arrow_type(kind))
    # Encode a slice, because a column may be part of a longer one.
    encoded = encode_column(kind, pa.concat_arrays([column, column]).slice(len(drawn)))
    assert encoded.to_pylist() == [kind.to_bytes(value) for value in drawn]
    keys = [kind.sort_key(value) for value in drawn]
    rank = rank_values(kind, encoded).tolist()
    assert [[a < b for b in rank] for a in rank] == [[a < b for b in keys] for a in keys]
    assert [[a == b for b in rank] for a in rank] == [[a == b for b in keys] for a in keys]
    nulls = pa.concat_arrays([pa.nulls(1, pa.binary()), encoded, pa.nulls(1, pa.binary())])
    decoded = decode_column(kind, nulls)
    assert decoded.type == column.type
    # NaN does not equal itself, so compare representations.
    assert list(map(repr, to_canonical_values(kind, decoded))) == list(map(repr, [None, *drawn, None]))


def test_a_value_outside_the_column_range_is_clamped() -> None:
    """Timestamps and dates of any year can be encoded; a native column shows the nearest value for all readers."""
    far = pa.array([(2**63 - 1).to_bytes(8, "big"), (-(2**63)).to_bytes(8, "big", signed=True)], pa.binary())
    assert decode_column(t.TIMESTAMP, far).cast(pa.int64()).to_pylist() == [LAST_MS * 1000, FIRST_MS * 1000]
    days = pa.array([b"\xff" * 4, bytes(4)], pa.binary())
    assert decode_column(t.DATE, days).cast(pa.int32()).to_pylist() == [LAST_DAY, FIRST_DAY]


def test_times_within_a_millisecond_are_truncated() -> None:
    """A reader's timestamps are finer than CQL's."""
    time = datetime(1969, 12, 31, 23, 59, 59, 999_900, tzinfo=UTC)
    column = pa.array([time], pa.timestamp("us", "UTC"))
    assert encode_column(t.TIMESTAMP, column).to_pylist() == [t.TIMESTAMP.to_bytes(-1)]


@given(
    st.lists(st.tuples(st.binary(max_size=3), st.binary(max_size=3)), max_size=4)
    | st.lists(st.tuples(st.binary(min_size=4, max_size=4), st.binary(min_size=1, max_size=1)), max_size=4)
)
def test_several_columns_become_one_and_come_apart(rows: list[tuple[bytes, bytes]]) -> None:
    """Values follow their lengths, of one width or not, as in the composite of a key with several columns."""
    columns = [pa.array([row[index] for row in rows], pa.binary()) for index in range(2)]
    joined = join_components(columns, len(rows))
    assert [part.to_pylist() for part in split_components(joined, 2)] == [column.to_pylist() for column in columns]
    keys = composite_keys_to_arrow(columns)
    assert [part.to_pylist() for part in split_components(keys, 2, 2, 1)] == [column.to_pylist() for column in columns]
    assert join_components([], len(rows)).to_pylist() == [b""] * len(rows)


DATED = [
    t.get_scalar_type("date"),
    t.get_scalar_type("timestamp"),
    t.TupleType((t.get_scalar_type("timestamp"), t.INT)),
    t.MapType(t.get_scalar_type("date"), t.get_scalar_type("timestamp"), True),
    t.ListType(t.SetType(t.get_scalar_type("timestamp"), True), True),
]
_ANY = {
    "date": st.sampled_from([0, FIRST_DAY, FIRST_DAY - 1, LAST_DAY, LAST_DAY + 1]) | st.integers(-(2**31), 2**31 - 1),
    "timestamp": st.sampled_from([0, FIRST_MS, FIRST_MS - 1, LAST_MS, LAST_MS + 1]) | st.integers(-(2**63), 2**63 - 1),
    "int": SCALARS["int"],
}


def _dated(kind: CqlType) -> st.SearchStrategy[Any]:
    if isinstance(kind, t.ScalarType):
        return _ANY[kind.name]
    parts = [_dated(part) for part in kind.parts]
    if isinstance(kind, t.TupleType):
        return st.tuples(*(st.none() | part for part in parts))
    return st.dictionaries(*parts, max_size=2) if isinstance(kind, t.MapType) else st.lists(*parts, max_size=2)


@pytest.mark.parametrize("kind", DATED, ids=lambda kind: kind.cql)
@given(data=st.data())
def test_values_outside_a_native_column_are_stored_exactly(kind: CqlType, data: st.DataObject) -> None:
    """Of null, near and far values only far ones are stored exactly; the others are decoded from the column."""
    drawn = [
        None if value is None else kind.canonical(value) for value in data.draw(st.lists(st.none() | _dated(kind)))
    ]
    wire = pa.array([None if value is None else kind.to_bytes(value) for value in drawn], pa.binary())
    exact_values = find_exact_scalars(kind, wire)
    native = to_canonical_values(kind, decode_column(kind, wire))
    assert [
        decode_exact_value(kind, exact_values[index]) if index in exact_values else native[index]
        for index in range(len(drawn))
    ] == drawn
    assert all(native[index] != drawn[index] for index in exact_values)


@pytest.mark.parametrize("name", ["int", "bigint", "boolean", "timestamp", "date", "uuid", "double"])
def test_empty_bytes_of_a_fixed_width_type_are_null(name: str) -> None:
    """As in CQL since Thrift, empty bytes are null, among other values and alone."""
    kind = get_scalar_type(name)
    value = {"uuid": UUID(int=1), "boolean": True}.get(name, 1)
    for values in ([value, None, b"", value], [b""], [b"", None]):
        wire = [None if item is None else b"" if item == b"" else kind.to_bytes(item) for item in values]
        decoded = to_canonical_values(kind, decode_column(kind, pa.array(wire, pa.binary())))
        assert decoded == [value if item == value else None for item in values]
        assert name not in ("date", "timestamp") or find_exact_scalars(kind, pa.array(wire, pa.binary())) == {}
