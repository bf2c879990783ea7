"""Stream sources: the interface for tables on vnodes and on tablets, and the periods in which their streams operate.

A period is small and travels to executors. Its streams are read where they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from cdc_platform.clock import Microseconds, format_us
from cdc_platform.errors import StateError, WriteRefused
from cdc_platform.generations import AcceptancePolicy, WriteDecision, WriteVerdict
from cdc_platform.ring import Bools, Int64s, RangeLookup, UInt8s


@dataclass(frozen=True, eq=False)
class KnownStreams:
    """The streams of a period: `streams` uint8[k, 16] by range, those of range i from `offsets[i]` on; int64[n + 1].

    `assign` is the rule that maps tokens to streams. `by_range` (bool[n]) marks ranges where it does not hold, because
    the order of their streams is unknown.
    """

    range_ends: Int64s
    offsets: Int64s
    streams: UInt8s
    by_range: Bools
    assign: Callable[[Int64s], UInt8s]

    @cached_property
    def _lookup(self) -> RangeLookup:
        return RangeLookup(self.range_ends)

    def range_of(self, tokens: Int64s) -> Int64s:
        """Return the range (int64[k]) of each token."""
        return self._lookup.row_of(tokens)

    def has(self, streams: UInt8s, ranges: Int64s) -> Bools:
        """Return which streams (uint8[k, 16]) belong to their range (int64[k])."""
        present = np.zeros(len(streams), dtype=bool)
        counts = np.diff(self.offsets)[ranges]
        for index in range(int(counts.max(initial=0))):
            rows = np.flatnonzero((counts > index) & ~present)
            present[rows] = (self.streams[self.offsets[ranges[rows]] + index] == streams[rows]).all(axis=1)
        return present


class PeriodStreamReader(Protocol):
    """Reader of a period's streams, on any machine."""

    def read(self) -> KnownStreams:
        """Return the streams.

        Raises:
            StateError, NotFound: they are missing, incomplete or damaged.
            InputError: they are not streams of a generation.
        """
        ...


@dataclass(frozen=True)
class UnreadableStreams:
    """Placeholder for streams that should exist but do not."""

    reason: str

    def read(self) -> KnownStreams:
        """Raise the reason.

        Raises:
            StateError: always, with the reason.
        """
        raise StateError(self.reason)


@dataclass(frozen=True)
class StreamPeriod:
    """A generation or a stream set from `begin_us` (µs) to just before `end_us`; None: it has no successor yet.

    `name` is its name in messages. `published`: readers see it. `empty`: it is published without a row of streams.
    `removed`: its streams were removed, and reading them raises an error that says so.
    """

    begin_us: Microseconds
    name: str
    reader: PeriodStreamReader
    published: bool = True
    removed: bool = False
    end_us: Microseconds | None = None
    empty: bool = False

    def streams(self) -> KnownStreams:
        """Return the streams that log rows of this time can have.

        Raises:
            StateError, NotFound, InputError: as `PeriodStreamReader.read`.
        """
        return self.reader.read()


def generation_period(
    begin_us: Microseconds, reader: PeriodStreamReader, *, published: bool, removed: bool, empty: bool
) -> StreamPeriod:
    """Return the period of a generation that begins at this time (µs), without its end."""
    return StreamPeriod(begin_us, f"the generation of {format_us(begin_us)}", reader, published, removed, empty=empty)


def stream_set_period(
    begin_us: Microseconds, reader: PeriodStreamReader, *, removed: bool = False, empty: bool = False
) -> StreamPeriod:
    """Return the period of a stream set that begins at this time (µs). Existing sets are always published."""
    return StreamPeriod(begin_us, f"the stream set of {format_us(begin_us)}", reader, not removed, removed, empty=empty)


def chain_periods(periods: Iterable[StreamPeriod]) -> list[StreamPeriod]:
    """Return the periods, oldest first, each ended by the next."""
    return list(_with_ends(list(periods)))


def _with_ends(periods: list[StreamPeriod]) -> Iterator[StreamPeriod]:
    for index, period in enumerate(periods):
        yield replace(period, end_us=periods[index + 1].begin_us if index + 1 < len(periods) else None)


StreamFinder = Callable[[pa.Array, pa.Array], pa.Array]
"""Maps keys (binary, serialized) and timestamps (int64, µs) to stream IDs (binary, null if there is no stream)."""


class WriteExplanation(Protocol):
    """The explanation of one write."""

    @property
    def accepted(self) -> bool:
        """Return True if a coordinator accepts the write now."""
        ...

    def facts(self) -> dict[str, Any]:
        """Return the explanation as plain values by name, in display order."""
        ...


class StreamSource(Protocol):
    """Which stream the writes to a table get. It is a snapshot; create a new one for the current state."""

    @property
    def in_generations(self) -> bool:
        """Return True if log rows are in streams of generations, so that the acceptance policy applies."""
        ...

    def decide(self, write_ts_us: Microseconds, now_us: Microseconds) -> WriteDecision:
        """Return the verdict on a write with this timestamp (µs) by a coordinator whose clock shows `now_us`."""
        ...

    def stream_of(self, write_ts_us: Microseconds, token: int, now_us: Microseconds) -> bytes:
        """Return the stream ID (16 bytes) for a write of a token.

        Raises:
            WriteRefused: the write is not accepted; its verdict and message say why and what to do.
            StateError: the stream is unknown.
        """
        ...

    def explain(
        self, token: int, at_us: Microseconds, now_us: Microseconds, policy: AcceptancePolicy | None = None
    ) -> WriteExplanation:
        """Explain where a write of a token with timestamp `at_us` (µs) goes, accepted or not, and why not."""
        ...

    def finder(self) -> StreamFinder:
        """Return a finder of streams for many writes. It can be sent to executors, where it reads descriptions.

        It looks up the past and does not check whether a coordinator would have accepted the writes. It still refuses a
        stream that an undecided switch may change (WriteRefused, UNDECIDED).

        Raises:
            StateError: a generation has no ID, so its description cannot be read, or a stream set is damaged.
        """
        ...

    def periods(self) -> Sequence[StreamPeriod]:
        """Return the periods in which streams operate, oldest first."""
        ...

    def is_complete(self, begin_us: Microseconds) -> bool:
        """Return True if readers see all streams of the period that begins at this time (µs)."""
        ...


def assert_accepted(decision: WriteDecision) -> None:
    """Raise WriteRefused if the decision is not OK.

    Raises:
        WriteRefused: the write is not accepted.
    """
    if decision.verdict is not WriteVerdict.OK:
        raise WriteRefused(decision.verdict, decision.reason)
