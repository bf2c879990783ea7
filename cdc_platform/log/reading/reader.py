"""Reading a CDC log in the order of its generations: every row once, nothing that may still change, exactly-once sinks.

Windows are cut by `windows`, positions kept by `consumers`; here rows are read and go to where they are wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from cdc_platform import failpoints
from cdc_platform.clock import ONE_US, SECOND_US, Clock, Microseconds, format_us, from_datetime, to_datetime
from cdc_platform.cql.names import is_name
from cdc_platform.cql.schema import TableSchema
from cdc_platform.errors import ConflictError, InputError, NotFound, StateError
from cdc_platform.lake import frames
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.rows import conform
from cdc_platform.lake.tables import Table
from cdc_platform.log.log_table import WRITTEN_AT, log_table
from cdc_platform.log.reading import left_out
from cdc_platform.log.reading.left_out import Tell
from cdc_platform.log.reading.windows import Sets, Window, next_window
from cdc_platform.records import consumers, passed_over
from cdc_platform.records.consumers import Consumer
from cdc_platform.timeline import StreamSource, StreamSources

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SAFETY_US = SECOND_US * 30
"""How far behind the clock a reader stays: what is younger may still be on its way."""
ROWS_AT_ONCE = 1_000_000
"""About as many rows as a consumer takes into memory at once, in whole files of the log."""
BY_HOUR = "hourly"
"""The name of the consumer that copies logs hour by hour; see `hourly`."""
_MOST_NAME = 48
"""The letters of a consumer's name, which stands in that of its table."""
_ORDER = (WRITTEN_AT, "cdc$stream_id", "cdc$time", "cdc$batch_seq_no")


def stream_sets(lake: Lake, schema: TableSchema, now_us: int) -> Sets:
    """The periods of the table's log that readers may read at `now_us`, and from where on they have to wait."""
    return sets_of(StreamSources(lake).of(schema.keyspace, schema.name), now_us)


def sets_of(source: StreamSource, now_us: int) -> Sets:
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
    later = [each.begin_us for each in periods if told is not None and each.begin_us > told]
    operating = max((each for each in seen if each <= now_us - SAFETY_US), default=0)
    passed = [each.begin_us for each in periods if each.shown and each.bare and each.begin_us < operating]
    return Sets(seen, removed, min(later, default=None), passed)


def read_changes(
    spark: SparkSession,
    lake: Lake,
    schema: TableSchema,
    since_us: Microseconds,
    until_us: Microseconds,
    *,
    now_us: Microseconds,
) -> DataFrame:
    """The log rows with `since_us` < timestamp <= `until_us` (µs), generation after generation, each row once.

    Nothing newer than `now_us` less the safety window is read, nothing of a generation whose streams are not all there,
    and nothing of one that is passed over. Sorted by time, stream and place in the batch.

    Raises:
        StateError: some of it was in a generation that has been removed, or whose streams are not complete.
        NotFound: the table has no log here.
    """
    from pyspark.sql import functions as F

    table = log_of(lake, schema)
    read = list(whole_windows(lake, schema, since_us, min(until_us, now_us - SAFETY_US), now_us))
    rows = frames.read(spark, lake, table)
    if not read:
        return rows.limit(0)
    when = F.col(f"`{WRITTEN_AT}`")

    def between(after: Microseconds, until: Microseconds) -> Column:
        return (when > F.lit(to_datetime(after))) & (when <= F.lit(to_datetime(until)))

    inside = between(read[0].after_us, read[-1].until_us)
    for passed in (each for each in read if each.passed):
        inside &= ~between(passed.after_us, passed.until_us)
    return rows.where(inside).orderBy(*(f"`{name}`" for name in _ORDER))


def whole_windows(
    lake: Lake, schema: TableSchema, after_us: Microseconds, horizon_us: Microseconds, now_us: Microseconds
) -> Iterator[Window]:
    """The windows from a position to a horizon, each of a whole generation, or of one that is passed over."""
    source = StreamSources(lake).of(schema.keyspace, schema.name)
    sets, position, number = sets_of(source, now_us), after_us, 0
    while (window := next_window(sets, position, number, horizon_us)) is not None:
        if not window.passed:
            _assert_complete(source, window)
        yield window
        position, number = window.until_us, window.number


def read_window(lake: Lake, schema: TableSchema, window: Window) -> pa.Table:
    """The rows of a window, sorted by time, stream and place in the batch; without a JVM."""
    low, high = to_datetime(window.after_us), to_datetime(window.until_us)
    log = log_of(lake, schema)
    # A column that ALTER TABLE added is in the log from the first rows on that have it.
    stored = set(lake.columns(log))
    names = [name for name in log.schema.names if name in stored]
    rows = conform(log, lake.read(log, names, [(WRITTEN_AT, ">", low), (WRITTEN_AT, "<=", high)]))
    return rows.sort_by([(name, "ascending") for name in _ORDER])


def check_name(name: str) -> None:
    """Hold that a consumer's name is one that a table can have; raises InputError."""
    if not is_name(name, most=_MOST_NAME):
        raise InputError(f"{name!r} is no name of a consumer; it has 1 to 48 letters, digits and underscores")


def sink_table(schema: TableSchema, name: str) -> Table:
    """The Delta table into which a consumer of this name copies the log of a table.

    Raises:
        InputError: the name is none that a table can have.
    """
    check_name(name)
    table = log_table(schema)
    return Table(
        table.keyspace, f"{table.name}_{name}", table.schema, table.keys, f"What consumer {name} read of {table.name}"
    )


def consume(
    lake: Lake,
    clock: Clock,
    schema: TableSchema,
    name: str,
    *,
    until_us: Microseconds | None = None,
    tell: Tell = left_out.tell_in_log,
) -> tuple[Consumer, int]:
    """Copy what a consumer has not read yet into its table; answers with where it is now and how many rows came.

    It is registered at its first start, before the first generation that there still is. Each window goes in with its
    number in one commit, and the position moves after it: whoever is killed in between finds the window there, and
    does not read it again. Nothing newer than the clock less the safety window is read, nor after `until_us` (µs).

    A column that ALTER TABLE added comes into the sink with the first window after it; one that it dropped stays.
    What is left out is told: removed generations at the first start, one without streams when it is passed over, and
    in every run after it has some.

    Raises:
        StateError: what comes next was in a generation that has been removed, or whose streams are not complete.
        InputError: the name is none, or taken.
        ConflictError: another process reads under the same name.
        NotFound: the table has no log here.
    """
    sink = sink_table(schema, name)
    if name == BY_HOUR:
        raise InputError(f"{name!r} is the consumer that copies logs hour by hour; give this one another name")
    log_of(lake, schema)
    consumer = registered(lake, clock, schema, name, tell)
    consumer = _caught_up(lake, clock, schema, sink, consumer)
    count = 0
    horizon = clock.now_us() - SAFETY_US if until_us is None else min(until_us, clock.now_us() - SAFETY_US)
    while True:
        source = StreamSources(lake).of(schema.keyspace, schema.name)
        sets = sets_of(source, clock.now_us())
        _assert_not_lost(sets, consumer)
        at_most = longest(lake, schema, consumer.position_us)
        window = next_window(sets, consumer.position_us, consumer.window_number, horizon, longest_us=at_most)
        if window is None:
            return consumer, count
        rows = _rows_of(lake, clock, schema, source, consumer, window, tell)
        sink = lake.widen(sink)
        failpoints.reached(failpoints.BEFORE_SINK)
        marks = {name: window.number, _position_of(name): window.until_us}
        if not lake.append_once(sink, rows, marks, _last_number(consumer)):
            raise ConflictError(f"another process reads {schema.full_name} as {name}; stop one, or give each its name")
        failpoints.reached(failpoints.AFTER_SINK)
        consumer = _moved(lake, clock, consumer, window)
        count += rows.num_rows


def registered(
    lake: Lake,
    clock: Clock,
    schema: TableSchema,
    name: str,
    tell: Tell,
    position: Callable[[], Microseconds] | None = None,
) -> Consumer:
    """The consumer; what a new one leaves out, and what came later of what it passed over, is told.

    A new one stands where `position` says, by default before the first generation that there still is.
    """
    key = (name, schema.keyspace, schema.name)
    source = StreamSources(lake).of(schema.keyspace, schema.name)
    try:
        consumer = consumers.find(lake, *key)
    except NotFound:
        sets = sets_of(source, clock.now_us())
        first = min(sets.seen, default=ONE_US)
        left_out.tell_of_removed(lake, schema, name, sets, first, tell)
        position_us = first - ONE_US if position is None else position()
        return consumers.register(lake, clock, *key, position_us=position_us)
    left_out.tell_what_came_later(lake, source, consumer, tell)
    return consumer


def _rows_of(
    lake: Lake,
    clock: Clock,
    schema: TableSchema,
    source: StreamSource,
    consumer: Consumer,
    window: Window,
    tell: Tell,
) -> pa.Table:
    """What a window brings: its rows, or none where it is passed over, which is noted before anything moves."""
    if window.passed and not _has_read_of(lake, consumer, window):
        left_out.pass_over(lake, clock, schema, consumer, window, tell)
        return log_table(schema).schema.empty_table()
    _assert_complete(source, window)
    if window.after_us < window.set_us:
        left_out.read_after_all(lake, consumer, window.set_us)
    return read_window(lake, schema, window)


def _has_read_of(lake: Lake, consumer: Consumer, window: Window) -> bool:
    """Whether the consumer has read rows of the window's set: then it had streams, which are gone."""
    noted = passed_over.passed_over(lake).get(consumer.key, ())
    return consumer.set_timestamp_us == window.set_us and window.set_us not in noted


def _last_number(consumer: Consumer) -> int | None:
    """The number of the last transaction that the sink of a consumer has seen; None before its first window."""
    return consumer.window_number or None


def longest(lake: Lake, schema: TableSchema, after_us: Microseconds) -> Microseconds | None:
    """How long (µs) a window may be for the rows of its files to fit into memory; None for as long as it likes."""
    bounds = lake.file_bounds(log_table(schema), WRITTEN_AT)
    ahead = sorted((from_datetime(high), rows) for _, high, rows in bounds if from_datetime(high) > after_us)
    count = 0
    for place, (_, rows) in enumerate(ahead):
        count += rows
        if count > ROWS_AT_ONCE:
            return ahead[max(place - 1, 0)][0] - after_us
    return None


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
        raise StateError(
            f"{sink.full_name} has windows that consumer {consumer.full_name} never read; it was forgotten:"
            " remove the table, or read under another name"
        )
    sets = stream_sets(lake, schema, clock.now_us())
    begun = max(each for each in (*sets.seen, *sets.removed) if each <= until)
    return _moved(lake, clock, consumer, Window(number, begun, consumer.position_us, Microseconds(until)))


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


def _assert_complete(source: StreamSource, window: Window) -> None:
    """Hold that a window's streams are all there."""
    if not source.is_complete(window.set_us):
        raise StateError(
            f"the streams of the generation of {format_us(window.set_us)} are not all published yet; its rows are read"
            " once they are: publish it, then run this again"
        )


def log_of(lake: Lake, schema: TableSchema) -> Table:
    """The table of the log.

    Raises:
        NotFound: there is none.
    """
    table = log_table(schema)
    if not lake.exists(table):
        raise NotFound(f"{schema.full_name} has no log here; write to it with: cdc-platform log FILE.cql --keep")
    return table
