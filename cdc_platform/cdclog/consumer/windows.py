"""Choose the next window of a consumer, and the generations and stream sets that it may read or awaits.

No window crosses the end of a generation.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from cdc_platform.clock import ONE_US, SECOND_US, Microseconds, format_us
from cdc_platform.cql import TableSchema
from cdc_platform.delta import Lake
from cdc_platform.errors import StateError
from cdc_platform.timeline import StreamSource, StreamSources


@dataclass(frozen=True)
class Window:
    """The rows with `after_us` < timestamp <= `until_us`, all in the generation or set that began at `set_us`.

    `passed`: none of them is read, because that generation is passed over.
    """

    number: int
    set_us: Microseconds
    after_us: Microseconds
    until_us: Microseconds
    passed: bool = False


@dataclass(frozen=True)
class ReaderSets:
    """The generations, or a table's stream sets, by the time (µs) at which each begins.

    `seen` are those that readers have been shown, `removed` those that were there once. `awaited` is the first that
    they have not been shown and will be, None where there is none. `passed` are those of `seen` that are passed over,
    as they have no streams.
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
    """The window after `position_us` (everything at or before it is read) in number `windows` + 1; None for none yet.

    It ends with its generation, one µs before the next one begins, after `longest_us`, or at `horizon_us`, whichever
    is first. Before the first generation there is nothing to read, and nothing yet of one that is awaited.

    Raises:
        StateError: what comes next is in a generation that has been removed.
    """
    begins = sorted({*sets.seen, *sets.removed})
    if not begins:
        return None
    if sets.awaited is not None:
        horizon_us = min(horizon_us, sets.awaited - ONE_US)
    after = max(position_us, begins[0] - ONE_US)
    place = bisect_right(begins, after + ONE_US) - 1
    end = begins[place + 1] - ONE_US if place + 1 < len(begins) else horizon_us
    until = min(end, horizon_us, end if longest_us is None else after + longest_us)
    if until <= after:
        return None
    if begins[place] not in set(sets.seen):
        raise StateError(
            f"the rows from {format_us(after + ONE_US)} to {format_us(end)} were in the generation of"
            f" {format_us(begins[place])}, which has been removed: a reader at {format_us(position_us)} has lost them;"
            " forget the consumer and register it anew behind them"
        )
    return Window(windows + 1, begins[place], after, until, begins[place] in sets.passed)


CONFIDENCE_WINDOW_US = SECOND_US * 30
"""How far behind the clock a reader stays: what is younger may still be on its way."""


def read_reader_sets(lake: Lake, schema: TableSchema, now_us: int) -> ReaderSets:
    """The periods of the table's log that readers may read at `now_us`, and from where on they have to wait."""
    return reader_sets_from_source(StreamSources(lake).of(schema.keyspace, schema.name), now_us)


def reader_sets_from_source(source: StreamSource, now_us: int) -> ReaderSets:
    """The periods of a source as readers see them at `now_us`.

    What readers have not been shown they wait for, so that no row is read as one of the generation before. Of old,
    such ones were left out on purpose, since no log holds rows of them: those count as if they were not there. One
    that they have been shown without a single stream is passed over once a later one operates, the newest is waited
    for: ScyllaDB's own clients do so.
    """
    periods = source.periods()
    seen = [each.begin_us for each in periods if each.shown]
    removed = [each.begin_us for each in periods if each.removed]
    told = max([*seen, *removed], default=None)
    later = [each.begin_us for each in periods if told is None or each.begin_us > told]
    operating = max((each for each in seen if each <= now_us - CONFIDENCE_WINDOW_US), default=0)
    passed = [each.begin_us for each in periods if each.shown and each.bare and each.begin_us < operating]
    return ReaderSets(seen, removed, min(later, default=None), passed)


def assert_streams_complete(source: StreamSource, window: Window) -> None:
    """Hold that a window's streams are all there."""
    if not source.is_complete(window.set_us):
        raise StateError(
            f"the streams of the generation of {format_us(window.set_us)} are not all published yet; its rows are read"
            " once they are: publish it, then run this again"
        )
