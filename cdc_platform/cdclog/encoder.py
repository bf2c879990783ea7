"""Encode a mutation as the rows of its CDC log, one batch per timestamp, with pre-images and post-images.

A mutation is split as in cdc/split.cc. For images, as in cdc/log.cc, the values of a row are read once and each change
is applied to them in the order of the log, without regard to earlier timestamps or expiry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

from cdc_platform.clock import ONE_US, Microseconds
from cdc_platform.cql import (
    Cell,
    CollectionChange,
    Column,
    ColumnChange,
    ColumnChanges,
    CqlType,
    KeyValues,
    LivePartition,
    Mutation,
    RangeBound,
    RangeTombstone,
    RowMarker,
    SetType,
    TableSchema,
    UserType,
    Value,
    collection_value,
    get_element_key_type,
    make_log_timeuuid,
    normalize_ranges,
)

_WriteTime = tuple[Microseconds, int]
"""A timestamp and a TTL (s)."""


@dataclass(frozen=True, slots=True)
class Upsert:
    """Columns written to one row: `key` None for the static row; `ttl` in seconds, 0 for none; `inserted` by INSERT."""

    key: KeyValues | None
    ttl: int
    inserted: bool
    columns: ColumnChanges


@dataclass(slots=True)
class TimestampChanges:
    """The changes of a mutation at one timestamp (µs), in the order of the log.

    `deletions_first`: row deletions come before the upserts, not after them.
    """

    timestamp: Microseconds
    upserts: list[Upsert] = field(default_factory=list)
    row_deletions: list[KeyValues] = field(default_factory=list)
    ranges: list[RangeTombstone] = field(default_factory=list)
    partition_deleted: bool = False
    deletions_first: bool = False


def split_mutation(mutation: Mutation) -> list[TimestampChanges]:
    """Split a mutation into changes, one per timestamp, in ascending order; [] for an empty mutation.

    The order at one timestamp is static cells, inserts, other updates, row deletions, ranges, the partition; parts of a
    row by ascending TTL. A tombstone of a collection belongs to the following microsecond, without TTL. A mutation that
    needs no splitting keeps its rows in clustering order, inserted or not, after its row deletions.
    """
    ranges = normalize_ranges(mutation.schema, mutation.range_tombstones)
    times = _write_times(mutation, ranges)
    if not _should_split(mutation, ranges, times):
        return _unsplit_changes(mutation, ranges, times)
    return _split_changes(mutation, ranges)


def _should_split(mutation: Mutation, ranges: list[RangeTombstone], times: set[_WriteTime]) -> bool:
    """Return True if a mutation has several timestamps, TTLs or kinds of changes; `ranges` in normal form.

    Rows are visited in clustering order. Row deletions may come before writes to other rows, but not after them. Live
    elements of a collection require a split if their row or an earlier one has a marker, since only a whole overwrite
    can be an INSERT (cdc/split.cc, should_split_visitor).
    """
    if len(times) > 1:
        return True
    clustered = bool(mutation.rows or mutation.row_tombstones)
    kinds = (mutation.static, clustered, ranges, mutation.partition_tombstone is not None)
    return sum(map(bool, kinds)) > 1 or _has_late_row_deletion(mutation) or _adds_elements_after_marker(mutation)


def _has_late_row_deletion(mutation: Mutation) -> bool:
    """Return True if a deleted row is not before all written rows."""
    if not mutation.rows or not mutation.row_tombstones:
        return False
    order = mutation.schema.clustering_order
    return max(map(order, mutation.row_tombstones)) >= min(map(order, mutation.rows))


def _adds_elements_after_marker(mutation: Mutation) -> bool:
    if all(row.marker is None for row in mutation.rows.values()):
        return False
    marked = False
    for key in _sorted_keys(mutation, mutation.rows):
        row = mutation.rows[key]
        marked = marked or row.marker is not None
        if marked and _adds_elements(row.cells):
            return True
    return False


def _adds_elements(columns: ColumnChanges) -> bool:
    collections = (change for change in columns.values() if isinstance(change, CollectionChange))
    return any(not cell.dead for change in collections for cell in change.elements.values())


def _write_times(mutation: Mutation, ranges: list[RangeTombstone]) -> set[_WriteTime]:
    """Return the (timestamp, TTL) of everything in a mutation."""
    times = {(timestamp, 0) for timestamp in mutation.row_tombstones.values()}
    times.update((tombstone.timestamp, 0) for tombstone in ranges)
    if mutation.partition_tombstone is not None:
        times.add((mutation.partition_tombstone, 0))
    _add_write_times(times, mutation.static)
    for row in mutation.rows.values():
        if row.marker is not None:
            times.add((row.marker.timestamp, row.marker.ttl))
        _add_write_times(times, row.cells)
    return times


def _add_write_times(times: set[_WriteTime], columns: ColumnChanges) -> None:
    for change in columns.values():
        if isinstance(change, Cell):
            times.add(_cell_time(change))
            continue
        if change.tombstone is not None:
            times.add((change.tombstone + ONE_US, 0))
        times.update(map(_cell_time, change.elements.values()))


def _cell_time(cell: Cell) -> _WriteTime:
    return cell.timestamp, 0 if cell.dead else cell.ttl


def _unsplit_changes(
    mutation: Mutation, ranges: list[RangeTombstone], times: set[_WriteTime]
) -> list[TimestampChanges]:
    """Return the changes of a mutation of one timestamp and TTL."""
    if not times:
        return []
    ((timestamp, ttl),) = times
    upserts = [Upsert(None, ttl, False, mutation.static)] if mutation.static else []
    upserts += [
        Upsert(key, ttl, mutation.rows[key].marker is not None, mutation.rows[key].cells)
        for key in _sorted_keys(mutation, mutation.rows)
    ]
    deletions = _sorted_keys(mutation, mutation.row_tombstones)
    return [
        TimestampChanges(timestamp, upserts, deletions, ranges, mutation.partition_tombstone is not None, bool(upserts))
    ]


def _sorted_keys(mutation: Mutation, keys: Mapping[KeyValues, object]) -> list[KeyValues]:
    return sorted(keys, key=mutation.schema.clustering_order)


def _split_changes(mutation: Mutation, ranges: list[RangeTombstone]) -> list[TimestampChanges]:
    by_time: dict[Microseconds, TimestampChanges] = {}
    static, inserts, updates = _split_upserts(mutation)
    for timestamp, upsert in (*static, *inserts, *updates):
        _changes_at(by_time, timestamp).upserts.append(upsert)
    for key in _sorted_keys(mutation, mutation.row_tombstones):
        _changes_at(by_time, mutation.row_tombstones[key]).row_deletions.append(key)
    for tombstone in ranges:
        _changes_at(by_time, tombstone.timestamp).ranges.append(tombstone)
    if mutation.partition_tombstone is not None:
        _changes_at(by_time, mutation.partition_tombstone).partition_deleted = True
    return [by_time[timestamp] for timestamp in sorted(by_time)]


def _changes_at(by_time: dict[Microseconds, TimestampChanges], timestamp: Microseconds) -> TimestampChanges:
    return by_time.setdefault(timestamp, TimestampChanges(timestamp))


_TimedUpserts = list[tuple[Microseconds, Upsert]]
"""Upserts with their timestamps (µs)."""


def _split_upserts(mutation: Mutation) -> tuple[_TimedUpserts, _TimedUpserts, _TimedUpserts]:
    """Return the static updates, the inserts and the other updates of a mutation, each in log order."""
    static = [(time, Upsert(None, ttl, False, part)) for (time, ttl), part in _columns_by_time(mutation.static, None)]
    inserts: _TimedUpserts = []
    updates: _TimedUpserts = []
    for key in _sorted_keys(mutation, mutation.rows):
        row = mutation.rows[key]
        inserted = None if row.marker is None else (row.marker.timestamp, row.marker.ttl)
        for time, columns in _columns_by_time(row.cells, row.marker):
            timestamp, ttl = time
            if time != inserted:
                updates.append((timestamp, Upsert(key, ttl, False, columns)))
                continue
            element_changes = {name: change for name, change in columns.items() if _only_elements(change)}
            with_marker = {name: change for name, change in columns.items() if name not in element_changes}
            inserts.append((timestamp, Upsert(key, ttl, True, with_marker)))
            if element_changes:
                updates.append((timestamp, Upsert(key, ttl, False, element_changes)))
    return static, inserts, updates


def _only_elements(change: ColumnChange) -> bool:
    """Return True if no INSERT can make the change: elements of a collection without its tombstone."""
    return isinstance(change, CollectionChange) and change.tombstone is None


def _columns_by_time(
    columns: ColumnChanges, marker: RowMarker | None
) -> list[tuple[_WriteTime, dict[str, ColumnChange]]]:
    """Return the columns of a row by ascending (timestamp, TTL), with an entry for the marker even if empty."""
    parts: dict[_WriteTime, dict[str, ColumnChange]] = {}
    if marker is not None:
        parts[marker.timestamp, marker.ttl] = {}
    for name, change in columns.items():
        for time, part in _change_by_time(change).items():
            parts.setdefault(time, {})[name] = part
    return sorted(parts.items(), key=lambda part: part[0])


def _change_by_time(change: ColumnChange) -> dict[_WriteTime, ColumnChange]:
    if isinstance(change, Cell):
        return {_cell_time(change): change}
    tombstones = {} if change.tombstone is None else {(change.tombstone + ONE_US, 0): change.tombstone}
    elements: dict[_WriteTime, dict[Value, Cell]] = {}
    for key, cell in change.elements.items():
        elements.setdefault(_cell_time(cell), {})[key] = cell
    times = dict.fromkeys((*tombstones, *elements))
    return {time: CollectionChange(tombstones.get(time), elements.get(time, {})) for time in times}


RowImage = tuple[KeyValues | None, dict[str, Value | None]]
"""The clustering key of a row (None: the static row) and the values of its columns, None if absent."""

_RowValues = dict[str, Value | None]
"""The known values of a row, None for columns that a change has emptied."""


class PartitionImages:
    """The running state of the rows that a mutation touches while its changes are applied."""

    def __init__(self, mutation: Mutation, state: Mutation | None, now_us: Microseconds | None) -> None:
        """`state` is the previous state of the partition, None if empty; cells expired at `now_us` are ignored."""
        schema = mutation.schema
        self._schema = schema
        self._rows: dict[KeyValues, _RowValues] = {}
        self._static: _RowValues = {}
        self._static_touched = False
        if state is None:
            return
        partition = LivePartition(replace(state, schema=schema), now_us)
        for key in _named_keys(mutation):
            if partition.has_row(key):
                self._rows[key] = dict(partition.row(key))
        if mutation.static:
            self._static = dict(partition.static())

    def before(self, changes: TimestampChanges) -> Iterator[RowImage]:
        """Yield the pre-images of known rows, static first, then in clustering order.

        They have only the touched columns, unless the table has full pre-images or the whole row is deleted.
        """
        return self._images(changes, full=self._schema.cdc.preimage == "full")

    def after(self, changes: TimestampChanges) -> Iterator[RowImage]:
        """Yield the full post-images of the rows that were not deleted, including empty ones."""
        return self._images(changes, full=True)

    def apply(self, changes: TimestampChanges) -> None:
        """Apply the changes of one timestamp, in the order of the log.

        A deletion of a range or of the partition removes its rows. Here the static row survives even the latter
        (cdc/log.cc, process_change_visitor).
        """
        for upsert in changes.upserts:
            self._apply(upsert)
        for key in changes.row_deletions:
            self._rows.pop(key, None)
        if changes.ranges:
            remaining = [
                key
                for key in self._rows
                if not any(tombstone.covers(self._schema, key) for tombstone in changes.ranges)
            ]
            self._rows = {key: self._rows[key] for key in remaining}
        if changes.partition_deleted:
            self._rows = {}

    def _apply(self, upsert: Upsert) -> None:
        if upsert.key is None:
            self._static_touched = True
            row = self._static
        else:
            row = self._rows.setdefault(upsert.key, {})
        for name, change in upsert.columns.items():
            row[name] = _value_after(self._schema.column(name).type, row.get(name), change)

    def _images(self, changes: TimestampChanges, *, full: bool) -> Iterator[RowImage]:
        static, touched = self._touched(changes)
        # An empty static row has an image once it was changed (cdc/log.cc, generate_image).
        if static and (self._static or self._static_touched):
            yield None, _image_values(self._schema.statics, self._static, None if full else static)
        for key in sorted(touched, key=self._schema.clustering_order):
            if key in self._rows:
                yield key, _image_values(self._schema.regulars, self._rows[key], None if full else touched[key])

    def _touched(self, changes: TimestampChanges) -> tuple[set[str], dict[KeyValues, set[str]]]:
        """Return the touched columns of the static row, and of each clustered row; ranges touch none.

        A partition deletion touches none either, except in a table without clustering columns, where the partition is
        the row.
        """
        static: set[str] = set()
        rows: dict[KeyValues, set[str]] = {}
        for upsert in changes.upserts:
            (static if upsert.key is None else rows.setdefault(upsert.key, set())).update(upsert.columns)
        all_columns = {column.name for column in self._schema.regulars}
        deleted = [
            *changes.row_deletions,
            *([()] if changes.partition_deleted and not self._schema.clustering_key else []),
        ]
        rows.update(dict.fromkeys(deleted, all_columns))
        return static, rows


def _named_keys(mutation: Mutation) -> set[KeyValues]:
    """Return the keys of the rows that a mutation names individually, which are read for images."""
    named = {*mutation.rows, *mutation.row_tombstones}
    # Without clustering columns the partition is one row, which its deletion names.
    if not mutation.schema.clustering_key and mutation.partition_tombstone is not None:
        named.add(())
    return named


def _image_values(columns: tuple[Column, ...], values: _RowValues, names: set[str] | None) -> dict[str, Value | None]:
    return {column.name: values.get(column.name) for column in columns if names is None or column.name in names}


def _value_after(kind: CqlType, before: Value | None, change: ColumnChange) -> Value | None:
    """Return the value of a column after a change, regardless of timestamps.

    A collection that lost its last element is an empty value; one that was never filled, or that was deleted as a
    whole, is None. A user type is never None once it was written. A change that touches no element leaves None, as in
    ScyllaDB.
    """
    if isinstance(change, Cell):
        return None if change.dead else change.value
    known = None if change.tombstone is not None else before
    live = {key: cell.value for key, cell in change.elements.items() if not cell.dead}
    dead = len(live) < len(change.elements)
    if not live and not isinstance(kind, UserType) and not (dead and known is not None):
        return None
    elements = {**_elements_by_key(kind, known), **live}
    return collection_value(kind, {key: value for key, value in elements.items() if not _is_dead_element(change, key)})


def _is_dead_element(change: CollectionChange, key: Value) -> bool:
    return key in change.elements and change.elements[key].dead


def _elements_by_key(kind: CqlType, value: Value | None) -> Mapping[Value, Value]:
    """Return the elements of a logged value by the keys of their cells."""
    if value is None:
        return {}
    if isinstance(kind, UserType):
        return {index: inner for index, inner in enumerate(value) if inner is not None}
    return dict.fromkeys(value) if isinstance(kind, SetType) else dict(value)


LogRow = dict[str, Value]
"""A row of the log: all columns of the log by name, None if there is no value."""


class Operation(IntEnum):
    """`cdc$operation`; those of the service delete rows that expired by a TTL column (test/cqlpy/test_ttl_row.py)."""

    SERVICE_PARTITION_DELETE = -4
    SERVICE_ROW_DELETE = -3
    PRE_IMAGE = 0
    UPDATE = 1
    INSERT = 2
    ROW_DELETE = 3
    PARTITION_DELETE = 4
    RANGE_START_INCLUSIVE = 5
    RANGE_START_EXCLUSIVE = 6
    RANGE_END_INCLUSIVE = 7
    RANGE_END_EXCLUSIVE = 8
    POST_IMAGE = 9


@dataclass(frozen=True)
class LogMutation:
    """The rows of one mutation at one timestamp (µs), in the order of `cdc$batch_seq_no`.

    They belong to one stream, that of the partition key at the timestamp; `cdc$stream_id` is None.
    """

    timestamp: Microseconds
    rows: list[LogRow]

    def in_stream(self, stream_id: bytes) -> list[LogRow]:
        """Return the rows with their stream."""
        return [{**row, "cdc$stream_id": stream_id} for row in self.rows]


def encode_mutation(
    mutation: Mutation, state: Mutation | None = None, *, now_us: Microseconds | None = None, identity: bytes = b""
) -> list[LogMutation]:
    """Return the log mutations of a mutation, one per timestamp, ascending; [] if it is empty.

    `state` is the previous state of the partition (None: empty), the base of images if the table has any. `now_us` is
    the time (µs) at which it is read, by which cells may have expired (None: none has). The low half of `cdc$time` is a
    hash of table, partition key, rows and `identity`, which distinguishes otherwise equal writes.
    """
    schema = mutation.schema
    images = PartitionImages(mutation, state, now_us) if schema.cdc.has_images else None
    return [_encode_changes(mutation, changes, images, identity) for changes in split_mutation(mutation)]


def _encode_changes(
    mutation: Mutation, changes: TimestampChanges, images: PartitionImages | None, identity: bytes
) -> LogMutation:
    schema = mutation.schema
    writer = _LogRowBuilder(schema, mutation.partition_key)
    if images is not None and schema.cdc.preimage != "false":
        for key, columns in images.before(changes):
            writer.image(Operation.PRE_IMAGE, key, columns)
    writer.changes(changes)
    if images is not None:
        images.apply(changes)
        if schema.cdc.postimage:
            for key, columns in images.after(changes):
                writer.image(Operation.POST_IMAGE, key, columns)
    return LogMutation(changes.timestamp, writer.finished(changes.timestamp, identity))


class _LogRowBuilder:
    """Collects the log rows of one partition at one timestamp."""

    def __init__(self, schema: TableSchema, partition_key: KeyValues) -> None:
        self._schema = schema
        self._partition_key = partition_key
        self._full = schema.cdc.delta == "full"
        self._empty: LogRow = dict.fromkeys(column.name for column in schema.logged)
        self._rows: list[LogRow] = []

    def changes(self, changes: TimestampChanges) -> None:
        """Add a row per upsert, row deletion and partition deletion, and one or two per range."""
        if changes.deletions_first:
            self._delete_rows(changes)
        for upsert in changes.upserts:
            self._upsert(upsert)
        if not changes.deletions_first:
            self._delete_rows(changes)
        for bounds in _range_bounds(changes.ranges):
            for operation, prefix in bounds:
                self._row(operation, prefix)
        if changes.partition_deleted:
            self._row(Operation.PARTITION_DELETE, None)

    def _delete_rows(self, changes: TimestampChanges) -> None:
        for key in changes.row_deletions:
            self._row(Operation.ROW_DELETE, key)

    def image(self, operation: Operation, key: KeyValues | None, columns: dict[str, Value | None]) -> None:
        """Add an image of a row; a column without a value is marked as deleted in pre-images only."""
        row = self._row(operation, key)
        for name, value in columns.items():
            if value is not None:
                row[name] = value
            elif operation is Operation.PRE_IMAGE:
                row[f"cdc$deleted_{name}"] = True

    def finished(self, timestamp: Microseconds, identity: bytes) -> list[LogRow]:
        """Return the rows with `cdc$time`, their numbers and the end of the batch."""
        for number, row in enumerate(self._rows):
            row["cdc$batch_seq_no"] = number
        self._rows[-1]["cdc$end_of_batch"] = True
        time = make_log_timeuuid(timestamp, *_identity_parts(self._schema, self._partition_key, self._rows), identity)
        for row in self._rows:
            row["cdc$time"] = time
        return self._rows

    def _upsert(self, upsert: Upsert) -> None:
        row = self._row(Operation.INSERT if upsert.inserted else Operation.UPDATE, upsert.key)
        row["cdc$ttl"] = upsert.ttl or None
        if self._full:
            for name, change in upsert.columns.items():
                _write_column(row, self._schema.column(name), change)

    def _row(self, operation: Operation, clustering: KeyValues | None) -> LogRow:
        row = dict(self._empty)
        row["cdc$operation"] = int(operation)
        for column, value in zip(self._schema.partition_key, self._partition_key, strict=True):
            row[column.name] = value
        for column, value in zip(self._schema.clustering_key, clustering or (), strict=False):
            row[column.name] = value
        self._rows.append(row)
        return row


def _write_column(row: LogRow, column: Column, change: ColumnChange) -> None:
    """Write a change of a column into its two or three columns of the log."""
    if isinstance(change, Cell):
        if change.dead:
            row[f"cdc$deleted_{column.name}"] = True
        else:
            row[column.name] = change.value
        return
    if change.tombstone is not None:
        row[f"cdc$deleted_{column.name}"] = True
    dead = [key for key, cell in change.elements.items() if cell.dead]
    if dead:
        row[f"cdc$deleted_elements_{column.name}"] = tuple(sorted(dead, key=get_element_key_type(column.type).sort_key))
    live = {key: cell.value for key, cell in change.elements.items() if not cell.dead}
    if live or isinstance(column.type, UserType):
        row[column.name] = collection_value(column.type, live)


def _range_bounds(ranges: Sequence[RangeTombstone]) -> Iterator[list[tuple[Operation, KeyValues]]]:
    """Yield the bounds of ranges in clustering order as (operation, prefix): two per range, one if a side is open.

    A side is open if the range extends to the end of the rows that share all columns but the last of the other bound;
    it follows from that bound. An open end before a range with an open start is logged after all, since the two would
    otherwise be read as one range.
    """
    for index, tombstone in enumerate(ranges):
        start, end = tombstone.start, tombstone.end
        follower = ranges[index + 1] if index + 1 < len(ranges) else None
        if _is_implied(start, end):
            yield [_end_bound(end)]
        elif _is_implied(end, start) and not (follower is not None and _is_implied(follower.start, follower.end)):
            yield [_start_bound(start)]
        else:
            yield [_start_bound(start), _end_bound(end)]


def _is_implied(bound: RangeBound | None, other: RangeBound | None) -> bool:
    """Return True if a bound follows from the other bound, so that the log omits it."""
    return other is not None and bound == implied_bound(other)


def implied_bound(bound: RangeBound) -> RangeBound | None:
    """Return the omitted bound of a range with one logged bound: where the columns before its last one change."""
    return RangeBound(bound.prefix[:-1], True) if len(bound.prefix) > 1 else None


def _start_bound(bound: RangeBound | None) -> tuple[Operation, KeyValues]:
    inclusive = bound is None or bound.inclusive
    operation = Operation.RANGE_START_INCLUSIVE if inclusive else Operation.RANGE_START_EXCLUSIVE
    return operation, () if bound is None else bound.prefix


def _end_bound(bound: RangeBound | None) -> tuple[Operation, KeyValues]:
    inclusive = bound is None or bound.inclusive
    operation = Operation.RANGE_END_INCLUSIVE if inclusive else Operation.RANGE_END_EXCLUSIVE
    return operation, () if bound is None else bound.prefix


def _identity_parts(schema: TableSchema, partition_key: KeyValues, rows: Iterable[LogRow]) -> list[bytes]:
    """Return the bytes that distinguish a log mutation from others."""
    parts = [schema.keyspace.encode(), schema.log_name.encode(), schema.partition_bytes(partition_key)]
    columns = schema.logged
    for row in rows:
        for (name, kind, *_), value in zip(columns, row.values(), strict=True):
            if value is not None:
                parts += (name.encode(), kind.to_bytes(value))
    return parts
