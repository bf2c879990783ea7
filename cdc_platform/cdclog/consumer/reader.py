"""Consume a CDC log window by window, exactly once: every row once, and no rows that may still change.

The loop defines the order of the steps; a WindowWriter copies the rows of a window and commits them with its number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from cdc_platform import failpoints
from cdc_platform.cdclog.changes import LoggedImages, changes_schema, read_logged_images
from cdc_platform.cdclog.consumer import skipped
from cdc_platform.cdclog.consumer.change_sink import changes_for_sink, has_changes, prepare_change_sink
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
from cdc_platform.cdclog.log_rows import time_filters
from cdc_platform.cdclog.schema import EXACT, GENERATION, WRITTEN_AT, log_table
from cdc_platform.cdclog.schema_evolution import convert_log_rows, readable_schema
from cdc_platform.clock import ONE_US, Clock, Microseconds, datetime_from_us, format_us, us_from_datetime
from cdc_platform.cql import TableSchema, is_valid_name
from cdc_platform.delta import (
    Lake,
    choose_remedy,
    compute,
    conform_rows,
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
    """A window has more rows than fit into memory; the writer limits the length of windows from now on."""


class WindowWriter(Protocol):
    """Copies the rows of windows from a log, wherever it is stored, into a consumer's sink."""

    @property
    def sink(self) -> Table:
        """The table that it writes to."""
        ...

    def longest_us(self, after_us: Microseconds) -> Microseconds | None:
        """Return the maximum length (µs) of a window from `after_us`; None for no limit."""
        ...

    def rows_left(self, window: Window) -> int | None:
        """Return the number of the log's rows in a skipped window; None if it is unknown."""
        ...

    def copy(self, source: StreamSource, window: Window, marks: Mapping[str, int], expected: int | None) -> int | None:
        """Commit the rows of a window and the marks to the sink in one commit; a skipped window has no rows.

        It commits only while the number of the first mark is still `expected`. Returns the number of rows, None if the
        number has changed.

        Raises:
            TooManyRows: retry with the window length that `longest_us` returns then.
        """
        ...

    def origin_us(self, consumer: Consumer) -> Microseconds:
        """Return the time (µs) after which to look for unread sets, for a sink that does not record its origin."""
        ...

    def copy_unread(
        self, source: StreamSource, window: Window, marks: Mapping[str, int], expected: int | None
    ) -> int | None:
        """Do as `copy` for a window before the position: add only the rows that the sink does not have yet.

        Raises:
            TooManyRows: retry with the window length that `longest_us` returns then.
        """
        ...


def consume_windows(
    lake: Lake,
    clock: Clock,
    schema: TableSchema,
    consumer: Consumer,
    copier: WindowWriter,
    horizon_us: Microseconds,
    on_message: OnMessage,
) -> tuple[Consumer, int]:
    """Copy window after window up to the horizon (µs); return the advanced consumer and the number of rows.

    One commit has the rows of a window, its number and its end, and the position moves after it. A process that is
    killed in between finds the window in the sink on restart and does not read it again. A set whose start the position
    passed before the set became readable is read from its start first; the position does not move meanwhile.

    Raises:
        StateError: the next rows are in a generation that has been removed or whose streams are incomplete; or the sink
            lacks windows, or has windows of another consumer.
        ConflictError: another process reads under the same name.
    """
    consumer, count = _recover_position(lake, clock, schema, copier.sink, consumer), 0
    progress, known_sets = StreamProgress(consumer.name), None
    while True:
        source = StreamSources(lake).of(schema.keyspace, schema.name)
        sets = reader_sets_from_source(source, clock.now_us())
        _assert_not_lost(sets, consumer)
        if known_sets != sets.seen:
            progress = StreamProgress.of(lake, copier.sink, consumer.name, sets.seen)
            known_sets = sets.seen
        origin = copier.origin_us(consumer) if progress.origin_us is None else progress.origin_us
        passed_us = min(consumer.position_us, horizon_us)
        missed = next(
            iter_unread_windows(progress, sets, Microseconds(passed_us), origin, consumer.window_number), None
        )
        if missed is not None:
            count += _read_missed_window(lake, source, consumer, missed, copier, progress, origin)
            continue
        longest_us = copier.longest_us(consumer.position_us)
        window = next_window(sets, consumer.position_us, consumer.window_number, horizon_us, longest_us=longest_us)
        if window is None:
            skipped.report_appeared_sets(lake, source, consumer, on_message)
            return consumer, count
        window = _resolve_window(lake, clock, schema, source, consumer, window, copier, on_message)
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
    """Read a window of a set whose start the position has passed; return the number of new rows.

    Rows are added by key, so that reading a window again after a kill adds no duplicates.

    Raises:
        StateError: its streams are incomplete.
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
    on_message: OnMessage,
) -> Window:
    """Return the window as it is read or skipped; a skip is recorded before the position moves."""
    if window.passed and not _has_read_set(lake, consumer, window):
        skipped.skip_window(lake, clock, consumer, window, copier.rows_left, on_message)
        return window
    assert_streams_complete(source, window)
    if window.after_us < window.set_us:
        skipped.clear_skip(lake, consumer, window.set_us)
    return replace(window, passed=False)


def _has_read_set(lake: Lake, consumer: Consumer, window: Window) -> bool:
    """Return True if the consumer has read rows of the window's set, which then had streams that are gone."""
    recorded = consumers.read_skipped_sets(lake).get(consumer.key, ())
    return consumer.set_timestamp_us == window.set_us and window.set_us not in recorded


def _last_number(consumer: Consumer) -> int | None:
    """Return the number of the last transaction of a consumer's sink; None before its first window."""
    return consumer.window_number or None


def _recover_position(lake: Lake, clock: Clock, schema: TableSchema, sink: Table, consumer: Consumer) -> Consumer:
    """Advance the consumer past all windows of its sink: a killed process may not have recorded the last one."""
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
            raise _concurrent_reader_error(consumer)  # it committed the windows after the consumer was read
        raise StateError(
            f"{sink.full_name} has windows that consumer {consumer.full_name} never read; it was forgotten:"
            " remove the table, or read under another name"
        )
    sets = read_reader_sets(lake, schema, clock.now_us())
    set_us = max(begin_us for begin_us in (*sets.seen, *sets.removed) if begin_us <= until)
    return _advance_consumer(lake, clock, consumer, Window(number, set_us, consumer.position_us, Microseconds(until)))


def _concurrent_reader_error(consumer: Consumer) -> ConflictError:
    table = f"{consumer.keyspace_name}.{consumer.table_name}"
    return ConflictError(f"another process reads {table} as {consumer.name}; stop one, or name them differently")


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
    """Return the application under which a sink records the end of the window with each number."""
    return f"{name}:position"


def _assert_not_lost(sets: ReaderSets, consumer: Consumer) -> None:
    first = min((*sets.seen, *sets.removed), default=None)
    start = consumer.set_timestamp_us
    if start is not None and first is not None and start < first and consumer.position_us + ONE_US < first:
        raise StateError(
            f"consumer {consumer.full_name} is at {format_us(consumer.position_us)} in the set of {format_us(start)},"
            f" which was removed; unread rows before {format_us(first)} are lost: remove the consumer and register it"
            " again"
        )


MAX_ROWS_IN_MEMORY = 1_000_000
"""Approximate number of rows that a consumer reads into memory at once, in whole files of the log."""
BY_HOUR = "hourly"
"""The name of the consumer that copies logs hour by hour; see `hourly`."""
FROM_CLUSTER = consumers.INGEST_CONSUMER
"""The name of the consumer that ingests the log of a live cluster into the lake."""
_RESERVED_NAMES = {BY_HOUR: "copies logs hour by hour", FROM_CLUSTER: "brings in the log of a live cluster"}
_MAX_NAME_LENGTH = 48
"""The maximum length of a consumer's name, which is part of its sink's name."""
_MAX_FOLDER_BYTES = 255
"""The longest name of a file or folder on common file systems; a sink is a folder."""
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
    """Return log rows with `since_us` < timestamp <= `until_us` (µs), generation after generation, each row once.

    Rows newer than `readable_until_us`, rows of a generation whose streams are incomplete, and rows of a skipped
    generation are not read. Rows are sorted by time, stream and position in the batch.

    Raises:
        StateError: some rows were in a generation that has been removed or whose streams are incomplete.
        NotFound: the table has no log here.
    """
    from pyspark.sql import functions as F

    table = get_log_table(lake, schema)
    windows = list(
        iter_complete_windows(lake, schema, since_us, min(until_us, readable_until_us(lake, schema, now_us)), now_us)
    )
    rows = frames.read_table_frame(spark, lake, table)
    if not windows:
        return rows.limit(0)
    written_at = F.col(quote_spark_name(WRITTEN_AT))

    def between(after: Microseconds, until: Microseconds) -> Column:
        return (written_at > F.lit(datetime_from_us(after))) & (written_at <= F.lit(datetime_from_us(until)))

    condition = between(windows[0].after_us, windows[-1].until_us)
    for skipped_window in (window for window in windows if window.passed):
        condition &= ~between(skipped_window.after_us, skipped_window.until_us)
    return rows.where(condition).orderBy(*map(quote_spark_name, _ORDER))


def iter_complete_windows(
    lake: Lake,
    schema: TableSchema,
    after_us: Microseconds,
    horizon_us: Microseconds,
    now_us: Microseconds,
    only: Collection[int] | None = None,
) -> Iterator[Window]:
    """Yield the windows from a position to a horizon, each within one generation, also those that are skipped.

    With `only`, read just the sets that begin at these times (µs), as readers saw them before.
    """
    source = StreamSources(lake).of(schema.keyspace, schema.name)
    sets, position, number = reader_sets_from_source(source, now_us), after_us, 0
    if only is not None:
        seen, removed = ([begin_us for begin_us in begins if begin_us in only] for begins in (sets.seen, sets.removed))
        passed = [begin_us for begin_us in sets.passed if begin_us not in only]
        sets = ReaderSets([*seen, *passed], removed, passed=passed)
    while (window := next_window(sets, position, number, horizon_us)) is not None:
        if not window.passed:
            assert_streams_complete(source, window)
        yield window
        position, number = window.until_us, window.number


def read_window(lake: Lake, schema: TableSchema, window: Window) -> pa.Table:
    """Return the rows of a window as `read_between` does, with retyped columns; runs without a JVM.

    Raises:
        StoreFailure: the rows of the log differ from those that were written, so that consuming must stop.
    """
    low, high = datetime_from_us(window.after_us), datetime_from_us(window.until_us)
    verify_added_files_between(lake, get_log_table(lake, schema), WRITTEN_AT, low, high)
    return read_between(lake, schema, window.after_us, window.until_us, with_aside=True)


def read_between(
    lake: Lake, schema: TableSchema, after_us: Microseconds, until_us: Microseconds, *, with_aside: bool = False
) -> pa.Table:
    """Return log rows later than `after_us` up to `until_us` (µs), sorted by time, stream and position in the batch.

    The column for values that native columns cannot hold is included if the log has it.
    """
    # The log has a column that ALTER TABLE added from the first rows with that column.
    stored = lake.stored_schema(get_log_table(lake, schema))
    log = log_table(schema, exact=EXACT in stored.names)
    if with_aside:
        log = _with_retyped_columns(log, stored)
    as_stored = replace(log, schema=readable_schema(schema, log.schema, stored))
    rows = lake.read(as_stored, filters=time_filters(after_us, until_us))
    return sort_log_rows(conform_rows(log, convert_log_rows(schema, rows)))


def sort_log_rows(rows: pa.Table) -> pa.Table:
    """Sort rows of a log by time, stream and position in the batch."""
    return rows.sort_by([(name, "ascending") for name in _ORDER])


def validate_consumer_name(name: str) -> None:
    """Raise InputError if a consumer's name cannot be part of a table's name."""
    if not is_valid_name(name, most=_MAX_NAME_LENGTH):
        raise InputError(f"{name!r} is no name of a consumer; it has 1 to 48 letters, digits and underscores")


def sink_table(schema: TableSchema, name: str, *, exact: bool = False, changes: bool = False) -> Table:
    """Return the Delta table into which a consumer of this name copies the log of a table.

    With `exact` it has the column for values that native columns cannot hold, as its log has. With `changes` it has the
    changes that the log's rows amount to.

    Raises:
        InputError: the name cannot be part of a table's name.
    """
    validate_consumer_name(name)
    table = log_table(schema, exact=exact)
    longest = _MAX_FOLDER_BYTES - len(table.name) - 1
    if len(name) > longest:
        raise InputError(
            f"consumer {name} of {schema.full_name} would have a sink with a name of {len(table.name) + 1 + len(name)} "
            f"characters, and a folder's name has at most {_MAX_FOLDER_BYTES}; choose a name of at most {longest}"
        )
    columns = (changes_schema(schema) if changes else table.schema).append(_GENERATION_FIELD)
    return Table(
        table.keyspace,
        f"{table.name}_{name}",
        columns,
        table.keys,
        f"What consumer {name} read of {table.name}",
        about_readers=True,
    )


def prepare_sink(lake: Lake, schema: TableSchema, name: str) -> Table:
    """Return the table of a consumer after adding the columns of the log that it lacks."""
    log = lake.stored_schema(get_log_table(lake, schema))
    sink = sink_table(schema, name, exact=EXACT in log.names)
    if lake.exists(sink):
        retype_sink_columns(lake, sink, log, schema)
    return lake.widen(_with_retyped_columns(sink, log))


def _with_retyped_columns(table: Table, log: pa.Schema) -> Table:
    """Add the stored log's columns with values of an earlier type to a log or a copy of it."""
    return replace(table, schema=pa.schema([*table.schema, *(field for _, field in find_retyped_columns(log))]))


def add_generation_column(rows: pa.Table, window: Window) -> pa.Table:
    """Add the start of the generation or stream set to the rows of a window, as sinks have it."""
    begin = pa.scalar(datetime_from_us(window.set_us), TIMESTAMP)
    return rows.append_column(_GENERATION_FIELD, pa.repeat(begin, rows.num_rows))


def consume(
    lake: Lake,
    clock: Clock,
    schema: TableSchema,
    name: str,
    *,
    until_us: Microseconds | None = None,
    changes: bool = False,
    on_message: OnMessage = skipped.log_message,
) -> tuple[Consumer, int]:
    """Copy the unread rows of a consumer into its table; return the consumer and the number of rows.

    With `changes` a new sink gets changes (`cdclog.changes`) instead of log rows, one per row of the sink; an existing
    sink stays as it is.

    A new consumer is registered before the first existing generation. One commit has the rows of a window and its
    number, and the position moves after it. A process that is killed in between finds the window in the sink on restart
    and does not read it again. Rows within the confidence window before now, and rows after `until_us` (µs), are not
    read.

    A column that ALTER TABLE added enters the sink with the first window after it; a dropped column stays. `on_message`
    receives what is skipped: removed generations at the first start, a generation without streams when it is skipped,
    and in every run after it has some.

    Raises:
        StateError: the next rows are in a generation that has been removed or whose streams are incomplete.
        InputError: the name is invalid or reserved.
        ConflictError: another process reads under the same name.
        NotFound: the table has no log here.
    """
    validate_consumer_name(name)
    if name in _RESERVED_NAMES:
        raise InputError(f"{name!r} is the consumer that {_RESERVED_NAMES[name]}; give this one another name")
    get_log_table(lake, schema)
    stored = has_changes(lake, sink_table(schema, name))
    if changes and stored is False:
        raise InputError(
            f"{sink_table(schema, name).full_name} has log rows, not changes; read the changes under another name"
        )
    images = read_logged_images(lake, schema) if changes or stored else None
    consumer = ensure_consumer(lake, clock, schema, name, on_message)
    horizon = readable_until_us(lake, schema, clock.now_us())
    if until_us is not None:
        horizon = min(until_us, horizon)
    writer = _LakeWindowWriter(lake, schema, name, images)
    return consume_windows(lake, clock, schema, consumer, writer, horizon, on_message)


def readable_until_us(lake: Lake, schema: TableSchema, now_us: Microseconds) -> Microseconds:
    """Return the newest time (µs) up to which the log here is complete, so that no rows can still arrive.

    For a log that is ingested from a live cluster this is the time up to which every stream set was ingested.
    """
    safe = Microseconds(now_us - CONFIDENCE_WINDOW_US)
    try:
        ingested_us = consumers.find_consumer(lake, FROM_CLUSTER, schema.keyspace, schema.name).position_us
    except NotFound:
        return safe
    sets = read_reader_sets(lake, schema, now_us)
    progress = StreamProgress.of(lake, log_table(schema), FROM_CLUSTER, sets.seen)
    first_unread = first_unread_us(progress, sets, ingested_us)
    return min(safe, ingested_us if first_unread is None else first_unread)


@dataclass(frozen=True)
class _LakeWindowWriter:
    """Copies from a log in the lake: its rows or, with `images`, the changes that they amount to."""

    lake: Lake
    schema: TableSchema
    name: str
    images: LoggedImages | None = None

    @property
    def sink(self) -> Table:
        return sink_table(self.schema, self.name, changes=self.images is not None)

    def _prepare(self, rows: pa.Table, window: Window) -> tuple[Table, pa.Table]:
        """Return the sink, with all columns that it needs, and the rows of a window as it stores them."""
        if self.images is None:
            return prepare_sink(self.lake, self.schema, self.name), add_generation_column(rows, window)
        sink = prepare_change_sink(self.lake, self.sink)
        return sink, add_generation_column(changes_for_sink(self.schema, rows, self.images, sink), window)

    def longest_us(self, after_us: Microseconds) -> Microseconds | None:
        return max_window_us(self.lake, self.schema, after_us)

    def rows_left(self, window: Window) -> int:
        return skipped.count_set_rows(self.lake, self.schema, window)

    def copy(self, source: StreamSource, window: Window, marks: Mapping[str, int], expected: int | None) -> int | None:
        empty = log_table(self.schema).schema.empty_table()
        log_rows = empty if window.passed else read_window(self.lake, self.schema, window)
        sink, rows = self._prepare(log_rows, window)
        failpoints.kill_if_selected(failpoints.BEFORE_SINK)
        return rows.num_rows if self.lake.append_once(sink, rows, marks, expected) else None

    def origin_us(self, consumer: Consumer) -> Microseconds:
        """Return the position: earlier releases recorded no origin; `check_interval_read` finds rows they missed."""
        return consumer.position_us

    def copy_unread(
        self, source: StreamSource, window: Window, marks: Mapping[str, int], expected: int | None
    ) -> int | None:
        log_rows = filter_by_streams(read_window(self.lake, self.schema, window), source, window)
        sink, rows = self._prepare(log_rows, window)
        rows = exclude_stored_rows(self.lake, sink, rows, window)
        failpoints.kill_if_selected(failpoints.BEFORE_SINK)
        return rows.num_rows if self.lake.append_once(sink, rows, marks, expected) else None


def filter_by_streams(rows: pa.Table, source: StreamSource, window: Window) -> pa.Table:
    """Return the log rows that are in streams of a window's set."""
    period = next(candidate for candidate in source.periods() if candidate.begin_us == window.set_us)
    streams = pa.array([stream.tobytes() for stream in period.streams().streams], pa.binary())
    return rows.filter(compute.is_in(rows["cdc$stream_id"], value_set=streams))


def exclude_stored_rows(lake: Lake, sink: Table, rows: pa.Table, window: Window) -> pa.Table:
    """Return the rows of a window that a sink does not have, by the log's key."""
    known = set(_log_keys(lake.read(sink, list(LOG_KEY), time_filters(window.after_us, window.until_us))))
    fresh = np.fromiter((key not in known for key in _log_keys(rows)), bool, rows.num_rows)
    return rows.filter(pa.array(fresh))


def _log_keys(rows: pa.Table) -> list[tuple[bytes, str, int]]:
    return list(zip(*(rows[name].to_pylist() for name in LOG_KEY), strict=True))


def ensure_consumer(
    lake: Lake,
    clock: Clock,
    schema: TableSchema,
    name: str,
    on_message: OnMessage,
    position: Callable[[], Microseconds] | None = None,
) -> Consumer:
    """Return the consumer, registered if new; `on_message` receives what a new one skips.

    A new consumer starts at `position`, by default before the first existing generation.
    """
    key = (name, schema.keyspace, schema.name)
    try:
        return consumers.find_consumer(lake, *key)
    except NotFound:
        sets = read_reader_sets(lake, schema, clock.now_us())
        first = min(sets.seen, default=ONE_US)
        skipped.report_removed_sets(lake, schema, name, sets, first, on_message)
        position_us = first - ONE_US if position is None else position()
        return consumers.register_consumer(lake, clock, *key, position_us=position_us)


def max_window_us(lake: Lake, schema: TableSchema, after_us: Microseconds) -> Microseconds | None:
    """Return the maximum length (µs) of a window whose files' rows fit into memory; None for no limit."""
    bounds = lake.file_bounds(log_table(schema), WRITTEN_AT)
    later_files = sorted(
        (us_from_datetime(high), rows) for _, high, rows in bounds if us_from_datetime(high) > after_us
    )
    count = 0
    for index, (_, rows) in enumerate(later_files):
        count += rows
        if count > MAX_ROWS_IN_MEMORY:
            return later_files[max(index - 1, 0)][0] - after_us
    return None


def missing_log_error(lake: Lake, name: str) -> NotFound:
    """Return the error for a table (`keyspace.table`) without a log here, with a remedy."""
    remedy = "write to it with: cdc-platform cql run FILE.cql --apply"
    return NotFound(
        f"{name} has no log here; "
        f"{choose_remedy(lake, remedy, f'bring it in with: cdc-platform ingest {{cluster}} {name}')}"
    )


def get_log_table(lake: Lake, schema: TableSchema) -> Table:
    """Return the table of the log.

    Raises:
        NotFound: there is none.
    """
    table = log_table(schema)
    if not lake.exists(table):
        raise missing_log_error(lake, schema.full_name)
    return table
