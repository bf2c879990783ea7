"""What is alive of a partition: the rows and values that a SELECT would find in what all its writes came to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cdc_platform.clock import Microseconds, us_of_seconds
from cdc_platform.cql.mutation import (
    Cell,
    CollectionChange,
    ColumnChange,
    ColumnChanges,
    Marker,
    Mutation,
    RowChange,
    later,
)
from cdc_platform.cql.ranges import Key, RangeIndex
from cdc_platform.cql.schema import Column, element_key_type
from cdc_platform.cql.types import CqlType, ListType, SetType, UserType, Value


@dataclass(frozen=True)
class Partition:
    """A partition's state, which is the merge of its mutations, seen at a time (µs; None: nothing expires).

    A cell or marker expires its TTL after its own timestamp. Values of columns are those of the log: canonical
    values, lists as pairs of timeuuid and value.
    """

    state: Mutation
    now_us: Microseconds | None = None

    @cached_property
    def _ranges(self) -> RangeIndex:
        return RangeIndex(self.state.schema, self.state.range_tombstones)

    def deleted_at(self, key: Key) -> Microseconds | None:
        """The timestamp (µs) up to which the row of a clustering key is deleted; None if it never was."""
        tombstones = (self.state.partition_tombstone, self.state.row_tombstones.get(key), self._ranges.covering(key))
        return later(tombstones)

    def has_row(self, key: Key) -> bool:
        """Whether the row of a clustering key exists: its marker or one of its cells is alive."""
        row = self.state.rows.get(key)
        if row is None:
            return False
        deleted = self.deleted_at(key)
        return self._is_alive(row.marker, deleted) or bool(self._values(row.cells, deleted))

    def row(self, key: Key) -> dict[str, Value]:
        """The values of the regular columns of a row that have one; empty if there is no such row."""
        row = self.state.rows.get(key)
        return {} if row is None else self._values(row.cells, self.deleted_at(key))

    def static(self) -> dict[str, Value]:
        """The values of the static columns that have one."""
        return self._values(self.state.static, self.state.partition_tombstone)

    def elements(self, column: Column, key: Key) -> dict[Value, Value]:
        """The live elements of a non-frozen collection or user type of a row, in the order of their keys.

        `key` is the clustering key, whatever it is for a static column.
        """
        static = column.kind == "static"
        row = self.state.rows.get(key, RowChange())
        change = (self.state.static if static else row.cells).get(column.name)
        if not isinstance(change, CollectionChange):
            return {}
        alive = self._alive(change, self.state.partition_tombstone if static else self.deleted_at(key))
        return {element: alive[element] for element in sorted(alive, key=element_key_type(column.type).sort_key)}

    def selected(self) -> list[dict[str, Value | None]]:
        """The rows of `SELECT *` in clustering order: all columns by name, None where there is nothing.

        The static row is mixed into every row, and stands alone where there is none. Lists are their values in order.
        """
        schema = self.state.schema
        lists = {
            column.name for column in schema.columns if isinstance(column.type, ListType) and column.type.multicell
        }
        keys = dict(zip((column.name for column in schema.partition_key), self.state.partition_key, strict=True))
        static = self.static()
        rows: list[dict[str, Value]] = []
        for key in self.keys():
            clustering = dict(zip((column.name for column in schema.clustering_key), key, strict=True))
            rows.append({**keys, **clustering, **static, **self.row(key)})
        if static and not rows:
            rows.append({**keys, **static})
        return [
            {
                column.name: _values_alone(row[column.name])
                if column.name in lists and column.name in row
                else row.get(column.name)
                for column in schema.selected
            }
            for row in rows
        ]

    def keys(self) -> Iterator[Key]:
        """The clustering keys of the rows that exist, in clustering order."""
        order = self.state.schema.clustering_order
        return (key for key in sorted(self.state.rows, key=order) if self.has_row(key))

    def _is_alive(self, part: Cell | Marker | None, deleted: Microseconds | None) -> bool:
        if part is None or (isinstance(part, Cell) and part.dead) or _covered(part.timestamp, deleted):
            return False
        expires = part.timestamp + us_of_seconds(part.ttl)
        return not part.ttl or self.now_us is None or expires > self.now_us

    def _values(self, columns: ColumnChanges, deleted: Microseconds | None) -> dict[str, Value]:
        found = {}
        for column in self.state.schema.columns:
            change = columns.get(column.name)
            value = None if change is None else self._value(column, change, deleted)
            if value is not None:
                found[column.name] = value
        return found

    def _value(self, column: Column, change: ColumnChange, deleted: Microseconds | None) -> Value | None:
        if isinstance(change, Cell):
            return change.value if self._is_alive(change, deleted) else None
        alive = self._alive(change, deleted)
        return collected(column.type, alive) if alive else None

    def _alive(self, change: CollectionChange, deleted: Microseconds | None) -> dict[Value, Value]:
        deleted = later((deleted, change.tombstone))
        return {key: cell.value for key, cell in change.elements.items() if self._is_alive(cell, deleted)}


def _values_alone(pairs: Value) -> tuple[Value, ...]:
    return tuple(value for _, value in pairs)


def _covered(timestamp: Microseconds, deleted: Microseconds | None) -> bool:
    return deleted is not None and timestamp <= deleted


def collected(kind: CqlType, elements: dict[Any, Value]) -> Value:
    """The value of a collection or user type with these elements, in the form that the log has."""
    if isinstance(kind, UserType):
        return tuple(elements.get(index) for index in range(len(kind.parts)))
    keys = sorted(elements, key=element_key_type(kind).sort_key)
    return tuple(keys) if isinstance(kind, SetType) else tuple((key, elements[key]) for key in keys)
