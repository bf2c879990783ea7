"""Merge states of one table: of several rows with the same key the winner stays, as in `cql.merge_mutations`.

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
"""Integers up to this many times their count are grouped with an array indexed by value."""


def merge_states(schema: TableSchema, states: Iterable[pa.Table]) -> pa.Table:
    """Merge states of one table (`STATE_SCHEMA`), in any order, into one state with one row per key.

    Of two cells or markers with the same key, the later wins. At the same time the dead one wins, else the one that
    expires, else the one that expires later, else the one with the shorter TTL, else the one with the larger value
    (mutation/atomic_cell.cc, compare_atomic_cell_for_merge). Elements that a tombstone of their collection covers are
    removed; rows that other tombstones cover stay. Ranges get their normal form, see `cql.normalize_ranges`.
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
    """Return integers (int64, from 1) that are equal where the values of a column are; 0 for null."""
    array = to_single_array(column)
    encoded = array if pat.is_dictionary(array.type) else array.dictionary_encode()
    indices = encoded.indices
    if indices.null_count:
        indices = compute.fill_null(indices, -1)
    return np.asarray(indices, dtype=np.int64) + 1


def combine_codes(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Combine columns of non-negative integers into one (int64), equal where all of them are."""
    total = columns[0]
    for column in columns[1:]:
        size, highest = int(column.max(initial=0)) + 1, int(total.max(initial=0))
        if highest >= 2**62 // size:
            total = np.unique(total, return_inverse=True)[1].astype(np.int64)
        total = total * size + column
    return total


def number_groups(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Number the distinct non-negative integers (int64, from 0); also return the last index of each group."""
    highest = int(values.max(initial=0))
    if highest <= _DENSE_FACTOR * len(values):
        present = np.zeros(highest + 1, dtype=bool)
        present[values] = True
        numbers = (np.cumsum(present) - 1)[values]
    else:
        numbers = dictionary_codes(pa.array(values)) - 1
    last_index = np.empty(int(numbers.max(initial=-1)) + 1, dtype=np.int64)
    last_index[numbers] = np.arange(len(numbers))
    return numbers, last_index


def sort_order(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Return the stable order of rows by some columns (int64); the first is non-negative and most significant."""
    total = columns[0]
    for column in columns[1:] if len(total) else ():
        low = int(column.min())
        size = int(column.max()) - low + 1
        if int(total.max()) >= 2**62 // size:
            return np.lexsort(list(reversed(columns)))
        total = total * size + (column - low)
    # numpy sorts by one key several times as fast as by two.
    return np.argsort(total, kind="stable")


def _merge_rows(schema: TableSchema, state: pa.Table) -> pa.Table:
    if state.num_rows == 0:
        return state
    state = normalize_key_forms(schema, state)
    kinds = np.asarray(state["kind"]).astype(np.int64)
    columns = combine_codes(
        [dictionary_codes(state["partition"]), dictionary_codes(state["clustering"]), dictionary_codes(state["column"])]
    )
    keys = combine_codes([columns, kinds, dictionary_codes(state["path"])])
    timestamps = np.asarray(state["timestamp"])
    last = _pick_winners(state, keys, timestamps)
    covered = _covered_elements(columns[last], kinds[last], timestamps[last])
    winners = last[~covered]
    return state if len(winners) == state.num_rows else state.take(pa.array(winners))


def _pick_winners(state: pa.Table, keys_of_rows: np.ndarray, timestamps: np.ndarray) -> np.ndarray:
    """Return the winning row of each key, ascending."""
    # Sort by key only, as numpy sorts by one key several times as fast as by two. Most keys have one row.
    order = np.argsort(keys_of_rows)
    changes = np.diff(keys_of_rows[order]) != 0
    single = np.append(True, changes) & np.append(changes, True)
    shared = order[~single]
    if not len(shared):
        return np.arange(len(keys_of_rows))
    winners = _latest_rows(state, np.sort(shared), keys_of_rows, timestamps)
    return np.sort(np.concatenate([order[single], winners]))


def _latest_rows(state: pa.Table, rows: np.ndarray, keys_of_rows: np.ndarray, timestamps: np.ndarray) -> np.ndarray:
    """Return the winning row of each key; each of `rows` shares its key with others."""
    order = rows[np.lexsort((timestamps[rows], keys_of_rows[rows]))]
    same = np.diff(keys_of_rows[order]) == 0
    ends = np.flatnonzero(np.append(~same, True))
    winners = order[ends]
    tied = np.append(False, same & (np.diff(timestamps[order]) == 0))
    if not tied[ends].any():
        return winners
    # Keys whose latest time occurs more than once.
    in_tied_key = np.isin(keys_of_rows[rows], keys_of_rows[winners[tied[ends]]])
    candidates = rows[in_tied_key]
    return np.concatenate([winners[~tied[ends]], candidates[_break_ties(state, candidates, keys_of_rows, timestamps)]])


def _break_ties(state: pa.Table, rows: np.ndarray, keys_of_rows: np.ndarray, timestamps: np.ndarray) -> np.ndarray:
    """Return the indices in `rows` of the rows that win where times tie."""
    tied = state.take(pa.array(rows))
    expires = np.asarray(tied["expires"])
    value = compute.fill_null(tied["value"].combine_chunks(), b"")
    by_value = np.asarray(compute.rank(value, tiebreaker="dense")).astype(np.int64)
    keys = (by_value, -np.asarray(tied["ttl"]), expires, np.asarray(tied["dead"]), timestamps[rows], keys_of_rows[rows])
    order = np.lexsort(keys)
    return order[np.append(np.diff(keys_of_rows[rows][order]) != 0, True)]


def _covered_elements(columns: np.ndarray, kinds: np.ndarray, timestamps: np.ndarray) -> np.ndarray:
    """Return which rows (bool) are elements covered by the only tombstone of their collection."""
    deleted = np.flatnonzero(kinds == StateRowKind.COLLECTION_TOMBSTONE)
    if not len(deleted):
        return np.zeros(len(kinds), dtype=bool)
    deleted = deleted[np.argsort(columns[deleted])]
    index = np.minimum(np.searchsorted(columns[deleted], columns), len(deleted) - 1)
    tombstone = deleted[index]
    return (kinds == StateRowKind.CELL) & (columns[tombstone] == columns) & (timestamps <= timestamps[tombstone])


def _normalize_ranges(schema: TableSchema, ranges: pa.Table) -> pa.Table:
    by_partition: dict[bytes, list[Any]] = {}
    for row in ranges.to_pylist():
        by_partition.setdefault(row["partition"], []).append(range_from_row(schema, row))
    rows = [
        range_to_row(schema, partition, tombstone)
        for partition, tombstones in by_partition.items()
        for tombstone in normalize_ranges(schema, tombstones)
    ]
    return pa.Table.from_pylist(rows, schema=STATE_SCHEMA)
