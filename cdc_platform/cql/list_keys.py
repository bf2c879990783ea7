"""The keys of a list's cells: timeuuids that put its elements in order, and that follow from the write's timestamp.

Element i appended by a write at T (µs) has the time T and min(i, 9) steps of 100 ns; from the tenth on the node part
counts on, in digits from 0 to 127, since timeuuids compare the bytes of it as signed ones. What is put in front has the
time that lies as far before 2010 as T lies behind it, so that later writes come first.
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from cdc_platform.cql.timeuuid import timeuuid

_MIRROR_US = 1_262_304_000_000_000
"""2010-01-01, in µs since 1970: as far as a write is behind it, as far before it are the keys of what it prepends."""
_SEQUENCE = 0xAF55 << 48
_STEPS = 9
_DIGITS = 6


class ListKeys:
    """The keys that one write at a timestamp (µs) gives, in whatever number of appends and prepends a batch makes."""

    def __init__(self, timestamp: int) -> None:
        self._timestamp = timestamp
        self._appended = 0
        self._prepended = 0

    def appended(self, count: int) -> Iterator[UUID]:
        """Keys for `count` elements behind all others, in order."""
        for _ in range(count):
            steps = min(self._appended, _STEPS)
            yield timeuuid(self._timestamp, _low(1 + self._appended - steps), steps)
            self._appended += 1

    def prepended(self, count: int) -> Iterator[UUID]:
        """Keys for `count` elements in front of all others, in order."""
        # Of several prepends in one batch the last one comes first.
        steps = max(_STEPS - self._prepended, 0)
        self._prepended += 1
        for place in range(count):
            yield timeuuid(2 * _MIRROR_US - self._timestamp, _low(1 + place), steps)


def _low(number: int) -> int:
    low = _SEQUENCE
    for place in range(_DIGITS):
        low |= (number >> 7 * place & 0x7F) << 8 * place
    return low
