"""CDC logs copied hour by hour into sinks of their own: any hour, in any order, as often as wanted, every row once.

An hour is taken from the log anew and put in its place in one commit. Hours that are whole are noted, and the position
of the consumer follows them without a gap; what a window of a generation is, `windows` says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import pyarrow as pa

from cdc_platform import failpoints
from cdc_platform.clock import (
    HOUR_US,
    ONE_US,
    Clock,
    Microseconds,
    format_us,
    from_datetime,
    parse_time_us,
    to_datetime,
)
from cdc_platform.cql.catalog import Catalog
from cdc_platform.cql.schema import TableSchema
from cdc_platform.errors import ConflictError, InputError, NotFound, StateError
from cdc_platform.lake.filters import Filter
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.rows import conform
from cdc_platform.lake.tables import CONSUMED_HOURS, Table
from cdc_platform.log.ddl import known_tables, schema_of
from cdc_platform.log.log_table import log_table
from cdc_platform.log.reading import left_out
from cdc_platform.log.reading.left_out import Tell
from cdc_platform.log.reading.reader import (
    BY_HOUR,
    log_of,
    longest,
    newest_us,
    read_window,
    registered,
    sink_now,
    sink_table,
    whole_windows,
    with_generation,
)
from cdc_platform.log.reading.sets import SAFETY_US, stream_sets
from cdc_platform.log.reading.windows import Window
from cdc_platform.log.stored_names import WRITTEN_AT
from cdc_platform.records import cdc_tables, consumers
from cdc_platform.records.consumers import Consumer

FIRST_HOUR = "2025-01-01T00:00:00Z"
"""No hour before this one is copied."""
_FIRST_US = parse_time_us(FIRST_HOUR)
_Key = tuple[bytes, str, int]


@dataclass(frozen=True)
class CopiedHour:
    """What an hour of a table's log has: its rows by `cdc$operation`, the generations or sets (µs) that it touches."""

    table: str
    sink: str
    operations: dict[int, int]
    sets_us: tuple[Microseconds, ...]

    @property
    def rows(self) -> int:
        """All rows of the hour."""
        return sum(self.operations.values())


def logs(lake: Lake, names: Sequence[str] | None = None) -> list[TableSchema]:
    """The tables of these names (`keyspace.table`); by default all whose definition is known and that have a log.

    Raises:
        InputError: a name is none, or comes twice.
        NotFound: a table is not known, or has no log here.
    """
    if names is None:
        found = known_tables(Catalog(), cdc_tables.cdc_tables(lake))
        return [schema for schema in found if lake.exists(log_table(schema))]
    if len(set(names)) != len(names):
        raise InputError(f"tables {', '.join(names)}: a table is named twice; name each once")
    schemas = []
    for name in names:
        keyspace, _, table = name.partition(".")
        if not (keyspace and table):
            raise InputError(f"{name!r} names no table; write it as keyspace.table")
        schemas.append(schema_of(lake, keyspace, table))
        log_of(lake, schemas[-1])
    return schemas


def copy_hour(
    lake: Lake, clock: Clock, schemas: Sequence[TableSchema], hour_us: Microseconds, tell: Tell = left_out.tell_in_log
) -> list[CopiedHour]:
    """Make the sinks of these tables hold the hour from `hour_us` (µs) on as the logs do now, and note it.

    Everything is checked for all of them before anything is written. An hour that is there already, whole or in part,
    is brought to what the log has; rows never leave it. What is left out is told, as `consume` tells it.

    Raises:
        StateError: the hour is not over, it was in a generation that has been removed or whose streams are not
            complete, no generation is known, or the sink has rows that the log has not.
        ConflictError: another process writes to the same sink.
    """
    readable_us = hour_us + HOUR_US - ONE_US + SAFETY_US
    if clock.now_us() < readable_us:
        raise StateError(
            f"the hour from {format_us(hour_us)} cannot be read before {format_us(readable_us)}: until then rows of it"
            " may be on their way; run it after that"
        )
    for schema in schemas:
        _assert_brought_in(lake, schema, hour_us, clock.now_us())
    planned = [(schema, _windows(lake, schema, hour_us, clock.now_us())) for schema in schemas]
    return [_copied(lake, clock, schema, windows, hour_us, tell) for schema, windows in planned]


def _assert_brought_in(lake: Lake, schema: TableSchema, hour_us: Microseconds, now_us: Microseconds) -> None:
    """Hold that a log that is brought in from a cluster was, up to the end of the hour."""
    newest = newest_us(lake, schema, now_us)
    if newest < hour_us + HOUR_US - ONE_US:
        raise StateError(
            f"the log of {schema.full_name} was brought in from its cluster up to {format_us(newest)}, and the hour"
            f" from {format_us(hour_us)} ends behind that; run `cdc-platform ingest` first"
        )


def due_hours(lake: Lake, clock: Clock, most: int) -> list[Microseconds]:
    """The first hours (start, µs), at most `most`, that can be read and are not whole in the sink of some table."""
    found: set[Microseconds] = set()
    for schema in logs(lake):
        found.update(islice(_due(lake, clock, schema), most))
    return sorted(found)[:most]


def _windows(lake: Lake, schema: TableSchema, hour_us: Microseconds, now_us: Microseconds) -> list[Window]:
    """The hour cut at the generations; it begins where the consumer does, if that is inside of it."""
    sets = stream_sets(lake, schema, now_us)
    if not sets.seen:
        raise StateError(f"no generation is known in which {schema.full_name} could have rows; publish one first")
    after, last = hour_us - ONE_US, hour_us + HOUR_US - ONE_US
    if sets.awaited is not None and sets.awaited <= last:
        raise StateError(
            f"the hour from {format_us(hour_us)} reaches into the generation of {format_us(sets.awaited)}, which is not"
            " published yet: publish it, then run this again"
        )
    position = _position(lake, schema, now_us)
    if after < position < last:
        after = position
    return list(whole_windows(lake, schema, after, last, now_us))


def _copied(
    lake: Lake, clock: Clock, schema: TableSchema, windows: list[Window], hour_us: Microseconds, tell: Tell
) -> CopiedHour:
    name = (schema.keyspace, schema.name)
    consumer = registered(lake, clock, schema, BY_HOUR, tell, lambda: _position(lake, schema, clock.now_us()))
    operations: Counter[int] = Counter()
    for window in windows:
        if window.passed:
            left_out.pass_over(lake, clock, consumer, window, partial(left_out.rows_of, lake, schema), tell)
            continue
        # Its other hours are compared with the log from now on, and asked for again where rows are missing.
        left_out.read_after_all(lake, consumer, window.set_us)
        for piece in _pieces(lake, schema, window):
            rows = with_generation(read_window(lake, schema, piece), piece)
            _put(lake, sink_now(lake, schema, BY_HOUR), rows, piece)
            operations.update(
                {each["values"]: each["counts"] for each in rows["cdc$operation"].value_counts().to_pylist()}
            )
    hour = {"keyspace_name": name[0], "table_name": name[1], "hour": to_datetime(hour_us), "rows": operations.total()}
    lake.merge(CONSUMED_HOURS, pa.Table.from_pylist([hour], schema=CONSUMED_HOURS.schema), update=True)
    failpoints.reached(failpoints.AFTER_HOUR_NOTED)
    _follow(lake, clock, schema, consumer)
    sets = tuple(window.set_us for window in windows if not window.passed)
    return CopiedHour(schema.full_name, sink_table(schema, BY_HOUR).full_name, dict(sorted(operations.items())), sets)


def _pieces(lake: Lake, schema: TableSchema, window: Window) -> Iterator[Window]:
    """A window cut into parts whose rows fit into memory."""
    after = window.after_us
    while after < window.until_us:
        length = longest(lake, schema, after)
        until = window.until_us if length is None else min(window.until_us, after + length)
        yield Window(window.number, window.set_us, after, until)
        after = until


def _put(lake: Lake, sink: Table, rows: pa.Table, piece: Window) -> None:
    """Make a part of the sink these rows, in one commit, or none where it is these rows."""
    inside = within(piece.after_us, piece.until_us)
    version = lake.version(sink)
    stored = lake.read(sink, filters=inside)
    wanted = conform(sink, _with_dropped(sink, rows, stored))
    order = [(name, "ascending") for name in sink.keys]
    if stored.sort_by(order).equals(wanted.sort_by(order)):
        return
    lost = set(keys_of(stored)).difference(keys_of(wanted))
    if lost:
        raise StateError(
            f"{sink.full_name} has {len(lost)} rows from {format_us(piece.after_us + ONE_US)} to"
            f" {format_us(piece.until_us)} that the log has no longer; they stay, and the hour is as it was: move them"
            " away to copy it anew"
        )
    failpoints.reached(failpoints.BEFORE_SINK)
    if not lake.replace_once(sink, wanted, inside, version):
        raise ConflictError(f"another process writes to {sink.full_name}; run this again when it is done")
    failpoints.reached(failpoints.AFTER_SINK)


def _with_dropped(sink: Table, rows: pa.Table, stored: pa.Table) -> pa.Table:
    """The rows of the log, with what the sink alone has of them: columns that ALTER TABLE dropped."""
    dropped = [name for name in sink.schema.names if name not in rows.schema.names]
    if not dropped:
        return rows
    places = {key: place for place, key in enumerate(keys_of(stored))}
    indices = pa.array([places.get(key) for key in keys_of(rows)], pa.int64())
    for name in dropped:
        rows = rows.append_column(sink.schema.field(name), stored[name].take(indices))
    return rows


def keys_of(rows: pa.Table) -> Iterator[_Key]:
    """What names each row: stream, time and place in the batch."""
    return zip(*(rows[name].to_pylist() for name in ("cdc$stream_id", "cdc$time", "cdc$batch_seq_no")), strict=True)


def within(after_us: Microseconds, until_us: Microseconds) -> list[Filter]:
    """The filters of the rows with `after_us` < timestamp <= `until_us` (µs)."""
    return [(WRITTEN_AT, ">", to_datetime(after_us)), (WRITTEN_AT, "<=", to_datetime(until_us))]


def _position(lake: Lake, schema: TableSchema, now_us: Microseconds) -> Microseconds:
    """Where the consumer is; before it is registered, just before the first row that its log can have."""
    try:
        return consumers.find(lake, BY_HOUR, schema.keyspace, schema.name).position_us
    except NotFound:
        lows = [from_datetime(low) for low, _, _ in lake.file_bounds(log_table(schema), WRITTEN_AT)]
        # Rows can be older than their table: a write says itself when it was.
        first_row = min([schema.created_at_us, *lows])
        return max(min(stream_sets(lake, schema, now_us).seen, default=ONE_US), _FIRST_US, first_row) - ONE_US


def _noted(lake: Lake, schema: TableSchema) -> set[Microseconds]:
    """The hours (start, µs) of a table that are whole."""
    where: list[Filter] = [("keyspace_name", "=", schema.keyspace), ("table_name", "=", schema.name)]
    return {from_datetime(hour) for hour in lake.read(CONSUMED_HOURS, ["hour"], where)["hour"].to_pylist()}


def _follow(lake: Lake, clock: Clock, schema: TableSchema, consumer: Consumer) -> None:
    """Move the consumer behind the hours that are whole, up to the first that is not: what it holds is not removed."""
    noted, position = _noted(lake, schema), consumer.position_us
    while _hour_of(position + ONE_US) in noted:
        position = _hour_of(position + ONE_US) + HOUR_US - ONE_US
    if position == consumer.position_us:
        return
    sets = stream_sets(lake, schema, clock.now_us())
    begun = [each for each in (*sets.seen, *sets.removed) if each <= position]
    consumers.advance(
        lake,
        clock,
        consumer,
        position_us=position,
        set_timestamp_us=max(begun, default=None),
        expected_window=consumer.window_number,
    )


def _due(lake: Lake, clock: Clock, schema: TableSchema) -> Iterator[Microseconds]:
    sets = stream_sets(lake, schema, clock.now_us())
    if not sets.seen:
        return
    readable_us = newest_us(lake, schema, clock.now_us())
    if sets.awaited is not None:
        readable_us = min(readable_us, sets.awaited - ONE_US)
    first = hour = _hour_of(_position(lake, schema, clock.now_us()) + ONE_US)
    noted = _noted(lake, schema)
    while hour + HOUR_US - ONE_US <= readable_us:
        # One that is noted, and that the consumer has not followed, was left by a process that died.
        if hour not in noted or hour == first:
            yield hour
        hour += HOUR_US


def _hour_of(moment_us: Microseconds) -> Microseconds:
    return moment_us - moment_us % HOUR_US
