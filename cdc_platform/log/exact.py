"""Values that dates and timestamps of Delta cannot hold: as JSON in one column, beside the nearest that they can.

Readers of Delta agree on dates of the years 1 to 9999, and on timestamps that 64 bits of nanoseconds hold, since Spark
writes those as INT96. CQL has dates of 32 bits of days and timestamps of 64 bits of milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from ipaddress import ip_address
from typing import Any
from uuid import UUID

import numpy as np

from cdc_platform.clock import MILLISECOND_NS, Milliseconds
from cdc_platform.cql.scalars import integer_of_text, integer_text
from cdc_platform.cql.times import days_of, parse_duration
from cdc_platform.cql.types import CqlType, ListType, MapType, Scalar, SetType, Value

FIRST_DAY = days_of(1, 1, 1)
LAST_DAY = days_of(9999, 12, 31)
"""The days (since 1970) that every reader of Delta tables has."""
LAST_MS = Milliseconds((2**63 - 1) // MILLISECOND_NS)
FIRST_MS = -LAST_MS
"""The milliseconds (since 1970) that every reader has: from 1677-09-21 to 2262-04-11."""
OF_TEXT: Mapping[str, Callable[[str], Any]] = {
    "decimal": Decimal,
    "duration": parse_duration,
    "inet": ip_address,
    "timeuuid": UUID,
    "uuid": UUID,
    "varint": integer_of_text,
}
"""The types whose values are text in Delta, and how they are read back from it."""
_BOUNDS = {"date": (FIRST_DAY, LAST_DAY), "timestamp": (FIRST_MS, LAST_MS)}


def nearest(kind: Scalar, value: int) -> int:
    """The nearest date (days) or timestamp (ms) that a native column holds."""
    low, high = _BOUNDS[kind.name]
    return min(max(value, low), high)


def nearest_of(name: str, values: np.ndarray) -> np.ndarray:
    """As `nearest`, of many (int64), by the type's name."""
    return np.clip(values, *_BOUNDS[name])


def may_be_far(kind: CqlType) -> bool:
    """Whether a type is, or has in it, dates or timestamps."""
    return (isinstance(kind, Scalar) and kind.name in _BOUNDS) or any(map(may_be_far, kind.parts))


def is_far(kind: CqlType, value: Value | None) -> bool:
    """Whether a canonical value is, or has in it, one that no native column holds."""
    if value is None:
        return False
    match kind:
        case Scalar():
            return kind.name in _BOUNDS and nearest(kind, value) != value
        case MapType():
            return any(is_far(kind.key, key) or is_far(kind.value, inner) for key, inner in value)
        case ListType() | SetType():
            return may_be_far(kind.element) and any(is_far(kind.element, part) for part in value)
    return any(is_far(part, inner) for part, inner in zip(kind.parts, value, strict=False))


def to_text(name: str, value: Value) -> str:
    """A value of one of the types in `OF_TEXT` as Delta has it."""
    return integer_text(value) if name == "varint" else str(value)


def encoded(kind: CqlType, value: Value) -> str:
    """A canonical value as JSON: dates and timestamps as integers, blobs in hexadecimal, what has parts as arrays."""
    return json.dumps(_plain(kind, value))


def decoded(kind: CqlType, text: str) -> Value:
    """The canonical value of what `encoded` made."""
    return _value(kind, json.loads(text))


def _plain(kind: CqlType, value: Value | None) -> Any:
    if value is None:
        return None
    match kind:
        case Scalar():
            if kind.name in OF_TEXT:
                return to_text(kind.name, value)
            return value.hex() if kind.name == "blob" else value
        case MapType():
            return [[_plain(kind.key, key), _plain(kind.value, inner)] for key, inner in value]
        case ListType() | SetType():
            return [_plain(kind.element, part) for part in value]
    return [_plain(part, inner) for part, inner in zip(kind.parts, value, strict=False)]


def _value(kind: CqlType, data: Any) -> Value | None:
    if data is None:
        return None
    match kind:
        case Scalar():
            if kind.name == "blob":
                return bytes.fromhex(data)
            return OF_TEXT[kind.name](data) if kind.name in OF_TEXT else kind.canonical(data)
        case MapType():
            return kind.canonical([(_value(kind.key, key), _value(kind.value, inner)) for key, inner in data])
        case ListType() | SetType():
            return kind.canonical([_value(kind.element, part) for part in data])
    return tuple(_value(part, inner) for part, inner in zip(kind.parts, data, strict=False))
