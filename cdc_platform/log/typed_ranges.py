"""Range deletions of typed writes, a column at a time: which of them delete anything, and which bounds the log tells.

The rules are those of `cql.ranges` and of `rows` for one range in a mutation of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_platform.cql.schema import Column, TableSchema
from cdc_platform.errors import InputError
from cdc_platform.lake.arrow import compute
from cdc_platform.log.log_table import RANGE_END, end_column
from cdc_platform.log.rows import Operation
from cdc_platform.log.state.wire import ranks, to_wire

STARTS = (Operation.RANGE_START_INCLUSIVE, Operation.RANGE_START_EXCLUSIVE)
_ENDS = (Operation.RANGE_END_INCLUSIVE, Operation.RANGE_END_EXCLUSIVE)


@dataclass(frozen=True)
class Ranges:
    """What a batch of writes deletes by range: of each write (bool) whether the log tells of its start, of its end.

    `ends` are the operations (int64) that tell of ends.
    """

    told_start: np.ndarray
    told_end: np.ndarray
    ends: np.ndarray


@dataclass(frozen=True)
class _Bounds:
    """One bound of each of some ranges: the ranks of its values, how many there are, and whether it includes them."""

    ranks: Sequence[np.ndarray]
    depth: np.ndarray
    inclusive: np.ndarray


def ranges_of(schema: TableSchema, columns: Mapping[str, Any], operations: np.ndarray) -> Ranges:
    """The ranges of a batch of typed writes (`log_table.writes_schema`, in `stored` names).

    Raises:
        InputError: a bound has a value behind a column without one, or excludes what it does not name; or what is none
            of a range has the end of one.
    """
    size = len(operations)
    chosen = np.isin(operations, STARTS)
    ends = _ends(columns, size)
    _refuse_ends(schema, columns, chosen)
    told_start, told_end = np.zeros(size, dtype=bool), np.zeros(size, dtype=bool)
    rows = np.flatnonzero(chosen)
    if len(rows):
        if not schema.clustering_key:
            raise InputError(f"{schema.full_name} has no clustering column; operation 4 deletes its rows, not a range")
        start, end = _bounds(schema, columns, rows, operations, ends)
        there = _lie_before(schema.clustering_key, start, end)
        end_alone = _follows(start, end)
        start_alone = _follows(end, start) & ~end_alone
        told_start[rows], told_end[rows] = there & ~end_alone, there & ~start_alone
    return Ranges(told_start, told_end, ends)


def _ends(columns: Mapping[str, Any], size: int) -> np.ndarray:
    given = columns.get(RANGE_END)
    if given is None:
        return np.full(size, Operation.RANGE_END_INCLUSIVE, dtype=np.int64)
    ends = np.asarray(compute.fill_null(given, int(Operation.RANGE_END_INCLUSIVE)).cast(pa.int64()))
    wrong = ~np.isin(ends, _ENDS)
    if wrong.any():
        raise InputError(f"{RANGE_END} {ends[wrong][0]} of {np.count_nonzero(wrong)} writes is out of bounds; 7 or 8")
    return ends


def _refuse_ends(schema: TableSchema, columns: Mapping[str, Any], chosen: np.ndarray) -> None:
    for name in (RANGE_END, *(end_column(key.name) for key in schema.clustering_key)):
        given = columns.get(name)
        spare = 0 if given is None else np.count_nonzero(_valid(given) & ~chosen)
        if spare:
            raise InputError(f"{spare} writes have a {name}, and are of no range (operation 5 or 6)")


def _bounds(
    schema: TableSchema, columns: Mapping[str, Any], rows: np.ndarray, operations: np.ndarray, ends: np.ndarray
) -> tuple[_Bounds, _Bounds]:
    size = len(rows)
    ranked: tuple[list[np.ndarray], list[np.ndarray]] = [], []
    depths = np.zeros((2, size), dtype=np.int64)
    taken = pa.array(rows)
    for place, key in enumerate(schema.clustering_key):
        given = [columns.get(name) for name in (key.name, end_column(key.name))]
        of_column = [None if each is None else each.take(taken) for each in given]
        there = [np.zeros(size, dtype=bool) if each is None else _valid(each) for each in of_column]
        for side in (0, 1):
            skipped = there[side] & (depths[side] < place)
            if skipped.any():
                raise InputError(f"{np.count_nonzero(skipped)} bounds have a {key.name}, and lack a column before it")
            depths[side] += there[side]
        for side, found in enumerate(_ranks(key, of_column, there)):
            ranked[side].append(found)
    inclusive = operations[rows] == STARTS[0], ends[rows] == _ENDS[0]
    for side in (0, 1):
        empty = (depths[side] == 0) & ~inclusive[side]
        if empty.any():
            raise InputError(f"{np.count_nonzero(empty)} bounds of ranges exclude a key, and name none")
    start, end = (_Bounds(ranked[side], depths[side], inclusive[side]) for side in (0, 1))
    return start, end


def _ranks(key: Column, given: Sequence[Any], there: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The ranks of the values of both bounds, in one order; 0 where there is none."""
    parts = [None if each is None else each.drop_null() for each in given]
    whole = pa.concat_arrays([each for each in parts if each is not None])
    order = ranks(key.type, to_wire(key.type, whole)) if len(whole) else np.zeros(0, dtype=np.int64)
    found, at = [], 0
    for mask in there:
        count = int(np.count_nonzero(mask))
        out = np.zeros(len(mask), dtype=np.int64)
        out[mask] = order[at : at + count]
        found.append(out)
        at += count
    return found


def _lie_before(keys: Sequence[Column], start: _Bounds, end: _Bounds) -> np.ndarray:
    """Which starts (bool) lie before their ends, so that something can lie between them."""
    # An edge lies before all rows that begin with its values, or behind them.
    sides = np.where(start.inclusive, -1, 1), np.where(end.inclusive, 1, -1)
    before, open_ = np.zeros(len(start.depth), dtype=bool), np.ones(len(start.depth), dtype=bool)
    for place, key in enumerate(keys):
        told = [bound.depth > place for bound in (start, end)]
        # A value lies between the edges before and behind all that have the values in front of it.
        level = [np.where(each, 0, side) for each, side in zip(told, sides, strict=True)]
        both = told[0] & told[1]
        one, other = start.ranks[place], end.ranks[place]
        less = np.where(both, (one > other) if key.descending else (one < other), level[0] < level[1])
        same = np.where(both, one == other, level[0] == level[1])
        before |= open_ & less
        open_ &= same
        # Beyond the last value of either nothing more is compared.
        open_ &= both
    whole = open_ & (start.depth == len(keys)) & (end.depth == len(keys))
    return before | (whole & (sides[0] < sides[1]))


def _follows(bound: _Bounds, other: _Bounds) -> np.ndarray:
    """Whether a bound (bool) is the one that a range has on the side that is not told, given the other one."""
    found = (other.depth > 0) & (bound.depth == other.depth - 1) & bound.inclusive
    for place, (mine, its) in enumerate(zip(bound.ranks, other.ranks, strict=True)):
        found &= (bound.depth <= place) | (mine == its)
    return found


def _valid(column: Any) -> np.ndarray:
    return np.asarray(compute.is_valid(column))
