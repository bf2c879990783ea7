"""Timeuuids of CDC logs (`cdc$time`) and of the cells of lists.

Low bits are derived from the write, so logging a write twice gives the same bytes. ScyllaDB counts the values of one
statement or batch together. The i-th appended one has the write's time and min(i, 9) steps of 100 ns, and from the
tenth on the node part counts in digits of 0 to 127, because timeuuids compare it as signed bytes. A prepended value has
the write's time mirrored at 2010 and counts down from the limit (cql3/lists.cc, prepender).
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, overload
from uuid import UUID

import numpy as np

from cdc_platform.clock import Microseconds
from cdc_platform.cql.types import GREGORIAN_OFFSET
from cdc_platform.errors import InputError

TIMEUUID_VERSION = 1
MIN_TIMEUUID_US = Microseconds(-GREGORIAN_OFFSET // 10)
"""The least time (µs since 1970) that a timeuuid can hold."""
MAX_TIMEUUID_US = Microseconds(((1 << 60) - 1 - GREGORIAN_OFFSET) // 10 - 1)
"""The greatest time (µs since 1970) that a timeuuid can hold."""
_MIN_LOW_HALF = 0x8080808080808080
"""The least low half in the order of timeuuids, whose low bytes are signed."""
_MAX_LOW_HALF = 0x7F7F7F7F7F7F7F7F
_VARIANT = 0x8000000000000000
_VARIANT_MASK = 0x3FFFFFFFFFFFFFFF


@overload
def timeuuid_high_half(ticks: int) -> int: ...
@overload
def timeuuid_high_half(ticks: np.ndarray) -> np.ndarray: ...
def timeuuid_high_half(ticks: Any) -> Any:
    """Return the high half of the timeuuid of a time in 100 ns since 1582: one (int) or many (uint64[n])."""
    return (ticks & 0xFFFFFFFF) << 32 | (ticks >> 32 & 0xFFFF) << 16 | TIMEUUID_VERSION << 12 | ticks >> 48


@overload
def timeuuid_low_half(bits: int) -> int: ...
@overload
def timeuuid_low_half(bits: np.ndarray) -> np.ndarray: ...
def timeuuid_low_half(bits: Any) -> Any:
    """Return a low half from any 64 bits, one or many; the variant replaces two of them."""
    return bits & _VARIANT_MASK | _VARIANT


@overload
def ticks_from_high_half(high: int) -> int: ...
@overload
def ticks_from_high_half(high: np.ndarray) -> np.ndarray: ...
def ticks_from_high_half(high: Any) -> Any:
    """Return the time in 100 ns since 1582 in a high half; the inverse of `timeuuid_high_half`."""
    return (high & 0xFFF) << 48 | (high >> 16 & 0xFFFF) << 32 | high >> 32


def make_timeuuid(us: Microseconds, low: int, steps: int = 0) -> UUID:
    """Return the timeuuid of a time (µs since 1970, plus `steps` of 100 ns) with the low half `low`, unchanged.

    Raises:
        InputError: the time is outside of the range of timeuuids, 1582-10-15 to 5236-03-31.
    """
    if not MIN_TIMEUUID_US <= us <= MAX_TIMEUUID_US:
        raise InputError(f"{us} µs cannot be the time of a timeuuid, which reaches from 1582-10-15 to 5236-03-31")
    ticks = us * 10 + steps + GREGORIAN_OFFSET
    return UUID(int=timeuuid_high_half(ticks) << 64 | low)


def make_log_timeuuid(us: Microseconds, *identity: bytes) -> UUID:
    """Return `cdc$time` of a log mutation, from the write's time (µs since 1970) and a hash of `identity`.

    A write that is logged again has the same identity and so the same bytes; two writes of one time differ.
    """
    hashed = b"".join([piece for part in identity for piece in (len(part).to_bytes(8, "big"), part)])
    return make_timeuuid(us, timeuuid_low_half(int.from_bytes(blake2b(hashed, digest_size=8).digest(), "big")))


def min_timeuuid(us: Microseconds) -> UUID:
    """Return the least timeuuid of a time (µs since 1970), as CQL's `minTimeuuid`."""
    return make_timeuuid(us, _MIN_LOW_HALF)


def max_timeuuid(us: Microseconds) -> UUID:
    """Return the greatest timeuuid of a time (µs since 1970), whose microsecond has ten steps of 100 ns."""
    return make_timeuuid(us, _MAX_LOW_HALF, steps=9)


MAX_LIST_VALUES = 1 << 17
"""The most values that one statement or batch may add to lists (utils/UUID_gen.hh, SUBMICRO_LIMIT)."""
_MIRROR_US = Microseconds(1_262_304_000_000_000)
"""2010-01-01, in µs since 1970. Keys of prepended values are as far before it as the write is after it."""
_CLOCK_SEQUENCE = 0xAF55 << 48
_MAX_STEPS = 9
_DIGITS = 6
_KEYS_PER_STEP = MAX_LIST_VALUES // 8
"""How many of the prepended keys share a step of 100 ns."""


class ListCellKeys:
    """Generates the list keys of one statement or batch, for any number of appends and prepends at any times."""

    def __init__(self) -> None:
        self._custom = 0

    def appended(self, timestamp: Microseconds, count: int) -> Iterator[UUID]:
        """Yield keys for `count` elements after all others, in order; `timestamp` is the write's (µs).

        Raises:
            InputError: the statement or batch exceeds the maximum number of values.
        """
        self._reserve(count, MAX_LIST_VALUES)
        for index in range(self._custom - count, self._custom):
            steps = min(index, _MAX_STEPS)
            yield make_timeuuid(timestamp, _list_low_half(1 + index - steps), steps)

    def prepended(self, timestamp: Microseconds, count: int) -> Iterator[UUID]:
        """Yield keys for `count` elements before all others, in order; of several prepends the last one comes first.

        Raises:
            InputError: the statement or batch exceeds the maximum number of values, or the timestamp has no mirror.
        """
        if timestamp <= _MIRROR_US:
            raise InputError(
                "List prepend custom timestamp must be greater than Jan 1 2010 00:00:00; USING TIMESTAMP is"
                f" {timestamp}, which is not above {_MIRROR_US}"
            )
        self._reserve(count, MAX_LIST_VALUES - 1)
        for index in range(MAX_LIST_VALUES - self._custom, MAX_LIST_VALUES - self._custom + count):
            steps, number = divmod(index, _KEYS_PER_STEP)
            yield make_timeuuid(_MIRROR_US * 2 - timestamp, _list_low_half(1 + number), steps)

    def _reserve(self, count: int, most: int) -> None:
        if count and self._custom + count > most:
            raise InputError(
                f"Too many list values per single CQL statement or batch: {self._custom + count}; one has at most"
                f" {most}, so write them in several statements"
            )
        self._custom += count


def _list_low_half(number: int) -> int:
    low = _CLOCK_SEQUENCE
    for digit in range(_DIGITS):
        low |= (number >> 7 * digit & 0x7F) << 8 * digit
    return low
