"""The first copy of a table: its token ranges are read one by one, here or in tasks of Spark.

Rows become rows of a state, with the write times that CQL reports. CQL reports those of atomic columns only; row
markers, elements of collections and keys of lists are inexact, and get a synthetic time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cdc_platform.cdclog import STATE_SCHEMA, StateRowKind, join_components, merge_states, normalize_key_forms
from cdc_platform.clock import MILLISECOND_US, ONE_US, SECOND_US, Microseconds
from cdc_platform.cql import (
    SMALLINT,
    Column,
    ListType,
    MapType,
    SetType,
    TableSchema,
    UserType,
    min_timeuuid,
    quote_name,
    split_length_prefixed,
)
from cdc_platform.delta import Batches, TaskRows, composite_keys_to_arrow, get_binary_buffers
from cdc_platform.ingest.replica.tables import split_ring, with_ranges
from cdc_platform.ingest.requests import LogQuery
from cdc_platform.scylla import RawPage

SOLE = b"\1"
"""The value of a marker of a row without regular values, whose marker thus exists. Without it that is unknown."""
_LISTS_BEGIN = Microseconds(1_262_304_000_000_000)
"""Prepended list elements have keys before this time, appended ones after it."""
_NOW = "tounixtimestamp(now())"
_SOLE_OR_NOT = pa.array([None, SOLE], pa.binary())


@dataclass(frozen=True)
class SyntheticTimestamps:
    """Times (µs) for cells that report none: below all times of the log, or for lists the time of reading."""

    unknown_us: Microseconds
    lists_us: Microseconds


def selection(schema: TableSchema) -> str:
    """Return the columns to select from a base table: keys, the server's time, and each column with time and TTL."""
    columns = [quote_name(column.name) for column in _keys(schema)] + [_NOW]
    for column in _others(schema):
        name = quote_name(column.name)
        columns += [name] if column.type.multicell else [name, f"writetime({name})", f"ttl({name})"]
    return ", ".join(columns)


def seen(schema: TableSchema, pages: Sequence[RawPage], timestamps: SyntheticTimestamps) -> pa.Table:
    """Return the rows of a state (`STATE_SCHEMA`), not merged, from pages of `selection`."""
    rows = _Rows(schema, pages, timestamps)
    return pa.concat_tables([STATE_SCHEMA.empty_table(), *rows.state()])


def elements(column: Column, value: bytes) -> list[tuple[bytes, bytes | None]]:
    """Return the elements of a collection's or user type's value, each as its path and its value."""
    kind = column.type
    if isinstance(kind, UserType):
        return [
            (SMALLINT.to_bytes(index), part)
            for index, part in enumerate(split_length_prefixed(value))
            if part is not None
        ]
    parts = [part or b"" for part in split_length_prefixed(value, 4)]
    if isinstance(kind, SetType):
        return [(part, None) for part in parts]
    if isinstance(kind, MapType):
        return list(zip(parts[::2], parts[1::2], strict=True))
    assert isinstance(kind, ListType)
    return [(min_timeuuid(Microseconds(_LISTS_BEGIN + index)).bytes, part) for index, part in enumerate(parts)]


def _keys(schema: TableSchema) -> list[Column]:
    return [*schema.partition_key, *schema.clustering_key]


def _others(schema: TableSchema) -> list[Column]:
    return [*schema.statics, *schema.regulars]


class _Rows:
    """The rows of an answer, and the keys of each."""

    def __init__(self, schema: TableSchema, pages: Sequence[RawPage], timestamps: SyntheticTimestamps) -> None:
        self._schema, self._timestamps = schema, timestamps
        self._columns: list[pa.BinaryArray] = [
            arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
            for arrays in zip(*(page.columns for page in pages), strict=True)
        ]
        self._size = sum(page.rows for page in pages)

    def state(self) -> Iterator[pa.Table]:
        """Yield the rows of the state."""
        if not self._size:
            return
        schema = self._schema
        parts = self._columns[: len(schema.partition_key)]
        self._partition = parts[0] if len(parts) == 1 else composite_keys_to_arrow(parts)
        index = len(parts)
        keys = self._columns[index : index + len(schema.clustering_key)]
        index += len(keys)
        # A static row without clustered rows has no clustering key.
        self._whole = np.ones(self._size, bool) if not keys else np.asarray(keys[0].is_valid())
        joined = join_components([key.drop_null() if key.null_count else key for key in keys], int(self._whole.sum()))
        row_indices = np.cumsum(self._whole) - 1
        self._clustering = joined if self._whole.all() else joined.take(pa.array(row_indices, mask=~self._whole))
        self._now_us = _numbers(self._columns[index], ">i8")[1] * MILLISECOND_US
        index += 1
        bare = self._whole.copy()
        for column in _others(schema):
            chosen = np.ones(self._size, bool) if column.kind == "static" else self._whole
            cells = self._columns[index]
            present = np.asarray(cells.is_valid()) & chosen
            if column.kind != "static":
                bare &= ~present
            if column.type.multicell:
                yield from self._collection(column, np.flatnonzero(present))
                index += 1
                continue
            yield self._atomic(column, np.flatnonzero(present), cells, *self._columns[index + 1 : index + 3])
            index += 3
        yield self._markers(bare)

    def _markers(self, bare: np.ndarray) -> pa.Table:
        rows = np.flatnonzero(self._whole)
        values = _SOLE_OR_NOT.take(pa.array(bare[rows].astype(np.int8)))
        return self._part(StateRowKind.MARKER, rows, self._at(self._timestamps.unknown_us, rows), value=values)

    def _atomic(self, column: Column, rows: np.ndarray, cells: pa.Array, times: pa.Array, ttls: pa.Array) -> pa.Table:
        has_ttl, remaining = _numbers(ttls, ">i4")
        written = _numbers(times, ">i8")[1][rows]
        seconds = self._now_us[rows] // SECOND_US + remaining[rows]
        expires = np.where(has_ttl[rows], seconds * SECOND_US, 0)
        ttl = np.where(has_ttl[rows], np.maximum(1, -((written - expires) // SECOND_US)), 0)
        static = column.kind == "static"
        return self._part(
            StateRowKind.CELL,
            rows,
            written,
            column=column.name,
            value=_taken(cells, rows),
            ttl=ttl,
            expires=expires,
            sure=True,
            static=static,
        )

    def _collection(self, column: Column, rows: np.ndarray) -> Iterator[pa.Table]:
        cells = _taken(self._columns[self._columns_place(column)], rows)
        owners, paths, values = list[int](), list[bytes](), list[bytes | None]()
        for row, value in zip(rows.tolist(), cells.to_pylist(), strict=True):
            for path, inner in elements(column, value):
                owners.append(row)
                paths.append(path)
                values.append(inner)
        static, is_list = column.kind == "static", isinstance(column.type, ListType)
        order = self._timestamps.lists_us if is_list else self._timestamps.unknown_us
        if is_list:
            # The log's elements before this time have keys that CQL does not report here: they would come twice.
            before = self._at(Microseconds(order - ONE_US), rows)
            yield self._part(StateRowKind.COLLECTION_TOMBSTONE, rows, before, column=column.name, static=static)
        owner_rows = np.array(owners, np.int64)
        yield self._part(
            StateRowKind.CELL,
            owner_rows,
            self._at(order, owner_rows),
            column=column.name,
            path=pa.array(paths, pa.binary()),
            value=pa.array(values, pa.binary()),
            static=static,
        )

    def _columns_place(self, column: Column) -> int:
        index = len(_keys(self._schema)) + 1
        for other in _others(self._schema):
            if other is column:
                break
            index += 1 if other.type.multicell else 3
        return index

    def _at(self, time_us: Microseconds, rows: np.ndarray) -> np.ndarray:
        return np.full(len(rows), time_us, np.int64)

    def _part(
        self,
        kind: StateRowKind,
        rows: np.ndarray,
        timestamps: np.ndarray,
        *,
        column: str | None = None,
        path: pa.Array | None = None,
        value: pa.Array | None = None,
        ttl: np.ndarray | None = None,
        expires: np.ndarray | None = None,
        sure: bool = False,
        static: bool = False,
    ) -> pa.Table:
        size = len(rows)
        none = np.zeros(size, np.int64)
        data = {
            "partition": _taken(self._partition, rows),
            "clustering": pa.nulls(size, pa.binary()) if static else _taken(self._clustering, rows),
            "kind": pa.array(np.full(size, kind, dtype=np.int8)),
            "column": pa.nulls(size, pa.string()) if column is None else pa.repeat(column, size),
            "path": pa.nulls(size, pa.binary()) if path is None else path,
            "timestamp": pa.array(timestamps, pa.int64()),
            "ttl": pa.array(none if ttl is None else ttl, pa.int64()),
            "expires": pa.array(none if expires is None else expires, pa.int64()),
            "dead": pa.repeat(False, size),
            "value": pa.nulls(size, pa.binary()) if value is None else value,
            "inexact": pa.repeat(not sure, size),
        }
        return pa.table(data, schema=STATE_SCHEMA)


def _taken(values: pa.Array, rows: np.ndarray) -> pa.Array:
    """Return the values at these indices; the same array if these are all of them in order."""
    if len(rows) == len(values) and np.array_equal(rows, np.arange(len(rows))):
        return values
    return values.take(pa.array(rows))


def _numbers(cells: pa.Array, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Return which cells are not null (bool), and the protocol's integers (int64, 0 for null)."""
    present, values = np.asarray(cells.is_valid()), np.zeros(len(cells), np.int64)
    raw, bounds = get_binary_buffers(cells)
    values[present] = raw[bounds[0] : bounds[-1]].view(kind)
    return present, values


ROWS_A_RANGE = 50_000
MAX_RANGES = 4_096
_SAMPLE_ROWS = 2_000
_REQUESTS_A_RANGE = 12
"""Chosen so that one page answers most requests: the next are in flight while rows are converted."""
_ROWS_AT_ONCE = 10_000
"""How many rows are converted together at least; converting a few at a time takes twice as long."""


@dataclass(frozen=True)
class SnapshotQuery(LogQuery):
    """What a task needs to read rows of a base table. It travels to executors, as `LogQuery` does."""

    timestamps: SyntheticTimestamps

    @property
    def table(self) -> str:
        """Return the base table's name in CQL."""
        return base_name(self.schema)

    def statement(self, condition: str) -> str:
        """Return the SELECT of a range of tokens."""
        end = " BYPASS CACHE" if self.bypass_cache else ""
        return f"SELECT {selection(self.schema)} FROM {self.table} WHERE {condition}{end}"

    def estimate_ranges(self) -> int:
        """Estimate the number of token ranges, of about `ROWS_A_RANGE` rows each, from a sample of the first rows."""
        key = token(self.schema)
        sample = _Sample(self.name, self.connection, self.schema, self.bypass_cache, self.concurrency)
        condition = f"{key} >= {-(2**63) + 1} LIMIT {_SAMPLE_ROWS}"
        (pages,) = sample.answers([condition])
        tokens = [cell for page in pages for cell in page.columns[0].drop_null().to_pylist()]
        if len(tokens) < _SAMPLE_ROWS:
            return 1
        covered = int.from_bytes(tokens[-1], "big", signed=True) + 2**63
        rows = len(tokens) * 2**64 // max(covered, 1)
        return int(min(MAX_RANGES, max(1, -(-rows // ROWS_A_RANGE))))

    def cells(self, ranges: int, *, one_by_one: bool = False) -> TaskRows:
        """Return the state of each token range, merged, one part for each range.

        With `one_by_one` this process reads them in order, and requests the next range while it writes one.
        """
        requests_per_range = _REQUESTS_A_RANGE if ranges > 1 else 1
        parts, key = split_ring(ranges * requests_per_range), token(self.schema)
        in_flight: dict[int, Iterator[list[RawPage]]] = {}

        def answers(number: int) -> Iterator[list[RawPage]]:
            mine = parts[number * requests_per_range : (number + 1) * requests_per_range]
            return self.answers([f"{key} > {low} AND {key} <= {high}" for low, high in mine], number)

        def batches(number: int) -> Batches:
            received: list[RawPage] = []
            for count, pages in enumerate(in_flight.pop(number, None) or answers(number), 1):
                if one_by_one and count == requests_per_range and number + 1 < ranges:
                    in_flight[number + 1] = answers(number + 1)
                received += pages
                if count < requests_per_range and sum(page.rows for page in received) < _ROWS_AT_ONCE:
                    continue
                state = self._merge_duplicates(seen(self.schema, received, self.timestamps))
                received.clear()
                if state.num_rows:
                    yield from with_ranges(state, ranges).to_batches()

        return TaskRows(ranges, batches)

    def _merge_duplicates(self, state: pa.Table) -> pa.Table:
        """Merge the state: a static cell comes with each row of its partition, an element with a tombstone."""
        schema = self.schema
        if schema.statics or any(column.type.multicell for column in schema.regulars):
            return merge_states(schema, [state])
        return normalize_key_forms(schema, state)


class _Sample(LogQuery):
    """Requests the tokens of the first rows."""

    @property
    def table(self) -> str:
        return base_name(self.schema)

    def statement(self, condition: str) -> str:
        return f"SELECT {token(self.schema)} FROM {self.table} WHERE {condition}"


def token(schema: TableSchema) -> str:
    """Return a row's token as a CQL expression."""
    return f"token({', '.join(quote_name(column.name) for column in schema.partition_key)})"


def base_name(schema: TableSchema) -> str:
    """Return the base table's name in CQL."""
    return f"{quote_name(schema.keyspace)}.{quote_name(schema.name)}"
