"""The two tables of a replicated table, and which of their rows a change affects.

One table has the current rows for readers; the other has the state that explains them. Both are partitioned by token
range, so a change rewrites only the partitions that it falls into. The application numbers of their commits record
what was copied, and up to which version of the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_platform.cdclog import (
    AS_OF_APPLICATION,
    EXACT,
    EXACT_COLUMN,
    INEXACT,
    INEXACT_APPLICATION,
    STATE_SCHEMA,
    LogColumns,
    SelectedRows,
    StateRowKind,
    find_purgeable_rows,
    has_unique_encoding,
    join_components,
    may_be_out_of_range,
    select_schema,
    with_stored_names,
)
from cdc_platform.clock import Microseconds, ms_from_us
from cdc_platform.cql import Column, TableSchema
from cdc_platform.delta import Lake, compute, to_single_array, tokens_from_keys
from cdc_platform.errors import StateError
from cdc_platform.metastore import cdc_tables
from cdc_platform.tables import Table, column

SLICE, EXPIRES = "cdc$slice", "cdc$expires"
COPIED, SINCE, SLICES, OF, BEHIND = (f"current:{name}" for name in ("copied", "since", "slices", "of", "behind"))
"""Applications of the state's commits.

They hold when the copy began (µs), from when on the log counts (µs), the number of token ranges, the table's identity,
and the log's version before the copy.
"""
COPY, COVERED, SURE = "current:copy", "current:log", "current:sure"
"""Of the readers' table: the copy that it comes from, the log version merged, and up to when (µs) that is complete."""


def current_table(schema: TableSchema) -> Table:
    """Return the readers' table: the base table's columns, with their types in its log, after three more.

    If a column may have values out of its native type's range, the log's column for those is there too.
    """
    keys = tuple(
        item.name for item in (*with_stored_names(schema).partition_key, *with_stored_names(schema).clustering_key)
    )
    fields = [column(item.name, item.type, "as SELECT answers", null=True) for item in select_schema(schema)]
    extra_fields = [
        column(INEXACT, pa.bool_(), "true: some of it rests on what CQL does not tell exactly"),
        column(EXPIRES, pa.int64(), "when the next of it expires, µs; null: never", null=True),
        column(SLICE, pa.int32(), "slice of the token ring, from 0"),
    ]
    return Table(
        schema.keyspace,
        schema.name,
        # Delta has bounds of the first 32 columns only, and these bounds show where something expires.
        pa.schema([*extra_fields, *fields, *([EXACT_COLUMN] if _may_be_far(schema) else [])]),
        keys=keys,
        comment=f"{schema.full_name} as the cluster has it",
        partition_by=(SLICE,),
        follows_from=(f"{schema.keyspace}.{schema.log_name}",),
    )


def cells_table(schema: TableSchema) -> Table:
    """Return the table of the base table's state (`STATE_SCHEMA`), by token range."""
    fields = [
        column(field.name, field.type, "see the state beside a log", null=field.nullable) for field in STATE_SCHEMA
    ]
    return Table(
        schema.keyspace,
        f".{schema.name}.cells",
        pa.schema([*fields, column(SLICE, pa.int32(), "slice of the token ring, from 0")]),
        keys=("partition", "clustering", "kind", "column", "path"),
        comment=f"State of {schema.full_name}, of its cluster and its log",
        partition_by=(SLICE,),
        follows_from=(f"{schema.keyspace}.{schema.log_name}",),
    )


@dataclass(frozen=True)
class Replica:
    """The state of a replicated table. Times in µs; `log` and `as_of_us` are None before the first update.

    No more rows arrive of writes up to `sure_us`: everything that the second pass added to the log is merged. Log rows
    added after its version `behind` arrived after the copy.
    """

    copied_us: Microseconds
    since_us: Microseconds
    slices: int
    log: int | None
    as_of_us: Microseconds | None
    inexact: int
    sure_us: Microseconds
    behind: int | None


def find_replica(lake: Lake, schema: TableSchema) -> Replica | None:
    """Return a table's replica in the lake; None if there is no copy, or one of another table of its name."""
    cells, current = cells_table(schema), current_table(schema)
    copied = lake.transaction(cells, COPIED)
    if copied is None or lake.transaction(cells, OF) != identity(schema):
        return None
    since, slices = lake.transaction(cells, SINCE), lake.transaction(cells, SLICES)
    assert since is not None
    assert slices is not None
    ours = lake.transaction(current, COPY) == copied
    log, as_of = (lake.transaction(current, name) if ours else None for name in (COVERED, AS_OF_APPLICATION))
    marked, sure = ((lake.transaction(current, name) or 0) if ours else 0 for name in (INEXACT_APPLICATION, SURE))
    as_of_us = None if as_of is None else Microseconds(as_of)
    behind = lake.transaction(cells, BEHIND)
    return Replica(Microseconds(copied), Microseconds(since), slices, log, as_of_us, marked, Microseconds(sure), behind)


def is_replicated(lake: Lake, schema: TableSchema) -> bool:
    """Return True if a table of this name is replicated, or was before it was recreated."""
    return lake.transaction(cells_table(schema), COPIED) is not None


def why_not_replicable(lake: Lake, schema: TableSchema) -> str | None:
    """Return why the log no longer determines the table's state; None if it does."""
    if schema.cdc.delta != "full":
        return f"it logs keys alone (delta '{schema.cdc.delta}')"
    if not cdc_tables.find_cdc_table(lake, schema.keyspace, schema.name).enabled:
        return "its CDC is off"
    return None


def assert_replicable(lake: Lake, schema: TableSchema) -> None:
    """Raise StateError unless the table's log determines the table's state."""
    why = why_not_replicable(lake, schema)
    if why is not None:
        raise StateError(
            f"{schema.full_name} cannot be kept: {why}; ALTER TABLE {schema.full_name} WITH cdc = {{'enabled': true}} "
            "first, or ingest its log without --current"
        )


def identity(schema: TableSchema) -> int:
    """Return a number (63 bits) for the state's schema and a table with these keys and this creation time."""
    keys = [
        (key_column.name, key_column.type.cql, key_column.kind, key_column.descending)
        for key_column in schema.columns
        if key_column.is_key
    ]
    facts = (STATE_SCHEMA.names, keys, ms_from_us(schema.created_at_us), *((EXACT,) if _may_be_far(schema) else ()))
    return int.from_bytes(blake2b(repr(facts).encode(), digest_size=8).digest(), "big") >> 1


def _may_be_far(schema: TableSchema) -> bool:
    return any(may_be_out_of_range(column.type) for column in schema.columns)


def slices_of(partitions: pa.Array, slices: int) -> np.ndarray:
    """Return the token range (int32) of each serialized partition key (binary)."""
    if not len(partitions):
        return np.empty(0, np.int32)
    # Rows of a partition are adjacent, so it is hashed once for all of them.
    begins = np.append(True, np.asarray(compute.not_equal(partitions[1:], partitions[:-1])))
    tokens = tokens_from_keys(partitions.filter(pa.array(begins))).astype(np.int64)
    ends = np.array([low for low, _ in ranges(slices)], np.int64)
    indices = (np.searchsorted(ends, tokens, side="left") - 1).clip(0).astype(np.int32)
    return indices[np.cumsum(begins) - 1]


def ranges(slices: int) -> list[tuple[int, int]]:
    """Return each range's tokens as (exclusive start, inclusive end)."""
    first, last = -(2**63), 2**63 - 1
    edges = [first + (last - first) * index // slices for index in range(slices + 1)]
    return list(pairwise(edges))


def with_slices(state: pa.Table, slices: int) -> pa.Table:
    """Return the rows of a state with their token range, as in the state's table."""
    state = state.combine_chunks()
    keys = state["partition"].combine_chunks() if state.num_rows else pa.array([], pa.binary())
    return state.append_column(pa.field(SLICE, pa.int32(), nullable=False), pa.array(slices_of(keys, slices)))


def for_readers(schema: TableSchema, found: SelectedRows, slices: int) -> pa.Table:
    """Return the rows of a state as in the readers' table."""
    table = current_table(schema)
    marks = {
        INEXACT: pa.array(found.inexact),
        EXPIRES: pa.array(found.expires, mask=found.expires == 0),
        SLICE: pa.array(slices_of(found.partitions, slices)),
        EXACT: pa.array(_pairs(found), EXACT_COLUMN.type),
    }
    arrays = [marks[name] if name in marks else found.rows[name] for name in table.schema.names]
    return pa.table(arrays, schema=table.schema)


def _pairs(found: SelectedRows) -> list[list[tuple[str, str]] | None]:
    """Return the out-of-range values by row, as Arrow takes a map."""
    pairs: list[list[tuple[str, str]] | None] = [None] * found.rows.num_rows
    for row, values in found.exact.items():
        pairs[row] = list(values.items())
    return pairs


MOST_REACHED = 0.6
"""The share of affected cells above which all are rewritten.

Separating the affected ones takes 0.86 of the time at this share, half of it at 0.02, and as long at 0.75.
"""


@dataclass(frozen=True)
class Reached:
    """The cells and the readers' rows that are rewritten (bool, for each)."""

    cells: np.ndarray
    rows: np.ndarray


def reached(
    schema: TableSchema,
    cells: pa.Table,
    rows: pa.Table,
    changes: pa.Table,
    passed: tuple[Microseconds, Microseconds],
    sure_us: Microseconds,
) -> Reached:
    """Return the cells and readers' rows of some token ranges that changes or the passing of time (µs) affect.

    Time affects what expires, and what can be purged because no write as old as `sure_us` arrives any more, see
    `purge_state`.
    """
    if not _are_told(schema.partition_key, rows):
        return everything(cells, rows)
    keys = _Keys.of(schema, rows, by_row=not schema.statics and _are_told(schema.clustering_key, rows))
    expires = np.asarray(cells["expires"])
    due = ((expires > passed[0]) & (expires <= passed[1])) | find_purgeable_rows(cells, sure_us, passed[1])
    # If a process was killed after writing the cells, only these rows show what expired.
    over = np.asarray(compute.fill_null(compute.less_equal(rows[EXPIRES], passed[1]), False))
    touched = _Touched.by([_places(changes), _places(cells.filter(pa.array(due))), keys.places(over)], keys.by_row)
    affected = touched.cells(cells)
    if np.count_nonzero(affected) > MOST_REACHED * len(affected):
        return everything(cells, rows)
    return Reached(affected, touched.rows(keys))


def everything(cells: pa.Table, rows: pa.Table) -> Reached:
    """Return all cells and all rows as affected."""
    return Reached(np.ones(cells.num_rows, bool), np.ones(rows.num_rows, bool))


@dataclass(frozen=True)
class _Keys:
    """The keys of readers' rows as bytes, as cells have them; a row's clustering key is computed on demand."""

    schema: TableSchema
    native: pa.Table
    partitions: pa.Array
    by_row: bool

    @staticmethod
    def of(schema: TableSchema, rows: pa.Table, *, by_row: bool) -> _Keys:
        columns = (*schema.partition_key, *schema.clustering_key)
        names = _stored_names(schema, columns)
        # The EXACT column has to be read for each row: it has values of other columns as well.
        if any(may_be_out_of_range(column.type) for column in columns) and EXACT in rows.schema.names:
            names.append(EXACT)
        native = rows.select(names).combine_chunks()
        return _Keys(schema, native, LogColumns(schema, native).partition_keys(), by_row)

    def clusterings(self, chosen: np.ndarray) -> pa.Array:
        """Return the clustering keys of the rows at some indices (int64); null if they are not used."""
        if not self.by_row:
            return pa.nulls(len(chosen), pa.binary())
        columns = LogColumns(self.schema, self.native.take(pa.array(chosen)))
        return join_components([columns.wire(column.name).data for column in self.schema.clustering_key], len(chosen))

    def places(self, chosen: np.ndarray) -> pa.Table:
        """Return the keys of some rows (bool)."""
        rows = np.flatnonzero(chosen)
        wholes = pa.array(np.zeros(len(rows), bool))
        return _table(self.partitions.take(pa.array(rows)), self.clusterings(rows), wholes)


@dataclass(frozen=True)
class _Touched:
    """The affected partitions, the partitions affected as a whole, and the keys (`_joined`) of the affected rows."""

    partitions: pa.Array
    wholes: pa.Array
    places: pa.Array

    @staticmethod
    def by(found: Sequence[pa.Table], by_row: bool) -> _Touched:
        places = pa.concat_tables(found).combine_chunks()
        wholes = places.filter(places["whole"]) if by_row else places
        joined = _joined(places["partition"], places["clustering"])
        return _Touched(_distinct(places["partition"]), _distinct(wholes["partition"]), joined)

    def cells(self, cells: pa.Table) -> np.ndarray:
        """Return which cells (bool) are affected, including deletions of more than a row of an affected partition."""
        affected = np.asarray(_in(cells["partition"], self.partitions))
        near = np.flatnonzero(affected)
        rows = _places(cells.select(["partition", "clustering", "kind"]).take(pa.array(near)))
        affected[near] = np.asarray(rows["whole"]) | self._of(rows["partition"], rows["clustering"])
        return affected

    def rows(self, keys: _Keys) -> np.ndarray:
        """Return which readers' rows (bool) are affected."""
        affected = np.asarray(_in(keys.partitions, self.partitions))
        near = np.flatnonzero(affected)
        affected[near] = self._of(keys.partitions.take(pa.array(near)), keys.clusterings(near))
        return affected

    def _of(self, partitions: Any, clusterings: Any) -> np.ndarray:
        whole = _in(partitions, self.wholes)
        return np.asarray(compute.or_(whole, _in(_joined(partitions, clusterings), self.places)))


def _are_told(columns: Sequence[Column], rows: pa.Table) -> bool:
    """Return True if the native values of key columns determine the bytes that cells have."""
    names = [item.name for item in columns]
    return all(has_unique_encoding(item.type) for item in columns) and not any(rows[name].null_count for name in names)


def _stored_names(schema: TableSchema, columns: Sequence[Column]) -> list[str]:
    names = dict(
        zip(
            (item.name for item in schema.columns),
            (item.name for item in with_stored_names(schema).columns),
            strict=True,
        )
    )
    return [names[item.name] for item in columns]


def _places(state: pa.Table) -> pa.Table:
    """Return the partition and row of each row of a state; `whole` is True if it does not belong to one row."""
    is_range = compute.equal(state["kind"], int(StateRowKind.RANGE_TOMBSTONE))
    whole = compute.or_(is_range, compute.is_null(state["clustering"]))
    return _table(state["partition"], state["clustering"], whole)


def _table(partitions: Any, clusterings: Any, wholes: Any) -> pa.Table:
    return pa.table({"partition": partitions, "clustering": clusterings, "whole": wholes})


def _joined(partitions: Any, clusterings: Any) -> pa.Array:
    """Join both into one key; null without a clustering key."""
    return join_components([to_single_array(partitions), to_single_array(clusterings)], len(partitions))


def _distinct(values: Any) -> pa.Array:
    return compute.unique(to_single_array(values))


def _in(values: Any, known: pa.Array) -> Any:
    return compute.is_in(values, value_set=known, skip_nulls=True)
