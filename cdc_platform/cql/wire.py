"""What the bytes of CQL's protocol are worth as values of any type: the way back from `CqlType.to_bytes`.

Wider than Python: a timestamp of any year is the integer that it is. The scalar types' bytes are read by `blobs`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from cdc_platform.cql.blobs import value_of_bytes
from cdc_platform.cql.times import Duration
from cdc_platform.cql.types import (
    BIGINT,
    CqlType,
    ListType,
    MapType,
    Scalar,
    SetType,
    TupleType,
    UserType,
    Value,
    VectorType,
)
from cdc_platform.errors import InputError


def read_value(kind: CqlType, data: bytes) -> Value | None:
    """The canonical value that bytes hold; None for no bytes of a type whose values all have some.

    A user type's value may have fewer fields than the type: it was written before those were added.

    Raises:
        InputError: they hold none of this type.
    """
    match kind:
        case Scalar():
            return _scalar(kind, data)
        case VectorType():
            return kind.canonical([read_value(kind.element, part) for part in _equal_parts(kind, data)])
        case MapType():
            parts = _counted(kind, data, 2)
            return kind.canonical([(_inside(kind.key, key), _inside(kind.value, value)) for key, value in parts])
        case ListType() | SetType():
            return kind.canonical([_inside(kind.element, part) for (part,) in _counted(kind, data, 1)])
        case TupleType() | UserType():
            return kind.canonical(_components(kind, data))
    raise AssertionError(f"unreachable: {kind}")


def _scalar(kind: Scalar, data: bytes) -> Value | None:
    if kind.name == "blob":
        return data
    if not data and kind.name not in ("text", "ascii"):
        return None
    if kind.name == "duration":
        return kind.canonical(_duration(kind, data))
    return value_of_bytes(BIGINT if kind.name == "counter" else kind, data)


def _inside(kind: CqlType, data: bytes | None) -> Value | None:
    """An element of a collection, which is never null."""
    if data is None:
        raise InputError(f"an element of type {kind.cql} is null; elements of collections have values")
    return read_value(kind, data)


def _counted(kind: CqlType, data: bytes, width: int) -> Iterator[tuple[bytes | None, ...]]:
    """The elements of a collection, `width` parts each: a count, and each part behind its length."""
    if len(data) < 4:
        raise _damaged(kind, data)
    parts = _with_lengths(kind, data, 4)
    for _ in range(int.from_bytes(data[:4], "big", signed=True)):
        found = tuple(islice(parts, width))
        if len(found) < width:
            raise _damaged(kind, data)
        yield found


def _components(kind: TupleType | UserType, data: bytes) -> list[Value | None]:
    found = list(_with_lengths(kind, data, 0))
    if len(found) > len(kind.parts):
        raise InputError(f"{len(found)} components; {kind.cql} has {len(kind.parts)}")
    return [None if part is None else read_value(inner, part) for inner, part in zip(kind.parts, found, strict=False)]


def _with_lengths(kind: CqlType, data: bytes, at: int) -> Iterator[bytes | None]:
    """Values behind each other, each behind its length (int32; negative: null)."""
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "big", signed=True)
        at += 4
        if length < 0:
            yield None
            continue
        if at + length > len(data):
            raise _damaged(kind, data)
        yield data[at : at + length]
        at += length


def _equal_parts(kind: VectorType, data: bytes) -> Iterator[bytes]:
    size, rest = divmod(len(data), kind.dimension)
    if rest or not size:
        raise _damaged(kind, data)
    return (data[at : at + size] for at in range(0, len(data), size))


def _duration(kind: Scalar, data: bytes) -> Duration:
    """Three integers of variable length, zigzag; the leading ones of a first byte count the bytes behind it."""
    numbers, at = [], 0
    for _ in range(3):
        if at >= len(data):
            raise _damaged(kind, data)
        more = 8 - (data[at] ^ 0xFF).bit_length()
        coded = int.from_bytes(bytes([data[at] & (0xFF >> more)]) + data[at + 1 : at + 1 + more], "big")
        numbers.append((coded >> 1) ^ -(coded & 1))
        at += 1 + more
    if at != len(data):
        raise _damaged(kind, data)
    return Duration(*numbers)


def _damaged(kind: CqlType, data: bytes) -> InputError:
    return InputError(f"0x{data[:20].hex()} of {len(data)} bytes is no value of type {kind.cql}")
