"""Range tombstones: how their bounds lie among the rows of a partition, and the one form of many that overlap."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any, NamedTuple

from cdc_platform.clock import Microseconds
from cdc_platform.cql.schema import TableSchema
from cdc_platform.cql.types import Value

Key = tuple[Value, ...]
"""The values of key columns, or of the first of them, in key order."""


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a range of clustering keys: the first columns of the key, and whether they belong to the range."""

    prefix: Key
    inclusive: bool


@dataclass(frozen=True, slots=True)
class RangeTombstone:
    """A deletion (µs) of all rows between two bounds, in clustering order; None where the range is open."""

    start: Bound | None
    end: Bound | None
    timestamp: Microseconds

    def covers(self, schema: TableSchema, key: Key) -> bool:
        """Whether the row of a whole clustering key is deleted."""
        here = _position(schema, key, 0)
        return _start(self.start).position(schema) < here < _end(self.end).position(schema)


class _Edge(NamedTuple):
    """A place between rows: before, or after, all rows whose keys begin with `prefix`."""

    prefix: Key
    after: bool

    def position(self, schema: TableSchema) -> Any:
        return _position(schema, self.prefix, 1 if self.after else -1)


def normal_form(schema: TableSchema, tombstones: Iterable[RangeTombstone]) -> list[RangeTombstone]:
    """The same deletions as ranges that do not overlap, in clustering order; empty ranges are gone.

    Where ranges overlap the latest timestamp holds; ranges of one timestamp that overlap or touch are one.
    """
    given = list(tombstones)
    if not given:
        return []
    begun: list[tuple[Any, Any, Microseconds]] = []
    edges: dict[Any, _Edge] = {}
    for tombstone in given:
        ends = [(edge.position(schema), edge) for edge in (_start(tombstone.start), _end(tombstone.end))]
        if ends[0][0] < ends[1][0]:
            edges.update(ends)
            begun.append((ends[0][0], ends[1][0], tombstone.timestamp))
    begun.sort(key=lambda range_: range_[0], reverse=True)
    pieces: list[tuple[_Edge, _Edge, Microseconds]] = []
    open_ranges: list[tuple[Microseconds, int, Any]] = []
    for left, right in pairwise(sorted(edges)):
        while begun and begun[-1][0] == left:
            _, end, timestamp = begun.pop()
            heappush(open_ranges, (-timestamp, len(begun), end))
        while open_ranges and open_ranges[0][2] <= left:
            heappop(open_ranges)
        if open_ranges:
            _append(pieces, edges[left], edges[right], -open_ranges[0][0])
    return [RangeTombstone(_start_bound(start), _end_bound(end), timestamp) for start, end, timestamp in pieces]


def _append(pieces: list[tuple[_Edge, _Edge, Microseconds]], start: _Edge, end: _Edge, timestamp: Microseconds) -> None:
    if pieces and pieces[-1][1:] == (start, timestamp):
        start, _, _ = pieces.pop()
    pieces.append((start, end, timestamp))


def _position(schema: TableSchema, prefix: Key, side: int) -> Any:
    """What orders rows (`side` 0) and the places before (-1) and after (1) all rows with a prefix."""
    return (*((0, key) for key in schema.clustering_order(prefix)), (side,))


def _start(bound: Bound | None) -> _Edge:
    return _Edge((), False) if bound is None else _Edge(bound.prefix, not bound.inclusive)


def _end(bound: Bound | None) -> _Edge:
    return _Edge((), True) if bound is None else _Edge(bound.prefix, bound.inclusive)


def _start_bound(edge: _Edge) -> Bound | None:
    return Bound(edge.prefix, not edge.after) if edge.prefix else None


def _end_bound(edge: _Edge) -> Bound | None:
    return Bound(edge.prefix, edge.after) if edge.prefix else None


class RangeIndex:
    """Range tombstones in normal form, to be asked which of them covers a row."""

    def __init__(self, schema: TableSchema, tombstones: Iterable[RangeTombstone]) -> None:
        """`tombstones` are in normal form."""
        self._schema = schema
        self._tombstones = list(tombstones)
        self._starts = [_start(tombstone.start).position(schema) for tombstone in self._tombstones]

    def covering(self, key: Key) -> Microseconds | None:
        """The timestamp (µs) at which the row of a whole clustering key is deleted; None if no range covers it."""
        place = bisect_right(self._starts, _position(self._schema, key, 0)) - 1
        if place < 0 or not self._tombstones[place].covers(self._schema, key):
            return None
        return self._tombstones[place].timestamp
