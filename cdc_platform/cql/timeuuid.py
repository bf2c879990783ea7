"""The timeuuids of a log: `cdc$time` of a write timestamp, with low bits that are the same each time it is made."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, overload
from uuid import UUID

import numpy as np

from cdc_platform.clock import Microseconds
from cdc_platform.cql.types import GREGORIAN
from cdc_platform.errors import InputError

VERSION = 1
FIRST_US = Microseconds(-GREGORIAN // 10)
"""The least time (µs since 1970) that a timeuuid can hold."""
LAST_US = Microseconds(((1 << 60) - 1 - GREGORIAN) // 10 - 1)
"""The greatest time (µs since 1970) that a timeuuid can hold."""
_LOWEST = 0x8080808080808080
"""The least low half in the order of timeuuids, whose low bytes are signed."""
_HIGHEST = 0x7F7F7F7F7F7F7F7F
_VARIANT = 0x8000000000000000
_VARIANT_MASK = 0x3FFFFFFFFFFFFFFF


@overload
def high_half(ticks: int) -> int: ...
@overload
def high_half(ticks: np.ndarray) -> np.ndarray: ...
def high_half(ticks: Any) -> Any:
    """The high half of the timeuuid of a time in 100 ns since 1582: of one (int) or of many (uint64[n])."""
    return (ticks & 0xFFFFFFFF) << 32 | (ticks >> 32 & 0xFFFF) << 16 | VERSION << 12 | ticks >> 48


@overload
def low_half(bits: int) -> int: ...
@overload
def low_half(bits: np.ndarray) -> np.ndarray: ...
def low_half(bits: Any) -> Any:
    """A low half made of any 64 bits, one or many: the variant takes two of them."""
    return bits & _VARIANT_MASK | _VARIANT


@overload
def ticks_of(high: int) -> int: ...
@overload
def ticks_of(high: np.ndarray) -> np.ndarray: ...
def ticks_of(high: Any) -> Any:
    """The time in 100 ns since 1582 in a high half; the inverse of `high_half`."""
    return (high & 0xFFF) << 48 | (high >> 16 & 0xFFFF) << 32 | high >> 32


def timeuuid(us: Microseconds, low: int, steps: int = 0) -> UUID:
    """The timeuuid of a time (µs since 1970, and `steps` of 100 ns) whose low half is `low`, as it stands.

    Raises:
        InputError: the time is outside of what a timeuuid can hold, 1582-10-15 to 5236-03-31.
    """
    if not FIRST_US <= us <= LAST_US:
        raise InputError(f"{us} µs cannot be the time of a timeuuid, which reaches from 1582-10-15 to 5236-03-31")
    ticks = us * 10 + steps + GREGORIAN
    return UUID(int=high_half(ticks) << 64 | low)


def log_time(us: Microseconds, *identity: bytes) -> UUID:
    """`cdc$time` of a log mutation: the time is the write's (µs since 1970), the low half a hash of `identity`.

    A write that is logged again has the same identity and so the same bytes; two writes of one time differ.
    """
    hashed = b"".join([piece for part in identity for piece in (len(part).to_bytes(8, "big"), part)])
    return timeuuid(us, low_half(int.from_bytes(blake2b(hashed, digest_size=8).digest(), "big")))


def earliest(us: Microseconds) -> UUID:
    """The least timeuuid of a time (µs since 1970), as `minTimeuuid` of CQL."""
    return timeuuid(us, _LOWEST)


def latest(us: Microseconds) -> UUID:
    """The greatest timeuuid of a time (µs since 1970): a microsecond has ten steps of 100 ns."""
    return timeuuid(us, _HIGHEST, steps=9)
