"""Copy CDC logs hour by hour into sinks of their own: any hour, in any order and repeatedly, every row once.

An hour is read from the log again and replaced in one commit. Complete hours are recorded, and the consumer's position
follows them without a gap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import pyarrow as pa

from cdc_platform import failpoints
from cdc_platform.cdclog.consumer import skipped
from cdc_platform.cdclog.consumer.reader import (
    BY_HOUR,
    add_generation_column,
    ensure_consumer,
    get_log_table,
    iter_complete_windows,
    max_window_us,
    prepare_sink,
    read_window,
    readable_until_us,
    sink_table,
)
from cdc_platform.cdclog.consumer.skipped import OnMessage
from cdc_platform.cdclog.consumer.windows import (
    CONFIDENCE_WINDOW_US,
    ReaderSets,
    ReaderSetsByTable,
    Window,
    read_reader_sets,
)
from cdc_platform.cdclog.ddl import load_table_schemas, read_table_schema
from cdc_platform.cdclog.log_rows import time_filters
from cdc_platform.cdclog.schema import GENERATION, WRITTEN_AT, log_table
from cdc_platform.clock import (
    HOUR_US,
    ONE_US,
    Clock,
    Microseconds,
    datetime_from_us,
    format_us,
    parse_time_us,
    us_from_datetime,
)
from cdc_platform.cql import Catalog, TableSchema, split_full_name
from cdc_platform.delta import Filter, Lake, conform_rows
from cdc_platform.errors import ConflictError, InputError, NotFound, StateError
from cdc_platform.metastore import Consumer, cdc_tables, consumers
from cdc_platform.tables import CONSUMED_HOURS, Table

FIRST_HOUR = "2025-01-01T00:00:00Z"
"""No hour before this one is copied."""
_FIRST_US = parse_time_us(FIRST_HOUR)
_RowKey = tuple[bytes, str, int]


@dataclass(frozen=True)
class CopiedHour:
    """An hour of a table's log: its rows by `cdc$operation`, and the generations or sets (µs) that it touches."""

    table: str
    sink: str
    operations: dict[int, int]
    sets_us: tuple[Microseconds, ...]

    @property
    def rows(self) -> int:
        """Return the number of rows of the hour."""
        return sum(self.operations.values())


def select_logs(lake: Lake, names: Sequence[str] | None = None) -> list[TableSchema]:
    """Return the named tables (`keyspace.table`); by default all with a known definition and a log.

    Raises:
        InputError: a name is invalid, or occurs twice.
        NotFound: a table is not known, or has no log here.
    """
    if names is None:
        defined = load_table_schemas(Catalog(), cdc_tables.read_cdc_tables(lake))
        return [schema for schema in defined if lake.exists(log_table(schema))]
    if len(set(names)) != len(names):
        raise InputError(f"tables {', '.join(names)}: a table is named twice; name each once")
    schemas = []
    for name in names:
        keyspace, table = split_full_name(name)
        if not (keyspace and table):
            raise InputError(f"{name!r} names no table; write it as keyspace.table")
        schemas.append(read_table_schema(lake, keyspace, table))
        get_log_table(lake, schemas[-1])
    return schemas


def select_logs_to_copy(lake: Lake, clock: Clock, names: Sequence[str] | None = None) -> list[TableSchema]:
    """Return the named tables; by default those of `select_logs` for which a generation or stream set is published.

    A log without one has no hours yet, so it must not delay those of the others. If no log has one, return all: the
    refusal of `copy_hour` says what they need.

    Raises:
        InputError, NotFound: as `select_logs`.
    """
    schemas = select_logs(lake, names)
    if names is not None:
        return schemas
    sets = ReaderSetsByTable(lake, clock.now_us())
    return [schema for schema in schemas if sets.of(schema).seen] or schemas


def copy_hour(
    lake: Lake,
    clock: Clock,
    schemas: Sequence[TableSchema],
    hour_us: Microseconds,
    on_message: OnMessage = skipped.log_message,
) -> list[CopiedHour]:
    """Copy the hour from `hour_us` (µs) of these tables from the logs into the sinks, and record it.

    All tables are checked before anything is written. An hour that exists, in whole or in part, is updated to match the
    log; rows are never removed. `on_message` receives what is skipped, as in `consume`.

    Raises:
        StateError: the hour is not over, it is in a generation that has been removed or whose streams are incomplete,
            no generation is known, or the sink has rows that the log lacks.
        ConflictError: another process writes to the same sink.
    """
    readable_us = hour_us + HOUR_US - ONE_US + CONFIDENCE_WINDOW_US
    if clock.now_us() < readable_us:
        raise StateError(
            f"the hour from {format_us(hour_us)} cannot be read before {format_us(readable_us)}: until then rows of it"
            " may be on their way; run it after that"
        )
    for schema in schemas:
        _assert_ingested(lake, schema, hour_us, clock.now_us())
    planned = [(schema, _hour_windows(lake, schema, hour_us, clock.now_us())) for schema in schemas]
    return [_copy_log_hour(lake, clock, schema, windows, hour_us, on_message) for schema, windows in planned]


def _assert_ingested(lake: Lake, schema: TableSchema, hour_us: Microseconds, now_us: Microseconds) -> None:
    """Raise StateError if an ingested log does not reach the end of the hour."""
    newest = readable_until_us(lake, schema, now_us)
    if newest < hour_us + HOUR_US - ONE_US:
        raise StateError(
            f"the log of {schema.full_name} was ingested from its cluster up to {format_us(newest)}, and the hour"
            f" from {format_us(hour_us)} ends after that; run `cdc-platform ingest` first"
        )


def hourly_sink(schema: TableSchema) -> Table:
    """Return the table into which the hours of a log are copied."""
    return sink_table(schema, BY_HOUR)


def read_copied_hour(lake: Lake, hour_us: Microseconds) -> list[CopiedHour]:
    """Return the recorded copies of an hour (start, µs), counted in their sinks."""
    recorded = lake.read(CONSUMED_HOURS, ["keyspace_name", "table_name"], [("hour", "=", datetime_from_us(hour_us))])
    names = {(row["keyspace_name"], row["table_name"]) for row in recorded.to_pylist()}
    recorded_tables = [
        table for table in cdc_tables.read_cdc_tables(lake) if (table.keyspace_name, table.table_name) in names
    ]
    copied = []
    for schema in load_table_schemas(Catalog(), recorded_tables):
        sink = hourly_sink(schema)
        filters = time_filters(hour_us - ONE_US, hour_us + HOUR_US - ONE_US)
        rows = lake.read(sink, ["cdc$operation", GENERATION], filters)
        operations = Counter(rows["cdc$operation"].to_pylist())
        sets = sorted({us_from_datetime(begin) for begin in rows[GENERATION].unique().to_pylist()})
        copied.append(CopiedHour(schema.full_name, sink.full_name, dict(sorted(operations.items())), tuple(sets)))
    return copied


def list_due_hours(lake: Lake, clock: Clock, most: int) -> list[Microseconds]:
    """Return the first `most` hours (start, µs) that can be read and are incomplete in the sink of some table."""
    schemas = select_logs(lake)
    if not schemas:
        return []
    # All logs without tablets have the same generations, and all complete hours are in one table.
    sets, complete = ReaderSetsByTable(lake, clock.now_us()), _read_all_complete_hours(lake)
    hours: set[Microseconds] = set()
    for schema in schemas:
        own = complete.get((schema.keyspace, schema.name), frozenset())
        hours.update(islice(_iter_due_hours(lake, clock, schema, sets.of(schema), own), most))
    return sorted(hours)[:most]


def count_readable_hours(clock: Clock) -> int:
    """Return how many hours since the epoch are over and past the confidence window.

    While this number and all tables stay as they are, so do the results of `list_due_hours`.
    """
    return (clock.now_us() - CONFIDENCE_WINDOW_US + ONE_US) // HOUR_US


def _hour_windows(lake: Lake, schema: TableSchema, hour_us: Microseconds, now_us: Microseconds) -> list[Window]:
    """Split the hour at the generations; it begins at the consumer's position if that is inside it."""
    sets = read_reader_sets(lake, schema, now_us)
    if not sets.seen:
        raise StateError(f"no generation is known in which {schema.full_name} could have rows; publish one first")
    after_us, last_us = hour_us - ONE_US, hour_us + HOUR_US - ONE_US
    if sets.awaited is not None and sets.awaited <= last_us:
        raise StateError(
            f"the hour from {format_us(hour_us)} reaches into the generation of {format_us(sets.awaited)}, which is not"
            " published yet: publish it, then run this again"
        )
    position = _read_position(lake, schema, sets)
    if after_us < position < last_us:
        after_us = position
    return list(iter_complete_windows(lake, schema, after_us, last_us, now_us))


def _copy_log_hour(
    lake: Lake, clock: Clock, schema: TableSchema, windows: list[Window], hour_us: Microseconds, on_message: OnMessage
) -> CopiedHour:
    key = (schema.keyspace, schema.name)
    consumer = ensure_consumer(
        lake,
        clock,
        schema,
        BY_HOUR,
        on_message,
        lambda: _read_position(lake, schema, read_reader_sets(lake, schema, clock.now_us())),
    )
    operations: Counter[int] = Counter()
    for window in windows:
        if window.passed:
            skipped.skip_window(
                lake, clock, consumer, window, partial(skipped.count_set_rows, lake, schema), on_message
            )
            continue
        # From now on its other hours are checked against the log, and copied again if rows are missing.
        skipped.clear_skip(lake, consumer, window.set_us)
        for piece in _split_window(lake, schema, window):
            rows = add_generation_column(read_window(lake, schema, piece), piece)
            _replace_rows(lake, prepare_sink(lake, schema, BY_HOUR), rows, piece)
            operations.update(
                {count["values"]: count["counts"] for count in rows["cdc$operation"].value_counts().to_pylist()}
            )
    hour = {
        "keyspace_name": key[0],
        "table_name": key[1],
        "hour": datetime_from_us(hour_us),
        "rows": operations.total(),
    }
    lake.merge(CONSUMED_HOURS, pa.Table.from_pylist([hour], schema=CONSUMED_HOURS.schema), update=True)
    failpoints.kill_if_selected(failpoints.AFTER_HOUR_NOTED)
    _advance_consumer(lake, clock, schema, consumer)
    sets = tuple(window.set_us for window in windows if not window.passed)
    return CopiedHour(schema.full_name, sink_table(schema, BY_HOUR).full_name, dict(sorted(operations.items())), sets)


def _split_window(lake: Lake, schema: TableSchema, window: Window) -> Iterator[Window]:
    """Split a window into parts whose rows fit into memory."""
    after = window.after_us
    while after < window.until_us:
        length = max_window_us(lake, schema, after)
        until = window.until_us if length is None else min(window.until_us, after + length)
        yield Window(window.number, window.set_us, after, until)
        after = until


def _replace_rows(lake: Lake, sink: Table, rows: pa.Table, piece: Window) -> None:
    """Replace a part of the sink by these rows, in one commit; no commit if it is unchanged."""
    filters = time_filters(piece.after_us, piece.until_us)
    version = lake.version(sink)
    stored = lake.read(sink, filters=filters)
    expected = conform_rows(sink, _with_dropped_columns(sink, rows, stored))
    order = [(name, "ascending") for name in sink.keys]
    if stored.sort_by(order).equals(expected.sort_by(order)):
        return
    missing = set(iter_row_keys(stored)).difference(iter_row_keys(expected))
    if missing:
        raise StateError(
            f"{sink.full_name} has {len(missing)} rows from {format_us(piece.after_us + ONE_US)} to"
            f" {format_us(piece.until_us)} that the log no longer has; the hour was not changed: move them"
            " away to copy the hour again"
        )
    failpoints.kill_if_selected(failpoints.BEFORE_SINK)
    if not lake.replace_once(sink, expected, filters, version):
        raise ConflictError(f"another process writes to {sink.full_name}; run this again when it is done")
    failpoints.kill_if_selected(failpoints.AFTER_SINK)


def _with_dropped_columns(sink: Table, rows: pa.Table, stored: pa.Table) -> pa.Table:
    """Add to the log's rows the columns that ALTER TABLE dropped, which only the sink still has."""
    dropped = [name for name in sink.schema.names if name not in rows.schema.names]
    if not dropped:
        return rows
    positions = {key: position for position, key in enumerate(iter_row_keys(stored))}
    indices = pa.array([positions.get(key) for key in iter_row_keys(rows)], pa.int64())
    for name in dropped:
        rows = rows.append_column(sink.schema.field(name), stored[name].take(indices))
    return rows


def iter_row_keys(rows: pa.Table) -> Iterator[_RowKey]:
    """Yield the key of each row: stream, time and position in the batch."""
    return zip(*(rows[name].to_pylist() for name in ("cdc$stream_id", "cdc$time", "cdc$batch_seq_no")), strict=True)


def _read_position(lake: Lake, schema: TableSchema, sets: ReaderSets) -> Microseconds:
    """Return the consumer's position; before registration, the time before the first row that its log can have."""
    try:
        return consumers.find_consumer(lake, BY_HOUR, schema.keyspace, schema.name).position_us
    except NotFound:
        lows = [us_from_datetime(low) for low, _, _ in lake.file_bounds(log_table(schema), WRITTEN_AT)]
        # Rows can be older than their table, since a write can set its own timestamp.
        first_row = min([schema.created_at_us, *lows])
        return max(min(sets.seen, default=ONE_US), _FIRST_US, first_row) - ONE_US


def _read_complete_hours(lake: Lake, schema: TableSchema) -> set[Microseconds]:
    """Return the complete hours (start, µs) of a table."""
    where: list[Filter] = [("keyspace_name", "=", schema.keyspace), ("table_name", "=", schema.name)]
    return {us_from_datetime(hour) for hour in lake.read(CONSUMED_HOURS, ["hour"], where)["hour"].to_pylist()}


def _read_all_complete_hours(lake: Lake) -> dict[tuple[str, str], set[Microseconds]]:
    """Return the complete hours (start, µs) of all tables, by keyspace and name."""
    rows = lake.read(CONSUMED_HOURS, ["keyspace_name", "table_name", "hour"])
    # Conversion to datetimes would take ten times as long, and a home has an hour for each table and hour.
    starts_us = rows["hour"].cast(pa.int64()).to_pylist()
    hours: dict[tuple[str, str], set[Microseconds]] = {}
    for keyspace, table, hour_us in zip(
        rows["keyspace_name"].to_pylist(), rows["table_name"].to_pylist(), starts_us, strict=True
    ):
        hours.setdefault((keyspace, table), set()).add(Microseconds(hour_us))
    return hours


def _advance_consumer(lake: Lake, clock: Clock, schema: TableSchema, consumer: Consumer) -> None:
    """Advance the consumer past the complete hours up to the first incomplete one; its generation is not removed."""
    complete, position = _read_complete_hours(lake, schema), consumer.position_us
    while _hour_start(position + ONE_US) in complete:
        position = _hour_start(position + ONE_US) + HOUR_US - ONE_US
    if position == consumer.position_us:
        return
    sets = read_reader_sets(lake, schema, clock.now_us())
    started = [begin_us for begin_us in (*sets.seen, *sets.removed) if begin_us <= position]
    consumers.advance_consumer(
        lake,
        clock,
        consumer,
        position_us=position,
        set_timestamp_us=max(started, default=None),
        expected_window=consumer.window_number,
    )


def _iter_due_hours(
    lake: Lake, clock: Clock, schema: TableSchema, sets: ReaderSets, complete: Collection[Microseconds]
) -> Iterator[Microseconds]:
    if not sets.seen:
        return
    readable_us = readable_until_us(lake, schema, clock.now_us())
    if sets.awaited is not None:
        readable_us = min(readable_us, sets.awaited - ONE_US)
    first = hour = _hour_start(_read_position(lake, schema, sets) + ONE_US)
    while hour + HOUR_US - ONE_US <= readable_us:
        # A recorded hour at the consumer's position was left by a process that died.
        if hour not in complete or hour == first:
            yield hour
        hour += HOUR_US


def _hour_start(moment_us: Microseconds) -> Microseconds:
    return moment_us - moment_us % HOUR_US
