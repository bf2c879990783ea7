"""A second implementation of the replay of a log: row by row and batch by batch, where the platform uses columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from cdc_platform.cdclog import Operation
from cdc_platform.cdclog.encoder import implied_bound
from cdc_platform.clock import ONE_US, Microseconds
from cdc_platform.cql import (
    Cell,
    CollectionChange,
    Column,
    ColumnChange,
    KeyValues,
    Mutation,
    RangeBound,
    RangeTombstone,
    RowChange,
    RowMarker,
    SetType,
    TableSchema,
    UserType,
    Value,
    merge_mutations,
    us_from_timeuuid,
)
from cdc_platform.cql.types import timeuuid_sort_key

LogRow = Mapping[str, Value | None]
_IMAGES = (Operation.PRE_IMAGE, Operation.POST_IMAGE)
_STARTS = (Operation.RANGE_START_INCLUSIVE, Operation.RANGE_START_EXCLUSIVE)
_ENDS = (Operation.RANGE_END_INCLUSIVE, Operation.RANGE_END_EXCLUSIVE)


def replay(schema: TableSchema, rows: Iterable[LogRow]) -> dict[bytes, Mutation]:
    """Return the partitions of the base table that the rows of its log produce, by serialized partition key.

    Rows may come in any order. Cells, markers and tombstones have the timestamps and TTLs of their writes; images are
    skipped. Columns of `schema` that a row does not have count as null.
    """
    partitions: dict[bytes, list[Mutation]] = {}
    for mutation in mutations_of(schema, rows):
        partitions.setdefault(schema.partition_bytes(mutation.partition_key), []).append(mutation)
    return {key: merge_mutations(mutations) for key, mutations in partitions.items()}


def mutations_of(schema: TableSchema, rows: Iterable[LogRow]) -> Iterator[Mutation]:
    """Return one mutation per batch of log rows, ordered by time."""
    ordered = sorted(rows, key=_place)
    for _, batch in groupby(ordered, key=lambda row: (row["cdc$stream_id"], row["cdc$time"])):
        yield _mutation(schema, list(batch))


def _place(row: LogRow) -> tuple[Any, ...]:
    return timeuuid_sort_key(_present(row, "cdc$time")), row["cdc$stream_id"] or b"", _present(row, "cdc$batch_seq_no")


def _present(row: LogRow, name: str) -> Any:
    value = row.get(name)
    if value is None:
        raise ValueError(name)
    return value


def _operation(row: LogRow) -> Operation:
    number = _present(row, "cdc$operation")
    return Operation(number)


def _mutation(schema: TableSchema, batch: Sequence[LogRow]) -> Mutation:
    numbers = [row["cdc$batch_seq_no"] for row in batch]
    if numbers != list(range(len(batch))) or not batch[-1].get("cdc$end_of_batch"):
        raise ValueError(batch[0]["cdc$time"])
    timestamp = us_from_timeuuid(_present(batch[0], "cdc$time"))
    empty = Mutation(schema, tuple(_present(batch[0], column.name) for column in schema.partition_key))
    parts = [empty]
    changes = [row for row in batch if _operation(row) not in _IMAGES]
    for row in changes:
        operation = Operation(row["cdc$operation"])
        key = _key(schema.clustering_key, row)
        if operation is Operation.ROW_DELETE:
            parts.append(replace(empty, row_tombstones={key: timestamp}))
        elif operation is Operation.PARTITION_DELETE:
            parts.append(replace(empty, partition_tombstone=timestamp))
        elif operation in (Operation.UPDATE, Operation.INSERT):
            parts.append(_upsert(empty, row, timestamp, key))
    parts.append(replace(empty, range_tombstones=list(_ranges(schema, changes, timestamp))))
    return merge_mutations(parts)


def _key(columns: Sequence[Column], row: LogRow) -> KeyValues:
    """Return the values of key columns up to the first null."""
    values = [row.get(column.name) for column in columns]
    return tuple(values[: values.index(None)] if None in values else values)


def _upsert(empty: Mutation, row: LogRow, timestamp: Microseconds, key: KeyValues) -> Mutation:
    schema = empty.schema
    static = len(key) < len(schema.clustering_key)
    ttl = row.get("cdc$ttl") or 0
    changes = {}
    for column in schema.statics if static else schema.regulars:
        change = _change(column, row, timestamp, ttl)
        if change is not None:
            changes[column.name] = change
    if static:
        return replace(empty, static=changes)
    marker = RowMarker(timestamp, ttl) if row["cdc$operation"] == Operation.INSERT else None
    return replace(empty, rows={key: RowChange(marker, changes)})


def _change(column: Column, row: LogRow, timestamp: Microseconds, ttl: int) -> ColumnChange | None:
    """Return the change of a column in a log row; None if there is none."""
    value = row.get(column.name)
    deleted = bool(row.get(f"cdc$deleted_{column.name}"))
    if not column.type.multicell:
        if deleted:
            return Cell(timestamp, dead=True)
        return None if value is None else Cell(timestamp, value, ttl)
    dead = row.get(f"cdc$deleted_elements_{column.name}") or ()
    elements = {key: Cell(timestamp, inner, ttl) for key, inner in _elements(column, value)}
    elements |= {key: Cell(timestamp, dead=True) for key in dead}
    # The log shows the tombstone of a collection one microsecond late.
    return CollectionChange(timestamp - ONE_US if deleted else None, elements) if deleted or elements else None


def _elements(column: Column, value: Value | None) -> Iterator[tuple[Value, Value]]:
    """Return the elements of a value of the log with their keys."""
    if value is None:
        return iter(())
    if isinstance(column.type, UserType):
        return ((index, inner) for index, inner in enumerate(value) if inner is not None)
    if isinstance(column.type, SetType):
        return ((element, None) for element in value)
    return iter(value)


def _ranges(schema: TableSchema, rows: Sequence[LogRow], timestamp: Microseconds) -> Iterator[RangeTombstone]:
    """Yield the range tombstones in the rows of a batch: an end belongs to the start directly before it, if any."""
    start: RangeBound | None = None
    begun = False
    for row in rows:
        operation = Operation(row["cdc$operation"])
        if operation not in (*_STARTS, *_ENDS):
            continue
        prefix = _key(schema.clustering_key, row)
        inclusive = operation in (Operation.RANGE_START_INCLUSIVE, Operation.RANGE_END_INCLUSIVE)
        bound = RangeBound(prefix, inclusive) if prefix else None
        if operation in _STARTS:
            if begun and start is not None:
                yield RangeTombstone(start, implied_bound(start), timestamp)
            start, begun = bound, True
            continue
        if begun:
            yield RangeTombstone(start, bound, timestamp)
        else:
            yield RangeTombstone(None if bound is None else implied_bound(bound), bound, timestamp)
        begun = False
    if begun and start is not None:
        yield RangeTombstone(start, implied_bound(start), timestamp)
