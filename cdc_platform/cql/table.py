"""A base table in memory: its partitions as the merge of all writes, and the rows that SELECT returns."""

from __future__ import annotations

import pickle
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

from cdc_platform.clock import Microseconds, us_from_seconds
from cdc_platform.cql.mutation import (
    Cell,
    CollectionChange,
    ColumnChange,
    ColumnChanges,
    KeyValues,
    Mutation,
    RangeTombstoneIndex,
    RowChange,
    RowMarker,
    latest_timestamp,
    merge_mutations,
)
from cdc_platform.cql.schema import Column, LogColumn, TableSchema, get_element_key_type
from cdc_platform.cql.types import CqlType, ListType, SetType, UserType, Value
from cdc_platform.ring import tokens_from_keys


@dataclass(frozen=True)
class LivePartition:
    """A partition's state (the merge of its mutations) at a time (µs; None: nothing expires).

    A cell or marker expires its TTL after its own timestamp. Values of columns are those of the log: canonical values,
    with lists as pairs of timeuuid and value.
    """

    state: Mutation
    now_us: Microseconds | None = None

    @cached_property
    def _ranges(self) -> RangeTombstoneIndex:
        return RangeTombstoneIndex(self.state.schema, self.state.range_tombstones)

    def deleted_at(self, key: KeyValues) -> Microseconds | None:
        """Return the timestamp (µs) up to which the row of a clustering key is deleted; None if it never was."""
        tombstones = (self.state.partition_tombstone, self.state.row_tombstones.get(key), self._ranges.covering(key))
        return latest_timestamp(tombstones)

    def has_row(self, key: KeyValues) -> bool:
        """Return True if the row of a clustering key exists: its marker or one of its cells is live."""
        row = self.state.rows.get(key)
        if row is None:
            return False
        deleted = self.deleted_at(key)
        return self._is_alive(row.marker, deleted) or bool(self._values(row.cells, deleted))

    def row(self, key: KeyValues) -> dict[str, Value]:
        """Return the values of a row's regular columns that have one; empty if there is no such row."""
        row = self.state.rows.get(key)
        return {} if row is None else self._values(row.cells, self.deleted_at(key))

    def static(self) -> dict[str, Value]:
        """Return the values of the static columns that have one."""
        return self._values(self.state.static, self.state.partition_tombstone)

    def elements(self, column: Column, key: KeyValues) -> dict[Value, Value]:
        """Return the live elements of a non-frozen collection or user type of a row, in key order.

        `key` is the clustering key; it is ignored for a static column.
        """
        static = column.kind == "static"
        row = self.state.rows.get(key, RowChange())
        change = (self.state.static if static else row.cells).get(column.name)
        if not isinstance(change, CollectionChange):
            return {}
        alive = self._alive(change, self.state.partition_tombstone if static else self.deleted_at(key))
        return {element: alive[element] for element in sorted(alive, key=get_element_key_type(column.type).sort_key)}

    def selected(self) -> list[dict[str, Value | None]]:
        """Return the rows of `SELECT *` in clustering order: all columns by name, None for missing values.

        The static row is merged into every row, and is returned by itself if there are none. Lists are their values in
        order.
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
                column.name: _list_values(row[column.name])
                if column.name in lists and column.name in row
                else row.get(column.name)
                for column in schema.selected
            }
            for row in rows
        ]

    def keys(self) -> Iterator[KeyValues]:
        """Yield the clustering keys of the rows that exist, in clustering order."""
        order = self.state.schema.clustering_order
        return (key for key in sorted(self.state.rows, key=order) if self.has_row(key))

    def _is_alive(self, part: Cell | RowMarker | None, deleted: Microseconds | None) -> bool:
        if part is None or (isinstance(part, Cell) and part.dead) or _is_covered(part.timestamp, deleted):
            return False
        expires = part.timestamp + us_from_seconds(part.ttl)
        return not part.ttl or self.now_us is None or expires > self.now_us

    def _values(self, columns: ColumnChanges, deleted: Microseconds | None) -> dict[str, Value]:
        values = {}
        for column in self.state.schema.columns:
            change = columns.get(column.name)
            value = None if change is None else self._value(column, change, deleted)
            if value is not None:
                values[column.name] = value
        return values

    def _value(self, column: Column, change: ColumnChange, deleted: Microseconds | None) -> Value | None:
        if isinstance(change, Cell):
            return change.value if self._is_alive(change, deleted) else None
        alive = self._alive(change, deleted)
        return collection_value(column.type, alive) if alive else None

    def _alive(self, change: CollectionChange, deleted: Microseconds | None) -> dict[Value, Value]:
        deleted = latest_timestamp((deleted, change.tombstone))
        return {key: cell.value for key, cell in change.elements.items() if self._is_alive(cell, deleted)}


def _list_values(pairs: Value) -> tuple[Value, ...]:
    return tuple(value for _, value in pairs)


def _is_covered(timestamp: Microseconds, deleted: Microseconds | None) -> bool:
    return deleted is not None and timestamp <= deleted


def collection_value(kind: CqlType, elements: dict[Any, Value]) -> Value:
    """Return the value of a collection or user type with these elements, in the log's form."""
    if isinstance(kind, UserType):
        return tuple(elements.get(index) for index in range(len(kind.parts)))
    keys = sorted(elements, key=get_element_key_type(kind).sort_key)
    return tuple(keys) if isinstance(kind, SetType) else tuple((key, elements[key]) for key in keys)


MAX_PARTITIONS_IN_MEMORY = 2_000


class SpillingPartitions:
    """The states of partitions, by serialized key; None for partitions without writes.

    Beyond `MAX_PARTITIONS_IN_MEMORY` the partitions that were stored first move to a file. A script that writes to
    150,000 partitions needs 500 MiB, and 660 MiB if all of them stay in memory; the difference grows with their number.
    """

    def __init__(self) -> None:
        self._near: dict[bytes, Mutation | None] = {}
        self._files: list[_SpillFile] = []
        self._shared = False
        """Whether a copy reads the last file too, so that nothing may be added to it."""

    def __contains__(self, key: bytes) -> bool:
        return key in self._near or any(file.data(key) is not None for file in self._files)

    def get(self, schema: TableSchema, key: bytes) -> Mutation | None:
        """Return a partition with the table's current schema."""
        if key in self._near:
            return self._near[key]
        data = next((state for file in reversed(self._files) if (state := file.data(key)) is not None), None)
        if data is None:
            return None
        fields = pickle.loads(data)
        state = None if fields is None else Mutation(schema, *fields)
        self.put(key, state)
        return state

    def put(self, key: bytes, state: Mutation | None) -> None:
        """Store the state of a partition."""
        self._near[key] = state
        if len(self._near) > MAX_PARTITIONS_IN_MEMORY:
            self._store()

    def __iter__(self) -> Iterator[bytes]:
        """Yield the keys of all partitions."""
        return iter({*self._near, *(key for file in self._files for key in file)})

    def copy(self) -> SpillingPartitions:
        """Return a copy that later changes do not affect."""
        copied = SpillingPartitions()
        copied._near, copied._files = dict(self._near), list(self._files)
        copied._shared = self._shared = True
        return copied

    def _store(self) -> None:
        if self._shared or not self._files:
            self._files.append(_SpillFile())
            self._shared = False
        first = list(self._near)[: MAX_PARTITIONS_IN_MEMORY // 2]
        self._files[-1].put((key, pickle.dumps(_mutation_fields(self._near.pop(key)))) for key in first)


def _mutation_fields(state: Mutation | None) -> tuple[Any, ...] | None:
    """Return all fields but the schema, which belongs to the table."""
    if state is None:
        return None
    return (
        state.partition_key,
        state.partition_tombstone,
        state.row_tombstones,
        state.range_tombstones,
        state.static,
        state.rows,
    )


class _SpillFile:
    """Bytes by key, in a temporary file that is deleted with this object."""

    def __init__(self) -> None:
        self._connection = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode = OFF")
        self._connection.execute("CREATE TABLE partitions (key BLOB PRIMARY KEY, data BLOB) WITHOUT ROWID")

    def put(self, pairs: Iterator[tuple[bytes, bytes]]) -> None:
        """Store values, replacing those of the same keys."""
        self._connection.execute("BEGIN")
        self._connection.executemany("INSERT OR REPLACE INTO partitions VALUES (?, ?)", pairs)
        self._connection.execute("COMMIT")

    def data(self, key: bytes) -> bytes | None:
        """Return the value of a key."""
        row = self._connection.execute("SELECT data FROM partitions WHERE key = ?", (key,)).fetchone()
        return None if row is None else row[0]

    def __iter__(self) -> Iterator[bytes]:
        """Yield all keys."""
        return (key for (key,) in self._connection.execute("SELECT key FROM partitions"))


class PartitionSource(Protocol):
    """The earlier state of a table, read on demand."""

    def partition(self, schema: TableSchema, key: bytes) -> Mutation | None:
        """Return the partition of a serialized key; None if nothing was written to it."""
        ...

    def partitions(self, schema: TableSchema) -> Mapping[bytes, Mutation]:
        """Return all partitions."""
        ...


class BaseTable:
    """The state of one table, by partition."""

    def __init__(
        self,
        schema: TableSchema,
        partitions: Mapping[bytes, Mutation] | None = None,
        behind: PartitionSource | None = None,
    ) -> None:
        """Create a table from `partitions`, by serialized partition key; all others are read from `behind`."""
        self.schema = schema
        self._partitions = SpillingPartitions()
        for key, state in (partitions or {}).items():
            self._partitions.put(key, state)
        self._behind = behind

    def copy(self) -> BaseTable:
        """Return a copy that later writes to this table do not affect."""
        copied = BaseTable(self.schema, None, self._behind)
        copied._partitions = self._partitions.copy()
        return copied

    def _state(self, key: bytes) -> Mutation | None:
        if key not in self._partitions and self._behind is not None:
            self._partitions.put(key, self._behind.partition(self.schema, key))
        return self._partitions.get(self.schema, key)

    def _all(self) -> Iterator[tuple[bytes, Mutation]]:
        """Yield every partition with writes, in the order of the ring."""
        if self._behind is not None:
            for key, state in self._behind.partitions(self.schema).items():
                if key not in self._partitions:
                    self._partitions.put(key, state)
            self._behind = None
        keys = list(self._partitions)
        for _, key in sorted(zip(tokens_from_keys(keys).tolist(), keys, strict=True)) if keys else []:
            state = self._partitions.get(self.schema, key)
            if state is not None:
                yield key, state

    def partition(self, key: KeyValues) -> LivePartition:
        """Return the current partition, empty if nothing was written to it."""
        state = self._state(self.schema.partition_bytes(key))
        if state is None:
            return LivePartition(Mutation(self.schema, key))
        return LivePartition(state if state.schema is self.schema else replace(state, schema=self.schema))

    def apply(self, mutation: Mutation) -> None:
        """Apply a write."""
        key = self.schema.partition_bytes(mutation.partition_key)
        state = self._state(key)
        self._partitions.put(key, mutation if state is None else merge_mutations([state, mutation]))

    def alter(self, schema: TableSchema) -> None:
        """Change the schema, removing the cells of columns that it lacks or that have another kind of cells."""
        shared_columns = {
            column.name
            for column in schema.columns
            if self.schema.has(column.name) and self.schema.column(column.name).type.multicell == column.type.multicell
        }
        altered = SpillingPartitions()
        for key, state in self._all():
            altered.put(key, _keep_columns(replace(state, schema=schema), shared_columns))
        self.schema, self._partitions = schema, altered

    def without_expired(self, now_us: Microseconds) -> BaseTable:
        """Return the table without the cells and markers whose TTL, counted from their timestamp, has passed (µs)."""
        return BaseTable(self.schema, {key: drop_expired(state, now_us) for key, state in self._all()})

    def truncate(self) -> None:
        """Delete all rows."""
        self._partitions, self._behind = SpillingPartitions(), None

    def rows(self) -> list[dict[str, object]]:
        """Return the rows of `SELECT *`, partitions in the order of the ring, values as JSON has them."""
        types = [(column.name, column.type) for column in self.schema.selected]
        return [{name: kind.json(row[name]) for name, kind in types} for row in self.selected()]

    def selected(self) -> Iterator[dict[str, Value | None]]:
        """Yield the same rows with values in canonical form."""
        for _, state in self._all():
            yield from LivePartition(replace(state, schema=self.schema)).selected()


def log_row_to_json(columns: Iterable[LogColumn], row: Mapping[str, Value | None]) -> dict[str, object]:
    """Return a log row as JSON has it, with columns in the log's order."""
    return {column.name: column.type.json(row[column.name]) for column in columns}


def drop_expired(state: Mutation, now_us: Microseconds) -> Mutation:
    """Return a partition without the cells and markers whose TTL, counted from their timestamp, has passed (µs)."""
    rows = {
        key: RowChange(
            None if row.marker is None or _is_expired(row.marker, now_us) else row.marker,
            _drop_expired_cells(row.cells, now_us),
        )
        for key, row in state.rows.items()
    }
    return replace(state, static=_drop_expired_cells(state.static, now_us), rows=rows)


def _drop_expired_cells(changes: ColumnChanges, now_us: Microseconds) -> ColumnChanges:
    lasting: dict[str, ColumnChange] = {}
    for name, change in changes.items():
        if isinstance(change, CollectionChange):
            elements = {key: cell for key, cell in change.elements.items() if not _is_expired(cell, now_us)}
            lasting[name] = replace(change, elements=elements)
        elif not _is_expired(change, now_us):
            lasting[name] = change
    return lasting


def _is_expired(part: Cell | RowMarker, now_us: Microseconds) -> bool:
    return bool(part.ttl) and part.timestamp + us_from_seconds(part.ttl) <= now_us


def _keep_columns(state: Mutation, names: set[str]) -> Mutation:
    rows = {key: RowChange(row.marker, _select_columns(row.cells, names)) for key, row in state.rows.items()}
    return replace(state, static=_select_columns(state.static, names), rows=rows)


def _select_columns(changes: ColumnChanges, names: set[str]) -> ColumnChanges:
    return {name: change for name, change in changes.items() if name in names}
