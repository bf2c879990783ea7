"""CQL types: values as bytes, in order and as literals, compared with the driver's codecs."""

from __future__ import annotations

import ipaddress
import math
import pickle
import struct
import uuid
from datetime import date
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from cassandra import cqltypes
from cassandra.util import Duration as DriverDuration
from hypothesis import assume, given
from hypothesis import strategies as st

from cdc_platform.clock import DAY_NS, Microseconds, Milliseconds
from cdc_platform.cql import ExecutionContext, parse_statements, temporal
from cdc_platform.cql import ast as s
from cdc_platform.cql import types as t
from cdc_platform.cql.literals import value_from_term
from cdc_platform.errors import InputError

MOMENT = ExecutionContext(Microseconds(0))
PROTOCOL = 4


def whole(bits: int) -> st.SearchStrategy[int]:
    """Return signed integers of this many bits."""
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def make_duration(sign: int, parts: tuple[int, int, int]) -> temporal.Duration:
    """Return a duration whose parts have one sign."""
    return temporal.Duration(*(sign * part for part in parts))


timeuuids = st.builds(
    lambda time, low: uuid.UUID(
        fields=(
            time & 0xFFFFFFFF,
            time >> 32 & 0xFFFF,
            0x1000 | time >> 48,
            0x80 | low >> 56 & 0x3F,
            low >> 48 & 0xFF,
            low & (1 << 48) - 1,
        )
    ),
    st.integers(0, 2**60 - 1),
    st.integers(0, 2**64 - 1),
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "ascii": st.text(st.characters(max_codepoint=127), max_size=8),
    "bigint": whole(64),
    "blob": st.binary(max_size=8),
    "boolean": st.booleans(),
    "date": whole(32),
    "decimal": st.decimals(allow_nan=False, allow_infinity=False),
    "double": st.floats(),
    "duration": st.builds(
        make_duration, st.sampled_from([1, -1]), st.tuples(*(st.integers(0, 2**bits - 1) for bits in (31, 31, 63)))
    ),
    "float": st.floats(width=32),
    "inet": st.ip_addresses(),
    "int": whole(32),
    "smallint": whole(16),
    "text": texts,
    "time": st.integers(0, DAY_NS - 1),
    "timestamp": st.integers(-(10**14), 10**14),
    "timeuuid": timeuuids,
    "tinyint": whole(8),
    "uuid": st.uuids(),
    "varint": st.integers(),
}
"""Canonical values of each scalar type except counters."""


def to_literal(kind: t.CqlType, value: Any) -> str:
    """Return the CQL literal of a canonical value, by the language's rules and without the product's code."""
    if value is None:
        return "null"
    if isinstance(kind, t.MapType):
        return (
            "{"
            + ", ".join(f"{to_literal(kind.key, key)}: {to_literal(kind.value, inner)}" for key, inner in value)
            + "}"
        )
    if isinstance(kind, t.SetType):
        return "{" + ", ".join(to_literal(kind.element, inner) for inner in value) + "}"
    if isinstance(kind, t.ListType):
        return "[" + ", ".join(to_literal(kind.element, inner) for inner in value) + "]"
    if isinstance(kind, t.TupleType):
        return (
            "(" + ", ".join(to_literal(part, inner) for part, inner in zip(kind.components, value, strict=True)) + ")"
        )
    if isinstance(kind, t.UserType):
        pairs = zip(kind.fields, value, strict=True)
        return "{" + ", ".join(f'"{name}": {to_literal(part, inner)}' for (name, part), inner in pairs) + "}"
    return scalar_to_literal(kind.cql, value)


def scalar_to_literal(name: str, value: Any) -> str:
    """Return the literal of a scalar type."""
    if name in ("text", "ascii"):
        return "'" + value.replace("'", "''") + "'"
    if name == "inet":
        return f"'{value}'"
    if name == "blob":
        return "0x" + value.hex()
    if name in ("float", "double"):
        return "NaN" if math.isnan(value) else str(value).replace("inf", "Infinity")
    if name == "date":
        return str(value + 2**31)
    if name == "duration":
        months, days, nanoseconds = value
        return f"{'-' if min(value) < 0 else ''}{abs(months)}mo{abs(days)}d{abs(nanoseconds)}ns"
    return str(value)


KEYS = [t.get_scalar_type(name) for name in SCALARS if name != "duration"]
user_types = st.lists(st.sampled_from(KEYS), min_size=1, max_size=3).map(
    lambda parts: t.UserType("ks", "ut", tuple((f"F{n}", part) for n, part in enumerate(parts)), True)
)
kinds = st.recursive(
    st.sampled_from(KEYS),
    lambda inner: st.one_of(
        st.builds(t.ListType, inner, st.just(True)),
        st.builds(t.SetType, inner, st.just(True)),
        st.builds(t.MapType, inner, inner, st.just(True)),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: t.TupleType(tuple(parts))),
        user_types,
    ),
    max_leaves=4,
)


def values(kind: t.CqlType) -> st.SearchStrategy[Any]:
    """Return canonical values of a type."""
    if isinstance(kind, t.ScalarType):
        return SCALARS[kind.name].map(kind.canonical)
    if isinstance(kind, t.MapType):
        return st.lists(st.tuples(values(kind.key), values(kind.value)), max_size=3).map(kind.canonical)
    if isinstance(kind, t.ListType | t.SetType):
        return st.lists(values(kind.element), max_size=3).map(kind.canonical)
    return st.tuples(*(st.none() | values(part) for part in kind.parts))


@st.composite
def typed(draw: st.DrawFn, count: int = 1) -> tuple[Any, ...]:
    """Draw a type and this many values of it."""
    kind = draw(kinds)
    return (kind, *(draw(values(kind)) for _ in range(count)))


def are_equal(one: Any, other: Any) -> bool:
    """Return True if two values are equal, where NaN equals itself."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(are_equal(a, b) for a, b in zip(one, other, strict=True))
    return one is other or one == other


def find_scalar_types(kind: t.CqlType) -> set[str]:
    """Return the names of the scalar types within a type."""
    return (
        {kind.name}
        if isinstance(kind, t.ScalarType)
        else {name for part in kind.parts for name in find_scalar_types(part)}
    )


def driver_codec(kind: t.CqlType) -> Any:
    """Return the driver's codec of a type."""
    if isinstance(kind, t.ScalarType):
        return cqltypes.lookup_casstype_simple({"text": "UTF8Type"}.get(kind.name, CODECS.get(kind.name, "")))
    parts = [driver_codec(part) for part in kind.parts]
    if isinstance(kind, t.UserType):
        return cqltypes.UserType.make_udt_class("ks", "ut", kind.field_names, parts)
    base: dict[type, Any] = {t.ListType: cqltypes.ListType, t.SetType: cqltypes.SetType, t.MapType: cqltypes.MapType}
    return base.get(type(kind), cqltypes.TupleType).apply_parameters(parts)


CODECS = {
    "ascii": "AsciiType",
    "bigint": "LongType",
    "blob": "BytesType",
    "boolean": "BooleanType",
    "decimal": "DecimalType",
    "double": "DoubleType",
    "float": "FloatType",
    "inet": "InetAddressType",
    "int": "Int32Type",
    "smallint": "ShortType",
    "time": "TimeType",
    "timestamp": "DateType",
    "timeuuid": "TimeUUIDType",
    "tinyint": "ByteType",
    "uuid": "UUIDType",
    "varint": "IntegerType",
    "date": "SimpleDateType",
    "duration": "DurationType",
}


def driver_value(kind: t.CqlType, value: Any) -> Any:
    """Return a canonical value in the driver's form."""
    if value is None:
        return None
    if isinstance(kind, t.MapType):
        pairs = [(driver_value(kind.key, key), driver_value(kind.value, inner)) for key, inner in value]
        return Pairs(pairs)
    if isinstance(kind, t.ListType | t.SetType):
        return [driver_value(kind.element, inner) for inner in value]
    if not isinstance(kind, t.ScalarType):
        return tuple(driver_value(part, inner) for part, inner in zip(kind.parts, value, strict=True))
    if kind.name == "inet":
        return str(value)
    return DriverDuration(*value) if kind.name == "duration" else value


class Pairs(list):
    """A map for the driver, which accepts anything with items."""

    def items(self) -> Pairs:
        return self


@given(typed())
def test_values_are_the_bytes_that_the_driver_writes(case: tuple[Any, ...]) -> None:
    """All types except durations, dates (another epoch) and times that the driver accepts only as objects."""
    kind, value = case
    assume(not {"date", "time", "timestamp"} & find_scalar_types(kind))
    assert kind.to_bytes(value) == driver_codec(kind).serialize(driver_value(kind, value), PROTOCOL)


@given(SCALARS["duration"])
def test_durations_are_the_bytes_that_the_driver_writes(value: Any) -> None:
    """A duration is three integers of variable length."""
    assert t.DURATION.to_bytes(value) == cqltypes.DurationType.serialize(DriverDuration(*value), PROTOCOL)


@given(whole(32), SCALARS["time"], SCALARS["timestamp"])
def test_times_are_integers(days: int, nanoseconds: int, ms: Milliseconds) -> None:
    """A date is unsigned with 1970 in the middle; a time and a timestamp are signed 64-bit integers."""
    assert t.DATE.to_bytes(days) == struct.pack(">I", days + 2**31)
    assert t.TIME.to_bytes(nanoseconds) == struct.pack(">q", nanoseconds)
    assert t.TIMESTAMP.to_bytes(ms) == struct.pack(">q", ms)


@given(typed())
def test_a_literal_is_the_value_that_was_written(case: tuple[Any, ...]) -> None:
    """Formatting a value as CQL, parsing it and applying its type returns the value."""
    kind, value = case
    (statement,) = parse_statements(f"INSERT INTO t (a) VALUES ({to_literal(kind, value)})")
    assert isinstance(statement.body, s.Insert)
    assert are_equal(value_from_term(statement.body.values[0], kind, MOMENT), value)


@given(SCALARS["duration"])
def test_a_duration_is_read_as_it_is_written(value: Any) -> None:
    """CQL's format of a duration and its literal both parse to the duration."""
    assert temporal.parse_duration(str(value)) == value
    assert temporal.parse_duration(scalar_to_literal("duration", value)) == value


@given(typed(count=2))
def test_values_are_equal_if_their_order_is_equal(case: tuple[Any, ...]) -> None:
    """The order is total, and a value has one canonical form and one hash."""
    kind, one, other = case
    first, second = kind.sort_key(one), kind.sort_key(other)
    assert (first < second) + (second < first) + (first == second) == 1
    assert are_equal(kind.canonical(one), one)
    assert hash(one) == hash(kind.canonical(one))


@given(st.dictionaries(whole(32), texts, max_size=5))
def test_collections_are_in_the_order_of_their_elements(given_map: dict[int, str]) -> None:
    """Python's maps and sets become sorted, with each element once."""
    kind = t.MapType(t.INT, t.TEXT, True)
    pairs = kind.canonical(given_map)
    assert dict(pairs) == given_map
    assert [key for key, _ in pairs] == sorted(given_map)
    assert t.SetType(t.INT, True).canonical([*given_map, *given_map]) == tuple(sorted(given_map))


@pytest.mark.parametrize(
    ("name", "ascending"),
    [
        ("text", ["", "A", "a", "b", "é", "€", "𐍈"]),
        ("blob", [b"", b"\x00", b"\x7f", b"\x80", b"\xff"]),
        ("boolean", [False, True]),
        ("double", [-math.inf, -1.0, -0.0, 0.0, 1.0, math.inf, math.nan]),
        ("decimal", [Decimal("-1E+3"), Decimal("0.5"), Decimal("0.50000001"), Decimal(7)]),
        ("inet", [ipaddress.ip_address(text) for text in ("1.2.3.4", "10.0.0.1", "2001:db8::1", "255.0.0.1")]),
        # Time first, whatever the bytes before it; then the low bytes as signed bytes.
        ("timeuuid", [uuid.UUID(text) for text in (
            "ffffffff-0000-1000-8000-000000000000", "00000000-0001-1000-8000-000000000080",
            "00000000-0001-1000-8000-000000000000", "00000000-0001-1000-8000-00000000007f",
        )]),
        # Version first; version 1 by time, then the low bytes as unsigned bytes.
        ("uuid", [uuid.UUID(text) for text in (
            "ffffffff-0000-1000-8000-000000000000", "00000000-0001-1000-8000-00000000007f",
            "00000000-0001-1000-8000-000000000080", "00000000-0000-4000-8000-000000000000",
            "ffffffff-0000-4000-8000-000000000000",
        )]),
    ],
)  # fmt: skip
def test_scalars_are_in_the_order_of_cql(name: str, ascending: list[Any]) -> None:
    """Orders of CQL that differ from Python's."""
    keys = [t.get_scalar_type(name).sort_key(value) for value in ascending]
    assert keys == sorted(keys)
    assert all(one < other for one, other in pairwise(keys))


def test_durations_have_no_order() -> None:
    """A duration can be neither a key nor an element of a set."""
    assert not t.ListType(t.DURATION).comparable
    with pytest.raises(InputError, match="duration have no order"):
        t.DURATION.sort_key(temporal.Duration(0, 0, 1))


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        (t.DATE, 0, "1970-01-01"),
        (t.DATE, 2**31 - 1, "+5881580-07-11"),
        (t.DATE, -(2**31), "-5877641-06-23"),
        (t.TIME, 0, "00:00:00"),
        (t.TIME, 29_574_123_000_000, "08:12:54.123000"),
        (t.TIME, 1, "00:00:00.000000001"),
        (t.TIMESTAMP, -1, "1969-12-31T23:59:59.999Z"),
        (t.DURATION, temporal.Duration(14, 3, 45_000_000_000_000), "1y2mo3d12h30m"),
        (t.DURATION, temporal.Duration(0, 0, 0), "0s"),
        (t.DURATION, temporal.Duration(-1, 0, -1), "-1mo1ns"),
        (t.FLOAT, t.FLOAT.canonical(0.1), 0.1),
        (t.INET, ipaddress.ip_address("::1"), "::1"),
        (t.MapType(t.TEXT, t.DATE), {"b": 0, "a": 1}, [["a", "1970-01-02"], ["b", "1970-01-01"]]),
        (t.SetType(t.INT), (3, 1), [1, 3]),
        (t.TupleType((t.INT, t.TEXT)), (1, None), [1, None]),
        (t.UserType("ks", "ut", (("a", t.INT), ("b", t.DATE))), (1, 0), {"a": 1, "b": "1970-01-01"}),
        (t.UserType("ks", "ut", (("a", t.INT), ("b", t.INT))), (1,), {"a": 1, "b": None}),
    ],
)
def test_values_as_json_has_them(kind: t.CqlType, value: Any, shown: object) -> None:
    """Conventions for types that JSON lacks."""
    assert kind.json(value) == shown
    assert kind.json(None) is None


@given(st.dates())
def test_days_of_the_calendar(day: date) -> None:
    """Days since 1970 and dates convert in both directions like Python's calendar."""
    days = (day - date(1970, 1, 1)).days
    assert temporal.days_from_date(day.year, day.month, day.day) == days
    assert temporal.date_from_days(days) == (day.year, day.month, day.day)
    assert temporal.parse_date(temporal.format_date(days)) == days


@given(SCALARS["timestamp"], SCALARS["time"])
def test_times_are_read_as_they_are_shown(ms: Milliseconds, nanoseconds: int) -> None:
    """Timestamps of any year and times of day, to the nanosecond, survive formatting and parsing."""
    assert temporal.parse_timestamp(temporal.format_timestamp(ms)) == ms
    assert temporal.parse_time(temporal.format_time(nanoseconds)) == nanoseconds


@pytest.mark.parametrize(
    "text",
    ["2026-01-31 11:00", "2026-01-31T11:00:00", "2026-01-31 12:00:00.000+01:00", "2026-01-31T06:30-0430",
     "2026-01-31 11:00:00.000000+0000", "2026-01-31 11:00Z"],
)  # fmt: skip
def test_timestamps_are_written_in_many_ways(text: str) -> None:
    """Seconds, decimals and the zone, by default UTC, are optional."""
    assert temporal.parse_timestamp(text) == 1_769_857_200_000


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (t.INT, 2**31),
        (t.INT, True),
        (t.INT, "1"),
        (t.TEXT, "\ud800"),
        (t.ASCII, "é"),
        (t.FLOAT, 1e39),
        (t.DECIMAL, Decimal("NaN")),
        (t.TIMEUUID, uuid.UUID(int=4 << 76)),
        (t.TIME, -1),
        (t.DURATION, temporal.Duration(1, -1, 0)),
        (t.ListType(t.INT), "12"),
        (t.MapType(t.INT, t.INT), [(1, 2, 3)]),
        (t.TupleType((t.INT,)), (1, 2)),
        (t.UserType("ks", "ut", (("a", t.INT),)), {"b": 1}),
    ],
)
def test_values_of_another_type_are_refused(kind: t.CqlType, value: Any) -> None:
    """Values out of range, of another class or of another structure are refused."""
    with pytest.raises(InputError):
        kind.canonical(value)


@given(kinds)
def test_types_are_values(kind: t.CqlType) -> None:
    """A type survives pickling and is hashable; a frozen type has one cell."""
    copy = pickle.loads(pickle.dumps(kind))
    assert (copy, hash(copy), copy.cql) == (kind, hash(kind), kind.cql)
    assert not kind.frozen().multicell
    assert kind.frozen() == kind.frozen().frozen()
