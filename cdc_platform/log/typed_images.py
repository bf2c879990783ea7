"""Typed writes to tables with images: each write read back as what it does to its partition, and logged on its state.

Writes of one partition take effect by their timestamps, at one time in the order in which they are given. What was
there before is looked up; what a write shows expires as of the write's own time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_platform.clock import ONE_US, Microseconds
from cdc_platform.cql.mutation import Cell, CollectionChange, ColumnChange, Marker, Mutation, RowChange, merge
from cdc_platform.cql.ranges import Bound, Key, RangeTombstone
from cdc_platform.cql.schema import Column, TableSchema, element_key_type, logged_type
from cdc_platform.cql.timeuuid import timeuuid
from cdc_platform.cql.types import SetType, UserType, Value
from cdc_platform.lake.arrow import compute
from cdc_platform.log.columns import checked_batch
from cdc_platform.log.log_table import RANGE_END, end_column
from cdc_platform.log.log_values import canonical_values, rows_table
from cdc_platform.log.rows import Operation, Row, log_mutations
from cdc_platform.log.stored_names import stored, stored_type
from cdc_platform.timeline import StreamsOf

Before = Callable[[bytes], Mutation | None]
"""What a partition had come to before a batch of writes, by its serialized key; None for nothing."""
_INCLUDED = (Operation.RANGE_START_INCLUSIVE, Operation.RANGE_END_INCLUSIVE)


def imaged_batch(
    schema: TableSchema, writes: pa.RecordBatch, streams_of: StreamsOf, before: Before, *, exact: bool = False
) -> pa.Table:
    """The log rows of a batch of typed writes, as `columns.log_batch` has them, with their images.

    Rows stand in the order of the writes. `exact`: with the log's column of values that no native column holds; it is
    there as well where a value needs it.

    Raises:
        InputError: as `columns.log_batch`.
    """
    keys, streams, lows = checked_batch(schema, writes, streams_of)
    states: dict[bytes, Mutation | None] = {}
    found: list[list[Row]] = [[] for _ in range(len(writes))]
    partitions, mutations = keys.to_pylist(), list(mutations_of_writes(schema, writes))
    timestamps = np.asarray(writes.column("timestamp").cast(pa.int64()))
    for place in np.argsort(timestamps, kind="stable").tolist():
        key, mutation, at_us = partitions[place], mutations[place], Microseconds(int(timestamps[place]))
        if key not in states:
            states[key] = before(key)
        state = states[key]
        stream, time = streams[place].as_py(), timeuuid(at_us, int(lows[place]))
        # All that a typed write does has one timestamp.
        for part in log_mutations(mutation, state, now_us=at_us):
            found[place] = [row | {"cdc$stream_id": stream, "cdc$time": time} for row in part.rows]
        states[key] = mutation if state is None else merge([state, mutation])
    return rows_table(schema, [row for rows in found for row in rows], exact=exact)


def mutations_of_writes(schema: TableSchema, writes: pa.RecordBatch) -> Iterator[Mutation]:
    """What each of some typed writes, which are ones that the table can have, does to its partition."""
    columns = _values(schema, writes)
    for place in range(len(writes)):
        yield _mutation(schema, {name: values[place] for name, values in columns.items()})


def _values(schema: TableSchema, writes: pa.RecordBatch) -> Mapping[str, list[Any]]:
    """The columns of typed writes as canonical values, by their names in CQL."""
    given = dict(zip(writes.schema.names, writes.columns, strict=True))
    found: dict[str, list[Any]] = {
        name: given[name].to_pylist() for name in ("operation", "timestamp", "ttl", RANGE_END) if name in given
    }
    for column, shown in zip(schema.columns, stored(schema).columns, strict=True):
        kind = stored_type(logged_type(column.type))
        found[column.name] = canonical_values(kind, given[shown.name])
        if column.kind == "clustering" and end_column(shown.name) in given:
            found[end_column(column.name)] = canonical_values(kind, given[end_column(shown.name)])
        if not column.is_key:
            deleted = given[f"cdc$deleted_{shown.name}"]
            found[f"cdc$deleted_{column.name}"] = compute.fill_null(deleted, False).to_pylist()
        if not column.is_key and column.type.multicell:
            elements = SetType(element_key_type(column.type).frozen(), True)
            gone = given[f"cdc$deleted_elements_{shown.name}"]
            found[f"cdc$deleted_elements_{column.name}"] = canonical_values(elements, gone)
    return found


def _mutation(schema: TableSchema, write: Mapping[str, Any]) -> Mutation:
    operation, at_us = write["operation"], Microseconds(write["timestamp"])
    mutation = Mutation(schema, tuple(write[column.name] for column in schema.partition_key))
    clustering = _prefix(write[column.name] for column in schema.clustering_key)
    if operation == Operation.PARTITION_DELETE:
        return replace(mutation, partition_tombstone=at_us)
    if operation == Operation.ROW_DELETE:
        return replace(mutation, row_tombstones={clustering: at_us})
    if operation in (Operation.RANGE_START_INCLUSIVE, Operation.RANGE_START_EXCLUSIVE):
        end = _prefix(write.get(end_column(column.name)) for column in schema.clustering_key)
        ends = Operation.RANGE_END_INCLUSIVE if write.get(RANGE_END) is None else write[RANGE_END]
        tombstone = RangeTombstone(_bound(clustering, operation), _bound(end, ends), at_us)
        return replace(mutation, range_tombstones=(tombstone,))
    ttl = schema.default_ttl if write["ttl"] is None else write["ttl"]
    static = _changes(schema.statics, write, at_us, ttl)
    regular = _changes(schema.regulars, write, at_us, ttl)
    marker = Marker(at_us, ttl) if operation == Operation.INSERT else None
    rows = {clustering: RowChange(marker, regular)} if marker is not None or regular else {}
    return replace(mutation, static=static, rows=rows)


def _prefix(values: Iterator[Value | None]) -> Key:
    found: list[Value] = []
    for value in values:
        if value is None:
            break
        found.append(value)
    return tuple(found)


def _bound(prefix: Key, operation: int) -> Bound | None:
    return Bound(prefix, operation in _INCLUDED) if prefix else None


def _changes(
    columns: tuple[Column, ...], write: Mapping[str, Any], at_us: Microseconds, ttl: int
) -> dict[str, ColumnChange]:
    changes = ((column.name, _change(column, write, at_us, ttl)) for column in columns)
    return {name: change for name, change in changes if change is not None}


def _change(column: Column, write: Mapping[str, Any], at_us: Microseconds, ttl: int) -> ColumnChange | None:
    value, deleted = write[column.name], write[f"cdc$deleted_{column.name}"]
    if not column.type.multicell:
        if deleted:
            return Cell(at_us, dead=True)
        return None if value is None else Cell(at_us, value, ttl)
    elements = {key: Cell(at_us, each, ttl) for key, each in _elements(column, value)}
    gone = write[f"cdc$deleted_elements_{column.name}"] or ()
    elements |= {key: Cell(at_us, dead=True) for key in gone}
    # The log shows the tombstone of a collection one microsecond late.
    tombstone = Microseconds(at_us - ONE_US) if deleted else None
    return CollectionChange(tombstone, elements) if deleted or elements else None


def _elements(column: Column, value: Any) -> Iterator[tuple[Value, Value | None]]:
    """The elements of a collection as the log shows it, by the keys of their cells."""
    if value is None:
        return
    if isinstance(column.type, UserType):
        yield from ((place, part) for place, part in enumerate(value) if part is not None)
    elif isinstance(column.type, SetType):
        yield from ((part, None) for part in value)
    else:
        yield from value
