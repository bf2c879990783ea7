"""Which cells and readers' rows of token ranges a change affects; the others keep their files' content."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_platform.cdclog import (
    EXACT,
    LogColumns,
    StateRowKind,
    find_purgeable_rows,
    has_unique_encoding,
    join_components,
    may_be_out_of_range,
    with_stored_names,
)
from cdc_platform.clock import Microseconds
from cdc_platform.cql import Column, TableSchema
from cdc_platform.delta import compute, to_single_array
from cdc_platform.ingest.replica.tables import EXPIRES

MAX_AFFECTED_SHARE = 0.6
"""The share of affected cells above which all are rewritten.

Separating the affected ones takes 0.86 of the time at this share, half of it at 0.02, and as long at 0.75.
"""


@dataclass(frozen=True)
class AffectedRows:
    """The cells and the readers' rows that are rewritten (bool, for each)."""

    cells: np.ndarray
    rows: np.ndarray


def find_affected(
    schema: TableSchema,
    cells: pa.Table,
    rows: pa.Table,
    changes: pa.Table,
    elapsed: tuple[Microseconds, Microseconds],
    sure_us: Microseconds,
) -> AffectedRows:
    """Return the cells and readers' rows of some token ranges that changes or elapsed time (µs, from and to) affect.

    Time affects what expires, and what can be purged because no write as old as `sure_us` arrives any more, see
    `purge_state`.
    """
    if not _determine_keys(schema.partition_key, rows):
        return _everything(cells, rows)
    keys = _Keys.of(schema, rows, by_row=not schema.statics and _determine_keys(schema.clustering_key, rows))
    expires = np.asarray(cells["expires"])
    due = ((expires > elapsed[0]) & (expires <= elapsed[1])) | find_purgeable_rows(cells, sure_us, elapsed[1])
    # If a process was killed after writing the cells, only these rows show what expired.
    expired = np.asarray(compute.fill_null(compute.less_equal(rows[EXPIRES], elapsed[1]), False))
    touched = _Touched.by([_places(changes), _places(cells.filter(pa.array(due))), keys.places(expired)], keys.by_row)
    affected = touched.cells(cells)
    if np.count_nonzero(affected) > MAX_AFFECTED_SHARE * len(affected):
        return _everything(cells, rows)
    return AffectedRows(affected, touched.rows(keys))


def _everything(cells: pa.Table, rows: pa.Table) -> AffectedRows:
    """Return all cells and all rows as affected."""
    return AffectedRows(np.ones(cells.num_rows, bool), np.ones(rows.num_rows, bool))


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
    def by(parts: Sequence[pa.Table], by_row: bool) -> _Touched:
        places = pa.concat_tables(parts).combine_chunks()
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


def _determine_keys(columns: Sequence[Column], rows: pa.Table) -> bool:
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
