"""Consume a CDC log window by window, exactly once: every row once, nothing that may still change.

The loop knows the order of steps; a WindowWriter copies the rows of a window and commits them with its number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from cdc_platform import failpoints
from cdc_platform.cdclog.consumer import skipped
from cdc_platform.cdclog.consumer.progress import StreamProgress, first_unread_us, iter_unread_windows, set_application
from cdc_platform.cdclog.consumer.retyped import find_retyped_columns, retype_sink_columns
from cdc_platform.cdclog.consumer.skipped import OnMessage
from cdc_platform.cdclog.consumer.windows import (
    CONFIDENCE_WINDOW_US,
    ReaderSets,
    Window,
    assert_streams_complete,
    next_window,
    read_reader_sets,
    reader_sets_from_source,
)
from cdc_platform.cdclog.schema import EXACT, GENERATION, WRITTEN_AT, log_table
from cdc_platform.cdclog.schema_evolution import convert_log_rows, readable_schema
from cdc_platform.clock import ONE_US, Clock, Microseconds, datetime_from_us, format_us, us_from_datetime
from cdc_platform.cql import TableSchema, is_valid_name
from cdc_platform.delta import (
    Lake,
    choose_remedy,
    compute,
    conform_rows,
    read_stored_schema,
    verify_added_files_between,
)
from cdc_platform.errors import ConflictError, InputError, NotFound, StateError
from cdc_platform.metastore import Consumer, consumers
from cdc_platform.spark import frames, quote_spark_name
from cdc_platform.tables import TIMESTAMP, Table, column
from cdc_platform.timeline import StreamSource, StreamSources

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


class TooManyRows(Exception):
    """A window has more rows than fit into memory; the one who copies it wants a shorter one from now on."""


class WindowWriter(Protocol):
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


def consume_windows(
    lake: Lake,
    clock: Clock,
    schema: TableSchema,
    consumer: Consumer,
    copier: WindowWriter,
    horizon_us: Microseconds,
    tell: OnMessage,
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
    consumer, count = _recover_position(lake, clock, schema, copier.sink, consumer), 0
    progress, known = StreamProgress(consumer.name), None
    while True:
        source = StreamSources(lake).of(schema.keyspace, schema.name)
        sets = reader_sets_from_source(source, clock.now_us())
        _assert_not_lost(sets, consumer)
        if known != sets.seen:
            progress = StreamProgress.of(lake, copier.sink, consumer.name, sets.seen)
            known = sets.seen
        origin = copier.origin_us(consumer) if progress.origin_us is None else progress.origin_us
        passed_us = min(consumer.position_us, horizon_us)
        missed = next(
            iter_unread_windows(progress, sets, Microseconds(passed_us), origin, consumer.window_number), None
        )
        if missed is not None:
            count += _read_missed_window(lake, source, consumer, missed, copier, progress, origin)
            continue
        at_most = copier.longest_us(consumer.position_us)
        window = next_window(sets, consumer.position_us, consumer.window_number, horizon_us, longest_us=at_most)
        if window is None:
            skipped.report_appeared_sets(lake, source, consumer, tell)
            return consumer, count
        window = _resolve_window(lake, clock, schema, source, consumer, window, copier, tell)
        marks = {consumer.name: window.number, _position_application(consumer.name): window.until_us}
        marks |= progress.marks(window, origin)
        try:
            rows = copier.copy(source, window, marks, _last_number(consumer))
        except TooManyRows:
            continue
        if rows is None:
            raise _concurrent_reader_error(consumer)
        progress.committed(marks, window)
        failpoints.kill_if_selected(failpoints.AFTER_SINK)
        consumer = _advance_consumer(lake, clock, consumer, window)
        count += rows


def _read_missed_window(
    lake: Lake,
    source: StreamSource,
    consumer: Consumer,
    missed: Window,
    copier: WindowWriter,
    progress: StreamProgress,
    origin_us: Microseconds,
) -> int:
    """Read one window of a set whose start the position has passed; return how many rows were new.

    Its rows are added by key, so that a window which is read again after a kill doubles nothing.

    Raises:
        StateError: its streams are not complete.
        ConflictError: another process reads under the same name.
    """
    assert_streams_complete(source, missed)
    longest = copier.longest_us(missed.after_us)
    if longest is not None:
        missed = replace(missed, until_us=Microseconds(min(missed.until_us, missed.after_us + longest)))
    marks = {set_application(consumer.name, missed.set_us): missed.until_us, **progress.marks(missed, origin_us)}
    try:
        rows = copier.copy_unread(source, missed, marks, progress.read_us.get(missed.set_us))
    except TooManyRows:
        return 0
    if rows is None:
        raise _concurrent_reader_error(consumer)
    progress.committed(marks, missed)
    failpoints.kill_if_selected(failpoints.AFTER_SINK)
    skipped.clear_skip(lake, consumer, missed.set_us)
    return rows


def _resolve_window(
    lake: Lake,
    clock: Clock,
    schema: TableSchema,
    source: StreamSource,
    consumer: Consumer,
    window: Window,
    copier: WindowWriter,
    tell: OnMessage,
) -> Window:
    """The window as it is read, or as it is passed over, which is noted before anything moves."""
    if window.passed and not _has_read_set(lake, consumer, window):
        skipped.skip_window(lake, clock, consumer, window, copier.rows_left, tell)
        return window
    assert_streams_complete(source, window)
    if window.after_us < window.set_us:
        skipped.clear_skip(lake, consumer, window.set_us)
    return replace(window, passed=False)


def _has_read_set(lake: Lake, consumer: Consumer, window: Window) -> bool:
    """Whether the consumer has read rows of the window's set: then it had streams, which are gone."""
    noted = consumers.read_skipped_sets(lake).get(consumer.key, ())
    return consumer.set_timestamp_us == window.set_us and window.set_us not in noted


def _last_number(consumer: Consumer) -> int | None:
    """The number of the last transaction that the sink of a consumer has seen; None before its first window."""
    return consumer.window_number or None


def _recover_position(lake: Lake, clock: Clock, schema: TableSchema, sink: Table, consumer: Consumer) -> Consumer:
    """The consumer behind all windows that its sink has: a process that was killed left one that is not noted."""
    number = lake.transaction(sink, consumer.name)
    if number is None or number <= consumer.window_number:
        if (number or 0) < consumer.window_number:
            raise StateError(
                f"{sink.full_name} lacks windows that consumer {consumer.full_name} has read; bring it back,"
                " or forget the consumer and remove what is left of the table"
            )
        return consumer
    until = lake.transaction(sink, _position_application(consumer.name))
    if until is None or number != consumer.window_number + 1:
        if consumers.find_consumer(lake, *consumer.key).window_number != consumer.window_number:
            raise _concurrent_reader_error(consumer)  # who has brought the windows in since the consumer was looked up
        raise StateError(
            f"{sink.full_name} has windows that consumer {consumer.full_name} never read; it was forgotten:"
            " remove the table, or read under another name"
        )
    sets = read_reader_sets(lake, schema, clock.now_us())
    begun = max(each for each in (*sets.seen, *sets.removed) if each <= until)
    return _advance_consumer(lake, clock, consumer, Window(number, begun, consumer.position_us, Microseconds(until)))


def _concurrent_reader_error(consumer: Consumer) -> ConflictError:
    table = f"{consumer.keyspace_name}.{consumer.table_name}"
    return ConflictError(f"another process reads {table} as {consumer.name}; stop one, or give each its name")


def _advance_consumer(lake: Lake, clock: Clock, consumer: Consumer, window: Window) -> Consumer:
    return consumers.advance_consumer(
        lake,
        clock,
        consumer,
        position_us=window.until_us,
        set_timestamp_us=window.set_us,
        expected_window=window.number - 1,
    )


def _position_application(name: str) -> str:
    """The application under which a sink notes, beside a window's number, where the window ended."""
    return f"{name}:position"


def _assert_not_lost(sets: ReaderSets, consumer: Consumer) -> None:
    first = min((*sets.seen, *sets.removed), default=None)
    begun = consumer.set_timestamp_us
    if begun is not None and first is not None and begun < first and consumer.position_us + ONE_US < first:
        raise StateError(
            f"consumer {consumer.full_name} is at {format_us(consumer.position_us)} in the set of {format_us(begun)},"
            f" which is gone; what it has not read before {format_us(first)} is lost: forget it and register it anew"
        )


MAX_ROWS_IN_MEMORY = 1_000_000
"""About as many rows as a consumer takes into memory at once, in whole files of the log."""
BY_HOUR = "hourly"
"""The name of the consumer that copies logs hour by hour; see `hourly`."""
FROM_CLUSTER = consumers.INGEST_CONSUMER
"""The name of the consumer that brings the log of a live cluster into the lake."""
_RESERVED_NAMES = {BY_HOUR: "copies logs hour by hour", FROM_CLUSTER: "brings in the log of a live cluster"}
_MAX_NAME_LENGTH = 48
"""The letters of a consumer's name, which stands in that of its table."""
_GENERATION_FIELD = column(
    GENERATION,
    TIMESTAMP,
    "when the generation or stream set began that the row was read of; null: not noted",
    null=True,
)
LOG_KEY = ("cdc$stream_id", "cdc$time", "cdc$batch_seq_no")
"""The key of a row of a log."""
_ORDER = (WRITTEN_AT, "cdc$stream_id", "cdc$time", "cdc$batch_seq_no")


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

    Nothing newer than `readable_until_us` is read, nothing of a generation whose streams are not all there, and
    nothing of one
    that is passed over. Sorted by time, stream and place in the batch.

    Raises:
        StateError: some of it was in a generation that has been removed, or whose streams are not complete.
        NotFound: the table has no log here.
    """
    from pyspark.sql import functions as F

    table = get_log_table(lake, schema)
    read = list(
        iter_complete_windows(lake, schema, since_us, min(until_us, readable_until_us(lake, schema, now_us)), now_us)
    )
    rows = frames.read_table_frame(spark, lake, table)
    if not read:
        return rows.limit(0)
    when = F.col(quote_spark_name(WRITTEN_AT))

    def between(after: Microseconds, until: Microseconds) -> Column:
        return (when > F.lit(datetime_from_us(after))) & (when <= F.lit(datetime_from_us(until)))

    inside = between(read[0].after_us, read[-1].until_us)
    for passed in (each for each in read if each.passed):
        inside &= ~between(passed.after_us, passed.until_us)
    return rows.where(inside).orderBy(*map(quote_spark_name, _ORDER))


def iter_complete_windows(
    lake: Lake,
    schema: TableSchema,
    after_us: Microseconds,
    horizon_us: Microseconds,
    now_us: Microseconds,
    only: Collection[int] | None = None,
) -> Iterator[Window]:
    """The windows from a position to a horizon, each of a whole generation, or of one that is passed over.

    With `only` no sets are read but those that begin at these times (µs), as readers saw them once.
    """
    source = StreamSources(lake).of(schema.keyspace, schema.name)
    sets, position, number = reader_sets_from_source(source, now_us), after_us, 0
    if only is not None:
        seen, removed = ([each for each in several if each in only] for several in (sets.seen, sets.removed))
        passed = [each for each in sets.passed if each not in only]
        sets = ReaderSets([*seen, *passed], removed, passed=passed)
    while (window := next_window(sets, position, number, horizon_us)) is not None:
        if not window.passed:
            assert_streams_complete(source, window)
        yield window
        position, number = window.until_us, window.number


def read_window(lake: Lake, schema: TableSchema, window: Window) -> pa.Table:
    """The rows of a window, as `read_between` has them, with the columns that stand aside; without a JVM.

    Raises:
        StoreFailure: the log has other rows there than were written, so nobody reads on from them.
    """
    low, high = datetime_from_us(window.after_us), datetime_from_us(window.until_us)
    verify_added_files_between(lake, get_log_table(lake, schema), WRITTEN_AT, low, high)
    return read_between(lake, schema, window.after_us, window.until_us, with_aside=True)


def read_between(
    lake: Lake, schema: TableSchema, after_us: Microseconds, until_us: Microseconds, *, with_aside: bool = False
) -> pa.Table:
    """The rows of the log later than `after_us` up to `until_us` (µs), sorted by time, stream and place in the batch.

    Where the log has it, the column for values that no native one holds comes too.
    """
    low, high = datetime_from_us(after_us), datetime_from_us(until_us)
    # A column that ALTER TABLE added is in the log from the first rows on that have it.
    stored = read_stored_schema(lake, get_log_table(lake, schema))
    log = log_table(schema, exact=EXACT in stored.names)
    if with_aside:
        log = _with_retyped_columns(log, stored)
    as_stored = replace(log, schema=readable_schema(schema, log.schema, stored))
    rows = lake.read(as_stored, filters=[(WRITTEN_AT, ">", low), (WRITTEN_AT, "<=", high)])
    return sort_log_rows(conform_rows(log, convert_log_rows(schema, rows)))


def sort_log_rows(rows: pa.Table) -> pa.Table:
    """Rows of a log, sorted by time, stream and place in the batch."""
    return rows.sort_by([(name, "ascending") for name in _ORDER])


def validate_consumer_name(name: str) -> None:
    """Hold that a consumer's name is one that a table can have; raises InputError."""
    if not is_valid_name(name, most=_MAX_NAME_LENGTH):
        raise InputError(f"{name!r} is no name of a consumer; it has 1 to 48 letters, digits and underscores")


def sink_table(schema: TableSchema, name: str, *, exact: bool = False) -> Table:
    """The Delta table into which a consumer of this name copies the log of a table.

    With `exact` it has the column for values that no native one holds, as its log has it then.

    Raises:
        InputError: the name is none that a table can have.
    """
    validate_consumer_name(name)
    table = log_table(schema, exact=exact)
    columns = table.schema.append(_GENERATION_FIELD)
    return Table(
        table.keyspace,
        f"{table.name}_{name}",
        columns,
        table.keys,
        f"What consumer {name} read of {table.name}",
        of_readers=True,
    )


def prepare_sink(lake: Lake, schema: TableSchema, name: str) -> Table:
    """The table of a consumer, with all columns that the log has by now; what it lacks of them is put in."""
    log = read_stored_schema(lake, get_log_table(lake, schema))
    sink = sink_table(schema, name, exact=EXACT in log.names)
    if lake.exists(sink):
        retype_sink_columns(lake, sink, log, schema)
    return lake.widen(_with_retyped_columns(sink, log))


def _with_retyped_columns(table: Table, log: pa.Schema) -> Table:
    """A log, or a copy of it, with the columns of the stored log whose values are of a type that they had before."""
    return replace(table, schema=pa.schema([*table.schema, *(field for _, field in find_retyped_columns(log))]))


def add_generation_column(rows: pa.Table, window: Window) -> pa.Table:
    """Rows of a window with the begin of its generation or stream set beside each, as sinks have it."""
    begin = pa.scalar(datetime_from_us(window.set_us), TIMESTAMP)
    return rows.append_column(_GENERATION_FIELD, pa.repeat(begin, rows.num_rows))


def consume(
    lake: Lake,
    clock: Clock,
    schema: TableSchema,
    name: str,
    *,
    until_us: Microseconds | None = None,
    tell: OnMessage = skipped.log_message,
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
    validate_consumer_name(name)
    if name in _RESERVED_NAMES:
        raise InputError(f"{name!r} is the consumer that {_RESERVED_NAMES[name]}; give this one another name")
    get_log_table(lake, schema)
    consumer = ensure_consumer(lake, clock, schema, name, tell)
    horizon = readable_until_us(lake, schema, clock.now_us())
    if until_us is not None:
        horizon = min(until_us, horizon)
    return consume_windows(lake, clock, schema, consumer, _LakeWindowWriter(lake, schema, name), horizon, tell)


def readable_until_us(lake: Lake, schema: TableSchema, now_us: Microseconds) -> Microseconds:
    """The newest moment (µs) up to which the log here is whole: none that rows may still be on their way to.

    Where the log is brought in from a live cluster, that is how far it was brought, of every stream set.
    """
    safe = Microseconds(now_us - CONFIDENCE_WINDOW_US)
    try:
        brought = consumers.find_consumer(lake, FROM_CLUSTER, schema.keyspace, schema.name).position_us
    except NotFound:
        return safe
    sets = read_reader_sets(lake, schema, now_us)
    progress = StreamProgress.of(lake, log_table(schema), FROM_CLUSTER, sets.seen)
    behind = first_unread_us(progress, sets, brought)
    return min(safe, brought if behind is None else behind)


@dataclass(frozen=True)
class _LakeWindowWriter:
    """Copies from the log that lies in the lake."""

    lake: Lake
    schema: TableSchema
    name: str

    @property
    def sink(self) -> Table:
        return sink_table(self.schema, self.name)

    def longest_us(self, after_us: Microseconds) -> Microseconds | None:
        return max_window_us(self.lake, self.schema, after_us)

    def rows_left(self, window: Window) -> int:
        return skipped.count_set_rows(self.lake, self.schema, window)

    def copy(self, source: StreamSource, window: Window, marks: Mapping[str, int], expected: int | None) -> int | None:
        empty = log_table(self.schema).schema.empty_table()
        rows = add_generation_column(empty if window.passed else read_window(self.lake, self.schema, window), window)
        sink = prepare_sink(self.lake, self.schema, self.name)
        failpoints.kill_if_selected(failpoints.BEFORE_SINK)
        return rows.num_rows if self.lake.append_once(sink, rows, marks, expected) else None

    def origin_us(self, consumer: Consumer) -> Microseconds:
        """As `Copier`: an earlier release noted nothing, and `complete` compares its rows with those of the log."""
        return consumer.position_us

    def copy_unread(
        self, source: StreamSource, window: Window, marks: Mapping[str, int], expected: int | None
    ) -> int | None:
        rows = add_generation_column(read_window(self.lake, self.schema, window), window)
        rows = filter_by_streams(rows, source, window)
        sink = prepare_sink(self.lake, self.schema, self.name)
        rows = exclude_stored_rows(self.lake, sink, rows, window)
        failpoints.kill_if_selected(failpoints.BEFORE_SINK)
        return rows.num_rows if self.lake.append_once(sink, rows, marks, expected) else None


def filter_by_streams(rows: pa.Table, source: StreamSource, window: Window) -> pa.Table:
    """Return those of a log's rows that lie in streams of a window's set."""
    period = next(each for each in source.periods() if each.begin_us == window.set_us)
    streams = pa.array([each.tobytes() for each in period.streams().streams], pa.binary())
    return rows.filter(compute.is_in(rows["cdc$stream_id"], value_set=streams))


def exclude_stored_rows(lake: Lake, sink: Table, rows: pa.Table, window: Window) -> pa.Table:
    """Return those of a window's rows that a sink does not have, by the log's key."""
    inside = [
        (WRITTEN_AT, ">", datetime_from_us(window.after_us)),
        (WRITTEN_AT, "<=", datetime_from_us(window.until_us)),
    ]
    known = set(_log_keys(lake.read(sink, list(LOG_KEY), inside)))
    fresh = np.fromiter((key not in known for key in _log_keys(rows)), bool, rows.num_rows)
    return rows.filter(pa.array(fresh))


def _log_keys(rows: pa.Table) -> list[tuple[bytes, str, int]]:
    return list(zip(*(rows[name].to_pylist() for name in LOG_KEY), strict=True))


def ensure_consumer(
    lake: Lake,
    clock: Clock,
    schema: TableSchema,
    name: str,
    tell: OnMessage,
    position: Callable[[], Microseconds] | None = None,
) -> Consumer:
    """The consumer; what a new one leaves out is told.

    A new one stands where `position` says, by default before the first generation that there still is.
    """
    key = (name, schema.keyspace, schema.name)
    try:
        return consumers.find_consumer(lake, *key)
    except NotFound:
        sets = read_reader_sets(lake, schema, clock.now_us())
        first = min(sets.seen, default=ONE_US)
        skipped.report_removed_sets(lake, schema, name, sets, first, tell)
        position_us = first - ONE_US if position is None else position()
        return consumers.register_consumer(lake, clock, *key, position_us=position_us)


def max_window_us(lake: Lake, schema: TableSchema, after_us: Microseconds) -> Microseconds | None:
    """How long (µs) a window may be for the rows of its files to fit into memory; None for as long as it likes."""
    bounds = lake.file_bounds(log_table(schema), WRITTEN_AT)
    ahead = sorted((us_from_datetime(high), rows) for _, high, rows in bounds if us_from_datetime(high) > after_us)
    count = 0
    for place, (_, rows) in enumerate(ahead):
        count += rows
        if count > MAX_ROWS_IN_MEMORY:
            return ahead[max(place - 1, 0)][0] - after_us
    return None


def missing_log_error(lake: Lake, name: str) -> NotFound:
    """That nothing is here of the log of a table (`keyspace.table`), and what brings some."""
    kept = "write to it with: cdc-platform log FILE.cql --keep"
    return NotFound(
        f"{name} has no log here; "
        f"{choose_remedy(lake, kept, f'bring it in with: cdc-platform ingest {{cluster}} {name}')}"
    )


def get_log_table(lake: Lake, schema: TableSchema) -> Table:
    """The table of the log.

    Raises:
        NotFound: there is none.
    """
    table = log_table(schema)
    if not lake.exists(table):
        raise missing_log_error(lake, schema.full_name)
    return table
