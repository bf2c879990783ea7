"""The scalar types of CQL, and what every type has: how values are checked, ordered and written.

Which Python values they have is in the table of `types`, where the types that are made of others are.
"""

from __future__ import annotations

import math
import reprlib
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np

from cdc_platform.clock import DAY_NS, Microseconds
from cdc_platform.cql.times import Duration, date_text, time_text, timestamp_text
from cdc_platform.errors import InputError

if TYPE_CHECKING:
    from cdc_platform.cql.types import UserType


Value = Any
"""A value in canonical form, as the module's table has it."""

_MOST_SHOWN = 120
"""The characters of a value that an error shows."""
_LONGEST_BITS = 14_000
"""Integers of more bits may have more than the 4,300 digits that Python writes and reads by itself."""
NAN = math.nan
"""The one NaN of canonical values: it equals itself by identity wherever values are keys."""


class _NegativeZero(float):
    """-0.0 as a value of its own: CQL tells it from 0.0 in keys and sets, and Python's floats do not."""

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
"""The one -0.0 of canonical values, which 0.0 does not equal."""


def shortened(value: object) -> str:
    """A value as an error shows it, in a bounded number of characters."""
    text = integer_text(value) if isinstance(value, int) and value.bit_length() > _LONGEST_BITS else reprlib.repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."


@dataclass(frozen=True)
class CqlType:
    """A CQL type. `multicell` says that its elements are cells of their own: a non-frozen collection or user type."""

    @property
    def cql(self) -> str:
        """The type as CQL writes it."""
        raise NotImplementedError

    @property
    def multicell(self) -> bool:
        """Whether each element is a cell of its own."""
        return False

    @property
    def parts(self) -> tuple[CqlType, ...]:
        """The types that it is made of."""
        return ()

    @property
    def comparable(self) -> bool:
        """Whether values have an order, so that they can be keys and elements of sets."""
        return all(part.comparable for part in self.parts)

    def frozen(self) -> CqlType:
        """The same type as one value; itself, where it has no elements."""
        return self

    def canonical(self, value: Value) -> Value:
        """The canonical form of a Python value; sets, dicts and lists are taken as well.

        Raises:
            InputError: the value is not one of this type.
        """
        raise NotImplementedError

    def sort_key(self, value: Value) -> Any:
        """What orders canonical values of this type: compare the keys, not the values."""
        raise NotImplementedError

    def to_bytes(self, value: Value) -> bytes:
        """A canonical value as the CQL protocol writes it, which is also what tokens are hashed from."""
        raise NotImplementedError

    def json(self, value: Value) -> object:
        """A canonical value as what JSON is made of; scalars that JSON lacks are left to the writer of the result."""
        return value

    def replaced(self, new: UserType) -> CqlType:
        """This type with user types of the name of `new` replaced by it."""
        return self

    def user_types(self) -> Iterator[UserType]:
        """The user types that this one is or is made of."""
        for part in self.parts:
            yield from part.user_types()

    def refuse(self, value: object) -> InputError:
        """The error for a value that is not of this type."""
        return InputError(f"{shortened(value)} is no value of type {self.cql}")


@dataclass(frozen=True)
class Scalar(CqlType):
    """A type without components: `name` in CQL, and how its values are checked, ordered and written."""

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

    # The functions are no part of what a type is, and no two scalars share a name.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scalar) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Callable[[str], Scalar], tuple[str]]:
        return scalar, (self.name,)


def timeuuid_us(value: UUID) -> Microseconds:
    """The time of a version 1 UUID, in µs since 1970."""
    return Microseconds((value.time - GREGORIAN) // 10)


GREGORIAN = 0x01B21DD213814000
"""100 ns steps from the start of the Gregorian calendar, where timeuuids begin, to 1970."""


def timeuuid_order(value: UUID) -> tuple[int, tuple[int, ...]]:
    """What orders timeuuids: the time, then the low bytes as signed ones."""
    return value.time, struct.unpack("8b", value.bytes[8:])


def _uuid_order(value: UUID) -> tuple[Any, ...]:
    version = value.bytes[6] >> 4
    return (version, value.time, value.bytes[8:]) if version == 1 else (version, value.bytes)


def _instance(*classes: type) -> Callable[[Value], Value]:
    def check(value: Value) -> Value:
        if not isinstance(value, classes):
            raise TypeError
        return value

    return check


def _whole(low: int | None, high: int | None) -> Callable[[Value], int]:
    def check(value: Value) -> int:
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise TypeError
        if (low is not None and value < low) or (high is not None and value > high):
            raise ValueError
        return int(value)

    return check


def integer_text(value: int) -> str:
    """An integer in decimal, however long; Python's own way ends at 4,300 digits."""
    return f"{Decimal(value):f}"


MOST_DIGITS = 100_000
"""Digits of a number that somebody writes: to convert them takes quadratic time, a quarter of a second for so many."""


def assert_convertible(number: str) -> None:
    """Refuse a number as it is written, with more than `MOST_DIGITS` digits; raises InputError."""
    if len(number) > MOST_DIGITS and sum(map(str.isdigit, number)) > MOST_DIGITS:
        raise InputError(
            f"{number[:20]}... has {len(number)} characters; write a number of at most {MOST_DIGITS} digits"
        )


def integer_of_text(text: str) -> int:
    """The integer of decimal digits, however many; raises ValueError."""
    if not text.removeprefix("-").isdecimal() or not text.isascii():
        raise ValueError(text[:40])
    return int(Decimal(text))


def _number(value: Value) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    if math.isnan(value):
        return NAN
    number = float(value)
    return NEGATIVE_ZERO if _is_negative_zero(number) else number


def _is_negative_zero(number: float) -> bool:
    return float.__eq__(number, 0.0) is True and math.copysign(1.0, number) < 0


def _narrow(value: Value) -> float:
    wide = _number(value)
    return wide if math.isnan(wide) or math.isinf(wide) else _number(struct.unpack(">f", struct.pack(">f", wide))[0])


def _text(value: Value) -> str:
    _instance(str)(value).encode()
    return value


def _ascii(value: Value) -> str:
    _instance(str)(value).encode("ascii")
    return value


def _decimal(value: Value) -> Decimal:
    number = Decimal(value) if isinstance(value, int) and not isinstance(value, bool) else _instance(Decimal)(value)
    if not number.is_finite() or not -(2**31) <= -int(number.as_tuple().exponent) < 2**31:
        raise ValueError
    return number


def _timeuuid(value: Value) -> UUID:
    if _instance(UUID)(value).bytes[6] >> 4 != 1:
        raise ValueError
    return value


def _duration(value: Value) -> Duration:
    duration = _instance(Duration)(value)
    if min(duration) < 0 < max(duration):
        raise ValueError
    for count, bits in zip(duration, (31, 31, 63), strict=True):
        _whole(-(2**bits), 2**bits - 1)(count)
    return duration


def _itself(value: Value) -> Value:
    return value


def _float_order(value: float) -> tuple[bool, float, bool]:
    """NaN behind all numbers, -0.0 in front of 0.0."""
    return (True, 0.0, True) if math.isnan(value) else (False, value + 0.0, not _is_negative_zero(value))


def _integer_bytes(size: int) -> Callable[[int], bytes]:
    return lambda value: value.to_bytes(size, "big", signed=True)


def _varint_bytes(value: int) -> bytes:
    return value.to_bytes((value if value >= 0 else ~value).bit_length() // 8 + 1, "big", signed=True)


def _decimal_bytes(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    unscaled = integer_of_text("".join(map(str, digits)))
    return (-int(exponent)).to_bytes(4, "big", signed=True) + _varint_bytes(-unscaled if sign else unscaled)


def _vint(value: int) -> bytes:
    """A signed integer in the protocol's variable length: zigzag, the leading ones of the first byte count the rest."""
    zigzag = (value << 1 if value >= 0 else (~value << 1) | 1).to_bytes(8, "big").lstrip(b"\0") or b"\0"
    size = len(zigzag)
    if size < 9 and zigzag[0] >> (8 - size) and size == 8:
        return b"\xff" + zigzag
    if zigzag[0] >> (8 - size):
        zigzag, size = b"\0" + zigzag, size + 1
    return bytes([zigzag[0] | (0xFF00 >> (size - 1) & 0xFF)]) + zigzag[1:]


def _shortest_narrow(value: float) -> float:
    """The shortest decimal that is this 32-bit number, as CQL shows it."""
    return value if not math.isfinite(value) else float(str(np.float32(value)))


def _json_integer(value: int) -> object:
    """An integer as JSON has it; one that is too long for Python to write is text."""
    return value if value.bit_length() <= _LONGEST_BITS else integer_text(value)


def _integers(name: str, bits: int) -> Scalar:
    bound = 1 << (bits - 1)
    return Scalar(name, _whole(-bound, bound - 1), _itself, _integer_bytes(bits // 8))


ASCII = Scalar("ascii", _ascii, str.encode, str.encode)
TEXT = Scalar("text", _text, str.encode, str.encode)
TINYINT = _integers("tinyint", 8)
SMALLINT = _integers("smallint", 16)
INT = _integers("int", 32)
BIGINT = _integers("bigint", 64)
COUNTER = _integers("counter", 64)
VARINT = Scalar("varint", _whole(None, None), _itself, _varint_bytes, _json_integer)
DECIMAL = Scalar("decimal", _decimal, _itself, _decimal_bytes)
FLOAT = Scalar("float", _narrow, _float_order, lambda value: struct.pack(">f", value), _shortest_narrow)
DOUBLE = Scalar("double", _number, _float_order, lambda value: struct.pack(">d", value))
BOOLEAN = Scalar("boolean", _instance(bool), _itself, lambda value: b"\x01" if value else b"\x00")
BLOB = Scalar("blob", _instance(bytes), _itself, _itself)
UUID_TYPE = Scalar("uuid", _instance(UUID), _uuid_order, lambda value: value.bytes)
TIMEUUID = Scalar("timeuuid", _timeuuid, timeuuid_order, lambda value: value.bytes)
INET = Scalar("inet", _instance(IPv4Address, IPv6Address), lambda value: value.packed, lambda value: value.packed, str)
DATE = Scalar(
    "date",
    _whole(-(2**31), 2**31 - 1),
    _itself,
    lambda days: (days + 2**31).to_bytes(4, "big"),
    date_text,
)
TIME = Scalar("time", _whole(0, DAY_NS - 1), _itself, _integer_bytes(8), time_text)
TIMESTAMP = Scalar("timestamp", _whole(-(2**63), 2**63 - 1), _itself, _integer_bytes(8), timestamp_text)
DURATION = Scalar("duration", _duration, None, lambda value: b"".join(map(_vint, value)), str)

SCALARS: Mapping[str, Scalar] = {
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
"""The scalar types by name; `varchar` is another name of text."""


def scalar(name: str) -> Scalar:
    """The scalar type of a name; raises InputError."""
    kind = SCALARS.get("text" if name == "varchar" else name)
    if kind is None:
        raise InputError(f"unknown type {name}; it is neither a scalar type of CQL nor one made with CREATE TYPE")
    return kind
