"""Build a state from the rows of a log with full delta, a column at a time: the inverse of `encoder`.

Values that native columns cannot hold are decoded one by one, in the columns that have them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from cdc_platform.cdclog.column_codec import encode_column, join_components, parse_uuids, split_timeuuids
from cdc_platform.cdclog.encoder import Operation
from cdc_platform.cdclog.schema import find_stored_name, stored_columns, stored_type
from cdc_platform.cdclog.schema_evolution import convert_log_rows
from cdc_platform.cdclog.state.merge import combine_codes, dictionary_codes
from cdc_platform.cdclog.state.model import STATE_SCHEMA, StateRowKind
from cdc_platform.cdclog.values import decode_exact_value, find_field_name, read_exact_values, to_canonical_values
from cdc_platform.clock import ONE_US, SECOND_US
from cdc_platform.cql import (
    GREGORIAN_OFFSET,
    SMALLINT,
    TIMEUUID,
    Column,
    CqlType,
    ListType,
    MapType,
    SetType,
    TableSchema,
    UserType,
    Value,
    get_element_key_type,
    join_length_prefixed,
)
from cdc_platform.delta import composite_keys_to_arrow, compute
from cdc_platform.errors import InputError, StateError


def missing_value_error(name: str) -> InputError:
    """Return the error for a log row with a null in a required column."""
    return InputError(f"a log row has no {name}; every row of a CDC log has one")


class WireColumn(NamedTuple):
    """A column of a log as bytes (binary), and the rows (int64, ascending) of the values."""

    rows: np.ndarray
    data: pa.Array


class LogColumns:
    """The columns of some rows of a log, by their CQL names."""

    def __init__(self, schema: TableSchema, log: pa.Table) -> None:
        self.schema = schema
        self._log = convert_log_rows(schema, log).combine_chunks()
        self.size = log.num_rows
        self._columns = {log_column.name: (log_column, name) for log_column, name in stored_columns(schema)}
        self._present = set(self._log.schema.names)
        self._exact = read_exact_values(self._log)

    def partition_keys(self) -> pa.Array:
        """Return the serialized partition keys (binary).

        Raises:
            InputError: a value is null or not of its type.
        """
        components = []
        for column in self.schema.partition_key:
            wire = self.wire(column.name)
            if len(wire.rows) < self.size:
                raise missing_value_error(column.name)
            components.append(wire.data)
        return components[0] if len(components) == 1 else composite_keys_to_arrow(components)

    def _place(self, name: str) -> str | None:
        column, stored = self._columns[name]
        return find_stored_name(column, stored, self._present)

    def values(self, name: str) -> Any:
        """Return a column of the log; None if the log does not have it."""
        stored = self._place(name)
        return None if stored is None else _to_single_array(self._log.column(stored))

    def present(self, name: str) -> np.ndarray:
        """Return a column of numbers; raise InputError if a value is missing."""
        values = self.values(name)
        if values is None or values.null_count:
            raise missing_value_error(name)
        return np.asarray(values)

    def wire(self, name: str, among: np.ndarray | None = None) -> WireColumn:
        """Encode the non-null values of an atomic column in the rows, or in the rows of the mask `among`."""
        values, stored = self.values(name), self._place(name)
        if values is None or values.null_count == self.size:
            return WireColumn(np.empty(0, np.int64), pa.array([], pa.binary()))
        mask = _valid_mask(values) if among is None else _valid_mask(values) & among
        rows = np.flatnonzero(mask)
        kind = self._columns[name][0].type
        exact_values = self._exact.get(stored or "")
        if exact_values:
            canonical = self._canonical(name, exact_values)
            return WireColumn(rows, pa.array([kind.to_bytes(canonical[row]) for row in rows.tolist()], pa.binary()))
        taken = values if len(rows) == self.size else values.take(pa.array(rows))
        return WireColumn(rows, encode_column(stored_type(kind), taken))

    def _canonical(self, name: str, far: Mapping[int, str]) -> list[Value | None]:
        """Return the canonical values of a column, with the exact values (JSON, by row) that it cannot hold."""
        kind = self._columns[name][0].type
        values = to_canonical_values(stored_type(kind), self.values(name))
        for row, text in far.items():
            values[row] = decode_exact_value(kind, text)
        return values

    def true(self, name: str) -> np.ndarray:
        """Return the rows (bool) in which a column is true."""
        values = self.values(name)
        if values is None or values.null_count == self.size:
            return np.zeros(self.size, dtype=bool)
        return np.asarray(compute.fill_null(values, False))

    def deleted_elements(self, column: Column, chosen: np.ndarray) -> tuple[np.ndarray, pa.Array]:
        """Return the rows (int64) and paths (binary) of the elements deleted in the chosen rows (bool)."""
        name = f"cdc$deleted_elements_{column.name}"
        values, kind = self.values(name), get_element_key_type(column.type).frozen()
        if values is None or values.null_count == self.size:
            return np.empty(0, np.int64), pa.array([], pa.binary())
        exact_values = self._exact.get(self._place(name) or "")
        if exact_values:
            canonical = self._canonical(name, exact_values)
            pairs = [(row, element) for row in np.flatnonzero(chosen).tolist() for element in canonical[row] or ()]
            return _row_numbers(row for row, _ in pairs), _encode_values(kind, [element for _, element in pairs])
        rows, flat = _flatten_elements(values, chosen)
        return rows, encode_column(stored_type(kind), flat[0])

    def live_elements(
        self, column: Column, chosen: np.ndarray
    ) -> Iterator[tuple[np.ndarray, pa.Array, pa.Array | None]]:
        """Yield rows, paths and values of a collection's elements in the chosen rows; a user type's field by field.

        Values are None for sets.
        """
        values = self.values(column.name)
        if values is None or values.null_count == self.size:
            return
        exact_values = self._exact.get(self._place(column.name) or "")
        if exact_values:
            yield from _canonical_elements(column, self._canonical(column.name, exact_values), chosen)
            return
        kind = column.type
        if isinstance(kind, UserType):
            mask = _valid_mask(values) & chosen
            for index, (name, part) in enumerate(
                zip(_stored_field_names(kind), map(stored_type, kind.parts), strict=True)
            ):
                stored_field = find_field_name([field.name for field in values.type], name)
                if stored_field is None:
                    continue
                field = compute.struct_field(values, stored_field)
                rows = np.flatnonzero(_valid_mask(field) & mask)
                path = pa.array([SMALLINT.to_bytes(index)], pa.binary()).take(pa.array(np.zeros(len(rows), np.int64)))
                yield rows, path, encode_column(part, field.take(pa.array(rows)))
            return
        rows, flat = _flatten_elements(values, chosen)
        key = stored_type(get_element_key_type(kind).frozen())
        if isinstance(kind, SetType):
            yield rows, encode_column(key, flat[0]), None
            return
        assert isinstance(kind, ListType | MapType)
        inner = stored_type((kind.element if isinstance(kind, ListType) else kind.value).frozen())
        yield rows, encode_column(key, flat[0]), encode_column(inner, flat[1])


def take_wire_rows(wire: WireColumn, rows: np.ndarray) -> pa.Array:
    """Return the bytes of some rows; the column must have all of them."""
    if len(rows) == len(wire.rows) and np.array_equal(rows, wire.rows):
        return wire.data
    return wire.data.take(pa.array(np.searchsorted(wire.rows, rows)))


def _flatten_elements(values: Any, chosen: np.ndarray) -> tuple[np.ndarray, list[Any]]:
    """Return the rows (int64) of the elements of lists or maps in the chosen rows, and the elements."""
    rows = np.flatnonzero(_valid_mask(values) & chosen)
    taken = values.take(pa.array(rows))
    offsets = np.asarray(taken.offsets, dtype=np.int64)
    first, size = int(offsets[0]), int(offsets[-1] - offsets[0])
    parts = [taken.keys, taken.items] if pat.is_map(taken.type) else [taken.values]
    return np.repeat(rows, np.diff(offsets)), [part.slice(first, size) for part in parts]


def _canonical_elements(
    column: Column, values: list[Value | None], chosen: np.ndarray
) -> Iterator[tuple[np.ndarray, pa.Array, pa.Array | None]]:
    kind = column.type
    key = get_element_key_type(kind)
    rows, paths, inner = list[int](), list[bytes](), list[bytes | None]()
    for row in np.flatnonzero(chosen).tolist():
        for path, value, of in _iter_elements(kind, values[row]):
            rows.append(row)
            paths.append(key.to_bytes(path))
            inner.append(None if of is None else of.to_bytes(value))
    yield _row_numbers(rows), pa.array(paths, pa.binary()), pa.array(inner, pa.binary())


def _iter_elements(kind: CqlType, value: Value | None) -> Iterator[tuple[Value, Value, CqlType | None]]:
    """Yield the elements of a logged value, with their keys and the types of their values."""
    if value is None:
        return iter(())
    if isinstance(kind, UserType):
        return ((index, inner, kind.parts[index]) for index, inner in enumerate(value) if inner is not None)
    if isinstance(kind, SetType):
        return ((element, None, None) for element in value)
    return ((key, inner, kind.parts[-1]) for key, inner in value)


def _row_numbers(rows: Iterable[int]) -> np.ndarray:
    return np.fromiter(rows, dtype=np.int64)


def _encode_values(kind: CqlType, values: list[Value]) -> pa.Array:
    return pa.array([kind.to_bytes(value) for value in values], pa.binary())


def _stored_field_names(kind: UserType) -> tuple[str, ...]:
    stored = stored_type(kind)
    assert isinstance(stored, UserType)
    return stored.field_names


def _to_single_array(column: Any) -> Any:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays([*column.chunks, pa.array([], column.type)])


def _valid_mask(values: Any) -> np.ndarray:
    if not values.null_count:
        return np.ones(len(values), dtype=bool)
    return np.asarray(compute.is_valid(values))


_PARTITION_DELETES = (Operation.PARTITION_DELETE, Operation.SERVICE_PARTITION_DELETE)
_ROW_DELETES = (Operation.ROW_DELETE, Operation.SERVICE_ROW_DELETE)
_UPSERTS = (Operation.UPDATE, Operation.INSERT)
_STARTS = (Operation.RANGE_START_INCLUSIVE, Operation.RANGE_START_EXCLUSIVE)
_ENDS = (Operation.RANGE_END_INCLUSIVE, Operation.RANGE_END_EXCLUSIVE)


def assert_full_delta(schema: TableSchema) -> None:
    """Raise StateError if a table's log has only keys, without values."""
    if schema.cdc.delta != "full":
        raise StateError(
            f"{schema.full_name} logs keys alone (delta 'keys'); only a log with full delta can be replayed"
        )


def state_from_log(schema: TableSchema, log: pa.Table, keys: pa.Array | None = None) -> pa.Table:
    """Return the unmerged state rows (`STATE_SCHEMA`) that rows of a log's Delta table, in any order, amount to.

    Cells, markers and tombstones keep the timestamps and TTLs of their writes; images are ignored. Columns of `schema`
    that the rows lack count as null. `keys` are the serialized partition keys of the rows, if known.

    Raises:
        StateError: the log holds only keys.
        InputError: a row is not a valid log row, or a batch is incomplete.
    """
    assert_full_delta(schema)
    return _StateReader(schema, log, keys).state()


def log_partition_keys(schema: TableSchema, log: pa.Table) -> pa.Array:
    """Return the serialized partition keys (binary) of rows of a log's Delta table, in any form of its values.

    Raises:
        InputError: a value is null or not of its type.
    """
    return LogColumns(schema, log).partition_keys()


class LogBatches(LogColumns):
    """Rows of a log with the batch, time and keys of each row."""

    def __init__(self, schema: TableSchema, log: pa.Table, keys: pa.Array | None = None) -> None:
        """Read the rows of a log's Delta table, in any order; `keys` are their serialized partition keys, if known.

        Raises:
            InputError: a row is not a valid log row, or a batch is incomplete.
        """
        super().__init__(schema, log)
        self.operations = self.present("cdc$operation").astype(np.int64)
        if wrong := set(np.unique(self.operations).tolist()) - {*Operation}:
            raise InputError(
                f"operation {min(wrong)} of a log row is out of bounds; operations that can be replayed are 0 to 9, -3"
                " and -4"
            )
        texts = self.values("cdc$time")
        if texts is None or texts.null_count:
            raise missing_value_error("cdc$time")
        self.batches = self._complete_batches(texts)
        self.timestamps = _timeuuid_times(texts)
        ttl = self.values("cdc$ttl")
        self.ttls = np.zeros(self.size, np.int64) if ttl is None else _as_int64(ttl)
        self.partition = self.partition_keys() if keys is None else keys
        self.clustering_wires = [self.wire(column.name) for column in schema.clustering_key]
        self.depth = self._key_depth()
        self.has_full_key = self.depth == len(schema.clustering_key)

    def _key_depth(self) -> np.ndarray:
        """Return the number of leading clustering columns of each row that are not null."""
        depth = np.zeros(self.size, np.int64)
        for index, wire in enumerate(self.clustering_wires):
            present = np.zeros(self.size, dtype=bool)
            present[wire.rows] = True
            depth += present & (depth == index)
        return depth

    def clustering_keys(self) -> pa.Array:
        """Return the clustering key of each row (binary); null for rows without a full key."""
        rows = np.flatnonzero(self.has_full_key)
        parts = [take_wire_rows(wire, rows) for wire in self.clustering_wires]
        keys = join_components(parts, len(rows))
        if len(rows) == self.size:
            return keys
        positions = np.full(self.size, -1, dtype=np.int64)
        positions[rows] = np.arange(len(rows))
        return keys.take(pa.array(positions, mask=positions < 0))

    def _complete_batches(self, texts: Any) -> np.ndarray:
        """Return the batch of each row (int64); raise InputError if a batch is incomplete."""
        streams = self.values("cdc$stream_id")
        stream_codes = np.zeros(self.size, np.int64) if streams is None else dictionary_codes(streams)
        batches = combine_codes([stream_codes, dictionary_codes(texts)])
        self.numbers = self.present("cdc$batch_seq_no").astype(np.int64)
        order = np.lexsort((self.numbers, batches))
        starts = np.flatnonzero(np.diff(batches[order], prepend=-1))
        lengths = np.diff(starts, append=self.size)
        expected = np.arange(self.size) - np.repeat(starts, lengths)
        ends = self.values("cdc$end_of_batch")
        ended = np.zeros(self.size, bool) if ends is None else np.asarray(compute.fill_null(ends, False))
        wrong = np.flatnonzero(self.numbers[order] != expected)
        unended = np.flatnonzero(~ended[order][starts + lengths - 1])
        if len(wrong) or len(unended):
            position = order[wrong[0]] if len(wrong) else order[starts[unended[0]]]
            raise InputError(
                f"the batch of {texts[int(position)].as_py()} in the log of {self.schema.full_name} is not complete"
            )
        return batches

    def range_pairs(self) -> list[tuple[int | None, int | None]]:
        """Return the rows of the start and the end of each range deletion, None for one that the log omits.

        An end belongs to the start immediately before it in its batch, if any.
        """
        rows = np.flatnonzero(np.isin(self.operations, (*_STARTS, *_ENDS)))
        rows = rows[np.lexsort((self.numbers[rows], self.batches[rows]))]
        pairs: list[tuple[int | None, int | None]] = []
        start: int | None = None
        for row in rows.tolist():
            is_start = self.operations[row] in _STARTS
            if start is not None and (is_start or self.batches[start] != self.batches[row]):
                pairs.append((start, None))
                start = None
            if is_start:
                start = row
                continue
            pairs.append((start, row))
            start = None
        if start is not None:
            pairs.append((start, None))
        return pairs


class _StateReader(LogBatches):
    """Builds the state rows of a log's rows."""

    def state(self) -> pa.Table:
        """Return the state rows of all log rows."""
        schema, operations, has_full_key = self.schema, self.operations, self.has_full_key
        upserts = np.isin(operations, _UPSERTS)
        self._clustering = self.clustering_keys()
        inserted = np.flatnonzero((operations == Operation.INSERT) & has_full_key)
        parts = [
            self._tombstones(StateRowKind.PARTITION_TOMBSTONE, np.flatnonzero(np.isin(operations, _PARTITION_DELETES))),
            self._tombstones(
                StateRowKind.ROW_TOMBSTONE, np.flatnonzero(np.isin(operations, _ROW_DELETES) & has_full_key)
            ),
            self._part(StateRowKind.MARKER, inserted, ttl=self.ttls[inserted]),
            pa.Table.from_pylist(list(self._ranges()), schema=STATE_SCHEMA),
        ]
        for columns, chosen in ((schema.statics, upserts & ~has_full_key), (schema.regulars, upserts & has_full_key)):
            for column in columns:
                parts += self._cells(column, chosen)
        return pa.concat_tables(parts)

    def _tombstones(self, kind: StateRowKind, rows: np.ndarray) -> pa.Table:
        return self._part(kind, rows, of_row=kind is StateRowKind.ROW_TOMBSTONE)

    def _cells(self, column: Column, chosen: np.ndarray) -> Iterator[pa.Table]:
        deleted = self.true(f"cdc$deleted_{column.name}") & chosen
        if column.type.multicell:
            yield from self._collection(column, chosen, deleted)
            return
        dead_rows = np.flatnonzero(deleted)
        yield self._part(StateRowKind.CELL, dead_rows, column=column.name, dead=True)
        wire = self.wire(column.name, chosen & ~deleted)
        yield self._part(StateRowKind.CELL, wire.rows, column=column.name, ttl=self.ttls[wire.rows], value=wire.data)

    def _collection(self, column: Column, chosen: np.ndarray, deleted: np.ndarray) -> Iterator[pa.Table]:
        # The log has the tombstone of a collection one microsecond late.
        yield self._part(StateRowKind.COLLECTION_TOMBSTONE, np.flatnonzero(deleted), column=column.name, shift=-ONE_US)
        rows, paths = self.deleted_elements(column, chosen)
        yield self._part(StateRowKind.CELL, rows, column=column.name, path=paths, dead=True)
        for rows, paths, values in self.live_elements(column, chosen):
            yield self._part(StateRowKind.CELL, rows, column=column.name, path=paths, ttl=self.ttls[rows], value=values)

    def _part(
        self,
        kind: StateRowKind,
        rows: np.ndarray,
        *,
        of_row: bool = True,
        column: str | None = None,
        path: pa.Array | None = None,
        ttl: np.ndarray | None = None,
        value: pa.Array | None = None,
        dead: bool = False,
        shift: int = 0,
    ) -> pa.Table:
        """Build state rows of one kind from rows (int64) of the log."""
        size = len(rows)
        if not size:
            return STATE_SCHEMA.empty_table()
        indices = pa.array(rows)
        timestamps = self.timestamps[rows] + shift
        ttls = np.zeros(size, np.int64) if ttl is None else ttl
        columns = {
            "partition": self.partition.take(indices),
            "clustering": self._clustering.take(indices) if of_row else pa.nulls(size, pa.binary()),
            "kind": pa.array(np.full(size, kind, dtype=np.int8)),
            "column": pa.nulls(size, pa.string()) if column is None else pa.repeat(column, size),
            "path": pa.nulls(size, pa.binary()) if path is None else path,
            "timestamp": pa.array(timestamps),
            "ttl": pa.array(ttls),
            "expires": pa.array(np.where(ttls > 0, timestamps + ttls * SECOND_US, 0)),
            "dead": pa.array(np.full(size, dead)),
            "value": pa.nulls(size, pa.binary()) if value is None else value,
            "inexact": pa.array(np.zeros(size, dtype=bool)),
        }
        return pa.table(columns, schema=STATE_SCHEMA)

    def _ranges(self) -> Iterator[dict[str, Any]]:
        """Yield the range tombstones."""
        pairs = self.range_pairs()
        rows = np.array([row for pair in pairs for row in pair if row is not None], np.int64)
        prefixes = dict(zip(rows.tolist(), self._prefixes(rows), strict=True))
        for start, end in pairs:
            row = start if end is None else end
            assert row is not None
            edges = {
                is_end: _range_edge(int(self.operations[bound]), prefixes[bound])
                for is_end, bound in ((False, start), (True, end))
                if bound is not None
            }
            if len(edges) < 2:
                prefix = prefixes[row]
                if not prefix and end is None:
                    continue  # a start without a bound has no meaning without its end
                # A missing bound is where the columns before the last one of the other bound change.
                edges[end is None] = join_length_prefixed(prefix[:-1]) + bytes([end is None])
            yield {
                "partition": self.partition[row].as_py(),
                "clustering": edges[False],
                "kind": int(StateRowKind.RANGE_TOMBSTONE),
                "path": edges[True],
                "timestamp": int(self.timestamps[row]),
                "ttl": 0,
                "expires": 0,
                "dead": False,
                "inexact": False,
            }

    def _prefixes(self, rows: np.ndarray) -> list[list[bytes]]:
        """Return, for some rows, the bytes of the clustering columns before the first null."""
        prefixes: list[list[bytes]] = [[] for _ in rows]
        for index, wire in enumerate(self.clustering_wires):
            deep = np.flatnonzero(self.depth[rows] > index)
            for row, data in zip(deep.tolist(), take_wire_rows(wire, rows[deep]).to_pylist(), strict=True):
                prefixes[row].append(data)
        return prefixes


def _range_edge(operation: int, prefix: list[bytes]) -> bytes:
    behind = operation in (Operation.RANGE_START_EXCLUSIVE, Operation.RANGE_END_INCLUSIVE)
    if not prefix:
        behind = operation in _ENDS
    return join_length_prefixed(prefix) + bytes([behind])


def _timeuuid_times(texts: Any) -> np.ndarray:
    """Return the times (int64, µs) of timeuuid texts."""
    try:
        uuids = parse_uuids(texts)
    except ValueError:
        to_canonical_values(TIMEUUID, texts)
        raise
    return (split_timeuuids(uuids)[0] - GREGORIAN_OFFSET) // 10


def _as_int64(values: Any) -> np.ndarray:
    return np.asarray(compute.fill_null(values, 0).cast(pa.int64()))
