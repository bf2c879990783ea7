"""Choose a consumer's next window, and the generations and stream sets that it may read or has to wait for.

No window crosses the end of a generation.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from cdc_platform.clock import ONE_US, SECOND_US, Microseconds, format_us
from cdc_platform.cql import TableSchema
from cdc_platform.delta import Lake
from cdc_platform.errors import StateError
from cdc_platform.timeline import StreamPeriod, StreamSource, StreamSources


@dataclass(frozen=True)
class Window:
    """The rows with `after_us` < timestamp <= `until_us`, all in the generation or set that began at `set_us`.

    `passed`: none of them is read, because that generation is skipped.
    """

    number: int
    set_us: Microseconds
    after_us: Microseconds
    until_us: Microseconds
    passed: bool = False


@dataclass(frozen=True)
class ReaderSets:
    """The generations, or a table's stream sets, by start (µs).

    `seen` were shown to readers; `removed` existed once. `awaited` is the first that has not been shown yet but will
    be, None if there is none. `passed` are those of `seen` that are skipped, as they have no streams.
    """

    seen: Sequence[Microseconds]
    removed: Collection[Microseconds] = ()
    awaited: Microseconds | None = None
    passed: Collection[Microseconds] = ()


def next_window(
    sets: ReaderSets,
    position_us: Microseconds,
    windows: int,
    horizon_us: Microseconds,
    *,
    longest_us: Microseconds | None = None,
) -> Window | None:
    """Return window number `windows` + 1, after `position_us` (everything up to it is read); None for none yet.

    It ends with its generation (1 µs before the next one begins), after `longest_us`, or at `horizon_us`, whichever is
    first. There is nothing to read before the first generation, nor yet in one that is awaited.

    Raises:
        StateError: the next rows are in a generation that has been removed.
    """
    begins = sorted({*sets.seen, *sets.removed})
    if not begins:
        return None
    if sets.awaited is not None:
        horizon_us = min(horizon_us, sets.awaited - ONE_US)
    after = max(position_us, begins[0] - ONE_US)
    index = bisect_right(begins, after + ONE_US) - 1
    end = begins[index + 1] - ONE_US if index + 1 < len(begins) else horizon_us
    until = min(end, horizon_us, end if longest_us is None else after + longest_us)
    if until <= after:
        return None
    if begins[index] not in set(sets.seen):
        raise StateError(
            f"the rows from {format_us(after + ONE_US)} to {format_us(end)} were in the generation of"
            f" {format_us(begins[index])}, which has been removed: a reader at {format_us(position_us)} has lost them;"
            " remove the consumer and register one that begins after them"
        )
    return Window(windows + 1, begins[index], after, until, begins[index] in sets.passed)


CONFIDENCE_WINDOW_US = SECOND_US * 30
"""A reader's distance from the clock: younger rows may still arrive."""


def read_reader_sets(lake: Lake, schema: TableSchema, now_us: int) -> ReaderSets:
    """Return the periods of the table's log that readers may read at `now_us`, and the first that they wait for."""
    return reader_sets_from_source(StreamSources(lake).of(schema.keyspace, schema.name), now_us)


class ReaderSetsByTable:
    """The sets of `read_reader_sets` for many tables at one moment. The generations are read once for all tables."""

    def __init__(self, lake: Lake, now_us: int) -> None:
        self._sources, self._now_us = StreamSources(lake), now_us
        self._sets: dict[int, ReaderSets] = {}

    def of(self, schema: TableSchema) -> ReaderSets:
        """Return the sets of a table's log."""
        source = self._sources.of(schema.keyspace, schema.name)  # which `_sources` retains, so its ID is unique
        if id(source) not in self._sets:
            self._sets[id(source)] = reader_sets_from_source(source, self._now_us)
        return self._sets[id(source)]


class PeriodSource(Protocol):
    """The part of a stream source that decides on windows."""

    def periods(self) -> Sequence[StreamPeriod]:
        """Return the periods, the oldest first."""
        ...


def reader_sets_from_source(source: PeriodSource, now_us: int) -> ReaderSets:
    """Return the periods of a source as readers see them at `now_us`.

    Readers wait for a period that has not been shown to them, so that no row is read as one of the previous generation.
    Unshown periods before the last shown one count as absent, because some are never shown: those without rows in any
    log, which the rewrite to V2 skips, and generations that nodes forgot before they could publish them. If one is
    shown later after all, it is read from its own start (`iter_unread_windows`). A period that was shown without a
    single stream is skipped once a later operates; readers wait for the newest, as ScyllaDB's own clients do.
    """
    periods = source.periods()
    seen = [period.begin_us for period in periods if period.published]
    removed = [period.begin_us for period in periods if period.removed]
    newest_shown = max([*seen, *removed], default=None)
    later = [period.begin_us for period in periods if newest_shown is None or period.begin_us > newest_shown]
    operating = max((set_us for set_us in seen if set_us <= now_us - CONFIDENCE_WINDOW_US), default=0)
    passed = [
        period.begin_us for period in periods if period.published and period.empty and period.begin_us < operating
    ]
    return ReaderSets(seen, removed, min(later, default=None), passed)


def assert_streams_complete(source: StreamSource, window: Window) -> None:
    """Raise StateError if some of a window's streams are not published."""
    if not source.is_complete(window.set_us):
        raise StateError(
            f"the streams of the generation of {format_us(window.set_us)} are not all published yet; its rows are read"
            " once they are: publish it, then run this again"
        )
