"""Reading a CDC log in the order of its generations: every row once, nothing that may still change, exactly-once sinks.

Windows are cut by `windows`, positions kept by `consumers`; here rows are read and go to where they are wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from cdc_platform import failpoints
from cdc_platform.clock import ONE_US, Clock, Microseconds, from_datetime, to_datetime
from cdc_platform.cql.names import is_name
from cdc_platform.cql.schema import TableSchema
from cdc_platform.errors import InputError, NotFound
from cdc_platform.lake import frames
from cdc_platform.lake.added import assert_as_added_between
from cdc_platform.lake.appended import stored_schema
from cdc_platform.lake.arrow import compute
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.mirrors import mend
from cdc_platform.lake.rows import conform
from cdc_platform.lake.shape import quoted
from cdc_platform.lake.tables import TIMESTAMP, Table, column
from cdc_platform.log.evolution import as_declared, readable
from cdc_platform.log.log_table import log_table
from cdc_platform.log.reading import left_out
from cdc_platform.log.reading.aside import aside, put_aside
from cdc_platform.log.reading.following import follow
from cdc_platform.log.reading.left_out import Tell
from cdc_platform.log.reading.sets import SAFETY_US, assert_complete, sets_of, stream_sets
from cdc_platform.log.reading.stream_progress import StreamProgress, first_unread_us
from cdc_platform.log.reading.windows import Sets, Window, next_window
from cdc_platform.log.stored_names import EXACT, GENERATION, WRITTEN_AT
from cdc_platform.records import consumers
from cdc_platform.records.consumers import Consumer
from cdc_platform.timeline import StreamSource, StreamSources

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ROWS_AT_ONCE = 1_000_000
"""About as many rows as a consumer takes into memory at once, in whole files of the log."""
BY_HOUR = "hourly"
"""The name of the consumer that copies logs hour by hour; see `hourly`."""
FROM_CLUSTER = consumers.FROM_CLUSTER
"""The name of the consumer that brings the log of a live cluster into the lake."""
_TAKEN = {BY_HOUR: "copies logs hour by hour", FROM_CLUSTER: "brings in the log of a live cluster"}
_MOST_NAME = 48
"""The letters of a consumer's name, which stands in that of its table."""
_GENERATION = column(
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

    Nothing newer than `newest_us` is read, nothing of a generation whose streams are not all there, and nothing of one
    that is passed over. Sorted by time, stream and place in the batch.

    Raises:
        StateError: some of it was in a generation that has been removed, or whose streams are not complete.
        NotFound: the table has no log here.
    """
    from pyspark.sql import functions as F

    table = log_of(lake, schema)
    read = list(whole_windows(lake, schema, since_us, min(until_us, newest_us(lake, schema, now_us)), now_us))
    rows = frames.read(spark, lake, table)
    if not read:
        return rows.limit(0)
    when = F.col(quoted(WRITTEN_AT))

    def between(after: Microseconds, until: Microseconds) -> Column:
        return (when > F.lit(to_datetime(after))) & (when <= F.lit(to_datetime(until)))

    inside = between(read[0].after_us, read[-1].until_us)
    for passed in (each for each in read if each.passed):
        inside &= ~between(passed.after_us, passed.until_us)
    return rows.where(inside).orderBy(*map(quoted, _ORDER))


def whole_windows(
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
    sets, position, number = sets_of(source, now_us), after_us, 0
    if only is not None:
        seen, removed = ([each for each in several if each in only] for several in (sets.seen, sets.removed))
        passed = [each for each in sets.passed if each not in only]
        sets = Sets([*seen, *passed], removed, passed=passed)
    while (window := next_window(sets, position, number, horizon_us)) is not None:
        if not window.passed:
            assert_complete(source, window)
        yield window
        position, number = window.until_us, window.number


def read_window(lake: Lake, schema: TableSchema, window: Window) -> pa.Table:
    """The rows of a window, as `read_between` has them, with the columns that stand aside; without a JVM.

    Raises:
        StoreFailure: the log has other rows there than were written, so nobody reads on from them.
    """
    low, high = to_datetime(window.after_us), to_datetime(window.until_us)
    assert_as_added_between(lake, log_of(lake, schema), WRITTEN_AT, low, high)
    return read_between(lake, schema, window.after_us, window.until_us, with_aside=True)


def read_between(
    lake: Lake, schema: TableSchema, after_us: Microseconds, until_us: Microseconds, *, with_aside: bool = False
) -> pa.Table:
    """The rows of the log later than `after_us` up to `until_us` (µs), sorted by time, stream and place in the batch.

    Where the log has it, the column for values that no native one holds comes too.
    """
    low, high = to_datetime(after_us), to_datetime(until_us)
    # A column that ALTER TABLE added is in the log from the first rows on that have it.
    stored = stored_schema(lake, log_of(lake, schema))
    log = log_table(schema, exact=EXACT in stored.names)
    if with_aside:
        log = _with_aside(log, stored)
    as_stored = replace(log, schema=readable(schema, log.schema, stored))
    rows = lake.read(as_stored, filters=[(WRITTEN_AT, ">", low), (WRITTEN_AT, "<=", high)])
    return in_order(conform(log, as_declared(schema, rows)))


def in_order(rows: pa.Table) -> pa.Table:
    """Rows of a log, sorted by time, stream and place in the batch."""
    return rows.sort_by([(name, "ascending") for name in _ORDER])


def check_name(name: str) -> None:
    """Hold that a consumer's name is one that a table can have; raises InputError."""
    if not is_name(name, most=_MOST_NAME):
        raise InputError(f"{name!r} is no name of a consumer; it has 1 to 48 letters, digits and underscores")


def sink_table(schema: TableSchema, name: str, *, exact: bool = False) -> Table:
    """The Delta table into which a consumer of this name copies the log of a table.

    With `exact` it has the column for values that no native one holds, as its log has it then.

    Raises:
        InputError: the name is none that a table can have.
    """
    check_name(name)
    table = log_table(schema, exact=exact)
    columns = table.schema.append(_GENERATION)
    return Table(
        table.keyspace,
        f"{table.name}_{name}",
        columns,
        table.keys,
        f"What consumer {name} read of {table.name}",
        of_readers=True,
    )


def sink_now(lake: Lake, schema: TableSchema, name: str) -> Table:
    """The table of a consumer, with all columns that the log has by now; what it lacks of them is put in."""
    log = stored_schema(lake, log_of(lake, schema))
    sink = sink_table(schema, name, exact=EXACT in log.names)
    if lake.exists(sink):
        put_aside(lake, sink, log, schema)
    return lake.widen(_with_aside(sink, log))


def _with_aside(table: Table, log: pa.Schema) -> Table:
    """A log, or a copy of it, with the columns of the stored log whose values are of a type that they had before."""
    return replace(table, schema=pa.schema([*table.schema, *(field for _, field in aside(log))]))


def with_generation(rows: pa.Table, window: Window) -> pa.Table:
    """Rows of a window with the begin of its generation or stream set beside each, as sinks have it."""
    begin = pa.scalar(to_datetime(window.set_us), TIMESTAMP)
    return rows.append_column(_GENERATION, pa.repeat(begin, rows.num_rows))


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
    check_name(name)
    if name in _TAKEN:
        raise InputError(f"{name!r} is the consumer that {_TAKEN[name]}; give this one another name")
    log_of(lake, schema)
    consumer = registered(lake, clock, schema, name, tell)
    horizon = newest_us(lake, schema, clock.now_us())
    if until_us is not None:
        horizon = min(until_us, horizon)
    return follow(lake, clock, schema, consumer, _FromLake(lake, schema, name), horizon, tell)


def newest_us(lake: Lake, schema: TableSchema, now_us: Microseconds) -> Microseconds:
    """The newest moment (µs) up to which the log here is whole: none that rows may still be on their way to.

    Where the log is brought in from a live cluster, that is how far it was brought, of every stream set.
    """
    safe = Microseconds(now_us - SAFETY_US)
    try:
        brought = consumers.find(lake, FROM_CLUSTER, schema.keyspace, schema.name).position_us
    except NotFound:
        return safe
    sets = stream_sets(lake, schema, now_us)
    progress = StreamProgress.of(lake, log_table(schema), FROM_CLUSTER, sets.seen)
    behind = first_unread_us(progress, sets, brought)
    return min(safe, brought if behind is None else behind)


@dataclass(frozen=True)
class _FromLake:
    """Copies from the log that lies in the lake."""

    lake: Lake
    schema: TableSchema
    name: str

    @property
    def sink(self) -> Table:
        return sink_table(self.schema, self.name)

    def longest_us(self, after_us: Microseconds) -> Microseconds | None:
        return longest(self.lake, self.schema, after_us)

    def rows_left(self, window: Window) -> int:
        return left_out.rows_of(self.lake, self.schema, window)

    def copy(self, source: StreamSource, window: Window, marks: Mapping[str, int], expected: int | None) -> int | None:
        empty = log_table(self.schema).schema.empty_table()
        rows = with_generation(empty if window.passed else read_window(self.lake, self.schema, window), window)
        sink = sink_now(self.lake, self.schema, self.name)
        failpoints.reached(failpoints.BEFORE_SINK)
        return rows.num_rows if self.lake.append_once(sink, rows, marks, expected) else None

    def origin_us(self, consumer: Consumer) -> Microseconds:
        """As `Copier`: an earlier release noted nothing, and `complete` compares its rows with those of the log."""
        return consumer.position_us

    def copy_unread(
        self, source: StreamSource, window: Window, marks: Mapping[str, int], expected: int | None
    ) -> int | None:
        rows = with_generation(read_window(self.lake, self.schema, window), window)
        rows = of_streams(rows, source, window)
        sink = sink_now(self.lake, self.schema, self.name)
        rows = without_known(self.lake, sink, rows, window)
        failpoints.reached(failpoints.BEFORE_SINK)
        return rows.num_rows if self.lake.append_once(sink, rows, marks, expected) else None


def of_streams(rows: pa.Table, source: StreamSource, window: Window) -> pa.Table:
    """Return those of a log's rows that lie in streams of a window's set."""
    period = next(each for each in source.periods() if each.begin_us == window.set_us)
    streams = pa.array([each.tobytes() for each in period.streams().streams], pa.binary())
    return rows.filter(compute.is_in(rows["cdc$stream_id"], value_set=streams))


def without_known(lake: Lake, sink: Table, rows: pa.Table, window: Window) -> pa.Table:
    """Return those of a window's rows that a sink does not have, by the log's key."""
    inside = [(WRITTEN_AT, ">", to_datetime(window.after_us)), (WRITTEN_AT, "<=", to_datetime(window.until_us))]
    known = set(_log_keys(lake.read(sink, list(LOG_KEY), inside)))
    fresh = np.fromiter((key not in known for key in _log_keys(rows)), bool, rows.num_rows)
    return rows.filter(pa.array(fresh))


def _log_keys(rows: pa.Table) -> list[tuple[bytes, str, int]]:
    return list(zip(*(rows[name].to_pylist() for name in LOG_KEY), strict=True))


def registered(
    lake: Lake,
    clock: Clock,
    schema: TableSchema,
    name: str,
    tell: Tell,
    position: Callable[[], Microseconds] | None = None,
) -> Consumer:
    """The consumer; what a new one leaves out is told.

    A new one stands where `position` says, by default before the first generation that there still is.
    """
    key = (name, schema.keyspace, schema.name)
    try:
        return consumers.find(lake, *key)
    except NotFound:
        sets = stream_sets(lake, schema, clock.now_us())
        first = min(sets.seen, default=ONE_US)
        left_out.tell_of_removed(lake, schema, name, sets, first, tell)
        position_us = first - ONE_US if position is None else position()
        return consumers.register(lake, clock, *key, position_us=position_us)


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


def no_log(lake: Lake, name: str) -> NotFound:
    """That nothing is here of the log of a table (`keyspace.table`), and what brings some."""
    kept = "write to it with: cdc-platform log FILE.cql --keep"
    return NotFound(
        f"{name} has no log here; {mend(lake, kept, f'bring it in with: cdc-platform ingest {{cluster}} {name}')}"
    )


def log_of(lake: Lake, schema: TableSchema) -> Table:
    """The table of the log.

    Raises:
        NotFound: there is none.
    """
    table = log_table(schema)
    if not lake.exists(table):
        raise no_log(lake, schema.full_name)
    return table
