"""The protocol's bytes as CQL values: bytes from the driver's codecs, and values beyond Python's classes."""

from __future__ import annotations

import math
import struct
import uuid
from decimal import Decimal
from ipaddress import ip_address
from typing import Any

import pytest
from cassandra import cqltypes
from cassandra.util import Duration as DriverDuration
from hypothesis import given
from hypothesis import strategies as st

from cdc_platform.cql import types as t
from cdc_platform.cql import value_from_bytes
from cdc_platform.cql.temporal import Duration
from cdc_platform.errors import InputError

PROTOCOL = 4
UDT = t.UserType("ks", "ut", (("a", t.INT), ("b", t.TEXT)))
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "blob": st.binary(max_size=40),
    "boolean": st.booleans(),
    "decimal": st.builds(lambda unscaled, scale: Decimal(unscaled).scaleb(-scale), st.integers(), st.integers(-9, 9)),
    "double": st.floats(allow_nan=False),
    "inet": st.ip_addresses(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "smallint": st.integers(-(2**15), 2**15 - 1),
    "text": st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    "tinyint": st.integers(-128, 127),
    "uuid": st.uuids(),
    "varint": st.integers(),
}


@pytest.mark.parametrize("name", SCALARS)
@given(data=st.data())
def test_scalars_are_what_the_driver_wrote(name: str, data: st.DataObject) -> None:
    """Each type's values are read from the bytes that the driver writes."""
    value = data.draw(SCALARS[name])
    codec: Any = cqltypes.lookup_casstype({"text": "UTF8Type", "inet": "InetAddressType"}.get(name, _casstype(name)))
    written = codec.serialize(str(value) if name == "inet" else value, PROTOCOL)
    decoded: Any = value_from_bytes(t.get_scalar_type(name), written)
    assert decoded == value
    assert name != "double" or math.copysign(1, decoded) == math.copysign(1, value)


@given(st.booleans(), st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)))
def test_durations_are_what_the_driver_wrote(negative: bool, parts: tuple[int, int, int]) -> None:
    """Three integers of one to nine bytes each, with one sign."""
    signed = tuple(-part if negative else part for part in parts)
    written = cqltypes.DurationType.serialize(DriverDuration(*signed), PROTOCOL)
    assert value_from_bytes(t.DURATION, written) == Duration(*signed)


@pytest.mark.parametrize("ms", [2**63 - 1, -(2**63), 253_402_300_800_000, -62_135_596_800_001, 0])
def test_timestamps_of_any_year_are_integers(ms: int) -> None:
    """Including the limits of Python's datetime, and therefore of the driver."""
    assert value_from_bytes(t.TIMESTAMP, struct.pack(">q", ms)) == ms


@pytest.mark.parametrize("days", [-(2**31), 2**31 - 1, 0])
def test_dates_of_any_year_are_integers(days: int) -> None:
    """The protocol counts from the middle of 32 bits."""
    assert value_from_bytes(t.DATE, struct.pack(">I", days + 2**31)) == days


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (t.ListType(t.TIMESTAMP), (2**62, 0)),
        (t.SetType(t.TEXT), ("", "a", "b")),
        (t.MapType(t.TIMEUUID, t.ListType(t.INT).frozen()), ((uuid.UUID(int=1 << 76), (1, 2)),)),
        (t.TupleType((t.INT, t.TEXT, t.INET)), (1, None, ip_address("::1"))),
        (UDT, (1, None)),
        (t.VectorType(t.FLOAT, dimension=2), (0.5, -1.0)),
        (t.MapType(t.INT, UDT.frozen()), ((3, (None, "x")),)),
        (t.SetType(t.INT), ()),
    ],
)
def test_composite_values_are_read(kind: t.CqlType, value: Any) -> None:
    """Nested collections, tuples, user types and vectors, with nulls in components that may be null."""
    assert value_from_bytes(kind, kind.to_bytes(kind.canonical(value))) == kind.canonical(value)


def test_a_value_from_before_a_field_was_added_is_shorter() -> None:
    """Its missing fields are null."""
    old = t.UserType("ks", "ut", (("a", t.INT),))
    assert value_from_bytes(UDT, old.to_bytes((7,))) == (7, None)


@pytest.mark.parametrize("kind", [t.INT, t.TIMESTAMP, t.UUID_TYPE, t.VARINT, t.DECIMAL, t.INET, t.BOOLEAN])
def test_no_bytes_are_no_value(kind: t.CqlType) -> None:
    """CQL accepts them for any type (`blobAsInt(0x)`); if a type has no empty value they are read as none."""
    assert value_from_bytes(kind, b"") is None


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (t.INT, b"\0\0\1"),
        (t.ListType(t.INT), b"\0\0\0\1"),
        (t.ListType(t.INT), b"\0\0"),
        (t.ListType(t.INT), b"\0\0\0\1\0\0\0\4\0"),
        (t.MapType(t.INT, t.INT), b"\0\0\0\1\0\0\0\4\0\0\0\1"),
        (t.ListType(t.INT), b"\0\0\0\1\xff\xff\xff\xff"),
        (UDT, UDT.to_bytes((1, "a")) + b"\0\0\0\0"),
        (t.DURATION, b"\2\2"),
        (t.TEXT, b"\xff"),
        (t.VectorType(t.FLOAT, dimension=2), b"\0\0\0"),
    ],
)
def test_bytes_of_another_type_are_refused(kind: t.CqlType, data: bytes) -> None:
    """Too few bytes, too many, or bytes that are invalid for the type."""
    with pytest.raises(InputError):
        value_from_bytes(kind, data)


def _casstype(name: str) -> str:
    return {
        "bigint": "LongType",
        "blob": "BytesType",
        "boolean": "BooleanType",
        "decimal": "DecimalType",
        "double": "DoubleType",
        "int": "Int32Type",
        "smallint": "ShortType",
        "tinyint": "ByteType",
        "uuid": "UUIDType",
        "varint": "IntegerType",
    }.get(name, name)
