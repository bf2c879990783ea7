"""States and mutations: what `cql.mutation` has of single partitions, as rows of a state, and the way back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from cdc_platform.clock import Microseconds, us_of_seconds
from cdc_platform.cql.mutation import Cell, CollectionChange, ColumnChange, ColumnChanges, Marker, Mutation, RowChange
from cdc_platform.cql.ranges import Key, RangeTombstone
from cdc_platform.cql.schema import Column, TableSchema, element_key_type, element_value_type
from cdc_platform.cql.types import Value
from cdc_platform.cql.wire import read_value
from cdc_platform.log.state.ranges import key_of, range_of, range_row
from cdc_platform.log.state.shape import STATE, Kind
from cdc_platform.log.state.wire import components

_Row = dict[str, Any]


def state_of(mutations: Iterable[Mutation]) -> pa.Table:
    """The rows of a state that mutations of one table are, in no order and not merged."""
    return pa.Table.from_pylist([row for mutation in mutations for row in _rows(mutation)], schema=STATE)


def mutations_of(schema: TableSchema, state: pa.Table) -> dict[bytes, Mutation]:
    """The partitions, by serialized partition key, that a merged state has.

    Cells of columns that the schema has not, or has with another kind of cells, are left out.
    """
    building: dict[bytes, _Building] = {}
    for row in state.to_pylist():
        building.setdefault(row["partition"], _Building()).add(schema, row)
    keys = partition_keys(schema, list(building))
    return {data: each.mutation(schema, key) for (data, each), key in zip(building.items(), keys, strict=True)}


def partition_keys(schema: TableSchema, keys: list[bytes]) -> list[Key]:
    """The values of the partition key columns of serialized partition keys."""
    columns = schema.partition_key
    parts = (
        [pa.array(keys, pa.binary())]
        if len(columns) == 1
        else components(pa.array(keys, pa.binary()), len(columns), header=2, trailer=1)
    )
    values = [
        [read_value(column.type, each) for each in part.to_pylist()]
        for column, part in zip(columns, parts, strict=True)
    ]
    return list(zip(*values, strict=True))


def _rows(mutation: Mutation) -> Iterator[_Row]:
    schema = mutation.schema
    partition = schema.partition_bytes(mutation.partition_key)
    if mutation.partition_tombstone is not None:
        yield _row(partition, None, Kind.PARTITION_TOMBSTONE, mutation.partition_tombstone)
    for tombstone in mutation.range_tombstones:
        yield range_row(schema, partition, tombstone)
    for key, timestamp in mutation.row_tombstones.items():
        yield _row(partition, key_bytes(schema, key), Kind.ROW_TOMBSTONE, timestamp)
    yield from _cells(schema, partition, None, mutation.static)
    for key, row in mutation.rows.items():
        clustering = key_bytes(schema, key)
        if row.marker is not None:
            yield _row(partition, clustering, Kind.MARKER, row.marker.timestamp, row.marker.ttl)
        yield from _cells(schema, partition, clustering, row.cells)


def key_bytes(schema: TableSchema, key: Key) -> bytes:
    """A clustering key as a state has it, see `wire.composed`."""
    parts = [column.type.to_bytes(value) for column, value in zip(schema.clustering_key, key, strict=True)]
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def _row(partition: bytes, clustering: bytes | None, kind: Kind, timestamp: Microseconds, ttl: int = 0) -> _Row:
    expires = timestamp + us_of_seconds(ttl) if ttl else 0
    return {
        "partition": partition,
        "clustering": clustering,
        "kind": int(kind),
        "timestamp": timestamp,
        "ttl": ttl,
        "expires": expires,
        "dead": False,
        "inexact": False,
    }


def _cells(schema: TableSchema, partition: bytes, clustering: bytes | None, cells: ColumnChanges) -> Iterator[_Row]:
    for name, change in cells.items():
        column = schema.column(name)
        if isinstance(change, Cell):
            yield _cell(partition, clustering, column, None, change)
            continue
        if change.tombstone is not None:
            yield _row(partition, clustering, Kind.COLLECTION_TOMBSTONE, change.tombstone) | {"column": name}
        for key, cell in change.elements.items():
            yield _cell(partition, clustering, column, key, cell)


def _cell(partition: bytes, clustering: bytes | None, column: Column, key: Value | None, cell: Cell) -> _Row:
    kind = column.type if key is None else element_value_type(column.type, key)
    has_value = not cell.dead and kind is not None
    return _row(partition, clustering, Kind.CELL, cell.timestamp, cell.ttl) | {
        "column": column.name,
        "path": None if key is None else element_key_type(column.type).to_bytes(key),
        "dead": cell.dead,
        "value": kind.to_bytes(cell.value) if has_value and kind is not None else None,
    }


@dataclass
class _Building:
    """The parts of one partition's mutation."""

    partition_tombstone: Microseconds | None = None
    ranges: list[RangeTombstone] = field(default_factory=list)
    row_tombstones: dict[Key, Microseconds] = field(default_factory=dict)
    markers: dict[Key, Marker] = field(default_factory=dict)
    rows: dict[Key | None, dict[str, ColumnChange]] = field(default_factory=dict)

    def add(self, schema: TableSchema, row: _Row) -> None:
        kind, timestamp = row["kind"], Microseconds(row["timestamp"])
        if kind == Kind.PARTITION_TOMBSTONE:
            self.partition_tombstone = timestamp
            return
        if kind == Kind.RANGE_TOMBSTONE:
            self.ranges.append(range_of(schema, row))
            return
        key = None if row["clustering"] is None else key_of(schema, row["clustering"])
        if kind == Kind.ROW_TOMBSTONE and key is not None:
            self.row_tombstones[key] = timestamp
        elif kind == Kind.MARKER and key is not None:
            self.markers[key] = Marker(timestamp, row["ttl"])
        elif schema.has(row["column"]):
            self._add_cell(schema.column(row["column"]), key, row)

    def _add_cell(self, column: Column, key: Key | None, row: _Row) -> None:
        cells = self.rows.setdefault(key, {})
        if row["kind"] == Kind.COLLECTION_TOMBSTONE:
            if column.type.multicell:
                cells[column.name] = CollectionChange(row["timestamp"], _elements(cells, column))
            return
        if (row["path"] is None) == column.type.multicell:
            return
        if row["path"] is None:
            cells[column.name] = _cell_of(row, None if row["dead"] else read_value(column.type, row["value"]))
            return
        change = cells.setdefault(column.name, CollectionChange(None, {}))
        assert isinstance(change, CollectionChange)
        path = read_value(element_key_type(column.type), row["path"])
        kind = element_value_type(column.type, path)
        value = None if row["dead"] or kind is None else read_value(kind, row["value"])
        _elements(cells, column)[path] = _cell_of(row, value)

    def mutation(self, schema: TableSchema, partition_key: Key) -> Mutation:
        static = self.rows.pop(None, {})
        keys = dict.fromkeys((*self.markers, *(key for key in self.rows if key is not None)))
        rows = {key: RowChange(self.markers.get(key), self.rows.get(key, {})) for key in keys}
        return Mutation(
            schema, partition_key, self.partition_tombstone, self.row_tombstones, tuple(self.ranges), static, rows
        )


def _elements(cells: dict[str, ColumnChange], column: Column) -> dict[Value, Cell]:
    change = cells.get(column.name)
    return change.elements if isinstance(change, CollectionChange) and isinstance(change.elements, dict) else {}


def _cell_of(row: _Row, value: Value | None) -> Cell:
    return Cell(row["timestamp"], value, 0 if row["dead"] else row["ttl"], row["dead"])
