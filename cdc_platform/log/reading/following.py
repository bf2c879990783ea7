"""A consumer that goes on window after window, from wherever its rows come: exactly once, whoever dies in between.

It knows the order of steps; what copies the rows of a window, and by which commit, is handed to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from cdc_platform import failpoints
from cdc_platform.clock import ONE_US, Clock, Microseconds, format_us
from cdc_platform.cql.schema import TableSchema
from cdc_platform.errors import ConflictError, StateError
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import Table
from cdc_platform.log.reading import left_out
from cdc_platform.log.reading.left_out import Tell
from cdc_platform.log.reading.sets import assert_complete, sets_of, stream_sets
from cdc_platform.log.reading.stream_progress import StreamProgress, set_mark, unread
from cdc_platform.log.reading.windows import Sets, Window, next_window
from cdc_platform.records import consumers, passed_over
from cdc_platform.records.consumers import Consumer
from cdc_platform.timeline import StreamSource, StreamSources


class TooManyRows(Exception):
    """A window has more rows than fit into memory; the one who copies it wants a shorter one from now on."""


class Copier(Protocol):
    """What brings the rows of windows into a consumer's sink, from wherever the log is."""

    @property
    def sink(self) -> Table:
        """Where they go."""
        ...

    def longest_us(self, after_us: Microseconds) -> Microseconds | None:
        """How long (µs) a window from there on may be; None for as long as it likes."""
        ...

    def rows_left(self, window: Window) -> int | None:
        """How many rows of the log are left out where a window is passed over; None where nobody can tell."""
        ...

    def copy(self, source: StreamSource, window: Window, marks: Mapping[str, int], expected: int | None) -> int | None:
        """Put the rows of a window, none of one that is passed over, and the marks into the sink by one commit.

        Only while the number of the first mark is still `expected`. Answers with the rows, None where it is not.

        Raises:
            TooManyRows: ask for it again, with what `longest_us` says then.
        """
        ...

    def origin_us(self, consumer: Consumer) -> Microseconds:
        """Return behind which time (µs) to look for unread sets, for a sink that does not note where it began."""
        ...

    def copy_unread(
        self, source: StreamSource, window: Window, marks: Mapping[str, int], expected: int | None
    ) -> int | None:
        """As `copy`, for a window that the position has passed: add only the rows that the sink does not have yet.

        Raises:
            TooManyRows: ask for it again, with what `longest_us` says then.
        """
        ...


def follow(
    lake: Lake,
    clock: Clock,
    schema: TableSchema,
    consumer: Consumer,
    copier: Copier,
    horizon_us: Microseconds,
    tell: Tell,
) -> tuple[Consumer, int]:
    """Copy window after window up to the horizon (µs); answers with where the consumer is then, and its rows.

    Each window goes in with its number and its end in one commit, and the position moves after it: whoever is killed
    in between finds the window there, and does not read it again. A set whose start the position passed before the set
    could be read is read from its start first. The position stays where it is meanwhile.

    Raises:
        StateError: what comes next was in a generation that has been removed, or whose streams are not complete; or
            the sink lacks windows, or has those of another.
        ConflictError: another process reads under the same name.
    """
    consumer, count = _caught_up(lake, clock, schema, copier.sink, consumer), 0
    progress, known = StreamProgress(consumer.name), None
    while True:
        source = StreamSources(lake).of(schema.keyspace, schema.name)
        sets = sets_of(source, clock.now_us())
        _assert_not_lost(sets, consumer)
        if known != sets.seen:
            progress = StreamProgress.of(lake, copier.sink, consumer.name, sets.seen)
            known = sets.seen
        origin = copier.origin_us(consumer) if progress.origin_us is None else progress.origin_us
        passed_us = min(consumer.position_us, horizon_us)
        missed = next(unread(progress, sets, Microseconds(passed_us), origin, consumer.window_number), None)
        if missed is not None:
            count += _read_missed(lake, source, consumer, missed, copier, progress, origin)
            continue
        at_most = copier.longest_us(consumer.position_us)
        window = next_window(sets, consumer.position_us, consumer.window_number, horizon_us, longest_us=at_most)
        if window is None:
            left_out.tell_what_came_later(lake, source, consumer, tell)
            return consumer, count
        window = _to_read(lake, clock, schema, source, consumer, window, copier, tell)
        marks = {consumer.name: window.number, _position_of(consumer.name): window.until_us}
        marks |= progress.marks(window, origin)
        try:
            rows = copier.copy(source, window, marks, _last_number(consumer))
        except TooManyRows:
            continue
        if rows is None:
            raise _read_by_another(consumer)
        progress.committed(marks, window)
        failpoints.reached(failpoints.AFTER_SINK)
        consumer = _moved(lake, clock, consumer, window)
        count += rows


def _read_missed(
    lake: Lake,
    source: StreamSource,
    consumer: Consumer,
    missed: Window,
    copier: Copier,
    progress: StreamProgress,
    origin_us: Microseconds,
) -> int:
    """Read one window of a set whose start the position has passed; return how many rows were new.

    Its rows are added by key, so that a window which is read again after a kill doubles nothing.

    Raises:
        StateError: its streams are not complete.
        ConflictError: another process reads under the same name.
    """
    assert_complete(source, missed)
    longest = copier.longest_us(missed.after_us)
    if longest is not None:
        missed = replace(missed, until_us=Microseconds(min(missed.until_us, missed.after_us + longest)))
    marks = {set_mark(consumer.name, missed.set_us): missed.until_us, **progress.marks(missed, origin_us)}
    try:
        rows = copier.copy_unread(source, missed, marks, progress.read_us.get(missed.set_us))
    except TooManyRows:
        return 0
    if rows is None:
        raise _read_by_another(consumer)
    progress.committed(marks, missed)
    failpoints.reached(failpoints.AFTER_SINK)
    left_out.read_after_all(lake, consumer, missed.set_us)
    return rows


def _to_read(
    lake: Lake,
    clock: Clock,
    schema: TableSchema,
    source: StreamSource,
    consumer: Consumer,
    window: Window,
    copier: Copier,
    tell: Tell,
) -> Window:
    """The window as it is read, or as it is passed over, which is noted before anything moves."""
    if window.passed and not _has_read_of(lake, consumer, window):
        left_out.pass_over(lake, clock, consumer, window, copier.rows_left, tell)
        return window
    assert_complete(source, window)
    if window.after_us < window.set_us:
        left_out.read_after_all(lake, consumer, window.set_us)
    return replace(window, passed=False)


def _has_read_of(lake: Lake, consumer: Consumer, window: Window) -> bool:
    """Whether the consumer has read rows of the window's set: then it had streams, which are gone."""
    noted = passed_over.passed_over(lake).get(consumer.key, ())
    return consumer.set_timestamp_us == window.set_us and window.set_us not in noted


def _last_number(consumer: Consumer) -> int | None:
    """The number of the last transaction that the sink of a consumer has seen; None before its first window."""
    return consumer.window_number or None


def _caught_up(lake: Lake, clock: Clock, schema: TableSchema, sink: Table, consumer: Consumer) -> Consumer:
    """The consumer behind all windows that its sink has: a process that was killed left one that is not noted."""
    number = lake.transaction(sink, consumer.name)
    if number is None or number <= consumer.window_number:
        if (number or 0) < consumer.window_number:
            raise StateError(
                f"{sink.full_name} lacks windows that consumer {consumer.full_name} has read; bring it back,"
                " or forget the consumer and remove what is left of the table"
            )
        return consumer
    until = lake.transaction(sink, _position_of(consumer.name))
    if until is None or number != consumer.window_number + 1:
        if consumers.find(lake, *consumer.key).window_number != consumer.window_number:
            raise _read_by_another(consumer)  # who has brought the windows in since the consumer was looked up
        raise StateError(
            f"{sink.full_name} has windows that consumer {consumer.full_name} never read; it was forgotten:"
            " remove the table, or read under another name"
        )
    sets = stream_sets(lake, schema, clock.now_us())
    begun = max(each for each in (*sets.seen, *sets.removed) if each <= until)
    return _moved(lake, clock, consumer, Window(number, begun, consumer.position_us, Microseconds(until)))


def _read_by_another(consumer: Consumer) -> ConflictError:
    table = f"{consumer.keyspace_name}.{consumer.table_name}"
    return ConflictError(f"another process reads {table} as {consumer.name}; stop one, or give each its name")


def _moved(lake: Lake, clock: Clock, consumer: Consumer, window: Window) -> Consumer:
    return consumers.advance(
        lake,
        clock,
        consumer,
        position_us=window.until_us,
        set_timestamp_us=window.set_us,
        expected_window=window.number - 1,
    )


def _position_of(name: str) -> str:
    """The application under which a sink notes, beside a window's number, where the window ended."""
    return f"{name}:position"


def _assert_not_lost(sets: Sets, consumer: Consumer) -> None:
    first = min((*sets.seen, *sets.removed), default=None)
    begun = consumer.set_timestamp_us
    if begun is not None and first is not None and begun < first and consumer.position_us + ONE_US < first:
        raise StateError(
            f"consumer {consumer.full_name} is at {format_us(consumer.position_us)} in the set of {format_us(begun)},"
            f" which is gone; what it has not read before {format_us(first)} is lost: forget it and register it anew"
        )
