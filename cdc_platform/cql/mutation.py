"""What a write does to one partition: cells, markers and tombstones with their timestamps, and how writes merge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cdc_platform.clock import Microseconds
from cdc_platform.cql.ranges import Key, RangeTombstone, normal_form
from cdc_platform.cql.schema import TableSchema, element_value_type
from cdc_platform.cql.types import CqlType, Value


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
    """What happens to a non-frozen collection or user type: a tombstone (µs, None without one), and its elements.

    Keys of elements: map keys, set elements, the timeuuids of a list, the field indices of a user type.
    """

    tombstone: Microseconds | None = None
    elements: Mapping[Value, Cell] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Marker:
    """The row marker that an INSERT leaves: `timestamp` in µs, `ttl` in seconds, 0 for never."""

    timestamp: Microseconds
    ttl: int = 0


ColumnChange = Cell | CollectionChange
ColumnChanges = Mapping[str, ColumnChange]


@dataclass(frozen=True, slots=True)
class RowChange:
    """What happens to one clustered row: the marker of an INSERT, and columns by name."""

    marker: Marker | None = None
    cells: ColumnChanges = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Mutation:
    """Everything that one write, or one batch, does to a partition."""

    schema: TableSchema
    partition_key: Key
    partition_tombstone: Microseconds | None = None
    row_tombstones: Mapping[Key, Microseconds] = field(default_factory=dict)
    range_tombstones: Sequence[RangeTombstone] = ()
    static: ColumnChanges = field(default_factory=dict)
    rows: Mapping[Key, RowChange] = field(default_factory=dict)


def merge(mutations: Iterable[Mutation]) -> Mutation:
    """The one mutation that several of the same partition come to, by last write wins.

    Of two cells the later wins; at the same time the dead one, else the one that expires, else the one that expires
    later, else the one with the larger serialized value (mutation/atomic_cell.cc, compare_atomic_cell_for_merge; a TTL
    counts from the timestamp, which is all that a log tells of it). Elements that a tombstone of their collection
    covers are gone; rows that a row, range or partition tombstone covers stay, since the log tells of both. Range
    tombstones come to their normal form, see `ranges`. The schema is that of the last mutation.

    Raises:
        ValueError: there is no mutation, or they are of different partitions.
    """
    given = list(mutations)
    if not given:
        raise ValueError("there is nothing to merge")
    first = given[0]
    if not all(_of_one_partition(first, other) for other in given[1:]):
        raise ValueError("only mutations of one partition of one table merge")
    if len(given) == 1 and not first.range_tombstones:
        return first
    schema = given[-1].schema
    static = dict(first.static)
    rows = dict(first.rows)
    row_tombstones = dict(first.row_tombstones)
    for mutation in given[1:]:
        static = _merged_columns(schema, static, mutation.static)
        for key, change in mutation.rows.items():
            rows[key] = _merged_rows(schema, rows[key], change) if key in rows else change
        for key, timestamp in mutation.row_tombstones.items():
            row_tombstones[key] = max(timestamp, row_tombstones.get(key, timestamp))
    return Mutation(
        schema,
        first.partition_key,
        later(mutation.partition_tombstone for mutation in given),
        row_tombstones,
        tuple(normal_form(schema, [tombstone for mutation in given for tombstone in mutation.range_tombstones])),
        static,
        rows,
    )


def _of_one_partition(one: Mutation, other: Mutation) -> bool:
    tables = one.schema is other.schema or one.schema.full_name == other.schema.full_name
    return tables and one.partition_key == other.partition_key


def later(timestamps: Iterable[Microseconds | None]) -> Microseconds | None:
    """The latest of the timestamps that there are; None if there is none."""
    given = [timestamp for timestamp in timestamps if timestamp is not None]
    return max(given) if given else None


def newer_cell(kind: CqlType | None, one: Cell, other: Cell) -> Cell:
    """The cell that wins; `kind` is the type of the value, None where cells have none."""
    if one.timestamp != other.timestamp:
        return one if one.timestamp > other.timestamp else other
    if one.dead or other.dead:
        return one if one.dead else other
    if one.ttl != other.ttl or kind is None:
        return max(one, other, key=lambda cell: cell.ttl)
    return max(one, other, key=lambda cell: kind.to_bytes(cell.value))


def newer_marker(one: Marker, other: Marker) -> Marker:
    """The marker that wins: the later one, else the one with the longer TTL, where none counts as the shortest."""
    return max(one, other, key=lambda marker: (marker.timestamp, marker.ttl))


def _merged_rows(schema: TableSchema, one: RowChange, other: RowChange) -> RowChange:
    markers = [row.marker for row in (one, other) if row.marker is not None]
    marker = newer_marker(*markers) if len(markers) == 2 else next(iter(markers), None)
    return RowChange(marker, _merged_columns(schema, one.cells, other.cells))


def _merged_columns(schema: TableSchema, one: ColumnChanges, other: ColumnChanges) -> dict[str, ColumnChange]:
    merged = dict(one)
    for name, change in other.items():
        mine = merged.get(name)
        if mine is None:
            merged[name] = change
        elif isinstance(mine, Cell) and isinstance(change, Cell):
            merged[name] = newer_cell(schema.column(name).type, mine, change)
        elif isinstance(mine, CollectionChange) and isinstance(change, CollectionChange):
            merged[name] = _merged_collections(schema.column(name).type, mine, change)
        else:
            raise ValueError(f"column {name!r} is once atomic and once a collection")
    return merged


def _merged_collections(kind: CqlType, one: CollectionChange, other: CollectionChange) -> CollectionChange:
    tombstone = later((one.tombstone, other.tombstone))
    elements = dict(one.elements)
    for key, cell in other.elements.items():
        mine = elements.get(key)
        elements[key] = cell if mine is None else newer_cell(element_value_type(kind, key), mine, cell)
    if tombstone is not None:
        elements = {key: cell for key, cell in elements.items() if cell.timestamp > tombstone}
    return CollectionChange(tombstone, elements)
