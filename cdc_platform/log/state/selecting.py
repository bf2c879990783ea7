"""What a SELECT would find in a merged state: rows with native columns, a column at a time.

It is `cql.live` for all partitions at once: what a tombstone covers, or has expired, is not there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_platform.clock import Microseconds
from cdc_platform.cql.schema import Column, TableSchema, element_key_type
from cdc_platform.cql.types import SMALLINT, CqlType, ListType, MapType, SetType, UserType
from cdc_platform.lake.arrow import compute
from cdc_platform.log.exact import may_be_far
from cdc_platform.log.log_table import arrow_type
from cdc_platform.log.state.beside import of_elements, of_values
from cdc_platform.log.state.merging import ascending, codes, numbered, together
from cdc_platform.log.state.ranges import NEVER, covering
from cdc_platform.log.state.shape import Kind
from cdc_platform.log.state.wire import components, from_wire, ranks
from cdc_platform.log.stored_names import stored, stored_type

NEVER_EXPIRES = np.int64(2**63 - 1)


def selected_schema(schema: TableSchema) -> pa.Schema:
    """The columns of the base table in the order of `SELECT *`, with the types that values have in a log's table."""
    return pa.schema([pa.field(column.name, arrow_type(column.type)) for column in stored(schema).selected])


def selected(schema: TableSchema, state: pa.Table, now_us: Microseconds | None = None) -> pa.Table:
    """The rows of `SELECT *` (`selected_schema`) that a merged state holds, in the order of their keys.

    Cells and markers with a TTL are gone if they have expired by `now_us` (µs); None: nothing expires. The static row
    is mixed into every row of its partition, and stands alone where there is none.
    """
    if state.num_rows == 0:
        return selected_schema(schema).empty_table()
    return _rows(schema, _Seen(schema, state.combine_chunks(), now_us))


@dataclass(frozen=True)
class Shown:
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


def shown(schema: TableSchema, state: pa.Table, now_us: Microseconds | None = None) -> Shown:
    """As `selected`, with what is known of each row."""
    if state.num_rows == 0:
        none = pa.array([], pa.binary())
        times, marks = np.empty(0, np.int64), np.empty(0, bool)
        return Shown(selected_schema(schema).empty_table(), none, none, times, marks, marks, times, {})
    state = state.combine_chunks()
    seen = _Seen(schema, state, now_us)
    return Shown(_rows(schema, seen), *seen.keys(), *seen.known_of_rows(state), seen.deleted(), _exact(schema, seen))


def _rows(schema: TableSchema, seen: _Seen) -> pa.Table:
    fields = selected_schema(schema)
    arrays = [seen.key(place) for place in range(len(schema.partition_key))]
    arrays += [seen.clustering(place) for place in range(len(schema.clustering_key))]
    for column in schema.selected[len(arrays) :]:
        arrays.append(seen.column(column))
    return pa.table([array.cast(field.type) for array, field in zip(arrays, fields, strict=True)], schema=fields)


def _exact(schema: TableSchema, seen: _Seen) -> dict[int, dict[str, str]]:
    """By row the values of which its columns have but the nearest."""
    found: dict[int, dict[str, str]] = {}
    for column, name in zip(schema.selected, selected_schema(schema).names, strict=True):
        if may_be_far(column.type):
            for row, text in seen.beside(column):
                found.setdefault(row, {})[name] = text
    return found


@dataclass(frozen=True)
class _Cells:
    """The living cells of a column: the row or partition that each is of, and what it holds."""

    owners: np.ndarray
    paths: Any
    values: Any


class _Seen:
    """The rows of a state that are alive, and the rows of the table that they make."""

    def __init__(self, schema: TableSchema, state: pa.Table, now_us: Microseconds | None) -> None:
        self._schema = schema
        self._kinds = np.asarray(state["kind"])
        self._timestamps = np.asarray(state["timestamp"])
        self._paths = state["path"].combine_chunks()
        self._values = state["value"].combine_chunks()
        self._names = state["column"].combine_chunks().dictionary_encode()
        self._name_codes = codes(self._names)
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
        of_rows = np.isin(self._kinds, (Kind.ROW_TOMBSTONE, Kind.MARKER, Kind.CELL)) & np.asarray(clustering.is_valid())
        places = np.flatnonzero(of_rows)
        found, one_each = numbered(together([self._partitions, codes(clustering)])[places])
        partitions = self._partitions[places[one_each]]
        keys = clustering.take(pa.array(places[one_each]))
        columns = self._schema.clustering_key
        orders = [
            _directed(column, ranks(column.type, part))
            for column, part in zip(columns, components(keys, len(columns)), strict=True)
        ]
        order = ascending([partitions, *orders])
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        self._rows = np.full(state.num_rows, -1, dtype=np.int64)
        self._rows[places] = rank[found]
        self._row_partitions = partitions[order]
        self._row_keys = keys.take(pa.array(order))

    def _living(self, state: pa.Table, now_us: Microseconds | None) -> np.ndarray:
        """Which cells and markers (bool) a SELECT finds."""
        kinds = self._kinds
        alive = (kinds == Kind.CELL) | (kinds == Kind.MARKER)
        alive &= ~np.asarray(state["dead"]) & (self._timestamps > self._deleted)
        if now_us is not None:
            expires = np.asarray(state["expires"])
            alive &= (expires == 0) | (expires > now_us)
        return alive & self._known()

    def _deletions(self, state: pa.Table) -> np.ndarray:
        """The time (int64, µs) at which what each row of the state is of was deleted; `NEVER` where it was not."""
        kinds, times = self._kinds, self._timestamps
        of_partition = np.full(len(self._keys), NEVER)
        gone = kinds == Kind.PARTITION_TOMBSTONE
        of_partition[self._partitions[gone]] = times[gone]
        is_range = kinds == Kind.RANGE_TOMBSTONE
        ranges = state.filter(pa.array(is_range)) if is_range.any() else state.slice(0, 0)
        of_row = covering(self._schema, ranges, self._partitions[is_range], self._row_keys, self._row_partitions)
        gone = (kinds == Kind.ROW_TOMBSTONE) & (self._rows >= 0)
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
        guess = alive & unsure & (self._kinds == Kind.MARKER)
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
        values = from_wire(stored_type(self._schema.partition_key[place].type), self._key_bytes(place))
        return values.take(pa.array(self._shown_partitions))

    def clustering(self, place: int) -> pa.Array:
        """A clustering column."""
        values = from_wire(stored_type(self._schema.clustering_key[place].type), self._clustering_bytes(place))
        return values.take(self._shown)

    def beside(self, column: Column) -> Iterator[tuple[int, str]]:
        """The shown rows of whose value a column has but the nearest, each with the value as JSON."""
        of_partition = column.kind in ("partition", "static")
        if column.is_key:
            keys = self._schema.partition_key if of_partition else self._schema.clustering_key
            place = keys.index(column)
            found = of_values(column.type, (self._key_bytes if of_partition else self._clustering_bytes)(place))
        else:
            cells = self._cells(column)
            if column.type.multicell:
                found = of_elements(column.type, cells.owners, cells.paths, cells.values)
            else:
                found = {int(cells.owners[at]): text for at, text in of_values(column.type, cells.values).items()}
        if found:
            owners = self._shown_partitions if of_partition else self._shown_rows
            for row in np.flatnonzero(np.isin(owners, list(found))).tolist():
                yield row, found[int(owners[row])]

    def _key_bytes(self, place: int) -> pa.Array:
        count = len(self._schema.partition_key)
        return self._keys if count == 1 else components(self._keys, count, header=2, trailer=1)[place]

    def _clustering_bytes(self, place: int) -> pa.Array:
        return components(self._row_keys, len(self._schema.clustering_key))[place]

    def column(self, column: Column) -> pa.Array:
        """A column that is none of a key."""
        static = column.kind == "static"
        cells = self._cells(column)
        count = len(self._keys) if static else len(self._row_partitions)
        values = _collected(column.type, cells, count) if column.type.multicell else _atomic(column.type, cells, count)
        return values.take(pa.array(self._shown_partitions) if static else self._shown)

    def _cells(self, column: Column) -> _Cells:
        place = compute.index(self._names.dictionary, column.name).as_py() + 1
        chosen = np.flatnonzero((self._name_codes == place) & self._alive) if place else np.empty(0, np.int64)
        taken = pa.array(chosen)
        owners = (self._partitions if column.kind == "static" else self._rows)[chosen]
        return _Cells(owners, self._paths.take(taken), self._values.take(taken))


def _directed(column: Column, order: np.ndarray) -> np.ndarray:
    return ~order if column.descending else order


def _atomic(kind: CqlType, cells: _Cells, count: int) -> pa.Array:
    places = np.full(count, -1, dtype=np.int64)
    places[cells.owners] = np.arange(len(cells.owners))
    return from_wire(stored_type(kind), cells.values.take(pa.array(places, mask=places < 0)))


def _collected(kind: CqlType, cells: _Cells, count: int) -> pa.Array:
    """Collections and user types of their elements, null where there is none."""
    if isinstance(kind, UserType):
        return _fields(kind, cells, count)
    key = element_key_type(kind).frozen()
    order = pa.array(np.lexsort((ranks(key, cells.paths), cells.owners)))
    counts = np.bincount(cells.owners, minlength=count)
    offsets = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(counts, out=offsets[1:])
    empty = pa.array(counts == 0)
    bounds: Any = pa.array(offsets)
    shown = stored_type(kind)
    paths, values = cells.paths.take(order), cells.values.take(order)
    if isinstance(shown, MapType):
        keys, items = from_wire(shown.key, paths), from_wire(shown.value, values)
        return pa.MapArray.from_arrays(bounds, keys, items, arrow_type(shown), mask=empty)
    assert isinstance(shown, ListType | SetType)
    elements = from_wire(shown.element, paths if isinstance(shown, SetType) else values)
    return pa.ListArray.from_arrays(bounds, elements, type=arrow_type(shown), mask=empty)


def _fields(kind: UserType, cells: _Cells, count: int) -> pa.Array:
    fields = []
    for index, (_, part) in enumerate(kind.fields):
        mine = np.asarray(compute.equal(cells.paths, SMALLINT.to_bytes(index)))
        values = cells.values.filter(pa.array(mine))
        fields.append(_atomic(part, _Cells(cells.owners[mine], cells.paths, values), count))
    there = np.zeros(count, dtype=bool)
    there[cells.owners] = True
    return pa.StructArray.from_arrays(fields, fields=list(arrow_type(stored_type(kind))), mask=pa.array(~there))
