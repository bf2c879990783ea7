"""What bytes are worth as values of the scalar types, as blobAsInt() and its like read them.

Values are written by the types themselves, see `scalars`; this is the way back, with the sizes that each type has.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from decimal import Decimal
from ipaddress import ip_address
from uuid import UUID

from cdc_platform.cql.scalars import SCALARS, Scalar, Value
from cdc_platform.errors import InputError

_SIZES = {"tinyint": 1, "smallint": 2, "int": 4, "bigint": 8, "time": 8, "timestamp": 8}


def _signed(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


def _varint(data: bytes) -> int:
    if not data:
        raise ValueError
    return _signed(data)


def _decimal(data: bytes) -> Decimal:
    unscaled = _varint(data[4:])
    sign, digits, _ = Decimal(unscaled).as_tuple()
    return Decimal((sign, digits, -_signed(data[:4])))


def _boolean(data: bytes) -> bool:
    if len(data) != 1:
        raise ValueError
    return data != b"\0"


def _sized(size: int) -> Callable[[bytes], int]:
    def read(data: bytes) -> int:
        if len(data) != size:
            raise ValueError
        return _signed(data)

    return read


def _date(data: bytes) -> int:
    (days,) = struct.unpack(">I", data)
    return days - 2**31


_READERS: Mapping[str, Callable[[bytes], Value]] = {
    **{name: _sized(size) for name, size in _SIZES.items()},
    "ascii": lambda data: data.decode("ascii"),
    "boolean": _boolean,
    "date": _date,
    "decimal": _decimal,
    "double": lambda data: struct.unpack(">d", data)[0],
    "float": lambda data: struct.unpack(">f", data)[0],
    "inet": ip_address,
    "text": lambda data: data.decode(),
    "timeuuid": lambda data: UUID(bytes=data),
    "uuid": lambda data: UUID(bytes=data),
    "varint": _varint,
}
READABLE: tuple[Scalar, ...] = tuple(SCALARS[name] for name in sorted(_READERS))
"""The types that bytes can be read as."""


def value_of_bytes(kind: Scalar, data: bytes) -> Value:
    """The canonical value of a scalar type that bytes hold.

    Raises:
        InputError: they hold none; as in ScyllaDB (cql3/functions/bytes_conversion_fcts.hh) they are validated.
    """
    try:
        return kind.canonical(_READERS[kind.name](data))
    except (ValueError, ArithmeticError, struct.error):
        raise InputError(f"0x{data[:20].hex()} of {len(data)} bytes is no value of type {kind.cql}") from None
