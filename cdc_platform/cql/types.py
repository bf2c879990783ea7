"""CQL types: their values, the order of values, and their forms as bytes and JSON.

Values are hashable Python values in one canonical form each:

| CQL | Python |
|---|---|
| ascii, text | str |
| tinyint, smallint, int, bigint, varint, counter | int |
| float, double; decimal | float (a `float` is rounded to 32 bits); Decimal |
| boolean; blob; uuid, timeuuid | bool; bytes; UUID |
| inet | IPv4Address, IPv6Address |
| date; time; timestamp | int: days since 1970; nanoseconds of the day; ms since 1970 |
| duration | `temporal.Duration` |
| list, tuple | tuple, in order; None for a null component of a tuple |
| set | tuple without repetitions, in the order of the element type |
| map | tuple of (key, value), in the order of the key type |
| user type | tuple of all fields, None for a null field |
"""

from __future__ import annotations

import math
import reprlib
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from ipaddress import IPv4Address, IPv6Address
from typing import Any, ClassVar, Self
from uuid import UUID

import numpy as np

from cdc_platform.clock import DAY_NS, Microseconds
from cdc_platform.cql.length_prefix import join_length_prefixed
from cdc_platform.cql.names import quote_name
from cdc_platform.cql.temporal import Duration, format_date, format_time, format_timestamp
from cdc_platform.errors import InputError

Value = Any
"""A value in canonical form, see the module's table."""

_MAX_SHOWN_CHARACTERS = 120
"""The most characters of a value in an error."""
_MAX_NATIVE_BITS = 14_000
"""Longer integers may have more than the 4,300 digits that Python converts by itself."""
NAN = math.nan
"""The only NaN of canonical values: it equals itself by identity wherever values are keys."""


class _NegativeZero(float):
    """-0.0 as a distinct value: CQL distinguishes it from 0.0 in keys and sets, and Python's floats do not."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, float) and other == 0.0 and math.copysign(1.0, other) < 0

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash("-0.0")

    def __reduce__(self) -> str:
        return "NEGATIVE_ZERO"


NEGATIVE_ZERO = _NegativeZero(-0.0)
"""The only -0.0 of canonical values, which is not equal to 0.0."""


def shorten_value(value: object) -> str:
    """Format a value for an error, in a bounded number of characters."""
    text = (
        format_integer(value)
        if isinstance(value, int) and value.bit_length() > _MAX_NATIVE_BITS
        else reprlib.repr(value)
    )
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else f"{text[: _MAX_SHOWN_CHARACTERS - 3]}..."


@dataclass(frozen=True)
class CqlType:
    """A CQL type. `multicell` types have elements that are separate cells: non-frozen collections and user types."""

    @property
    def cql(self) -> str:
        """Return the type as CQL writes it."""
        raise NotImplementedError

    @property
    def multicell(self) -> bool:
        """Return True if each element is a separate cell."""
        return False

    @property
    def parts(self) -> tuple[CqlType, ...]:
        """Return the types that it contains."""
        return ()

    @property
    def comparable(self) -> bool:
        """Return True if values have an order, so that they can be keys and elements of sets."""
        return all(part.comparable for part in self.parts)

    def frozen(self) -> CqlType:
        """Return the same type as one value; itself, if it has no elements."""
        return self

    def canonical(self, value: Value) -> Value:
        """Return the canonical form of a Python value, which may be a set, dict or list.

        Raises:
            InputError: the value is not one of this type.
        """
        raise NotImplementedError

    def sort_key(self, value: Value) -> Any:
        """Return the sort key of a canonical value: compare the keys, not the values."""
        raise NotImplementedError

    def to_bytes(self, value: Value) -> bytes:
        """Return a canonical value as the CQL protocol writes it, from which tokens are hashed, too."""
        raise NotImplementedError

    def json(self, value: Value) -> object:
        """Return a canonical value as JSON types; the writer of the result converts scalars that JSON lacks."""
        return value

    def replaced(self, new: UserType) -> CqlType:
        """Return this type with user types of the name of `new` replaced by it."""
        return self

    def user_types(self) -> Iterator[UserType]:
        """Yield the user types that this type is or contains."""
        for part in self.parts:
            yield from part.user_types()

    def refuse(self, value: object) -> InputError:
        """Return the error for a value that is not of this type."""
        return InputError(f"{shorten_value(value)} is no value of type {self.cql}")


@dataclass(frozen=True)
class ScalarType(CqlType):
    """A type without components: `name` in CQL, and functions that check, order and write its values."""

    name: str
    check: Callable[[Value], Value]
    order: Callable[[Value], Any] | None
    encode: Callable[[Value], bytes]
    show: Callable[[Value], object] | None = None

    @property
    def cql(self) -> str:
        return self.name

    @property
    def comparable(self) -> bool:
        return self.order is not None

    def canonical(self, value: Value) -> Value:
        try:
            return self.check(value)
        except (TypeError, ValueError, OverflowError, struct.error):
            raise self.refuse(value) from None

    def sort_key(self, value: Value) -> Any:
        if self.order is None:
            raise InputError(
                f"values of type {self.name} have no order; use another type for keys and elements of sets"
            )
        return self.order(value)

    def to_bytes(self, value: Value) -> bytes:
        return self.encode(value)

    def json(self, value: Value) -> object:
        return value if value is None or self.show is None else self.show(value)

    # The functions do not identify a type, and no two scalars share a name.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, ScalarType) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Callable[[str], ScalarType], tuple[str]]:
        return get_scalar_type, (self.name,)


def us_from_timeuuid(value: UUID) -> Microseconds:
    """Return the time of a version 1 UUID, in µs since 1970."""
    return Microseconds((value.time - GREGORIAN_OFFSET) // 10)


GREGORIAN_OFFSET = 0x01B21DD213814000
"""100 ns steps from the start of the Gregorian calendar, where timeuuids begin, to 1970."""


def timeuuid_sort_key(value: UUID) -> tuple[int, tuple[int, ...]]:
    """Return the sort key of timeuuids: the time, then the low bytes as signed ones."""
    return value.time, struct.unpack("8b", value.bytes[8:])


def _uuid_sort_key(value: UUID) -> tuple[Any, ...]:
    version = value.bytes[6] >> 4
    return (version, value.time, value.bytes[8:]) if version == 1 else (version, value.bytes)


def _check_instance(*classes: type) -> Callable[[Value], Value]:
    def check(value: Value) -> Value:
        if not isinstance(value, classes):
            raise TypeError
        return value

    return check


def _check_integer(low: int | None, high: int | None) -> Callable[[Value], int]:
    def check(value: Value) -> int:
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise TypeError
        if (low is not None and value < low) or (high is not None and value > high):
            raise ValueError
        return int(value)

    return check


def format_integer(value: int) -> str:
    """Format an integer of any length in decimal; Python's own conversion ends at 4,300 digits."""
    return f"{Decimal(value):f}"


MAX_DIGITS = 100_000
"""The most digits of a written number: conversion takes quadratic time, a quarter of a second for this many."""


def check_digit_count(number: str) -> None:
    """Refuse a written number with more than `MAX_DIGITS` digits; raises InputError."""
    if len(number) > MAX_DIGITS and sum(map(str.isdigit, number)) > MAX_DIGITS:
        raise InputError(
            f"{number[:20]}... has {len(number)} characters; write a number of at most {MAX_DIGITS} digits"
        )


def parse_integer(text: str) -> int:
    """Return the integer of any number of decimal digits; raises ValueError."""
    if not text.removeprefix("-").isdecimal() or not text.isascii():
        raise ValueError(text[:40])
    return int(Decimal(text))


def _check_float(value: Value) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    if math.isnan(value):
        return NAN
    number = float(value)
    return NEGATIVE_ZERO if _is_negative_zero(number) else number


def _is_negative_zero(number: float) -> bool:
    return float.__eq__(number, 0.0) is True and math.copysign(1.0, number) < 0


def _check_float32(value: Value) -> float:
    wide = _check_float(value)
    return (
        wide if math.isnan(wide) or math.isinf(wide) else _check_float(struct.unpack(">f", struct.pack(">f", wide))[0])
    )


def _check_text(value: Value) -> str:
    _check_instance(str)(value).encode()
    return value


def _check_ascii(value: Value) -> str:
    _check_instance(str)(value).encode("ascii")
    return value


def _check_decimal(value: Value) -> Decimal:
    number = (
        Decimal(value) if isinstance(value, int) and not isinstance(value, bool) else _check_instance(Decimal)(value)
    )
    if not number.is_finite() or not -(2**31) <= -int(number.as_tuple().exponent) < 2**31:
        raise ValueError
    return number


def _check_timeuuid(value: Value) -> UUID:
    if _check_instance(UUID)(value).bytes[6] >> 4 != 1:
        raise ValueError
    return value


def _check_duration(value: Value) -> Duration:
    duration = _check_instance(Duration)(value)
    if min(duration) < 0 < max(duration):
        raise ValueError
    for count, bits in zip(duration, (31, 31, 63), strict=True):
        _check_integer(-(2**bits), 2**bits - 1)(count)
    return duration


def _identity(value: Value) -> Value:
    return value


def _float_sort_key(value: float) -> tuple[bool, float, bool]:
    """Return a sort key with NaN after all numbers and -0.0 before 0.0."""
    return (True, 0.0, True) if math.isnan(value) else (False, value + 0.0, not _is_negative_zero(value))


def _integer_encoder(size: int) -> Callable[[int], bytes]:
    return lambda value: value.to_bytes(size, "big", signed=True)


def _encode_varint(value: int) -> bytes:
    return value.to_bytes((value if value >= 0 else ~value).bit_length() // 8 + 1, "big", signed=True)


def _encode_decimal(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    unscaled = parse_integer("".join(map(str, digits)))
    return (-int(exponent)).to_bytes(4, "big", signed=True) + _encode_varint(-unscaled if sign else unscaled)


def _encode_vint(value: int) -> bytes:
    """Encode a signed integer in the protocol's variable length: zigzag, with the rest counted by leading ones."""
    zigzag = (value << 1 if value >= 0 else (~value << 1) | 1).to_bytes(8, "big").lstrip(b"\0") or b"\0"
    size = len(zigzag)
    if size < 9 and zigzag[0] >> (8 - size) and size == 8:
        return b"\xff" + zigzag
    if zigzag[0] >> (8 - size):
        zigzag, size = b"\0" + zigzag, size + 1
    return bytes([zigzag[0] | (0xFF00 >> (size - 1) & 0xFF)]) + zigzag[1:]


def _shortest_float32(value: float) -> float:
    """Return the shortest decimal that is this 32-bit number, as CQL shows it."""
    return value if not math.isfinite(value) else float(str(np.float32(value)))


def _json_integer(value: int) -> object:
    """Return an integer as JSON has it, or as text if it is too long for Python to write."""
    return value if value.bit_length() <= _MAX_NATIVE_BITS else format_integer(value)


def _integer_type(name: str, bits: int) -> ScalarType:
    bound = 1 << (bits - 1)
    return ScalarType(name, _check_integer(-bound, bound - 1), _identity, _integer_encoder(bits // 8))


ASCII = ScalarType("ascii", _check_ascii, str.encode, str.encode)
TEXT = ScalarType("text", _check_text, str.encode, str.encode)
TINYINT = _integer_type("tinyint", 8)
SMALLINT = _integer_type("smallint", 16)
INT = _integer_type("int", 32)
BIGINT = _integer_type("bigint", 64)
COUNTER = _integer_type("counter", 64)
VARINT = ScalarType("varint", _check_integer(None, None), _identity, _encode_varint, _json_integer)
DECIMAL = ScalarType("decimal", _check_decimal, _identity, _encode_decimal)
FLOAT = ScalarType("float", _check_float32, _float_sort_key, lambda value: struct.pack(">f", value), _shortest_float32)
DOUBLE = ScalarType("double", _check_float, _float_sort_key, lambda value: struct.pack(">d", value))
BOOLEAN = ScalarType("boolean", _check_instance(bool), _identity, lambda value: b"\x01" if value else b"\x00")
BLOB = ScalarType("blob", _check_instance(bytes), _identity, _identity)
UUID_TYPE = ScalarType("uuid", _check_instance(UUID), _uuid_sort_key, lambda value: value.bytes)
TIMEUUID = ScalarType("timeuuid", _check_timeuuid, timeuuid_sort_key, lambda value: value.bytes)
INET = ScalarType(
    "inet", _check_instance(IPv4Address, IPv6Address), lambda value: value.packed, lambda value: value.packed, str
)
DATE = ScalarType(
    "date",
    _check_integer(-(2**31), 2**31 - 1),
    _identity,
    lambda days: (days + 2**31).to_bytes(4, "big"),
    format_date,
)
TIME = ScalarType("time", _check_integer(0, DAY_NS - 1), _identity, _integer_encoder(8), format_time)
TIMESTAMP = ScalarType(
    "timestamp", _check_integer(-(2**63), 2**63 - 1), _identity, _integer_encoder(8), format_timestamp
)
DURATION = ScalarType("duration", _check_duration, None, lambda value: b"".join(map(_encode_vint, value)), str)

SCALAR_TYPES: Mapping[str, ScalarType] = {
    kind.name: kind
    for kind in (
        ASCII,
        BIGINT,
        BLOB,
        BOOLEAN,
        COUNTER,
        DATE,
        DECIMAL,
        DOUBLE,
        DURATION,
        FLOAT,
        INET,
        INT,
        SMALLINT,
        TEXT,
        TIME,
        TIMESTAMP,
        TIMEUUID,
        TINYINT,
        UUID_TYPE,
        VARINT,
    )
}
"""The scalar types by name; `varchar` is an alias of text."""


def get_scalar_type(name: str) -> ScalarType:
    """Return the scalar type of a name; raises InputError."""
    kind = SCALAR_TYPES.get("text" if name == "varchar" else name)
    if kind is None:
        raise InputError(f"unknown type {name}; it is neither a scalar type of CQL nor one made with CREATE TYPE")
    return kind


@dataclass(frozen=True)
class _CollectionType(CqlType):
    @property
    def cql(self) -> str:
        return self._name if self.multicell else f"frozen<{self._name}>"

    @property
    def _name(self) -> str:
        raise NotImplementedError

    def to_bytes(self, value: Value) -> bytes:
        elements = list(self._flat(value))
        count = len(elements) // len(self.parts)
        return count.to_bytes(4, "big") + join_length_prefixed(kind.to_bytes(element) for kind, element in elements)

    def sort_key(self, value: Value) -> Any:
        return tuple(kind.sort_key(element) for kind, element in self._flat(value))

    def _flat(self, value: Value) -> Iterator[tuple[CqlType, Value]]:
        kind = self.parts[0]
        return ((kind, element) for element in value)


@dataclass(frozen=True)
class _ElementCollectionType(_CollectionType):
    """The common part of lists and sets: elements of one type."""

    _kind: ClassVar[str]

    element: CqlType
    is_frozen: bool = False

    @property
    def multicell(self) -> bool:
        return not self.is_frozen

    @property
    def _name(self) -> str:
        return f"{self._kind}<{self.element.cql}>"

    @property
    def parts(self) -> tuple[CqlType, ...]:
        return (self.element,)

    def frozen(self) -> Self:
        return replace(self, element=self.element.frozen(), is_frozen=True)

    def replaced(self, new: UserType) -> Self:
        return replace(self, element=self.element.replaced(new))


@dataclass(frozen=True)
class ListType(_ElementCollectionType):
    """`list<V>`; if it is not frozen, its cells are keyed by timeuuid."""

    _kind = "list"

    def canonical(self, value: Value) -> Value:
        return tuple(self.element.canonical(element) for element in _check_iterable(self, value))

    def json(self, value: Value) -> object:
        return None if value is None else [self.element.json(element) for element in value]


MAX_DIMENSIONS = 16_000
"""The most elements of a vector (cql3/cql3_type.cc, MAX_VECTOR_DIMENSION)."""


@dataclass(frozen=True)
class VectorType(ListType):
    """`vector<float, n>`: n elements in one value, which is the concatenation of their bytes."""

    dimension: int = 1

    @property
    def cql(self) -> str:
        return f"vector<{self.element.cql}, {self.dimension}>"

    def canonical(self, value: Value) -> Value:
        elements = super().canonical(value)
        if len(elements) != self.dimension:
            raise InputError(f"{len(elements)} elements, where {self.cql} has {self.dimension}")
        return elements

    def to_bytes(self, value: Value) -> bytes:
        return b"".join(map(self.element.to_bytes, value))


@dataclass(frozen=True)
class SetType(_ElementCollectionType):
    """`set<K>`."""

    _kind = "set"

    def canonical(self, value: Value) -> Value:
        elements = (self.element.canonical(element) for element in _check_iterable(self, value))
        by_key = {self.element.sort_key(element): element for element in elements}
        return tuple(by_key[key] for key in sorted(by_key))

    def json(self, value: Value) -> object:
        if value is None:
            return None
        return [self.element.json(element) for element in sorted(value, key=self.element.sort_key)]


@dataclass(frozen=True)
class MapType(_CollectionType):
    """`map<K, V>`."""

    key: CqlType
    value: CqlType
    is_frozen: bool = False

    @property
    def multicell(self) -> bool:
        return not self.is_frozen

    @property
    def _name(self) -> str:
        return f"map<{self.key.cql}, {self.value.cql}>"

    @property
    def parts(self) -> tuple[CqlType, ...]:
        return (self.key, self.value)

    def frozen(self) -> MapType:
        return MapType(self.key.frozen(), self.value.frozen(), True)

    def canonical(self, value: Value) -> Value:
        by_key: dict[Any, tuple[Value, Value]] = {}
        for key, inner in _check_pairs(self, value):
            name = self.key.canonical(key)
            by_key[self.key.sort_key(name)] = (name, self.value.canonical(inner))
        return tuple(by_key[key] for key in sorted(by_key))

    def json(self, value: Value) -> object:
        if value is None:
            return None
        pairs = value.items() if isinstance(value, Mapping) else value
        ordered = sorted(pairs, key=lambda pair: self.key.sort_key(pair[0]))
        return [[self.key.json(key), self.value.json(inner)] for key, inner in ordered]

    def _flat(self, value: Value) -> Iterator[tuple[CqlType, Value]]:
        for key, inner in value:
            yield self.key, key
            yield self.value, inner

    def replaced(self, new: UserType) -> MapType:
        return replace(self, key=self.key.replaced(new), value=self.value.replaced(new))


@dataclass(frozen=True)
class _ComponentType(CqlType):
    """The common part of tuples and user types: a fixed number of components, which may be null.

    A value that was written before its type got another field has fewer of them.
    """

    def canonical(self, value: Value) -> Value:
        components = list(_check_iterable(self, value))
        if len(components) > len(self.parts):
            raise InputError(f"{len(components)} components; {self.cql} has {len(self.parts)}")
        components += [None] * (len(self.parts) - len(components))
        return tuple(
            None if component is None else kind.canonical(component)
            for kind, component in zip(self.parts, components, strict=True)
        )

    def sort_key(self, value: Value) -> Any:
        return tuple(
            (0,) if component is None else (1, kind.sort_key(component))
            for kind, component in zip(self.parts, value, strict=False)
        )

    def to_bytes(self, value: Value) -> bytes:
        return join_length_prefixed(
            None if component is None else kind.to_bytes(component)
            for kind, component in zip(self.parts, value, strict=False)
        )


@dataclass(frozen=True)
class TupleType(_ComponentType):
    """`tuple<...>`, which is always one value."""

    components: tuple[CqlType, ...]

    @property
    def cql(self) -> str:
        return f"frozen<tuple<{', '.join(part.cql for part in self.components)}>>"

    @property
    def parts(self) -> tuple[CqlType, ...]:
        return self.components

    def json(self, value: Value) -> object:
        if value is None:
            return None
        return [kind.json(component) for kind, component in zip(self.components, value, strict=True)]

    def replaced(self, new: UserType) -> TupleType:
        return TupleType(tuple(part.replaced(new) for part in self.components))


@dataclass(frozen=True)
class UserType(_ComponentType):
    """A type created with CREATE TYPE; a field's index is its position in `fields`, and never changes."""

    keyspace: str
    name: str
    fields: tuple[tuple[str, CqlType], ...]
    is_frozen: bool = False

    @property
    def cql(self) -> str:
        name = quote_name(self.name)
        return f"frozen<{name}>" if self.is_frozen else name

    @property
    def multicell(self) -> bool:
        return not self.is_frozen

    @property
    def parts(self) -> tuple[CqlType, ...]:
        return tuple(kind for _, kind in self.fields)

    @cached_property
    def field_names(self) -> tuple[str, ...]:
        """Return the names of the fields, by index."""
        return tuple(name for name, _ in self.fields)

    def frozen(self) -> UserType:
        return replace(self, fields=tuple((name, kind.frozen()) for name, kind in self.fields), is_frozen=True)

    def index_of(self, field: str) -> int:
        """Return the index of a field; raises InputError."""
        if field not in self.field_names:
            name = f"{self.keyspace}.{self.name}"
            raise InputError(
                f"type {name} has no field {field}; {list_alternatives(self.field_names)}",
                lacks=f"field {name}.{field}",
            )
        return self.field_names.index(field)

    def canonical(self, value: Value) -> Value:
        if isinstance(value, Mapping):
            named = {self.index_of(name): inner for name, inner in value.items()}
            value = tuple(named.get(index) for index in range(len(self.fields)))
        return super().canonical(value)

    def json(self, value: Value) -> object:
        if value is None:
            return None
        # A value written before a field was added is shorter than the type.
        padded = (*value, *[None] * (len(self.fields) - len(value)))
        return {name: kind.json(inner) for (name, kind), inner in zip(self.fields, padded, strict=True)}

    def replaced(self, new: UserType) -> UserType:
        if (self.keyspace, self.name) == (new.keyspace, new.name):
            return new.frozen() if self.is_frozen else new
        return replace(self, fields=tuple((name, kind.replaced(new)) for name, kind in self.fields))

    def user_types(self) -> Iterator[UserType]:
        yield self
        yield from super().user_types()


def list_alternatives(names: Iterable[str]) -> str:
    """Return the alternatives to an unknown name, for the end of an error."""
    known = list(names)
    return f"there is {', '.join(known)}" if known else "there is none"


def _check_iterable(kind: CqlType, value: Value) -> Iterable[Value]:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise kind.refuse(value)
    return value


def _check_pairs(kind: CqlType, value: Value) -> Iterable[tuple[Value, Value]]:
    pairs = value.items() if isinstance(value, Mapping) else _check_iterable(kind, value)
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise kind.refuse(value)
        yield pair
