"""Select the visible rows of a merged state as native columns, and purge rows without further effect.

This is `cql.live` for all partitions at once. A tombstone stays as long as an older write may still arrive; the
owner of the state decides when that is over.
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
    """Of values in one piece (binary), by place: those of which `wire.from_wire` has but the nearest."""
    if not may_be_out_of_range(kind):
        return {}
    if isinstance(kind, ScalarType):
        values, null = decode_exact_integers(kind, data)
        far = (clamp_values(kind.name, values) != values) & ~null
        return {place: encode_exact_value(kind, int(values[place])) for place in np.flatnonzero(far).tolist()}
    read = ((place, value_from_bytes(kind, each)) for place, each in enumerate(data.to_pylist()) if each is not None)
    return {
        place: encode_exact_value(kind, value)
        for place, value in read
        if value is not None and is_out_of_range(kind, value)
    }


def find_exact_collections(kind: CqlType, owners: np.ndarray, paths: pa.Array, values: pa.Array) -> dict[int, str]:
    """Of collections and user types, by owner: those that have such an element; elements come in any order."""
    if not may_be_out_of_range(kind):
        return {}
    far = set[int]()
    if isinstance(kind, UserType):
        numbers = [SMALLINT.to_bytes(place) for place in range(len(kind.fields))]
        for number, part in zip(numbers, kind.parts, strict=True):
            mine = [place for place, path in enumerate(paths.to_pylist()) if path == number]
            far |= {mine[place] for place in find_exact_scalars(part, values.take(pa.array(mine, pa.int64())))}
    else:
        far |= set(find_exact_scalars(get_element_key_type(kind).frozen(), paths))
        if isinstance(kind, MapType | ListType):
            far |= set(find_exact_scalars(kind.parts[-1], values))
    found: dict[int, str] = {}
    for owner in np.unique(owners[list(far)]).tolist() if far else ():
        taken = pa.array(np.flatnonzero(owners == owner))
        found[owner] = encode_exact_value(
            kind, _collection_value(kind, paths.take(taken).to_pylist(), values.take(taken).to_pylist())
        )
    return found


def _collection_value(kind: CqlType, paths: list[bytes], values: list[Any]) -> Value:
    """The canonical value of elements."""
    if isinstance(kind, UserType):
        told = dict(zip(paths, values, strict=True))
        cells = [told.get(SMALLINT.to_bytes(place)) for place in range(len(kind.fields))]
        parts = zip(kind.parts, cells, strict=True)
        return tuple(None if cell is None else value_from_bytes(part, cell) for part, cell in parts)
    key = get_element_key_type(kind).frozen()
    keys = [value_from_bytes(key, path) for path in paths]
    if isinstance(kind, SetType):
        return kind.canonical(keys)
    cells = [value_from_bytes(kind.parts[-1], value) for value in values]
    if isinstance(kind, MapType):
        return kind.canonical(list(zip(keys, cells, strict=True)))
    order = sorted(range(len(keys)), key=lambda place: key.sort_key(keys[place]))
    return kind.canonical([cells[place] for place in order])


NEVER_EXPIRES = np.int64(2**63 - 1)


def select_schema(schema: TableSchema) -> pa.Schema:
    """The columns of the base table in the order of `SELECT *`, with the types that values have in a log's table."""
    return pa.schema([pa.field(column.name, arrow_type(column.type)) for column in with_stored_names(schema).selected])


def select_rows(schema: TableSchema, state: pa.Table, now_us: Microseconds | None = None) -> pa.Table:
    """The rows of `SELECT *` (`select_schema`) that a merged state holds, in the order of their keys.

    Cells and markers with a TTL are gone if they have expired by `now_us` (µs); None: nothing expires. The static row
    is mixed into every row of its partition, and stands alone where there is none.
    """
    if state.num_rows == 0:
        return select_schema(schema).empty_table()
    return _build_rows(schema, _LiveState(schema, state.combine_chunks(), now_us))


@dataclass(frozen=True)
class SelectedRows:
    """What `selected` answers with, and beside each row what is known of it.

    `partitions` and `clusterings` are its keys as bytes, the latter null where a static row stands alone. `expires` is
    when the next of what it shows goes (int64, µs; 0: nothing does). `inexact` (bool): some of what it shows, or that
    it is there at all, rests on what was only seen in the cluster; `doubtful`: nobody knows whether it is still there.

    `deleted` is of the rows of the state (int64, µs): when what each is of was deleted by partition, range or row,
    `ranges.NEVER` where it was not. `exact` has by row and column, as JSON, what no native column holds.
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
    """As `selected`, with what is known of each row."""
    if state.num_rows == 0:
        none = pa.array([], pa.binary())
        times, marks = np.empty(0, np.int64), np.empty(0, bool)
        return SelectedRows(select_schema(schema).empty_table(), none, none, times, marks, marks, times, {})
    state = state.combine_chunks()
    seen = _LiveState(schema, state, now_us)
    return SelectedRows(
        _build_rows(schema, seen), *seen.keys(), *seen.known_of_rows(state), seen.deleted(), _exact_by_row(schema, seen)
    )


def _build_rows(schema: TableSchema, seen: _LiveState) -> pa.Table:
    fields = select_schema(schema)
    arrays = [seen.key(place) for place in range(len(schema.partition_key))]
    arrays += [seen.clustering(place) for place in range(len(schema.clustering_key))]
    for column in schema.selected[len(arrays) :]:
        arrays.append(seen.column(column))
    return pa.table([array.cast(field.type) for array, field in zip(arrays, fields, strict=True)], schema=fields)


def _exact_by_row(schema: TableSchema, seen: _LiveState) -> dict[int, dict[str, str]]:
    """By row the values of which its columns have but the nearest."""
    found: dict[int, dict[str, str]] = {}
    for column, name in zip(schema.selected, select_schema(schema).names, strict=True):
        if may_be_out_of_range(column.type):
            for row, text in seen.beside(column):
                found.setdefault(row, {})[name] = text
    return found


@dataclass(frozen=True)
class _LiveCells:
    """The living cells of a column: the row or partition that each is of, and what it holds."""

    owners: np.ndarray
    paths: Any
    values: Any


class _LiveState:
    """The rows of a state that are alive, and the rows of the table that they make."""

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
        """Number the clustered rows that something was written to, in the order of the table."""
        clustering = state["clustering"].combine_chunks()
        of_rows = np.isin(
            self._kinds, (StateRowKind.ROW_TOMBSTONE, StateRowKind.MARKER, StateRowKind.CELL)
        ) & np.asarray(clustering.is_valid())
        places = np.flatnonzero(of_rows)
        found, one_each = number_groups(combine_codes([self._partitions, dictionary_codes(clustering)])[places])
        partitions = self._partitions[places[one_each]]
        keys = clustering.take(pa.array(places[one_each]))
        columns = self._schema.clustering_key
        orders = [
            _apply_direction(column, rank_values(column.type, part))
            for column, part in zip(columns, split_components(keys, len(columns)), strict=True)
        ]
        order = sort_order([partitions, *orders])
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        self._rows = np.full(state.num_rows, -1, dtype=np.int64)
        self._rows[places] = rank[found]
        self._row_partitions = partitions[order]
        self._row_keys = keys.take(pa.array(order))

    def _living(self, state: pa.Table, now_us: Microseconds | None) -> np.ndarray:
        """Which cells and markers (bool) a SELECT finds."""
        kinds = self._kinds
        alive = (kinds == StateRowKind.CELL) | (kinds == StateRowKind.MARKER)
        alive &= ~np.asarray(state["dead"]) & (self._timestamps > self._deleted)
        if now_us is not None:
            expires = np.asarray(state["expires"])
            alive &= (expires == 0) | (expires > now_us)
        return alive & self._known()

    def _deletions(self, state: pa.Table) -> np.ndarray:
        """The time (int64, µs) at which what each row of the state is of was deleted; `NEVER_DELETED` where it was
        not.
        """
        kinds, times = self._kinds, self._timestamps
        of_partition = np.full(len(self._keys), NEVER_DELETED)
        gone = kinds == StateRowKind.PARTITION_TOMBSTONE
        of_partition[self._partitions[gone]] = times[gone]
        is_range = kinds == StateRowKind.RANGE_TOMBSTONE
        ranges = state.filter(pa.array(is_range)) if is_range.any() else state.slice(0, 0)
        of_row = find_range_deletions(
            self._schema, ranges, self._partitions[is_range], self._row_keys, self._row_partitions
        )
        gone = (kinds == StateRowKind.ROW_TOMBSTONE) & (self._rows >= 0)
        of_row[self._rows[gone]] = np.maximum(of_row[self._rows[gone]], times[gone])
        deleted = of_partition[self._partitions]
        in_row = self._rows >= 0
        deleted[in_row] = np.maximum(deleted[in_row], of_row[self._rows[in_row]])
        return deleted

    def _known(self) -> np.ndarray:
        """Which rows (bool) of the state are no cells, or cells of columns that the table has, and as it has them."""
        known = np.zeros(len(self._names.dictionary) + 1, dtype=bool)
        known[0] = True
        elements, static = known.copy(), known.copy()
        for place, name in enumerate(self._names.dictionary.to_pylist(), 1):
            if self._schema.has(name):
                column = self._schema.column(name)
                known[place], elements[place] = True, column.type.multicell
                static[place] = column.kind == "static"
        cell = self._name_codes > 0
        fits = elements[self._name_codes] == np.asarray(self._paths.is_valid())
        fits &= static[self._name_codes] == (self._rows < 0)
        return known[self._name_codes] & (fits | ~cell)

    def _find_shown(self) -> None:
        """The rows that are shown: those that live, and static rows that stand alone."""
        there = np.zeros(len(self._row_partitions), dtype=bool)
        there[self._rows[self._alive & (self._rows >= 0)]] = True
        rows = np.flatnonzero(there)
        alone = np.zeros(len(self._keys), dtype=bool)
        alone[self._partitions[self._alive & (self._rows < 0)]] = True
        alone[self._row_partitions[rows]] = False
        partitions = np.concatenate([self._row_partitions[rows], np.flatnonzero(alone)])
        order = np.argsort(partitions, kind="stable")
        self._shown_partitions = partitions[order]
        self._shown_rows = np.concatenate([rows, np.full(np.count_nonzero(alone), -1)])[order]
        self._shown = pa.array(self._shown_rows, mask=self._shown_rows < 0)

    def deleted(self) -> np.ndarray:
        """When what each row of the state is of was deleted."""
        return self._deleted

    def keys(self) -> tuple[pa.Array, pa.Array]:
        """The keys of the shown rows as bytes: of the partition, and of the row."""
        return self._keys.take(pa.array(self._shown_partitions)), self._row_keys.take(self._shown)

    def known_of_rows(self, state: pa.Table) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of the shown rows: when the next of them expires, and which are inexact and which doubtful (bool)."""
        of_rows = self._known_of(state, self._rows, self._rows >= 0, len(self._row_keys))
        of_statics = self._known_of(state, self._partitions, self._rows < 0, len(self._keys))
        soonest, inexact, doubtful = (
            [row[self._shown_rows], static[self._shown_partitions]]
            for row, static in zip(of_rows, of_statics, strict=True)
        )
        expires = np.minimum(*soonest)
        return np.where(expires == NEVER_EXPIRES, 0, expires), np.logical_or(*inexact), np.logical_or(*doubtful)

    def _known_of(
        self, state: pa.Table, owners: np.ndarray, mine: np.ndarray, count: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """As `known_of_rows`, of rows or partitions by their numbers, with one behind the last for those that are none.

        A marker that was only seen says something of a row that nothing else keeps alive. One without a value belongs
        to a row that had cells when it was seen: nobody knows whether it is there at all.
        """
        if not mine.any():
            none = np.zeros(count + 1, dtype=bool)
            return np.full(count + 1, NEVER_EXPIRES), none, none
        unsure, alive = np.asarray(state["inexact"]), self._alive & mine
        guess = alive & unsure & (self._kinds == StateRowKind.MARKER)
        expires = np.asarray(state["expires"])
        ends = alive & ~guess & (expires > 0)
        soonest = np.full(count + 1, NEVER_EXPIRES)
        np.minimum.at(soonest, owners[ends], expires[ends])

        def of(chosen: np.ndarray) -> np.ndarray:
            found = np.zeros(count + 1, dtype=bool)
            found[owners[chosen]] = True
            return found

        sure = of(alive & ~guess)
        unvalued = np.asarray(self._values.is_null())
        return soonest, of(alive & ~guess & unsure) | (of(guess) & ~sure), of(guess & unvalued) & ~sure

    def key(self, place: int) -> pa.Array:
        """A column of the partition key."""
        values = decode_column(stored_type(self._schema.partition_key[place].type), self._key_bytes(place))
        return values.take(pa.array(self._shown_partitions))

    def clustering(self, place: int) -> pa.Array:
        """A clustering column."""
        values = decode_column(stored_type(self._schema.clustering_key[place].type), self._clustering_bytes(place))
        return values.take(self._shown)

    def beside(self, column: Column) -> Iterator[tuple[int, str]]:
        """The shown rows of whose value a column has but the nearest, each with the value as JSON."""
        of_partition = column.kind in ("partition", "static")
        if column.is_key:
            keys = self._schema.partition_key if of_partition else self._schema.clustering_key
            place = keys.index(column)
            found = find_exact_scalars(
                column.type, (self._key_bytes if of_partition else self._clustering_bytes)(place)
            )
        else:
            cells = self._cells(column)
            if column.type.multicell:
                found = find_exact_collections(column.type, cells.owners, cells.paths, cells.values)
            else:
                found = {
                    int(cells.owners[at]): text for at, text in find_exact_scalars(column.type, cells.values).items()
                }
        if found:
            owners = self._shown_partitions if of_partition else self._shown_rows
            for row in np.flatnonzero(np.isin(owners, list(found))).tolist():
                yield row, found[int(owners[row])]

    def _key_bytes(self, place: int) -> pa.Array:
        count = len(self._schema.partition_key)
        return self._keys if count == 1 else split_components(self._keys, count, header=2, trailer=1)[place]

    def _clustering_bytes(self, place: int) -> pa.Array:
        return split_components(self._row_keys, len(self._schema.clustering_key))[place]

    def column(self, column: Column) -> pa.Array:
        """A column that is none of a key."""
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
        place = compute.index(self._names.dictionary, column.name).as_py() + 1
        chosen = np.flatnonzero((self._name_codes == place) & self._alive) if place else np.empty(0, np.int64)
        taken = pa.array(chosen)
        owners = (self._partitions if column.kind == "static" else self._rows)[chosen]
        return _LiveCells(owners, self._paths.take(taken), self._values.take(taken))


def _apply_direction(column: Column, order: np.ndarray) -> np.ndarray:
    return ~order if column.descending else order


def _build_atomic(kind: CqlType, cells: _LiveCells, count: int) -> pa.Array:
    places = np.full(count, -1, dtype=np.int64)
    places[cells.owners] = np.arange(len(cells.owners))
    return decode_column(stored_type(kind), cells.values.take(pa.array(places, mask=places < 0)))


def _build_collections(kind: CqlType, cells: _LiveCells, count: int) -> pa.Array:
    """Collections and user types of their elements, null where there is none."""
    if isinstance(kind, UserType):
        return _build_user_types(kind, cells, count)
    key = get_element_key_type(kind).frozen()
    order = pa.array(np.lexsort((rank_values(key, cells.paths), cells.owners)))
    counts = np.bincount(cells.owners, minlength=count)
    offsets = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(counts, out=offsets[1:])
    empty = pa.array(counts == 0)
    bounds: Any = pa.array(offsets)
    shown = stored_type(kind)
    paths, values = cells.paths.take(order), cells.values.take(order)
    if isinstance(shown, MapType):
        keys, items = decode_column(shown.key, paths), decode_column(shown.value, values)
        return pa.MapArray.from_arrays(bounds, keys, items, arrow_type(shown), mask=empty)
    assert isinstance(shown, ListType | SetType)
    elements = decode_column(shown.element, paths if isinstance(shown, SetType) else values)
    return pa.ListArray.from_arrays(bounds, elements, type=arrow_type(shown), mask=empty)


def _build_user_types(kind: UserType, cells: _LiveCells, count: int) -> pa.Array:
    fields = []
    for index, (_, part) in enumerate(kind.fields):
        mine = np.asarray(compute.equal(cells.paths, SMALLINT.to_bytes(index)))
        values = cells.values.filter(pa.array(mine))
        fields.append(_build_atomic(part, _LiveCells(cells.owners[mine], cells.paths, values), count))
    there = np.zeros(count, dtype=bool)
    there[cells.owners] = True
    return pa.StructArray.from_arrays(fields, fields=list(arrow_type(stored_type(kind))), mask=pa.array(~there))


_TOMBSTONES = (
    StateRowKind.PARTITION_TOMBSTONE,
    StateRowKind.RANGE_TOMBSTONE,
    StateRowKind.ROW_TOMBSTONE,
    StateRowKind.COLLECTION_TOMBSTONE,
)


def purge_state(state: pa.Table, found: SelectedRows, sure_us: Microseconds, now_us: Microseconds) -> pa.Table:
    """A merged state without what no write later than `sure_us` (µs) can meet, nothing older coming any more.

    `found` is what it shows. Cells and markers that a tombstone covers go at once; tombstones, dead cells, and what has
    expired by `now_us`, if they are not younger than that. What is inexact stays: it may be compared with what is read
    again.
    """
    state = state.combine_chunks()
    if state.num_rows == 0:
        return state
    covered = ~_is_tombstone(state) & (np.asarray(state["timestamp"]) <= found.deleted)
    gone = covered | find_purgeable_rows(state, sure_us, now_us)
    return state.filter(pa.array(~gone)) if gone.any() else state


def find_purgeable_rows(state: pa.Table, sure_us: Microseconds, now_us: Microseconds) -> np.ndarray:
    """Which rows (bool) of a state go by themselves, whatever else it has: see `purge_state`."""
    times, expires = np.asarray(state["timestamp"]), np.asarray(state["expires"])
    over = _is_tombstone(state) | np.asarray(state["dead"]) | ((expires > 0) & (expires <= now_us))
    return over & (times <= sure_us) & ~np.asarray(state["inexact"])


def _is_tombstone(state: pa.Table) -> np.ndarray:
    return np.isin(np.asarray(state["kind"]), _TOMBSTONES)
