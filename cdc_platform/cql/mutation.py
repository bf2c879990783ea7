"""Mutations of one partition: cells, row markers and tombstones with timestamps, the order of ranges, merging."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any, NamedTuple

from cdc_platform.clock import Microseconds
from cdc_platform.cql.schema import TableSchema, get_element_value_type
from cdc_platform.cql.types import CqlType, Value

KeyValues = tuple[Value, ...]
"""The values of key columns, or of a prefix of them, in key order."""


@dataclass(frozen=True, slots=True)
class RangeBound:
    """One end of a range of clustering keys: a prefix of the key, and whether rows with it belong to the range."""

    prefix: KeyValues
    inclusive: bool


@dataclass(frozen=True, slots=True)
class RangeTombstone:
    """A deletion (µs) of all rows between two bounds, in clustering order; None for an open end."""

    start: RangeBound | None
    end: RangeBound | None
    timestamp: Microseconds

    def covers(self, schema: TableSchema, key: KeyValues) -> bool:
        """Return True if the row of a complete clustering key is deleted."""
        position = _position(schema, key, 0)
        return _start_edge(self.start).position(schema) < position < _end_edge(self.end).position(schema)


class _Edge(NamedTuple):
    """A position between rows: before, or after, all rows whose keys begin with `prefix`."""

    prefix: KeyValues
    after: bool

    def position(self, schema: TableSchema) -> Any:
        return _position(schema, self.prefix, 1 if self.after else -1)


def normalize_ranges(schema: TableSchema, tombstones: Iterable[RangeTombstone]) -> list[RangeTombstone]:
    """Return the same deletions as ranges that do not overlap, in clustering order, without empty ranges.

    Where ranges overlap the latest timestamp wins; ranges of one timestamp that overlap or touch are merged.
    """
    ranges = list(tombstones)
    if not ranges:
        return []
    begun: list[tuple[Any, Any, Microseconds]] = []
    edges: dict[Any, _Edge] = {}
    for tombstone in ranges:
        ends = [(edge.position(schema), edge) for edge in (_start_edge(tombstone.start), _end_edge(tombstone.end))]
        if ends[0][0] < ends[1][0]:
            edges.update(ends)
            begun.append((ends[0][0], ends[1][0], tombstone.timestamp))
    begun.sort(key=lambda range_: range_[0], reverse=True)
    pieces: list[tuple[_Edge, _Edge, Microseconds]] = []
    open_ranges: list[tuple[Microseconds, int, Any]] = []
    for low, high in pairwise(sorted(edges)):
        while begun and begun[-1][0] == low:
            _, end, timestamp = begun.pop()
            heappush(open_ranges, (-timestamp, len(begun), end))
        while open_ranges and open_ranges[0][2] <= low:
            heappop(open_ranges)
        if open_ranges:
            _append_range(pieces, edges[low], edges[high], -open_ranges[0][0])
    return [RangeTombstone(_start_bound(start), _end_bound(end), timestamp) for start, end, timestamp in pieces]


def _append_range(
    pieces: list[tuple[_Edge, _Edge, Microseconds]], start: _Edge, end: _Edge, timestamp: Microseconds
) -> None:
    if pieces and pieces[-1][1:] == (start, timestamp):
        start, _, _ = pieces.pop()
    pieces.append((start, end, timestamp))


def _position(schema: TableSchema, prefix: KeyValues, side: int) -> Any:
    """Return the sort key of rows (`side` 0), and of the positions before (-1) and after (1) all rows with a prefix."""
    return (*((0, key) for key in schema.clustering_order(prefix)), (side,))


def _start_edge(bound: RangeBound | None) -> _Edge:
    return _Edge((), False) if bound is None else _Edge(bound.prefix, not bound.inclusive)


def _end_edge(bound: RangeBound | None) -> _Edge:
    return _Edge((), True) if bound is None else _Edge(bound.prefix, bound.inclusive)


def _start_bound(edge: _Edge) -> RangeBound | None:
    return RangeBound(edge.prefix, not edge.after) if edge.prefix else None


def _end_bound(edge: _Edge) -> RangeBound | None:
    return RangeBound(edge.prefix, edge.after) if edge.prefix else None


class RangeTombstoneIndex:
    """Range tombstones in normal form, for looking up the one that covers a row."""

    def __init__(self, schema: TableSchema, tombstones: Iterable[RangeTombstone]) -> None:
        """Index `tombstones`, which are in normal form."""
        self._schema = schema
        self._tombstones = list(tombstones)
        self._starts = [_start_edge(tombstone.start).position(schema) for tombstone in self._tombstones]

    def covering(self, key: KeyValues) -> Microseconds | None:
        """Return when (µs) the row of a complete clustering key is deleted; None if no range covers it."""
        index = bisect_right(self._starts, _position(self._schema, key, 0)) - 1
        if index < 0 or not self._tombstones[index].covers(self._schema, key):
            return None
        return self._tombstones[index].timestamp


@dataclass(frozen=True, slots=True)
class Cell:
    """One atomic value, or its absence, as of a time.

    `timestamp` is in µs, `ttl` in seconds with 0 for a cell that never expires. The live element of a set has no value.
    """

    timestamp: Microseconds
    value: Value = None
    ttl: int = 0
    dead: bool = False


@dataclass(frozen=True, slots=True)
class CollectionChange:
    """A change of a non-frozen collection or user type: a tombstone (µs, None without one), and its elements.

    Keys of elements are map keys, set elements, the timeuuids of a list, or the field indices of a user type.
    """

    tombstone: Microseconds | None = None
    elements: Mapping[Value, Cell] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RowMarker:
    """The row marker that an INSERT leaves: `timestamp` in µs, `ttl` in seconds, 0 for never."""

    timestamp: Microseconds
    ttl: int = 0


ColumnChange = Cell | CollectionChange
ColumnChanges = Mapping[str, ColumnChange]


@dataclass(frozen=True, slots=True)
class RowChange:
    """A change of one clustered row: the marker of an INSERT, and columns by name."""

    marker: RowMarker | None = None
    cells: ColumnChanges = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Mutation:
    """Everything that one write, or one batch, does to a partition."""

    schema: TableSchema
    partition_key: KeyValues
    partition_tombstone: Microseconds | None = None
    row_tombstones: Mapping[KeyValues, Microseconds] = field(default_factory=dict)
    range_tombstones: Sequence[RangeTombstone] = ()
    static: ColumnChanges = field(default_factory=dict)
    rows: Mapping[KeyValues, RowChange] = field(default_factory=dict)


def merge_mutations(mutations: Iterable[Mutation]) -> Mutation:
    """Merge several mutations of one partition into one, by last write wins.

    Of two cells the later one wins. At the same timestamp the dead one wins, else the one that expires, else the one
    that expires later, else the one with the larger serialized value (mutation/atomic_cell.cc,
    compare_atomic_cell_for_merge). A TTL counts from the timestamp, since a log has no other time. Elements covered by
    a tombstone of their collection are removed; rows covered by a row, range or partition tombstone stay, since the log
    has both. Range tombstones are normalized by `normalize_ranges`. The schema is that of the last mutation.

    Raises:
        ValueError: there is no mutation, or they are of different partitions.
    """
    parts = list(mutations)
    if not parts:
        raise ValueError("there is nothing to merge")
    first = parts[0]
    if not all(_is_same_partition(first, other) for other in parts[1:]):
        raise ValueError("only mutations of one partition of one table merge")
    if len(parts) == 1 and not first.range_tombstones:
        return first
    schema = parts[-1].schema
    static = dict(first.static)
    rows = dict(first.rows)
    row_tombstones = dict(first.row_tombstones)
    for mutation in parts[1:]:
        static = _merge_columns(schema, static, mutation.static)
        for key, change in mutation.rows.items():
            rows[key] = _merge_rows(schema, rows[key], change) if key in rows else change
        for key, timestamp in mutation.row_tombstones.items():
            row_tombstones[key] = max(timestamp, row_tombstones.get(key, timestamp))
    return Mutation(
        schema,
        first.partition_key,
        latest_timestamp(mutation.partition_tombstone for mutation in parts),
        row_tombstones,
        tuple(normalize_ranges(schema, [tombstone for mutation in parts for tombstone in mutation.range_tombstones])),
        static,
        rows,
    )


def _is_same_partition(one: Mutation, other: Mutation) -> bool:
    tables = one.schema is other.schema or one.schema.full_name == other.schema.full_name
    return tables and one.partition_key == other.partition_key


def latest_timestamp(timestamps: Iterable[Microseconds | None]) -> Microseconds | None:
    """Return the latest of the timestamps that are not None; None if there is none."""
    known = [timestamp for timestamp in timestamps if timestamp is not None]
    return max(known) if known else None


def _newer_cell(kind: CqlType | None, one: Cell, other: Cell) -> Cell:
    """Return the cell that wins; `kind` is the type of the value, None if cells have none."""
    if one.timestamp != other.timestamp:
        return one if one.timestamp > other.timestamp else other
    if one.dead or other.dead:
        return one if one.dead else other
    if one.ttl != other.ttl or kind is None:
        return max(one, other, key=lambda cell: cell.ttl)
    return max(one, other, key=lambda cell: kind.to_bytes(cell.value))


def _newer_marker(one: RowMarker, other: RowMarker) -> RowMarker:
    """Return the marker that wins: the later one, else the one with the longer TTL, where no TTL counts as shortest."""
    return max(one, other, key=lambda marker: (marker.timestamp, marker.ttl))


def _merge_rows(schema: TableSchema, one: RowChange, other: RowChange) -> RowChange:
    markers = [row.marker for row in (one, other) if row.marker is not None]
    marker = _newer_marker(*markers) if len(markers) == 2 else next(iter(markers), None)
    return RowChange(marker, _merge_columns(schema, one.cells, other.cells))


def _merge_columns(schema: TableSchema, one: ColumnChanges, other: ColumnChanges) -> dict[str, ColumnChange]:
    merged = dict(one)
    for name, change in other.items():
        mine = merged.get(name)
        if mine is None:
            merged[name] = change
        elif isinstance(mine, Cell) and isinstance(change, Cell):
            merged[name] = _newer_cell(schema.column(name).type, mine, change)
        elif isinstance(mine, CollectionChange) and isinstance(change, CollectionChange):
            merged[name] = _merge_collections(schema.column(name).type, mine, change)
        else:
            raise ValueError(f"column {name!r} is once atomic and once a collection")
    return merged


def _merge_collections(kind: CqlType, one: CollectionChange, other: CollectionChange) -> CollectionChange:
    tombstone = latest_timestamp((one.tombstone, other.tombstone))
    elements = dict(one.elements)
    for key, cell in other.elements.items():
        mine = elements.get(key)
        elements[key] = cell if mine is None else _newer_cell(get_element_value_type(kind, key), mine, cell)
    if tombstone is not None:
        elements = {key: cell for key, cell in elements.items() if cell.timestamp > tombstone}
    return CollectionChange(tombstone, elements)
