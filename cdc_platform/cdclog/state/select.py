"""Select the visible rows of a merged state as native columns, and purge rows without further effect.

This is `cql.LivePartition` for all partitions at once. A tombstone stays as long as an older write may still arrive;
the owner of the state decides when that is over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_platform.cdclog.column_codec import decode_column, decode_exact_integers, rank_values, split_components
from cdc_platform.cdclog.schema import arrow_type, stored_type, with_stored_names
from cdc_platform.cdclog.state.merge import combine_codes, dictionary_codes, number_groups, sort_order
from cdc_platform.cdclog.state.model import NEVER_DELETED, StateRowKind, find_range_deletions
from cdc_platform.cdclog.values import clamp_values, encode_exact_value, is_out_of_range, may_be_out_of_range
from cdc_platform.clock import Microseconds
from cdc_platform.cql import (
    SMALLINT,
    Column,
    CqlType,
    ListType,
    MapType,
    ScalarType,
    SetType,
    TableSchema,
    UserType,
    Value,
    get_element_key_type,
    value_from_bytes,
)
from cdc_platform.delta import compute


def find_exact_scalars(kind: CqlType, data: pa.Array) -> dict[int, str]:
    """Return by index the frozen values (binary) that `decode_column` only approximates, as JSON."""
    if not may_be_out_of_range(kind):
        return {}
    if isinstance(kind, ScalarType):
        values, null = decode_exact_integers(kind, data)
        out_of_range = (clamp_values(kind.name, values) != values) & ~null
        return {index: encode_exact_value(kind, int(values[index])) for index in np.flatnonzero(out_of_range).tolist()}
    read = ((index, value_from_bytes(kind, item)) for index, item in enumerate(data.to_pylist()) if item is not None)
    return {
        index: encode_exact_value(kind, value)
        for index, value in read
        if value is not None and is_out_of_range(kind, value)
    }


def find_exact_collections(kind: CqlType, owners: np.ndarray, paths: pa.Array, values: pa.Array) -> dict[int, str]:
    """Return by owner the collections and user types with an out-of-range element, as JSON; elements in any order."""
    if not may_be_out_of_range(kind):
        return {}
    out_of_range = set[int]()
    if isinstance(kind, UserType):
        numbers = [SMALLINT.to_bytes(index) for index in range(len(kind.fields))]
        for number, part in zip(numbers, kind.parts, strict=True):
            own_indices = [index for index, path in enumerate(paths.to_pylist()) if path == number]
            out_of_range |= {
                own_indices[index] for index in find_exact_scalars(part, values.take(pa.array(own_indices, pa.int64())))
            }
    else:
        out_of_range |= set(find_exact_scalars(get_element_key_type(kind).frozen(), paths))
        if isinstance(kind, MapType | ListType):
            out_of_range |= set(find_exact_scalars(kind.parts[-1], values))
    by_owner: dict[int, str] = {}
    for owner in np.unique(owners[list(out_of_range)]).tolist() if out_of_range else ():
        indices = pa.array(np.flatnonzero(owners == owner))
        by_owner[owner] = encode_exact_value(
            kind, _collection_value(kind, paths.take(indices).to_pylist(), values.take(indices).to_pylist())
        )
    return by_owner


def _collection_value(kind: CqlType, paths: list[bytes], values: list[Any]) -> Value:
    """Return the canonical value of elements."""
    if isinstance(kind, UserType):
        by_path = dict(zip(paths, values, strict=True))
        cells = [by_path.get(SMALLINT.to_bytes(index)) for index in range(len(kind.fields))]
        parts = zip(kind.parts, cells, strict=True)
        return tuple(None if cell is None else value_from_bytes(part, cell) for part, cell in parts)
    key = get_element_key_type(kind).frozen()
    keys = [value_from_bytes(key, path) for path in paths]
    if isinstance(kind, SetType):
        return kind.canonical(keys)
    cells = [value_from_bytes(kind.parts[-1], value) for value in values]
    if isinstance(kind, MapType):
        return kind.canonical(list(zip(keys, cells, strict=True)))
    order = sorted(range(len(keys)), key=lambda index: key.sort_key(keys[index]))
    return kind.canonical([cells[index] for index in order])


NEVER_EXPIRES = np.int64(2**63 - 1)


def select_schema(schema: TableSchema) -> pa.Schema:
    """Return the columns of the base table in the order of `SELECT *`, with the types of a log's table."""
    return pa.schema([pa.field(column.name, arrow_type(column.type)) for column in with_stored_names(schema).selected])


def select_rows(schema: TableSchema, state: pa.Table, now_us: Microseconds | None = None) -> pa.Table:
    """Return the rows of `SELECT *` (`select_schema`) in a merged state, in the order of their keys.

    Cells and markers with a TTL are absent if they have expired by `now_us` (µs); None: nothing expires. The static row
    is mixed into every row of its partition, and is a row of its own if there is none.
    """
    if state.num_rows == 0:
        return select_schema(schema).empty_table()
    return _build_rows(schema, _LiveState(schema, state.combine_chunks(), now_us))


@dataclass(frozen=True)
class SelectedRows:
    """The result of `select_with_details`, with details of each row.

    `partitions` and `clusterings` are its keys as bytes; the latter is null for a static row of its own. `expires` is
    the next expiry of a visible cell (int64, µs; 0: never). `inexact` (bool) means that some of its cells, or its
    existence, were only read from the cluster. `doubtful` means that it is unknown whether the row still exists.

    `deleted` has an entry per state row (int64, µs): when its partition, range or row was deleted, `NEVER_DELETED` if
    it was not. `exact` maps rows and columns to values, as JSON, that native columns cannot hold.
    """

    rows: pa.Table
    partitions: pa.Array
    clusterings: pa.Array
    expires: np.ndarray
    inexact: np.ndarray
    doubtful: np.ndarray
    deleted: np.ndarray
    exact: Mapping[int, Mapping[str, str]]


def select_with_details(schema: TableSchema, state: pa.Table, now_us: Microseconds | None = None) -> SelectedRows:
    """Return the rows of `select_rows` with details of each row."""
    if state.num_rows == 0:
        no_keys = pa.array([], pa.binary())
        no_times, no_marks = np.empty(0, np.int64), np.empty(0, bool)
        return SelectedRows(
            select_schema(schema).empty_table(), no_keys, no_keys, no_times, no_marks, no_marks, no_times, {}
        )
    state = state.combine_chunks()
    live = _LiveState(schema, state, now_us)
    return SelectedRows(
        _build_rows(schema, live), *live.keys(), *live.known_of_rows(state), live.deleted(), _exact_by_row(schema, live)
    )


def _build_rows(schema: TableSchema, seen: _LiveState) -> pa.Table:
    fields = select_schema(schema)
    arrays = [seen.key(index) for index in range(len(schema.partition_key))]
    arrays += [seen.clustering(index) for index in range(len(schema.clustering_key))]
    for column in schema.selected[len(arrays) :]:
        arrays.append(seen.column(column))
    return pa.table([array.cast(field.type) for array, field in zip(arrays, fields, strict=True)], schema=fields)


def _exact_by_row(schema: TableSchema, seen: _LiveState) -> dict[int, dict[str, str]]:
    """Return by row the exact values that its columns only approximate."""
    by_row: dict[int, dict[str, str]] = {}
    for column, name in zip(schema.selected, select_schema(schema).names, strict=True):
        if may_be_out_of_range(column.type):
            for row, text in seen.iter_exact_values(column):
                by_row.setdefault(row, {})[name] = text
    return by_row


@dataclass(frozen=True)
class _LiveCells:
    """The live cells of a column: the row or partition of each, and its content."""

    owners: np.ndarray
    paths: Any
    values: Any


class _LiveState:
    """The live rows of a state, and the table rows that they make."""

    def __init__(self, schema: TableSchema, state: pa.Table, now_us: Microseconds | None) -> None:
        self._schema = schema
        self._kinds = np.asarray(state["kind"])
        self._timestamps = np.asarray(state["timestamp"])
        self._paths = state["path"].combine_chunks()
        self._values = state["value"].combine_chunks()
        self._names = state["column"].combine_chunks().dictionary_encode()
        self._name_codes = dictionary_codes(self._names)
        keys = state["partition"].combine_chunks().dictionary_encode()
        order = np.asarray(compute.sort_indices(keys.dictionary), dtype=np.int64)
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        self._partitions = rank[np.asarray(keys.indices, dtype=np.int64)]
        self._keys = keys.dictionary.take(pa.array(order))
        self._find_rows(state)
        self._deleted = self._deletions(state)
        self._alive = self._living(state, now_us)
        self._find_shown()

    def _find_rows(self, state: pa.Table) -> None:
        """Number the clustered rows that have writes, in the order of the table."""
        clustering = state["clustering"].combine_chunks()
        of_rows = np.isin(
            self._kinds, (StateRowKind.ROW_TOMBSTONE, StateRowKind.MARKER, StateRowKind.CELL)
        ) & np.asarray(clustering.is_valid())
        positions = np.flatnonzero(of_rows)
        numbers, representatives = number_groups(
            combine_codes([self._partitions, dictionary_codes(clustering)])[positions]
        )
        partitions = self._partitions[positions[representatives]]
        keys = clustering.take(pa.array(positions[representatives]))
        columns = self._schema.clustering_key
        orders = [
            _apply_direction(column, rank_values(column.type, part))
            for column, part in zip(columns, split_components(keys, len(columns)), strict=True)
        ]
        order = sort_order([partitions, *orders])
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        self._rows = np.full(state.num_rows, -1, dtype=np.int64)
        self._rows[positions] = rank[numbers]
        self._row_partitions = partitions[order]
        self._row_keys = keys.take(pa.array(order))

    def _living(self, state: pa.Table, now_us: Microseconds | None) -> np.ndarray:
        """Return which cells and markers (bool) a SELECT finds."""
        kinds = self._kinds
        alive = (kinds == StateRowKind.CELL) | (kinds == StateRowKind.MARKER)
        alive &= ~np.asarray(state["dead"]) & (self._timestamps > self._deleted)
        expires = np.asarray(state["expires"])
        self._pending = expires > (now_us or 0)
        if now_us is not None:
            alive &= (expires == 0) | self._pending
        return alive & self._known()

    def _deletions(self, state: pa.Table) -> np.ndarray:
        """Return the deletion time (int64, µs) of what each state row belongs to, or `NEVER_DELETED`."""
        kinds, times = self._kinds, self._timestamps
        partition_times = np.full(len(self._keys), NEVER_DELETED)
        tombstones = kinds == StateRowKind.PARTITION_TOMBSTONE
        partition_times[self._partitions[tombstones]] = times[tombstones]
        is_range = kinds == StateRowKind.RANGE_TOMBSTONE
        ranges = state.filter(pa.array(is_range)) if is_range.any() else state.slice(0, 0)
        row_times = find_range_deletions(
            self._schema, ranges, self._partitions[is_range], self._row_keys, self._row_partitions
        )
        tombstones = (kinds == StateRowKind.ROW_TOMBSTONE) & (self._rows >= 0)
        row_times[self._rows[tombstones]] = np.maximum(row_times[self._rows[tombstones]], times[tombstones])
        deleted = partition_times[self._partitions]
        in_row = self._rows >= 0
        deleted[in_row] = np.maximum(deleted[in_row], row_times[self._rows[in_row]])
        return deleted

    def _known(self) -> np.ndarray:
        """Return which state rows (bool) are not cells, or are cells that fit a column of the table."""
        known = np.zeros(len(self._names.dictionary) + 1, dtype=bool)
        known[0] = True
        elements, static = known.copy(), known.copy()
        for code, name in enumerate(self._names.dictionary.to_pylist(), 1):
            if self._schema.has(name):
                column = self._schema.column(name)
                known[code], elements[code] = True, column.type.multicell
                static[code] = column.kind == "static"
        cell = self._name_codes > 0
        fits = elements[self._name_codes] == np.asarray(self._paths.is_valid())
        fits &= static[self._name_codes] == (self._rows < 0)
        return known[self._name_codes] & (fits | ~cell)

    def _find_shown(self) -> None:
        """Find the visible rows: live rows, and static rows of partitions without live rows."""
        present = np.zeros(len(self._row_partitions), dtype=bool)
        present[self._rows[self._alive & (self._rows >= 0)]] = True
        rows = np.flatnonzero(present)
        static_only = np.zeros(len(self._keys), dtype=bool)
        static_only[self._partitions[self._alive & (self._rows < 0)]] = True
        static_only[self._row_partitions[rows]] = False
        partitions = np.concatenate([self._row_partitions[rows], np.flatnonzero(static_only)])
        order = np.argsort(partitions, kind="stable")
        self._shown_partitions = partitions[order]
        self._shown_rows = np.concatenate([rows, np.full(np.count_nonzero(static_only), -1)])[order]
        self._shown = pa.array(self._shown_rows, mask=self._shown_rows < 0)

    def deleted(self) -> np.ndarray:
        """Return the deletion time (int64, µs) of what each state row belongs to."""
        return self._deleted

    def keys(self) -> tuple[pa.Array, pa.Array]:
        """Return the partition keys and clustering keys of the visible rows as bytes."""
        return self._keys.take(pa.array(self._shown_partitions)), self._row_keys.take(self._shown)

    def known_of_rows(self, state: pa.Table) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return for the visible rows the next expiry, and which are inexact and doubtful (bool)."""
        row_details = self._known_of(state, self._rows, self._rows >= 0, len(self._row_keys))
        static_details = self._known_of(state, self._partitions, self._rows < 0, len(self._keys))
        soonest, inexact, doubtful = (
            [row[self._shown_rows], static[self._shown_partitions]]
            for row, static in zip(row_details, static_details, strict=True)
        )
        expires = np.minimum(*soonest)
        return np.where(expires == NEVER_EXPIRES, 0, expires), np.logical_or(*inexact), np.logical_or(*doubtful)

    def _known_of(
        self, state: pa.Table, owners: np.ndarray, mine: np.ndarray, count: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the details of rows or partitions by number, with one more entry for those that do not exist.

        An inexact marker says something only about a row that nothing else keeps alive. One without a value belongs to
        a row that had cells when it was read from the cluster, so it is unknown whether that row still exists.
        """
        if not mine.any():
            none = np.zeros(count + 1, dtype=bool)
            return np.full(count + 1, NEVER_EXPIRES), none, none
        unsure, alive = np.asarray(state["inexact"]), self._alive & mine
        guess = alive & unsure & (self._kinds == StateRowKind.MARKER)
        expires = np.asarray(state["expires"])
        # The tombstones of a static row's collections expire when TTLs of their elements that CQL does not report do.
        ends = (alive | (self._kinds == StateRowKind.COLLECTION_TOMBSTONE) & mine) & self._pending
        soonest = np.full(count + 1, NEVER_EXPIRES)
        np.minimum.at(soonest, owners[ends], expires[ends])

        def of(chosen: np.ndarray) -> np.ndarray:
            mask = np.zeros(count + 1, dtype=bool)
            mask[owners[chosen]] = True
            return mask

        sure = of(alive & ~guess)
        unvalued = np.asarray(self._values.is_null())
        return soonest, of(alive & ~guess & unsure) | (of(guess) & ~sure), of(guess & unvalued) & ~sure

    def key(self, index: int) -> pa.Array:
        """Return a column of the partition key."""
        values = decode_column(stored_type(self._schema.partition_key[index].type), self._key_bytes(index))
        return values.take(pa.array(self._shown_partitions))

    def clustering(self, index: int) -> pa.Array:
        """Return a clustering column."""
        values = decode_column(stored_type(self._schema.clustering_key[index].type), self._clustering_bytes(index))
        return values.take(self._shown)

    def iter_exact_values(self, column: Column) -> Iterator[tuple[int, str]]:
        """Yield the visible rows whose value a column only approximates, each with the exact value as JSON."""
        of_partition = column.kind in ("partition", "static")
        if column.is_key:
            keys = self._schema.partition_key if of_partition else self._schema.clustering_key
            index = keys.index(column)
            exact = find_exact_scalars(
                column.type, (self._key_bytes if of_partition else self._clustering_bytes)(index)
            )
        else:
            cells = self._cells(column)
            if column.type.multicell:
                exact = find_exact_collections(column.type, cells.owners, cells.paths, cells.values)
            else:
                exact = {
                    int(cells.owners[position]): text
                    for position, text in find_exact_scalars(column.type, cells.values).items()
                }
        if exact:
            owners = self._shown_partitions if of_partition else self._shown_rows
            for row in np.flatnonzero(np.isin(owners, list(exact))).tolist():
                yield row, exact[int(owners[row])]

    def _key_bytes(self, index: int) -> pa.Array:
        count = len(self._schema.partition_key)
        return self._keys if count == 1 else split_components(self._keys, count, header=2, trailer=1)[index]

    def _clustering_bytes(self, index: int) -> pa.Array:
        return split_components(self._row_keys, len(self._schema.clustering_key))[index]

    def column(self, column: Column) -> pa.Array:
        """Return a column that is not part of a key."""
        static = column.kind == "static"
        cells = self._cells(column)
        count = len(self._keys) if static else len(self._row_partitions)
        values = (
            _build_collections(column.type, cells, count)
            if column.type.multicell
            else _build_atomic(column.type, cells, count)
        )
        return values.take(pa.array(self._shown_partitions) if static else self._shown)

    def _cells(self, column: Column) -> _LiveCells:
        code = compute.index(self._names.dictionary, column.name).as_py() + 1
        chosen = np.flatnonzero((self._name_codes == code) & self._alive) if code else np.empty(0, np.int64)
        indices = pa.array(chosen)
        owners = (self._partitions if column.kind == "static" else self._rows)[chosen]
        return _LiveCells(owners, self._paths.take(indices), self._values.take(indices))


def _apply_direction(column: Column, order: np.ndarray) -> np.ndarray:
    return ~order if column.descending else order


def _build_atomic(kind: CqlType, cells: _LiveCells, count: int) -> pa.Array:
    positions = np.full(count, -1, dtype=np.int64)
    positions[cells.owners] = np.arange(len(cells.owners))
    return decode_column(stored_type(kind), cells.values.take(pa.array(positions, mask=positions < 0)))


def _build_collections(kind: CqlType, cells: _LiveCells, count: int) -> pa.Array:
    """Build collections and user types from their elements; null if there is none."""
    if isinstance(kind, UserType):
        return _build_user_types(kind, cells, count)
    key = get_element_key_type(kind).frozen()
    order = pa.array(np.lexsort((rank_values(key, cells.paths), cells.owners)))
    counts = np.bincount(cells.owners, minlength=count)
    offsets = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(counts, out=offsets[1:])
    empty = pa.array(counts == 0)
    bounds: Any = pa.array(offsets)
    stored = stored_type(kind)
    paths, values = cells.paths.take(order), cells.values.take(order)
    if isinstance(stored, MapType):
        keys, items = decode_column(stored.key, paths), decode_column(stored.value, values)
        return pa.MapArray.from_arrays(bounds, keys, items, arrow_type(stored), mask=empty)
    assert isinstance(stored, ListType | SetType)
    elements = decode_column(stored.element, paths if isinstance(stored, SetType) else values)
    return pa.ListArray.from_arrays(bounds, elements, type=arrow_type(stored), mask=empty)


def _build_user_types(kind: UserType, cells: _LiveCells, count: int) -> pa.Array:
    fields = []
    for index, (_, part) in enumerate(kind.fields):
        mask = np.asarray(compute.equal(cells.paths, SMALLINT.to_bytes(index)))
        values = cells.values.filter(pa.array(mask))
        fields.append(_build_atomic(part, _LiveCells(cells.owners[mask], cells.paths, values), count))
    present = np.zeros(count, dtype=bool)
    present[cells.owners] = True
    return pa.StructArray.from_arrays(fields, fields=list(arrow_type(stored_type(kind))), mask=pa.array(~present))


_TOMBSTONES = (
    StateRowKind.PARTITION_TOMBSTONE,
    StateRowKind.RANGE_TOMBSTONE,
    StateRowKind.ROW_TOMBSTONE,
    StateRowKind.COLLECTION_TOMBSTONE,
)


def purge_state(state: pa.Table, selected: SelectedRows, sure_us: Microseconds, now_us: Microseconds) -> pa.Table:
    """Return a merged state without rows that no write after `sure_us` (µs) can affect; no older write will arrive.

    `selected` are the rows that the state selects. Cells and markers that a tombstone covers are removed at once.
    Tombstones, dead cells, and cells that have expired by `now_us` are removed if they are not younger than `sure_us`.
    Inexact rows stay, since they may be compared with rows that are read again.
    """
    state = state.combine_chunks()
    if state.num_rows == 0:
        return state
    covered = ~_is_tombstone(state) & (np.asarray(state["timestamp"]) <= selected.deleted)
    removable = covered | find_purgeable_rows(state, sure_us, now_us)
    return state.filter(pa.array(~removable)) if removable.any() else state


def find_purgeable_rows(state: pa.Table, sure_us: Microseconds, now_us: Microseconds) -> np.ndarray:
    """Return which rows (bool) of a state can be removed regardless of its other rows; see `purge_state`."""
    times, expires = np.asarray(state["timestamp"]), np.asarray(state["expires"])
    over = _is_tombstone(state) | np.asarray(state["dead"]) | ((expires > 0) & (expires <= now_us))
    return over & (times <= sure_us) & ~np.asarray(state["inexact"])


def _is_tombstone(state: pa.Table) -> np.ndarray:
    return np.isin(np.asarray(state["kind"]), _TOMBSTONES)
