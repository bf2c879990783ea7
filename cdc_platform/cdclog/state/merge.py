"""Merge states of one table: of several rows with the same key the winner stays, as in `cql.mutation.merge`.

Merging is idempotent, commutative and associative: states of parts of a history merge into the state of the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from cdc_platform.cdclog.state.model import (
    STATE_SCHEMA,
    StateRowKind,
    normalize_key_forms,
    range_from_row,
    range_to_row,
)
from cdc_platform.cql import TableSchema, normalize_ranges
from cdc_platform.delta import compute, to_single_array

_DENSE_FACTOR = 8
"""Integers up to so many times their count are told apart by a place for each that there could be."""


def merge_states(schema: TableSchema, states: Iterable[pa.Table]) -> pa.Table:
    """The one state (`shape.STATE`) that several of one table come to, in no order, a row a place.

    Of two cells, or markers, of one place the later wins; at the same time the dead one, else the one that expires,
    else the one that expires later, else the one with the shorter TTL, else the one with the larger value
    (mutation/atomic_cell.cc, compare_atomic_cell_for_merge). Elements that a tombstone of their collection covers are
    gone; rows that other tombstones cover stay. Ranges come to their normal form, see `cql.ranges`.
    """
    state = pa.concat_tables([*states, STATE_SCHEMA.empty_table()]).combine_chunks()
    if state.num_rows == 0:
        return state
    kinds = np.asarray(state["kind"])
    is_range = kinds == StateRowKind.RANGE_TOMBSTONE
    if is_range.any():
        ranges = _normalize_ranges(schema, state.filter(pa.array(is_range)))
        return pa.concat_tables([_merge_rows(schema, state.filter(pa.array(~is_range))), ranges])
    return _merge_rows(schema, state)


def dictionary_codes(column: Any) -> np.ndarray:
    """Integers (int64), equal where the values of a column are, from 1 on; 0 for null."""
    array = to_single_array(column)
    encoded = array if pat.is_dictionary(array.type) else array.dictionary_encode()
    indices = encoded.indices
    if indices.null_count:
        indices = compute.fill_null(indices, -1)
    return np.asarray(indices, dtype=np.int64) + 1


def combine_codes(columns: Sequence[np.ndarray]) -> np.ndarray:
    """One integer (int64) of several that are not negative, equal where all of them are."""
    total = columns[0]
    for column in columns[1:]:
        size, most = int(column.max(initial=0)) + 1, int(total.max(initial=0))
        if most >= 2**62 // size:
            total = np.unique(total, return_inverse=True)[1].astype(np.int64)
        total = total * size + column
    return total


def number_groups(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers (int64) from 0 on, equal where some integers that are not negative are, and of each the last place."""
    most = int(values.max(initial=0))
    if most <= _DENSE_FACTOR * len(values):
        there = np.zeros(most + 1, dtype=bool)
        there[values] = True
        found = (np.cumsum(there) - 1)[values]
    else:
        found = dictionary_codes(pa.array(values)) - 1
    places = np.empty(int(found.max(initial=-1)) + 1, dtype=np.int64)
    places[found] = np.arange(len(found))
    return found, places


def sort_order(columns: Sequence[np.ndarray]) -> np.ndarray:
    """The places of rows in the order of some columns (int64), of which the first is not negative and counts most.

    Rows that are alike stay in theirs.
    """
    total = columns[0]
    for column in columns[1:] if len(total) else ():
        low = int(column.min())
        size = int(column.max()) - low + 1
        if int(total.max()) >= 2**62 // size:
            return np.lexsort(list(reversed(columns)))
        total = total * size + (column - low)
    # By one key numpy sorts several times as fast as by two.
    return np.argsort(total, kind="stable")


def _merge_rows(schema: TableSchema, state: pa.Table) -> pa.Table:
    if state.num_rows == 0:
        return state
    state = normalize_key_forms(schema, state)
    kinds = np.asarray(state["kind"]).astype(np.int64)
    columns = combine_codes(
        [dictionary_codes(state["partition"]), dictionary_codes(state["clustering"]), dictionary_codes(state["column"])]
    )
    places = combine_codes([columns, kinds, dictionary_codes(state["path"])])
    timestamps = np.asarray(state["timestamp"])
    last = _pick_winners(state, places, timestamps)
    covered = _covered_elements(columns[last], kinds[last], timestamps[last])
    kept = last[~covered]
    return state if len(kept) == state.num_rows else state.take(pa.array(kept))


def _pick_winners(state: pa.Table, places: np.ndarray, timestamps: np.ndarray) -> np.ndarray:
    """The row of each place that wins, ascending."""
    # By one key alone, which numpy sorts several times as fast as by two: most places have one row.
    order = np.argsort(places)
    changes = np.diff(places[order]) != 0
    alone = np.append(True, changes) & np.append(changes, True)
    several = order[~alone]
    if not len(several):
        return np.arange(len(places))
    winners = _latest_rows(state, np.sort(several), places, timestamps)
    return np.sort(np.concatenate([order[alone], winners]))


def _latest_rows(state: pa.Table, rows: np.ndarray, places: np.ndarray, timestamps: np.ndarray) -> np.ndarray:
    """Of rows of which each shares its place with others, the one of each place that wins."""
    order = rows[np.lexsort((timestamps[rows], places[rows]))]
    same = np.diff(places[order]) == 0
    ends = np.flatnonzero(np.append(~same, True))
    winners = order[ends]
    tied = np.append(False, same & (np.diff(timestamps[order]) == 0))
    if not tied[ends].any():
        return winners
    # Places whose last time comes more than once.
    open_ = np.isin(places[rows], places[winners[tied[ends]]])
    again = rows[open_]
    return np.concatenate([winners[~tied[ends]], again[_break_ties(state, again, places, timestamps)]])


def _break_ties(state: pa.Table, rows: np.ndarray, places: np.ndarray, timestamps: np.ndarray) -> np.ndarray:
    """Of some rows of a state, those (by their place in `rows`) that win where times tie."""
    tied = state.take(pa.array(rows))
    expires = np.asarray(tied["expires"])
    value = compute.fill_null(tied["value"].combine_chunks(), b"")
    by_value = np.asarray(compute.rank(value, tiebreaker="dense")).astype(np.int64)
    keys = (by_value, -np.asarray(tied["ttl"]), expires, np.asarray(tied["dead"]), timestamps[rows], places[rows])
    order = np.lexsort(keys)
    return order[np.append(np.diff(places[rows][order]) != 0, True)]


def _covered_elements(columns: np.ndarray, kinds: np.ndarray, timestamps: np.ndarray) -> np.ndarray:
    """Which rows (bool) are elements that the tombstone of their collection, of which there is one, covers."""
    deleted = np.flatnonzero(kinds == StateRowKind.COLLECTION_TOMBSTONE)
    if not len(deleted):
        return np.zeros(len(kinds), dtype=bool)
    deleted = deleted[np.argsort(columns[deleted])]
    place = np.minimum(np.searchsorted(columns[deleted], columns), len(deleted) - 1)
    found = deleted[place]
    return (kinds == StateRowKind.CELL) & (columns[found] == columns) & (timestamps <= timestamps[found])


def _normalize_ranges(schema: TableSchema, ranges: pa.Table) -> pa.Table:
    by_partition: dict[bytes, list[Any]] = {}
    for row in ranges.to_pylist():
        by_partition.setdefault(row["partition"], []).append(range_from_row(schema, row))
    rows = [
        range_to_row(schema, partition, each)
        for partition, several in by_partition.items()
        for each in normalize_ranges(schema, several)
    ]
    return pa.Table.from_pylist(rows, schema=STATE_SCHEMA)
