"""Which rows of a kept table's two tables changes reach, and the time that has passed: all others stay as they are.

A row of the base table is what its own cells tell, and what deletes it as a part of its range or partition. Where a
static row is mixed into it, or where one key has several forms, all rows of a partition are reached together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_platform.clock import Microseconds
from cdc_platform.cql.schema import Column, TableSchema
from cdc_platform.ingest.replica.tables import EXPIRES
from cdc_platform.lake.arrow import compute
from cdc_platform.lake.encoding import one_array
from cdc_platform.log.exact import may_be_far
from cdc_platform.log.state.log_columns import LogColumns
from cdc_platform.log.state.purging import spent
from cdc_platform.log.state.shape import Kind
from cdc_platform.log.state.wire import composed, has_one_form
from cdc_platform.log.stored_names import EXACT, stored

MOST_REACHED = 0.6
"""Of the cells: where more are reached, all are. To tell them apart takes 0.86 of the time at that share, half of it at
0.02, and as long at 0.75."""


@dataclass(frozen=True)
class Reached:
    """The cells, and the readers' rows, that are made anew (bool, of each)."""

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
    """What changes of some slices reach of their cells and readers' rows, and the time from one moment to another (µs).

    That is as well what goes by itself, nothing as old as `sure_us` coming any more, see `purging`.
    """
    if not _are_told(schema.partition_key, rows):
        return everything(cells, rows)
    keys = _Keys.of(schema, rows, by_row=not schema.statics and _are_told(schema.clustering_key, rows))
    expires = np.asarray(cells["expires"])
    due = ((expires > passed[0]) & (expires <= passed[1])) | spent(cells, sure_us, passed[1])
    # Of who was killed once the cells were written these rows are all that is left.
    over = np.asarray(compute.fill_null(compute.less_equal(rows[EXPIRES], passed[1]), False))
    touched = _Touched.by([_places(changes), _places(cells.filter(pa.array(due))), keys.places(over)], keys.by_row)
    found = touched.cells(cells)
    if np.count_nonzero(found) > MOST_REACHED * len(found):
        return everything(cells, rows)
    return Reached(found, touched.rows(keys))


def everything(cells: pa.Table, rows: pa.Table) -> Reached:
    """All of them."""
    return Reached(np.ones(cells.num_rows, bool), np.ones(rows.num_rows, bool))


@dataclass(frozen=True)
class _Keys:
    """The keys of readers' rows as bytes, as cells have them; those of a row are made where they are asked for."""

    schema: TableSchema
    native: pa.Table
    partitions: pa.Array
    by_row: bool

    @staticmethod
    def of(schema: TableSchema, rows: pa.Table, *, by_row: bool) -> _Keys:
        columns = (*schema.partition_key, *schema.clustering_key)
        names = _stored_names(schema, columns)
        # Who reads it has to look at each row: it tells of other columns as well.
        if any(may_be_far(column.type) for column in columns) and EXACT in rows.schema.names:
            names.append(EXACT)
        native = rows.select(names).combine_chunks()
        return _Keys(schema, native, LogColumns(schema, native).partition_keys(), by_row)

    def clusterings(self, chosen: np.ndarray) -> pa.Array:
        """The clustering keys of the rows at some places (int64); null where they count for nothing."""
        if not self.by_row:
            return pa.nulls(len(chosen), pa.binary())
        columns = LogColumns(self.schema, self.native.take(pa.array(chosen)))
        return composed([columns.wire(column.name).data for column in self.schema.clustering_key], len(chosen))

    def places(self, chosen: np.ndarray) -> pa.Table:
        """The places of some rows (bool)."""
        rows = np.flatnonzero(chosen)
        wholes = pa.array(np.zeros(len(rows), bool))
        return _table(self.partitions.take(pa.array(rows)), self.clusterings(rows), wholes)


@dataclass(frozen=True)
class _Touched:
    """The partitions in which anything was touched, those of which all was, and the places (`_joined`) of the rows."""

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
        """Which cells (bool) are touched, those among them that delete more than a row of a touched partition."""
        found = np.asarray(_in(cells["partition"], self.partitions))
        near = np.flatnonzero(found)
        some = _places(cells.select(["partition", "clustering", "kind"]).take(pa.array(near)))
        found[near] = np.asarray(some["whole"]) | self._of(some["partition"], some["clustering"])
        return found

    def rows(self, keys: _Keys) -> np.ndarray:
        """Which readers' rows (bool) are touched."""
        found = np.asarray(_in(keys.partitions, self.partitions))
        near = np.flatnonzero(found)
        found[near] = self._of(keys.partitions.take(pa.array(near)), keys.clusterings(near))
        return found

    def _of(self, partitions: Any, clusterings: Any) -> np.ndarray:
        whole = _in(partitions, self.wholes)
        return np.asarray(compute.or_(whole, _in(_joined(partitions, clusterings), self.places)))


def _are_told(columns: Sequence[Column], rows: pa.Table) -> bool:
    """Whether the native values of key columns tell the bytes that cells have."""
    names = [each.name for each in columns]
    return all(has_one_form(each.type) for each in columns) and not any(rows[name].null_count for name in names)


def _stored_names(schema: TableSchema, columns: Sequence[Column]) -> list[str]:
    names = dict(
        zip((each.name for each in schema.columns), (each.name for each in stored(schema).columns), strict=True)
    )
    return [names[each.name] for each in columns]


def _places(state: pa.Table) -> pa.Table:
    """Of which partition and row each row of a state is; `whole` where it is of no row alone."""
    is_range = compute.equal(state["kind"], int(Kind.RANGE_TOMBSTONE))
    whole = compute.or_(is_range, compute.is_null(state["clustering"]))
    return _table(state["partition"], state["clustering"], whole)


def _table(partitions: Any, clusterings: Any, wholes: Any) -> pa.Table:
    return pa.table({"partition": partitions, "clustering": clusterings, "whole": wholes})


def _joined(partitions: Any, clusterings: Any) -> pa.Array:
    """Both as one; null where there is no clustering key."""
    return composed([one_array(partitions), one_array(clusterings)], len(partitions))


def _distinct(values: Any) -> pa.Array:
    return compute.unique(one_array(values))


def _in(values: Any, known: pa.Array) -> Any:
    return compute.is_in(values, value_set=known, skip_nulls=True)
