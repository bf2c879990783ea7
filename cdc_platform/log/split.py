"""How one mutation becomes changes of one timestamp each: what rows of one kind cannot tell is taken apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cdc_platform.clock import ONE_US, Microseconds
from cdc_platform.cql.mutation import Cell, CollectionChange, ColumnChange, ColumnChanges, Marker, Mutation
from cdc_platform.cql.ranges import Key, RangeTombstone, normal_form
from cdc_platform.cql.types import Value

_Time = tuple[Microseconds, int]
"""A timestamp and a TTL (s)."""


@dataclass(frozen=True, slots=True)
class Upsert:
    """Columns written to one row: `key` None for the static row; `ttl` in seconds, 0 for none; `inserted` by INSERT."""

    key: Key | None
    ttl: int
    inserted: bool
    columns: ColumnChanges


@dataclass(slots=True)
class Changes:
    """All that a mutation does at one timestamp (µs), in the order in which the log tells it.

    `deletions_first` says that row deletions come in front of the upserts, not behind them.
    """

    timestamp: Microseconds
    upserts: list[Upsert] = field(default_factory=list)
    row_deletions: list[Key] = field(default_factory=list)
    ranges: list[RangeTombstone] = field(default_factory=list)
    partition_deleted: bool = False
    deletions_first: bool = False


def split(mutation: Mutation) -> list[Changes]:
    """The changes of a mutation, one a timestamp, in ascending order; none for a mutation that does nothing.

    At one timestamp come static cells, inserts, other updates, row deletions, ranges, the partition; parts of a row by
    ascending TTL. A tombstone of a collection belongs to the microsecond after it, without TTL. A mutation that needs
    no splitting keeps its rows in clustering order: deleted, inserted or not.
    """
    ranges = normal_form(mutation.schema, mutation.range_tombstones)
    times = _times(mutation, ranges)
    if not _should_split(mutation, ranges, times):
        return _whole(mutation, ranges, times)
    return _taken_apart(mutation, ranges)


def _should_split(mutation: Mutation, ranges: list[RangeTombstone], times: set[_Time]) -> bool:
    """Whether a mutation is more than one timestamp, one TTL and one kind of change; `ranges` in normal form.

    Rows are looked at in clustering order: deletions of rows may stand in front of what is written to others, but not
    behind it; live elements of a collection are a reason as soon as a row before them, or their own, has a marker,
    since only a whole overwrite can be an INSERT (cdc/split.cc, should_split_visitor).
    """
    if len(times) > 1:
        return True
    clustered = bool(mutation.rows or mutation.row_tombstones)
    kinds = (mutation.static, clustered, ranges, mutation.partition_tombstone is not None)
    return sum(map(bool, kinds)) > 1 or _deletes_behind(mutation) or _adds_behind_a_marker(mutation)


def _deletes_behind(mutation: Mutation) -> bool:
    """Whether a row is deleted that does not lie before all rows that are written to."""
    if not mutation.rows or not mutation.row_tombstones:
        return False
    order = mutation.schema.clustering_order
    return max(map(order, mutation.row_tombstones)) >= min(map(order, mutation.rows))


def _adds_behind_a_marker(mutation: Mutation) -> bool:
    if all(row.marker is None for row in mutation.rows.values()):
        return False
    marked = False
    for key in _in_order(mutation, mutation.rows):
        row = mutation.rows[key]
        marked = marked or row.marker is not None
        if marked and _adds_elements(row.cells):
            return True
    return False


def _adds_elements(columns: ColumnChanges) -> bool:
    collections = (change for change in columns.values() if isinstance(change, CollectionChange))
    return any(not cell.dead for change in collections for cell in change.elements.values())


def _times(mutation: Mutation, ranges: list[RangeTombstone]) -> set[_Time]:
    """The (timestamp, TTL) of everything in a mutation."""
    times = {(timestamp, 0) for timestamp in mutation.row_tombstones.values()}
    times.update((tombstone.timestamp, 0) for tombstone in ranges)
    if mutation.partition_tombstone is not None:
        times.add((mutation.partition_tombstone, 0))
    _add_times(times, mutation.static)
    for row in mutation.rows.values():
        if row.marker is not None:
            times.add((row.marker.timestamp, row.marker.ttl))
        _add_times(times, row.cells)
    return times


def _add_times(times: set[_Time], columns: ColumnChanges) -> None:
    for change in columns.values():
        if isinstance(change, Cell):
            times.add(_time_of(change))
            continue
        if change.tombstone is not None:
            times.add((change.tombstone + ONE_US, 0))
        times.update(map(_time_of, change.elements.values()))


def _time_of(cell: Cell) -> _Time:
    return cell.timestamp, 0 if cell.dead else cell.ttl


def _whole(mutation: Mutation, ranges: list[RangeTombstone], times: set[_Time]) -> list[Changes]:
    """The changes of a mutation of one timestamp and TTL."""
    if not times:
        return []
    ((timestamp, ttl),) = times
    upserts = [Upsert(None, ttl, False, mutation.static)] if mutation.static else []
    upserts += [
        Upsert(key, ttl, mutation.rows[key].marker is not None, mutation.rows[key].cells)
        for key in _in_order(mutation, mutation.rows)
    ]
    deletions = _in_order(mutation, mutation.row_tombstones)
    return [Changes(timestamp, upserts, deletions, ranges, mutation.partition_tombstone is not None, bool(upserts))]


def _in_order(mutation: Mutation, keys: Mapping[Key, object]) -> list[Key]:
    return sorted(keys, key=mutation.schema.clustering_order)


def _taken_apart(mutation: Mutation, ranges: list[RangeTombstone]) -> list[Changes]:
    by_time: dict[Microseconds, Changes] = {}
    static, inserts, updates = _upserts(mutation)
    for timestamp, upsert in (*static, *inserts, *updates):
        _at(by_time, timestamp).upserts.append(upsert)
    for key in _in_order(mutation, mutation.row_tombstones):
        _at(by_time, mutation.row_tombstones[key]).row_deletions.append(key)
    for tombstone in ranges:
        _at(by_time, tombstone.timestamp).ranges.append(tombstone)
    if mutation.partition_tombstone is not None:
        _at(by_time, mutation.partition_tombstone).partition_deleted = True
    return [by_time[timestamp] for timestamp in sorted(by_time)]


def _at(by_time: dict[Microseconds, Changes], timestamp: Microseconds) -> Changes:
    return by_time.setdefault(timestamp, Changes(timestamp))


_Parts = list[tuple[Microseconds, Upsert]]
"""Upserts with their timestamps (µs)."""


def _upserts(mutation: Mutation) -> tuple[_Parts, _Parts, _Parts]:
    """The static updates, the inserts and the other updates of a mutation, each in the order of the log."""
    static = [(time, Upsert(None, ttl, False, part)) for (time, ttl), part in _by_time(mutation.static, None)]
    inserts: _Parts = []
    updates: _Parts = []
    for key in _in_order(mutation, mutation.rows):
        row = mutation.rows[key]
        inserted = None if row.marker is None else (row.marker.timestamp, row.marker.ttl)
        for time, columns in _by_time(row.cells, row.marker):
            timestamp, ttl = time
            if time != inserted:
                updates.append((timestamp, Upsert(key, ttl, False, columns)))
                continue
            apart = {name: change for name, change in columns.items() if _only_elements(change)}
            with_marker = {name: change for name, change in columns.items() if name not in apart}
            inserts.append((timestamp, Upsert(key, ttl, True, with_marker)))
            if apart:
                updates.append((timestamp, Upsert(key, ttl, False, apart)))
    return static, inserts, updates


def _only_elements(change: ColumnChange) -> bool:
    """Whether it is what no INSERT can do: elements of a collection without the collection's tombstone."""
    return isinstance(change, CollectionChange) and change.tombstone is None


def _by_time(columns: ColumnChanges, marker: Marker | None) -> list[tuple[_Time, dict[str, ColumnChange]]]:
    """The columns of a row by ascending (timestamp, TTL); the marker's has a part even if it is empty."""
    parts: dict[_Time, dict[str, ColumnChange]] = {}
    if marker is not None:
        parts[marker.timestamp, marker.ttl] = {}
    for name, change in columns.items():
        for time, part in _parts_of(change).items():
            parts.setdefault(time, {})[name] = part
    return sorted(parts.items(), key=lambda part: part[0])


def _parts_of(change: ColumnChange) -> dict[_Time, ColumnChange]:
    if isinstance(change, Cell):
        return {_time_of(change): change}
    tombstones = {} if change.tombstone is None else {(change.tombstone + ONE_US, 0): change.tombstone}
    elements: dict[_Time, dict[Value, Cell]] = {}
    for key, cell in change.elements.items():
        elements.setdefault(_time_of(cell), {})[key] = cell
    times = dict.fromkeys((*tombstones, *elements))
    return {time: CollectionChange(tombstones.get(time), elements.get(time, {})) for time in times}
