"""Decode values from the bytes of the CQL protocol, and encode them as cells of cqlsh `COPY ... TO` files.

`CqlType.to_bytes` is the opposite direction for bytes. Timestamps of any year stay integers.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from ipaddress import ip_address
from itertools import islice
from uuid import UUID

from cdc_platform.cql.length_prefix import split_length_prefixed
from cdc_platform.cql.temporal import Duration, format_date, format_time
from cdc_platform.cql.types import (
    BIGINT,
    SCALAR_TYPES,
    CqlType,
    ListType,
    MapType,
    ScalarType,
    SetType,
    TupleType,
    UserType,
    Value,
    VectorType,
)
from cdc_platform.errors import InputError

_INTEGER_SIZES = {"tinyint": 1, "smallint": 2, "int": 4, "bigint": 8, "time": 8, "timestamp": 8}


def _read_signed(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


def _read_varint(data: bytes) -> int:
    if not data:
        raise ValueError
    return _read_signed(data)


def _read_decimal(data: bytes) -> Decimal:
    unscaled = _read_varint(data[4:])
    sign, digits, _ = Decimal(unscaled).as_tuple()
    return Decimal((sign, digits, -_read_signed(data[:4])))


def _read_boolean(data: bytes) -> bool:
    if len(data) != 1:
        raise ValueError
    return data != b"\0"


def _fixed_size_reader(size: int) -> Callable[[bytes], int]:
    def read(data: bytes) -> int:
        if len(data) != size:
            raise ValueError
        return _read_signed(data)

    return read


def _read_date(data: bytes) -> int:
    (days,) = struct.unpack(">I", data)
    return days - 2**31


_SCALAR_READERS: Mapping[str, Callable[[bytes], Value]] = {
    **{name: _fixed_size_reader(size) for name, size in _INTEGER_SIZES.items()},
    "ascii": lambda data: data.decode("ascii"),
    "boolean": _read_boolean,
    "date": _read_date,
    "decimal": _read_decimal,
    "double": lambda data: struct.unpack(">d", data)[0],
    "float": lambda data: struct.unpack(">f", data)[0],
    "inet": ip_address,
    "text": lambda data: data.decode(),
    "timeuuid": lambda data: UUID(bytes=data),
    "uuid": lambda data: UUID(bytes=data),
    "varint": _read_varint,
}
BLOB_CONVERTIBLE_TYPES: tuple[ScalarType, ...] = tuple(SCALAR_TYPES[name] for name in sorted(_SCALAR_READERS))
"""The types that bytes can be converted to."""


def scalar_from_bytes(kind: ScalarType, data: bytes) -> Value:
    """Return the canonical value of a scalar type that bytes hold.

    Raises:
        InputError: the bytes are invalid; they are validated as in ScyllaDB (cql3/functions/bytes_conversion_fcts.hh).
    """
    try:
        return kind.canonical(_SCALAR_READERS[kind.name](data))
    except (ValueError, ArithmeticError, struct.error):
        raise InputError(f"0x{data[:20].hex()} of {len(data)} bytes is no value of type {kind.cql}") from None


def value_from_bytes(kind: CqlType, data: bytes) -> Value | None:
    """Return the canonical value that bytes hold; None for empty bytes of a type whose values are never empty.

    A user type's value may have fewer fields than the type, if it was written before those were added.

    Raises:
        InputError: the bytes are no value of this type.
    """
    match kind:
        case ScalarType():
            return _read_scalar(kind, data)
        case VectorType():
            return kind.canonical([value_from_bytes(kind.element, part) for part in _split_equally(kind, data)])
        case MapType():
            parts = _read_counted(kind, data, 2)
            return kind.canonical(
                [(_read_element(kind.key, key), _read_element(kind.value, value)) for key, value in parts]
            )
        case ListType() | SetType():
            return kind.canonical([_read_element(kind.element, part) for (part,) in _read_counted(kind, data, 1)])
        case TupleType() | UserType():
            return kind.canonical(_read_components(kind, data))
    raise AssertionError(f"unreachable: {kind}")


def _read_scalar(kind: ScalarType, data: bytes) -> Value | None:
    if kind.name == "blob":
        return data
    if not data and kind.name not in ("text", "ascii"):
        return None
    if kind.name == "duration":
        return kind.canonical(_read_duration(kind, data))
    return scalar_from_bytes(BIGINT if kind.name == "counter" else kind, data)


def _read_element(kind: CqlType, data: bytes | None) -> Value | None:
    """Return an element of a collection, which is never null."""
    if data is None:
        raise InputError(f"an element of type {kind.cql} is null; elements of collections have values")
    return value_from_bytes(kind, data)


def _read_counted(kind: CqlType, data: bytes, width: int) -> Iterator[tuple[bytes | None, ...]]:
    """Yield the elements of a collection, `width` parts each: a count, then each part after its length."""
    if len(data) < 4:
        raise _damaged_value_error(kind, data)
    parts = _split_by_lengths(kind, data, 4)
    for _ in range(int.from_bytes(data[:4], "big", signed=True)):
        element = tuple(islice(parts, width))
        if len(element) < width:
            raise _damaged_value_error(kind, data)
        yield element


def _read_components(kind: TupleType | UserType, data: bytes) -> list[Value | None]:
    components = list(_split_by_lengths(kind, data, 0))
    if len(components) > len(kind.parts):
        raise InputError(f"{len(components)} components; {kind.cql} has {len(kind.parts)}")
    return [
        None if part is None else value_from_bytes(inner, part)
        for inner, part in zip(kind.parts, components, strict=False)
    ]


def _split_by_lengths(kind: CqlType, data: bytes, start: int) -> Iterator[bytes | None]:
    try:
        yield from split_length_prefixed(data, start)
    except InputError:
        raise _damaged_value_error(kind, data) from None


def _split_equally(kind: VectorType, data: bytes) -> Iterator[bytes]:
    size, rest = divmod(len(data), kind.dimension)
    if rest or not size:
        raise _damaged_value_error(kind, data)
    return (data[at : at + size] for at in range(0, len(data), size))


def _read_duration(kind: ScalarType, data: bytes) -> Duration:
    """Read three zigzag integers of variable length; the leading ones of a first byte count the bytes after it."""
    numbers, at = [], 0
    for _ in range(3):
        if at >= len(data):
            raise _damaged_value_error(kind, data)
        more = 8 - (data[at] ^ 0xFF).bit_length()
        coded = int.from_bytes(bytes([data[at] & (0xFF >> more)]) + data[at + 1 : at + 1 + more], "big")
        numbers.append((coded >> 1) ^ -(coded & 1))
        at += 1 + more
    if at != len(data):
        raise _damaged_value_error(kind, data)
    return Duration(*numbers)


def _damaged_value_error(kind: CqlType, data: bytes) -> InputError:
    return InputError(f"0x{data[:20].hex()} of {len(data)} bytes is no value of type {kind.cql}")


COPY_NULL = "<null>"
"""The text for null: no real text has this value, while an empty one is a value."""
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_TEXT_TYPES = ("ascii", "text")


def format_copy_cell(kind: CqlType, value: Value | None) -> str:
    """Format a canonical value as a cell of such a file."""
    if value is None:
        return COPY_NULL
    return str(value) if isinstance(kind, ScalarType) and kind.name in _TEXT_TYPES else _format_nested(kind, value)


def is_ambiguous_copy_cell(cell: str) -> bool:
    """Return True if some versions of cqlsh misread a cell.

    They take lines for rows, and some of them take a backslash within a collection for an escape.
    """
    return "\n" in cell or "\r" in cell or ("\\" in cell and cell.startswith(("{", "[", "(")))


def _format_nested(kind: CqlType, value: Value | None) -> str:
    """Format a value within a collection, where texts are quoted."""
    if value is None:
        return COPY_NULL
    match kind:
        case ScalarType():
            return _format_scalar(kind, value)
        case MapType():
            return (
                "{"
                + ", ".join(f"{_format_nested(kind.key, k)}: {_format_nested(kind.value, v)}" for k, v in value)
                + "}"
            )
        case SetType():
            return "{" + ", ".join(_format_nested(kind.element, part) for part in value) + "}"
        case ListType() | VectorType():
            return "[" + ", ".join(_format_nested(kind.element, part) for part in value) + "]"
        case UserType():
            parts = zip(kind.fields, (*value, *[None] * (len(kind.fields) - len(value))), strict=True)
            return "{" + ", ".join(f"{name}: {_format_nested(of, part)}" for (name, of), part in parts) + "}"
        case TupleType():
            return "(" + ", ".join(map(_format_nested, kind.components, value)) + ")"
    raise AssertionError(f"unreachable: {kind}")


def _format_scalar(kind: ScalarType, value: Value) -> str:
    match kind.name:
        case "ascii" | "text":
            return "'" + str(value).replace("'", "''") + "'"
        case "blob":
            return f"0x{value.hex()}"
        case "date" if _FIRST_DAY <= value <= _LAST_DAY:
            return format_date(value)
        case "time":
            return format_time(value)
        case "float" | "double" if math.isnan(value) or math.isinf(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    # cqlsh reads milliseconds since 1970 as well as a date, whatever format is configured.
    return str(value)
