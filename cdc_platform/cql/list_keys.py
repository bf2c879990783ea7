"""The keys of a list's cells: timeuuids that put its elements in order, and that follow from the write's timestamp.

The values of a statement or batch are counted together, appended and prepended ones, up to ScyllaDB's limit. The i-th
one, appended at T (µs), has the time T and min(i, 9) steps of 100 ns; from the tenth on the node part counts on, in
digits from 0 to 127, since timeuuids compare the bytes of it as signed ones. What is put in front has the time that
lies as far before 2010 as T lies behind it, so that later writes come first, and counts down from the limit
(cql3/lists.cc, prepender).
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from cdc_platform.clock import Microseconds
from cdc_platform.cql.timeuuid import timeuuid
from cdc_platform.errors import InputError

MOST_VALUES = 1 << 17
"""The values that all lists of one statement or batch may get (utils/UUID_gen.hh, SUBMICRO_LIMIT)."""
_MIRROR_US = Microseconds(1_262_304_000_000_000)
"""2010-01-01, in µs since 1970: as far as a write is behind it, as far before it are the keys of what it prepends."""
_SEQUENCE = 0xAF55 << 48
_STEPS = 9
_DIGITS = 6
_A_STEP = MOST_VALUES // 8
"""How many of the prepended keys share a step of 100 ns."""


class ListKeys:
    """The keys that one statement or batch gives, in whatever number of appends and prepends, at whatever times."""

    def __init__(self) -> None:
        self._given = 0

    def appended(self, timestamp: Microseconds, count: int) -> Iterator[UUID]:
        """Keys for `count` elements behind all others, in order; `timestamp` is the write's (µs).

        Raises:
            InputError: those are more values than a statement or batch may have.
        """
        self._reserve(count, MOST_VALUES)
        for place in range(self._given - count, self._given):
            steps = min(place, _STEPS)
            yield timeuuid(timestamp, _low(1 + place - steps), steps)

    def prepended(self, timestamp: Microseconds, count: int) -> Iterator[UUID]:
        """Keys for `count` elements in front of all others, in order; of several prepends the last one comes first.

        Raises:
            InputError: those are more values than a statement or batch may have, or the timestamp has no mirror.
        """
        if timestamp <= _MIRROR_US:
            raise InputError(
                "List prepend custom timestamp must be greater than Jan 1 2010 00:00:00; USING TIMESTAMP is"
                f" {timestamp}, which is not above {_MIRROR_US}"
            )
        self._reserve(count, MOST_VALUES - 1)
        for place in range(MOST_VALUES - self._given, MOST_VALUES - self._given + count):
            steps, number = divmod(place, _A_STEP)
            yield timeuuid(_MIRROR_US * 2 - timestamp, _low(1 + number), steps)

    def _reserve(self, count: int, most: int) -> None:
        if count and self._given + count > most:
            raise InputError(
                f"Too many list values per single CQL statement or batch: {self._given + count}; one has at most"
                f" {most}, so write them in several statements"
            )
        self._given += count


def _low(number: int) -> int:
    low = _SEQUENCE
    for place in range(_DIGITS):
        low |= (number >> 7 * place & 0x7F) << 8 * place
    return low
