"""When each generation or stream set of a table operates, and which streams its log rows can have then.

A period is small and travels to executors; its streams are read where they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from cdc_platform.clock import Microseconds, format_us
from cdc_platform.errors import StateError
from cdc_platform.ring import RangeLookup
from cdc_platform.ring.tokens import Bools, Int64s, UInt8s


@dataclass(frozen=True, eq=False)
class KnownStreams:
    """The streams of a period: `streams` uint8[k, 16] by range, those of range i from `offsets[i]` on; int64[n + 1].

    `given` is the rule: from tokens to their streams. `by_range` (bool[n]): ranges in which it does not hold, because
    the order of their streams is not known.
    """

    range_ends: Int64s
    offsets: Int64s
    streams: UInt8s
    by_range: Bools
    given: Callable[[Int64s], UInt8s]

    @cached_property
    def _lookup(self) -> RangeLookup:
        return RangeLookup(self.range_ends)

    def range_of(self, tokens: Int64s) -> Int64s:
        """The range (int64[k]) that each token lies in."""
        return self._lookup.row_of(tokens)

    def has(self, streams: UInt8s, ranges: Int64s) -> Bools:
        """Which streams (uint8[k, 16]) are among those of a range (int64[k])."""
        found = np.zeros(len(streams), dtype=bool)
        counts = np.diff(self.offsets)[ranges]
        for place in range(int(counts.max(initial=0))):
            rows = np.flatnonzero((counts > place) & ~found)
            found[rows] = (self.streams[self.offsets[ranges[rows]] + place] == streams[rows]).all(axis=1)
        return found


class StreamReader(Protocol):
    """What reads the streams of a period, on whichever machine it is asked."""

    def read(self) -> KnownStreams:
        """The streams.

        Raises:
            StateError, NotFound: they are not there, not whole, or damaged.
            InputError: they are no streams of a generation.
        """
        ...


@dataclass(frozen=True)
class Unreadable:
    """Stands for streams that should be there and are not."""

    reason: str

    def read(self) -> KnownStreams:
        """Nothing.

        Raises:
            StateError: always, with the reason.
        """
        raise StateError(self.reason)


@dataclass(frozen=True)
class Period:
    """A generation or a stream set from `begin_us` (µs) to just before `end_us`; None: nothing comes after it yet.

    `name` is how messages call it. `shown`: readers have been told of it. `bare`: they have, and there is not one row
    of streams for them. `removed`: its streams are gone, and asking for them says so.
    """

    begin_us: Microseconds
    name: str
    reader: StreamReader
    shown: bool = True
    removed: bool = False
    end_us: Microseconds | None = None
    bare: bool = False

    def streams(self) -> KnownStreams:
        """The streams that log rows of this time can have.

        Raises:
            As `StreamReader.read`.
        """
        return self.reader.read()


def generation_period(
    begin_us: Microseconds, reader: StreamReader, *, shown: bool, removed: bool, bare: bool
) -> Period:
    """The period of a generation that begins then (µs); where it ends the next one tells."""
    return Period(begin_us, f"the generation of {format_us(begin_us)}", reader, shown, removed, bare=bare)


def set_period(begin_us: Microseconds, reader: StreamReader, *, removed: bool = False, bare: bool = False) -> Period:
    """The period of a stream set that begins then (µs): readers are told of all sets that there are."""
    return Period(begin_us, f"the stream set of {format_us(begin_us)}", reader, not removed, removed, bare=bare)


def one_after_another(periods: Iterable[Period]) -> list[Period]:
    """Periods, oldest first, each ended by the next."""
    return list(_ended(list(periods)))


def _ended(periods: list[Period]) -> Iterator[Period]:
    for place, period in enumerate(periods):
        yield replace(period, end_us=periods[place + 1].begin_us if place + 1 < len(periods) else None)
