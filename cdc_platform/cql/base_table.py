"""A base table in the process: its partitions as what all writes to them came to, and the rows that SELECT shows.

Kept by partition; how writes merge is in `mutation`, what is alive in `live`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Protocol

from cdc_platform.clock import Microseconds, us_of_seconds
from cdc_platform.cql.live import Partition
from cdc_platform.cql.mutation import (
    Cell,
    CollectionChange,
    ColumnChange,
    ColumnChanges,
    Marker,
    Mutation,
    RowChange,
    merge,
)
from cdc_platform.cql.partitions import Partitions
from cdc_platform.cql.ranges import Key
from cdc_platform.cql.schema import LogColumn, TableSchema
from cdc_platform.cql.types import Value
from cdc_platform.ring import tokens_of_keys


class Behind(Protocol):
    """What a table has come to before, of which no more is looked up than is asked for."""

    def partition(self, schema: TableSchema, key: bytes) -> Mutation | None:
        """The partition of a serialized key; None if nothing was written to it."""
        ...

    def partitions(self, schema: TableSchema) -> Mapping[bytes, Mutation]:
        """All partitions."""
        ...


class BaseTable:
    """The state of one table, partition by partition."""

    def __init__(
        self, schema: TableSchema, partitions: Mapping[bytes, Mutation] | None = None, behind: Behind | None = None
    ) -> None:
        """`partitions` are by serialized partition key; those that are not among them are as they are `behind`."""
        self.schema = schema
        self._partitions = Partitions()
        for key, state in (partitions or {}).items():
            self._partitions.put(key, state)
        self._behind = behind

    def copy(self) -> BaseTable:
        """The table as it is now, whatever is written to this one later."""
        copied = BaseTable(self.schema, None, self._behind)
        copied._partitions = self._partitions.copy()
        return copied

    def _state(self, key: bytes) -> Mutation | None:
        if key not in self._partitions and self._behind is not None:
            self._partitions.put(key, self._behind.partition(self.schema, key))
        return self._partitions.get(self.schema, key)

    def _all(self) -> Iterator[tuple[bytes, Mutation]]:
        """Every partition that something was written to, in the order of the ring."""
        if self._behind is not None:
            for key, state in self._behind.partitions(self.schema).items():
                if key not in self._partitions:
                    self._partitions.put(key, state)
            self._behind = None
        keys = list(self._partitions)
        for _, key in sorted(zip(tokens_of_keys(keys).tolist(), keys, strict=True)) if keys else []:
            state = self._partitions.get(self.schema, key)
            if state is not None:
                yield key, state

    def partition(self, key: Key) -> Partition:
        """A partition as it is, empty if nothing was written to it."""
        state = self._state(self.schema.partition_bytes(key))
        if state is None:
            return Partition(Mutation(self.schema, key))
        return Partition(state if state.schema is self.schema else replace(state, schema=self.schema))

    def apply(self, mutation: Mutation) -> None:
        """Let a write take effect."""
        key = self.schema.partition_bytes(mutation.partition_key)
        state = self._state(key)
        self._partitions.put(key, mutation if state is None else merge([state, mutation]))

    def alter(self, schema: TableSchema) -> None:
        """Take another schema; the cells of columns that it has not, or has with another kind of cells, are gone."""
        kept = {
            column.name
            for column in schema.columns
            if self.schema.has(column.name) and self.schema.column(column.name).type.multicell == column.type.multicell
        }
        altered = Partitions()
        for key, state in self._all():
            altered.put(key, _only(replace(state, schema=schema), kept))
        self.schema, self._partitions = schema, altered

    def without_expired(self, now_us: Microseconds) -> BaseTable:
        """The table without the cells and markers whose TTL, counted from their timestamp, has passed (µs)."""
        return BaseTable(self.schema, {key: without_expired(state, now_us) for key, state in self._all()})

    def truncate(self) -> None:
        """Forget all rows."""
        self._partitions, self._behind = Partitions(), None

    def rows(self) -> list[dict[str, object]]:
        """The rows of `SELECT *`, partitions in the order of the ring, values as JSON has them."""
        types = [(column.name, column.type) for column in self.schema.selected]
        return [{name: kind.json(row[name]) for name, kind in types} for row in self.selected()]

    def selected(self) -> Iterator[dict[str, Value | None]]:
        """The same rows with values in canonical form."""
        for _, state in self._all():
            yield from Partition(replace(state, schema=self.schema)).selected()


def json_row(columns: Iterable[LogColumn], row: Mapping[str, Value | None]) -> dict[str, object]:
    """A log row as JSON has it, columns in the log's order."""
    return {column.name: column.type.json(row[column.name]) for column in columns}


def without_expired(state: Mutation, now_us: Microseconds) -> Mutation:
    """A partition without the cells and markers whose TTL, counted from their timestamp, has passed (µs)."""
    rows = {
        key: RowChange(
            None if row.marker is None or _is_expired(row.marker, now_us) else row.marker,
            _lasting(row.cells, now_us),
        )
        for key, row in state.rows.items()
    }
    return replace(state, static=_lasting(state.static, now_us), rows=rows)


def _lasting(changes: ColumnChanges, now_us: Microseconds) -> ColumnChanges:
    lasting: dict[str, ColumnChange] = {}
    for name, change in changes.items():
        if isinstance(change, CollectionChange):
            elements = {key: cell for key, cell in change.elements.items() if not _is_expired(cell, now_us)}
            lasting[name] = replace(change, elements=elements)
        elif not _is_expired(change, now_us):
            lasting[name] = change
    return lasting


def _is_expired(part: Cell | Marker, now_us: Microseconds) -> bool:
    return bool(part.ttl) and part.timestamp + us_of_seconds(part.ttl) <= now_us


def _only(state: Mutation, names: set[str]) -> Mutation:
    rows = {key: RowChange(row.marker, _columns(row.cells, names)) for key, row in state.rows.items()}
    return replace(state, static=_columns(state.static, names), rows=rows)


def _columns(changes: ColumnChanges, names: set[str]) -> ColumnChanges:
    return {name: change for name, change in changes.items() if name in names}
