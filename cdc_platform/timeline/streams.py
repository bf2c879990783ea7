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


class PeriodStreamReader(Protocol):
    """What reads the streams of a period, on whichever machine it is asked."""

    def read(self) -> KnownStreams:
        """The streams.

        Raises:
            StateError, NotFound: they are not there, not whole, or damaged.
            InputError: they are no streams of a generation.
        """
        ...


@dataclass(frozen=True)
class UnreadableStreams:
    """Stands for streams that should be there and are not."""

    reason: str

    def read(self) -> KnownStreams:
        """Nothing.

        Raises:
            StateError: always, with the reason.
        """
        raise StateError(self.reason)


@dataclass(frozen=True)
class StreamPeriod:
    """A generation or a stream set from `begin_us` (µs) to just before `end_us`; None: nothing comes after it yet.

    `name` is how messages call it. `shown`: readers have been told of it. `bare`: they have, and there is not one row
    of streams for them. `removed`: its streams are gone, and asking for them says so.
    """

    begin_us: Microseconds
    name: str
    reader: PeriodStreamReader
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
    begin_us: Microseconds, reader: PeriodStreamReader, *, shown: bool, removed: bool, bare: bool
) -> StreamPeriod:
    """The period of a generation that begins then (µs); where it ends the next one tells."""
    return StreamPeriod(begin_us, f"the generation of {format_us(begin_us)}", reader, shown, removed, bare=bare)


def stream_set_period(
    begin_us: Microseconds, reader: PeriodStreamReader, *, removed: bool = False, bare: bool = False
) -> StreamPeriod:
    """The period of a stream set that begins then (µs): readers are told of all sets that there are."""
    return StreamPeriod(begin_us, f"the stream set of {format_us(begin_us)}", reader, not removed, removed, bare=bare)


def chain_periods(periods: Iterable[StreamPeriod]) -> list[StreamPeriod]:
    """Periods, oldest first, each ended by the next."""
    return list(_with_ends(list(periods)))


def _with_ends(periods: list[StreamPeriod]) -> Iterator[StreamPeriod]:
    for place, period in enumerate(periods):
        yield replace(period, end_us=periods[place + 1].begin_us if place + 1 < len(periods) else None)


StreamFinder = Callable[[pa.Array, pa.Array], pa.Array]
"""From keys (binary, serialized) and timestamps (int64, µs) to stream IDs (binary, null where there is none)."""


class WriteExplanation(Protocol):
    """What `explain` says of one write."""

    @property
    def accepted(self) -> bool:
        """Whether a coordinator takes the write now."""
        ...

    def facts(self) -> dict[str, Any]:
        """The answer in plain values by name, in the order in which people read it."""
        ...


class StreamSource(Protocol):
    """Which stream the writes to a table get. It says what held when it was made; ask a new one for what holds now."""

    @property
    def in_generations(self) -> bool:
        """Whether the log's rows lie in streams of generations, so that the policy counts and they hold these."""
        ...

    def decide(self, write_ts_us: Microseconds, now_us: Microseconds) -> WriteDecision:
        """The verdict on a write of this timestamp (µs) by a coordinator whose clock shows `now_us`."""
        ...

    def stream_of(self, write_ts_us: Microseconds, token: int, now_us: Microseconds) -> bytes:
        """The stream ID (16 bytes) of a write of a token.

        Raises:
            WriteRefused: the write is not accepted; its verdict and message say why and what to do.
            StateError: the stream cannot be told.
        """
        ...

    def explain(
        self, token: int, at_us: Microseconds, now_us: Microseconds, policy: AcceptancePolicy | None = None
    ) -> WriteExplanation:
        """Where a write of a token with timestamp `at_us` (µs) goes, accepted or not, and why not."""
        ...

    def finder(self) -> StreamFinder:
        """The streams of many writes; it may travel to executors and reads descriptions where it runs.

        Whether a coordinator would have accepted the writes is not asked: the past is looked up. But a stream that the
        decision on a switch may still change is refused as everywhere: WriteRefused, UNDECIDED.

        Raises:
            StateError: a generation has no ID so that its description cannot be read, or a stream set is damaged.
        """
        ...

    def periods(self) -> Sequence[StreamPeriod]:
        """When which streams operate, oldest first."""
        ...

    def is_complete(self, begin_us: Microseconds) -> bool:
        """Whether the streams of the period that begins then (µs) are all there for readers."""
        ...


def assert_accepted(decision: WriteDecision) -> None:
    """Hold that a write is accepted.

    Raises:
        WriteRefused: it is not.
    """
    if decision.verdict is not WriteVerdict.OK:
        raise WriteRefused(decision.verdict, decision.reason)
