"""The rows that a mutation leaves in the CDC log, as a function of the mutation (and, for images, of what was there).

It knows which columns of the log every change fills; in which order and under which timestamps changes come is
`split`'s, what images show is `images`'.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from cdc_platform.clock import Microseconds
from cdc_platform.cql.live import collected
from cdc_platform.cql.mutation import Cell, ColumnChange, Mutation
from cdc_platform.cql.ranges import Bound, Key, RangeTombstone
from cdc_platform.cql.schema import Column, TableSchema, element_key_type
from cdc_platform.cql.timeuuid import log_time
from cdc_platform.cql.types import UserType, Value
from cdc_platform.log.images import Images
from cdc_platform.log.split import Changes, Upsert, split

Row = dict[str, Value]
"""A row of the log: all columns of the log by name, None where there is nothing."""


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

    They go to one stream, the one of the partition key at the timestamp; `cdc$stream_id` is left None.
    """

    timestamp: Microseconds
    rows: list[Row]

    def in_stream(self, stream_id: bytes) -> list[Row]:
        """The rows with their stream."""
        return [{**row, "cdc$stream_id": stream_id} for row in self.rows]


def log_mutations(
    mutation: Mutation, state: Mutation | None = None, *, now_us: Microseconds | None = None, identity: bytes = b""
) -> list[LogMutation]:
    """What a mutation leaves in the log of its table, one log mutation a timestamp, ascending; none if it does nothing.

    `state` is what was in the partition before (None: nothing), of which images are made where the table has any;
    `now_us` is the time (µs) at which it is read, by which cells may have expired (None: none has). The low half of
    `cdc$time` is a hash of table, partition key, rows and `identity`, which tells apart writes that are else the same.
    """
    schema = mutation.schema
    images = Images(mutation, state, now_us) if schema.cdc.has_images else None
    return [_log_mutation(mutation, changes, images, identity) for changes in split(mutation)]


def _log_mutation(mutation: Mutation, changes: Changes, images: Images | None, identity: bytes) -> LogMutation:
    schema = mutation.schema
    writer = _Writer(schema, mutation.partition_key)
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


class _Writer:
    """Collects the log rows of one partition at one timestamp."""

    def __init__(self, schema: TableSchema, partition_key: Key) -> None:
        self._schema = schema
        self._partition_key = partition_key
        self._full = schema.cdc.delta == "full"
        self._empty: Row = dict.fromkeys(column.name for column in schema.logged)
        self._rows: list[Row] = []

    def changes(self, changes: Changes) -> None:
        """One row an upsert, a row deletion and the deletion of the partition; one or two a range."""
        if changes.deletions_first:
            self._delete_rows(changes)
        for upsert in changes.upserts:
            self._upsert(upsert)
        if not changes.deletions_first:
            self._delete_rows(changes)
        for bounds in _range_rows(changes.ranges):
            for operation, prefix in bounds:
                self._row(operation, prefix)
        if changes.partition_deleted:
            self._row(Operation.PARTITION_DELETE, None)

    def _delete_rows(self, changes: Changes) -> None:
        for key in changes.row_deletions:
            self._row(Operation.ROW_DELETE, key)

    def image(self, operation: Operation, key: Key | None, columns: dict[str, Value | None]) -> None:
        """A row as it is before or after: a column without a value is shown as deleted, before and not after."""
        row = self._row(operation, key)
        for name, value in columns.items():
            if value is not None:
                row[name] = value
            elif operation is Operation.PRE_IMAGE:
                row[f"cdc$deleted_{name}"] = True

    def finished(self, timestamp: Microseconds, identity: bytes) -> list[Row]:
        """The rows with `cdc$time`, their numbers and the end of the batch."""
        for number, row in enumerate(self._rows):
            row["cdc$batch_seq_no"] = number
        self._rows[-1]["cdc$end_of_batch"] = True
        time = log_time(timestamp, *_identity(self._schema, self._partition_key, self._rows), identity)
        for row in self._rows:
            row["cdc$time"] = time
        return self._rows

    def _upsert(self, upsert: Upsert) -> None:
        row = self._row(Operation.INSERT if upsert.inserted else Operation.UPDATE, upsert.key)
        row["cdc$ttl"] = upsert.ttl or None
        if self._full:
            for name, change in upsert.columns.items():
                _write(row, self._schema.column(name), change)

    def _row(self, operation: Operation, clustering: Key | None) -> Row:
        row = dict(self._empty)
        row["cdc$operation"] = int(operation)
        for column, value in zip(self._schema.partition_key, self._partition_key, strict=True):
            row[column.name] = value
        for column, value in zip(self._schema.clustering_key, clustering or (), strict=False):
            row[column.name] = value
        self._rows.append(row)
        return row


def _write(row: Row, column: Column, change: ColumnChange) -> None:
    """What a change of a column leaves in its two or three columns of the log."""
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
        row[f"cdc$deleted_elements_{column.name}"] = tuple(sorted(dead, key=element_key_type(column.type).sort_key))
    live = {key: cell.value for key, cell in change.elements.items() if not cell.dead}
    if live or isinstance(column.type, UserType):
        row[column.name] = collected(column.type, live)


def _range_rows(ranges: Sequence[RangeTombstone]) -> Iterator[list[tuple[Operation, Key]]]:
    """The bounds of ranges in clustering order as (operation, prefix): two a range, one where it is open on a side.

    A side is open where the range goes on to the end of what the columns before the last one of the other bound
    have in common; that bound follows from the other. An open end in front of an open start is told after all, lest
    the two be read as one range.
    """
    for place, tombstone in enumerate(ranges):
        start, end = tombstone.start, tombstone.end
        follower = ranges[place + 1] if place + 1 < len(ranges) else None
        if _follows(start, end):
            yield [_end_row(end)]
        elif _follows(end, start) and not (follower is not None and _follows(follower.start, follower.end)):
            yield [_start_row(start)]
        else:
            yield [_start_row(start), _end_row(end)]


def _follows(bound: Bound | None, other: Bound | None) -> bool:
    """Whether a bound is the one that a range has on the side that is not told, given the other one."""
    return other is not None and bound == inferred(other)


def inferred(bound: Bound) -> Bound | None:
    """The other bound of a range of which this one alone is told: where the columns before its last one change."""
    return Bound(bound.prefix[:-1], True) if len(bound.prefix) > 1 else None


def _start_row(bound: Bound | None) -> tuple[Operation, Key]:
    inclusive = bound is None or bound.inclusive
    operation = Operation.RANGE_START_INCLUSIVE if inclusive else Operation.RANGE_START_EXCLUSIVE
    return operation, () if bound is None else bound.prefix


def _end_row(bound: Bound | None) -> tuple[Operation, Key]:
    inclusive = bound is None or bound.inclusive
    operation = Operation.RANGE_END_INCLUSIVE if inclusive else Operation.RANGE_END_EXCLUSIVE
    return operation, () if bound is None else bound.prefix


def _identity(schema: TableSchema, partition_key: Key, rows: Iterable[Row]) -> list[bytes]:
    """What tells a log mutation from others, as bytes."""
    found = [schema.keyspace.encode(), schema.log_name.encode(), schema.partition_bytes(partition_key)]
    columns = schema.logged
    for row in rows:
        for (name, kind, *_), value in zip(columns, row.values(), strict=True):
            if value is not None:
                found += (name.encode(), kind.to_bytes(value))
    return found
