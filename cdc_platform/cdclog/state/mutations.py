"""Convert mutations of single partitions to rows of a state and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from cdc_platform.cdclog.column_codec import split_components
from cdc_platform.cdclog.state.model import (
    STATE_SCHEMA,
    StateRowKind,
    decode_clustering_key,
    encode_clustering_key,
    range_from_row,
    range_to_row,
)
from cdc_platform.clock import Microseconds, us_from_seconds
from cdc_platform.cql import (
    Cell,
    CollectionChange,
    Column,
    ColumnChange,
    ColumnChanges,
    KeyValues,
    Mutation,
    RangeTombstone,
    RowChange,
    RowMarker,
    TableSchema,
    Value,
    get_element_key_type,
    get_element_value_type,
    value_from_bytes,
)

_StateRow = dict[str, Any]


def state_from_mutations(mutations: Iterable[Mutation]) -> pa.Table:
    """Return the unmerged state rows of mutations of one table, in no order."""
    return pa.Table.from_pylist([row for mutation in mutations for row in _state_rows(mutation)], schema=STATE_SCHEMA)


def mutations_from_state(schema: TableSchema, state: pa.Table) -> dict[bytes, Mutation]:
    """Return the partitions of a merged state, by serialized partition key.

    Cells of columns that the schema lacks, or has with another kind of cells, are omitted.
    """
    building: dict[bytes, _MutationBuilder] = {}
    for row in state.to_pylist():
        building.setdefault(row["partition"], _MutationBuilder()).add(schema, row)
    keys = decode_partition_keys(schema, list(building))
    return {data: builder.mutation(schema, key) for (data, builder), key in zip(building.items(), keys, strict=True)}


def decode_partition_keys(schema: TableSchema, keys: list[bytes]) -> list[KeyValues]:
    """Decode serialized partition keys into the values of their columns."""
    columns = schema.partition_key
    parts = (
        [pa.array(keys, pa.binary())]
        if len(columns) == 1
        else split_components(pa.array(keys, pa.binary()), len(columns), header=2, trailer=1)
    )
    values = [
        [value_from_bytes(column.type, data) for data in part.to_pylist()]
        for column, part in zip(columns, parts, strict=True)
    ]
    return list(zip(*values, strict=True))


def _state_rows(mutation: Mutation) -> Iterator[_StateRow]:
    schema = mutation.schema
    partition = schema.partition_bytes(mutation.partition_key)
    if mutation.partition_tombstone is not None:
        yield _state_row(partition, None, StateRowKind.PARTITION_TOMBSTONE, mutation.partition_tombstone)
    for tombstone in mutation.range_tombstones:
        yield range_to_row(schema, partition, tombstone)
    for key, timestamp in mutation.row_tombstones.items():
        yield _state_row(partition, encode_clustering_key(schema, key), StateRowKind.ROW_TOMBSTONE, timestamp)
    yield from _cell_rows(schema, partition, None, mutation.static)
    for key, row in mutation.rows.items():
        clustering = encode_clustering_key(schema, key)
        if row.marker is not None:
            yield _state_row(partition, clustering, StateRowKind.MARKER, row.marker.timestamp, row.marker.ttl)
        yield from _cell_rows(schema, partition, clustering, row.cells)


def _state_row(
    partition: bytes, clustering: bytes | None, kind: StateRowKind, timestamp: Microseconds, ttl: int = 0
) -> _StateRow:
    expires = timestamp + us_from_seconds(ttl) if ttl else 0
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


def _cell_rows(
    schema: TableSchema, partition: bytes, clustering: bytes | None, cells: ColumnChanges
) -> Iterator[_StateRow]:
    for name, change in cells.items():
        column = schema.column(name)
        if isinstance(change, Cell):
            yield _cell_row(partition, clustering, column, None, change)
            continue
        if change.tombstone is not None:
            yield _state_row(partition, clustering, StateRowKind.COLLECTION_TOMBSTONE, change.tombstone) | {
                "column": name
            }
        for key, cell in change.elements.items():
            yield _cell_row(partition, clustering, column, key, cell)


def _cell_row(partition: bytes, clustering: bytes | None, column: Column, key: Value | None, cell: Cell) -> _StateRow:
    kind = column.type if key is None else get_element_value_type(column.type, key)
    has_value = not cell.dead and kind is not None
    return _state_row(partition, clustering, StateRowKind.CELL, cell.timestamp, cell.ttl) | {
        "column": column.name,
        "path": None if key is None else get_element_key_type(column.type).to_bytes(key),
        "dead": cell.dead,
        "value": kind.to_bytes(cell.value) if has_value and kind is not None else None,
    }


@dataclass
class _MutationBuilder:
    """The parts of one partition's mutation."""

    partition_tombstone: Microseconds | None = None
    ranges: list[RangeTombstone] = field(default_factory=list)
    row_tombstones: dict[KeyValues, Microseconds] = field(default_factory=dict)
    markers: dict[KeyValues, RowMarker] = field(default_factory=dict)
    rows: dict[KeyValues | None, dict[str, ColumnChange]] = field(default_factory=dict)

    def add(self, schema: TableSchema, row: _StateRow) -> None:
        kind, timestamp = row["kind"], Microseconds(row["timestamp"])
        if kind == StateRowKind.PARTITION_TOMBSTONE:
            self.partition_tombstone = timestamp
            return
        if kind == StateRowKind.RANGE_TOMBSTONE:
            self.ranges.append(range_from_row(schema, row))
            return
        key = None if row["clustering"] is None else decode_clustering_key(schema, row["clustering"])
        if kind == StateRowKind.ROW_TOMBSTONE and key is not None:
            self.row_tombstones[key] = timestamp
        elif kind == StateRowKind.MARKER and key is not None:
            self.markers[key] = RowMarker(timestamp, row["ttl"])
        elif schema.has(row["column"]):
            self._add_cell(schema.column(row["column"]), key, row)

    def _add_cell(self, column: Column, key: KeyValues | None, row: _StateRow) -> None:
        cells = self.rows.setdefault(key, {})
        if row["kind"] == StateRowKind.COLLECTION_TOMBSTONE:
            if column.type.multicell:
                cells[column.name] = CollectionChange(row["timestamp"], _element_cells(cells, column))
            return
        if (row["path"] is None) == column.type.multicell:
            return
        if row["path"] is None:
            cells[column.name] = _cell_from_row(
                row, None if row["dead"] else value_from_bytes(column.type, row["value"])
            )
            return
        change = cells.setdefault(column.name, CollectionChange(None, {}))
        assert isinstance(change, CollectionChange)
        path = value_from_bytes(get_element_key_type(column.type), row["path"])
        kind = get_element_value_type(column.type, path)
        value = None if row["dead"] or kind is None else value_from_bytes(kind, row["value"])
        _element_cells(cells, column)[path] = _cell_from_row(row, value)

    def mutation(self, schema: TableSchema, partition_key: KeyValues) -> Mutation:
        static = self.rows.pop(None, {})
        keys = dict.fromkeys((*self.markers, *(key for key in self.rows if key is not None)))
        rows = {key: RowChange(self.markers.get(key), self.rows.get(key, {})) for key in keys}
        return Mutation(
            schema, partition_key, self.partition_tombstone, self.row_tombstones, tuple(self.ranges), static, rows
        )


def _element_cells(cells: dict[str, ColumnChange], column: Column) -> dict[Value, Cell]:
    change = cells.get(column.name)
    return change.elements if isinstance(change, CollectionChange) and isinstance(change.elements, dict) else {}


def _cell_from_row(row: _StateRow, value: Value | None) -> Cell:
    return Cell(row["timestamp"], value, 0 if row["dead"] else row["ttl"], row["dead"])
