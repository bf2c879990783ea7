"""Byte strings that are concatenated, each after its length (int32, big-endian; -1 for null).

CQL serializes collections, tuples and user types so, and stored table states their clustering keys and range bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cdc_platform.errors import InputError

_LENGTH_BYTES = 4
_NULL = b"\xff\xff\xff\xff"


def join_length_prefixed(parts: Iterable[bytes | None]) -> bytes:
    """Concatenate byte strings, each after its length."""
    return b"".join(_NULL if part is None else len(part).to_bytes(_LENGTH_BYTES, "big") + part for part in parts)


def split_length_prefixed(data: bytes, start: int = 0) -> Iterator[bytes | None]:
    """Yield the byte strings in `data` from the position `start` on.

    Raises:
        InputError: the data end within a length or a byte string.
    """
    while start < len(data):
        begin = start + _LENGTH_BYTES
        length = int.from_bytes(data[start:begin], "big", signed=True)
        start = begin + max(length, 0)
        if start > len(data):
            raise InputError(f"{len(data)} bytes end within a value that needs {start}")
        yield None if length < 0 else data[begin:start]
