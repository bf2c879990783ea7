"""The columns of a log as bytes of CQL's protocol: keys, values, and the elements of collections one by one.

Columns are taken whole. What no native column holds (`exact`) is read value by value, in the columns that have it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from cdc_platform.cql.schema import Column, TableSchema, element_key_type
from cdc_platform.cql.types import SMALLINT, CqlType, ListType, MapType, SetType, UserType, Value
from cdc_platform.errors import InputError
from cdc_platform.lake.arrow import composite_column, compute
from cdc_platform.log.evolution import as_declared
from cdc_platform.log.exact import decoded
from cdc_platform.log.log_values import canonical_values, exact_values, field_name
from cdc_platform.log.state.wire import to_wire
from cdc_platform.log.stored_names import place_of, stored_columns, stored_type


def lacking(name: str) -> InputError:
    """The error for a log row in which a column is null that never is."""
    return InputError(f"a log row has no {name}; every row of a CDC log has one")


class Wire(NamedTuple):
    """A column of a log as bytes (binary), and the rows (int64, ascending) of which they are."""

    rows: np.ndarray
    data: pa.Array


class LogColumns:
    """The columns of some rows of a log, by their names in CQL's log."""

    def __init__(self, schema: TableSchema, log: pa.Table) -> None:
        self.schema = schema
        self._log = as_declared(schema, log).combine_chunks()
        self.size = log.num_rows
        self._columns = {each.name: (each, name) for each, name in stored_columns(schema)}
        self._present = set(self._log.schema.names)
        self._exact = exact_values(self._log)

    def partition_keys(self) -> pa.Array:
        """The serialized partition keys (binary); raises InputError for a value that is null or none of its type."""
        found = []
        for column in self.schema.partition_key:
            wire = self.wire(column.name)
            if len(wire.rows) < self.size:
                raise lacking(column.name)
            found.append(wire.data)
        return found[0] if len(found) == 1 else composite_column(found)

    def _place(self, name: str) -> str | None:
        each, stored = self._columns[name]
        return place_of(each, stored, self._present)

    def values(self, name: str) -> Any:
        """A column of the log; None where it lacks it."""
        place = self._place(name)
        return None if place is None else _whole(self._log.column(place))

    def present(self, name: str) -> np.ndarray:
        """A column of numbers; raises InputError where one is missing."""
        values = self.values(name)
        if values is None or values.null_count:
            raise lacking(name)
        return np.asarray(values)

    def wire(self, name: str, among: np.ndarray | None = None) -> Wire:
        """The values of an atomic column in the rows, of those `among` (bool) them, in which it is not null."""
        values, place = self.values(name), self._place(name)
        if values is None or values.null_count == self.size:
            return Wire(np.empty(0, np.int64), pa.array([], pa.binary()))
        there = _valid(values) if among is None else _valid(values) & among
        rows = np.flatnonzero(there)
        kind = self._columns[name][0].type
        far = self._exact.get(place or "")
        if far:
            found = self._canonical(name, far)
            return Wire(rows, pa.array([kind.to_bytes(found[row]) for row in rows.tolist()], pa.binary()))
        taken = values if len(rows) == self.size else values.take(pa.array(rows))
        return Wire(rows, to_wire(stored_type(kind), taken))

    def _canonical(self, name: str, far: Mapping[int, str]) -> list[Value | None]:
        """The canonical values of a column of which some are told beside it."""
        kind = self._columns[name][0].type
        found = canonical_values(stored_type(kind), self.values(name))
        for row, text in far.items():
            found[row] = decoded(kind, text)
        return found

    def true(self, name: str) -> np.ndarray:
        """The rows (bool) in which a column is true."""
        values = self.values(name)
        if values is None or values.null_count == self.size:
            return np.zeros(self.size, dtype=bool)
        return np.asarray(compute.fill_null(values, False))

    def deleted_elements(self, column: Column, chosen: np.ndarray) -> tuple[np.ndarray, pa.Array]:
        """The rows (int64) and paths (binary) of the elements that were deleted in the chosen rows (bool)."""
        name = f"cdc$deleted_elements_{column.name}"
        values, kind = self.values(name), element_key_type(column.type).frozen()
        if values is None or values.null_count == self.size:
            return np.empty(0, np.int64), pa.array([], pa.binary())
        far = self._exact.get(self._place(name) or "")
        if far:
            found = self._canonical(name, far)
            pairs = [(row, each) for row in np.flatnonzero(chosen).tolist() for each in found[row] or ()]
            return _rows(row for row, _ in pairs), _bytes(kind, [each for _, each in pairs])
        rows, flat = _flattened(values, chosen)
        return rows, to_wire(stored_type(kind), flat[0])

    def live_elements(
        self, column: Column, chosen: np.ndarray
    ) -> Iterator[tuple[np.ndarray, pa.Array, pa.Array | None]]:
        """The rows, paths and values of the elements of a collection in the chosen rows; of a user type field by field.

        Values are None where elements have none.
        """
        values = self.values(column.name)
        if values is None or values.null_count == self.size:
            return
        far = self._exact.get(self._place(column.name) or "")
        if far:
            yield from _canonical_elements(column, self._canonical(column.name, far), chosen)
            return
        kind = column.type
        if isinstance(kind, UserType):
            there = _valid(values) & chosen
            for index, (name, part) in enumerate(zip(_field_names(kind), map(stored_type, kind.parts), strict=True)):
                found = field_name([field.name for field in values.type], name)
                if found is None:
                    continue
                field = compute.struct_field(values, found)
                rows = np.flatnonzero(_valid(field) & there)
                path = pa.array([SMALLINT.to_bytes(index)], pa.binary()).take(pa.array(np.zeros(len(rows), np.int64)))
                yield rows, path, to_wire(part, field.take(pa.array(rows)))
            return
        rows, flat = _flattened(values, chosen)
        key = stored_type(element_key_type(kind).frozen())
        if isinstance(kind, SetType):
            yield rows, to_wire(key, flat[0]), None
            return
        assert isinstance(kind, ListType | MapType)
        inner = stored_type((kind.element if isinstance(kind, ListType) else kind.value).frozen())
        yield rows, to_wire(key, flat[0]), to_wire(inner, flat[1])


def at(wire: Wire, rows: np.ndarray) -> pa.Array:
    """The bytes of some rows, all of which the column has."""
    if len(rows) == len(wire.rows) and np.array_equal(rows, wire.rows):
        return wire.data
    return wire.data.take(pa.array(np.searchsorted(wire.rows, rows)))


def _flattened(values: Any, chosen: np.ndarray) -> tuple[np.ndarray, list[Any]]:
    """The elements of lists or maps in the chosen rows: their rows (int64), and their parts."""
    rows = np.flatnonzero(_valid(values) & chosen)
    taken = values.take(pa.array(rows))
    offsets = np.asarray(taken.offsets, dtype=np.int64)
    first, size = int(offsets[0]), int(offsets[-1] - offsets[0])
    parts = [taken.keys, taken.items] if pat.is_map(taken.type) else [taken.values]
    return np.repeat(rows, np.diff(offsets)), [part.slice(first, size) for part in parts]


def _canonical_elements(
    column: Column, values: list[Value | None], chosen: np.ndarray
) -> Iterator[tuple[np.ndarray, pa.Array, pa.Array | None]]:
    kind = column.type
    key = element_key_type(kind)
    rows, paths, inner = list[int](), list[bytes](), list[bytes | None]()
    for row in np.flatnonzero(chosen).tolist():
        for path, value, of in _elements(kind, values[row]):
            rows.append(row)
            paths.append(key.to_bytes(path))
            inner.append(None if of is None else of.to_bytes(value))
    yield _rows(rows), pa.array(paths, pa.binary()), pa.array(inner, pa.binary())


def _elements(kind: CqlType, value: Value | None) -> Iterator[tuple[Value, Value, CqlType | None]]:
    """The elements of a value of the log, with their keys and the types of their values."""
    if value is None:
        return iter(())
    if isinstance(kind, UserType):
        return ((index, inner, kind.parts[index]) for index, inner in enumerate(value) if inner is not None)
    if isinstance(kind, SetType):
        return ((element, None, None) for element in value)
    return ((key, inner, kind.parts[-1]) for key, inner in value)


def _rows(rows: Iterable[int]) -> np.ndarray:
    return np.fromiter(rows, dtype=np.int64)


def _bytes(kind: CqlType, values: list[Value]) -> pa.Array:
    return pa.array([kind.to_bytes(value) for value in values], pa.binary())


def _field_names(kind: UserType) -> tuple[str, ...]:
    shown = stored_type(kind)
    assert isinstance(shown, UserType)
    return shown.field_names


def _whole(column: Any) -> Any:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays([*column.chunks, pa.array([], column.type)])


def _valid(values: Any) -> np.ndarray:
    if not values.null_count:
        return np.ones(len(values), dtype=bool)
    return np.asarray(compute.is_valid(values))
