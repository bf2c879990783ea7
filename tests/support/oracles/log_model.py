"""A second implementation of the base table: one cell at a time, last write wins, deletions checked row by row.

It is written from the rules alone and shares only the classes of mutations with the platform.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

from cdc_platform.cql import (
    Cell,
    CollectionChange,
    CqlType,
    ListType,
    MapType,
    Mutation,
    RangeTombstone,
    SetType,
    UserType,
)

Best = tuple[int, bool, int, bytes]
"""The order of two cells: timestamp, dead, expiry, bytes.

This is compare_atomic_cell_for_merge of ScyllaDB's mutation/atomic_cell.cc. The TTL replaces the expiry, with 0 for
none: both cells have one timestamp, and a cell that expires wins over one that does not.
"""


def encoded(kind: CqlType, value: Any) -> bytes:
    """Return a value in the CQL protocol, for the types that the tests draw."""
    if value is None:
        return b""
    match kind:
        case MapType():
            parts = [part for key, inner in value for part in (encoded(kind.key, key), encoded(kind.value, inner))]
            return struct.pack(">i", len(value)) + b"".join(map(_sized, parts))
        case SetType() | ListType():
            return struct.pack(">i", len(value)) + b"".join(_sized(encoded(kind.element, part)) for part in value)
        case UserType():
            parts = zip(kind.fields, value, strict=True)
            return b"".join(b"\xff" * 4 if part is None else _sized(encoded(field[1], part)) for field, part in parts)
    return value.encode() if isinstance(value, str) else struct.pack(">i", value)


def _sized(part: bytes) -> bytes:
    return struct.pack(">i", len(part)) + part


def _best(kind: CqlType, one: Cell | None, other: Cell) -> Cell:
    return other if one is None or _rank(kind, one) < _rank(kind, other) else one


def _rank(kind: CqlType, cell: Cell) -> Best:
    if cell.dead:
        return cell.timestamp, True, 0, b""
    return cell.timestamp, False, cell.ttl, encoded(kind, cell.value)


def _element_kind(kind: CqlType, element: Any) -> CqlType:
    return kind.parts[element] if isinstance(kind, UserType) else kind.parts[-1]


@dataclass
class ModelPartition:
    """A partition: every cell with its winning write so far, and every deletion that was ever sent.

    `types` are the columns' types by name, `descending` has a flag for each clustering column.
    """

    types: dict[str, CqlType]
    descending: tuple[bool, ...]
    partition: int | None = None
    ranges: list[RangeTombstone] = field(default_factory=list)
    rows: dict[tuple, int] = field(default_factory=dict)
    markers: dict[tuple, tuple[int, int]] = field(default_factory=dict)
    cells: dict[tuple, Cell] = field(default_factory=dict)
    tombstones: dict[tuple, int] = field(default_factory=dict)
    elements: dict[tuple, Cell] = field(default_factory=dict)

    def apply(self, mutation: Mutation) -> None:
        """Apply a write."""
        if mutation.partition_tombstone is not None:
            self.partition = max(mutation.partition_tombstone, self.partition or mutation.partition_tombstone)
        self.ranges += mutation.range_tombstones
        for key, when in mutation.row_tombstones.items():
            self.rows[key] = max(when, self.rows.get(key, when))
        self._columns(None, mutation.static)
        for key, row in mutation.rows.items():
            self._columns(key, row.cells)
            if row.marker is not None:
                marker = (row.marker.timestamp, row.marker.ttl)
                self.markers[key] = max(marker, self.markers.get(key, marker))

    def _columns(self, key: tuple | None, columns: Any) -> None:
        for name, change in columns.items():
            position, kind = (key, name), self.types[name]
            if isinstance(change, CollectionChange):
                if change.tombstone is not None:
                    self.tombstones[position] = max(change.tombstone, self.tombstones.get(position, change.tombstone))
                for element, cell in change.elements.items():
                    current = self.elements.get((*position, element))
                    self.elements[*position, element] = _best(_element_kind(kind, element), current, cell)
            else:
                self.cells[position] = _best(kind, self.cells.get(position), change)

    def deleted(self, key: tuple | None) -> int | None:
        """Return the time up to which a row (None: the static row) is deleted."""
        times = [self.partition]
        if key is not None:
            times.append(self.rows.get(key))
            times += [tombstone.timestamp for tombstone in self.ranges if self._inside(key, tombstone)]
        return max((time for time in times if time is not None), default=None)

    def _inside(self, key: tuple, tombstone: RangeTombstone) -> bool:
        start, end = tombstone.start, tombstone.end
        after = start is None or self._compare(key, start.prefix) > (0 if not start.inclusive else -1)
        return after and (end is None or self._compare(key, end.prefix) < (0 if not end.inclusive else 1))

    def _compare(self, key: tuple, prefix: tuple) -> int:
        for own, bound, descending in zip(key, prefix, self.descending, strict=False):
            if own != bound:
                return -1 if (own < bound) != descending else 1
        return 0

    def contents(self) -> dict[tuple, tuple]:
        """Return the cells (also dead ones), markers and collection tombstones that no tombstone covers."""
        remaining: dict[tuple, tuple] = {}
        for (key, name), cell in self.cells.items():
            if self._left(cell.timestamp, self.deleted(key)):
                remaining["cell", key, name] = _shown(cell)
        for (key, name), when in self.tombstones.items():
            if self._left(when, self.deleted(key)):
                remaining["tombstone", key, name] = (when,)
        for (key, name, element), cell in self.elements.items():
            if self._left(cell.timestamp, self.deleted(key)) and self._left(
                cell.timestamp, self.tombstones.get((key, name))
            ):
                remaining["element", key, name, element] = _shown(cell)
        for key, marker in self.markers.items():
            if self._left(marker[0], self.deleted(key)):
                remaining["marker", key] = marker
        return remaining

    @staticmethod
    def _left(when: int, deleted: int | None) -> bool:
        return deleted is None or when > deleted

    def select(self, now_us: int) -> dict[tuple | None, dict[str, Any]]:
        """Return the live rows with their values by column; collections are {element: value}."""
        rows: dict[tuple | None, dict[str, Any]] = {}
        for position, part in self.contents().items():
            if position[0] == "tombstone" or (position[0] != "marker" and part[1]):
                continue
            when, ttl = (part[0], part[-1])
            if ttl and when + ttl * 1_000_000 <= now_us:
                continue
            row = rows.setdefault(position[1], {})
            if position[0] == "cell":
                row[position[2]] = part[2]
            elif position[0] == "element":
                row.setdefault(position[2], {})[position[3]] = part[2]
        return rows


def _shown(cell: Cell) -> tuple:
    return cell.timestamp, cell.dead, None if cell.dead else cell.value, 0 if cell.dead else cell.ttl


@dataclass
class ImageModel:
    """Images as ScyllaDB makes them (cdc/log.cc): the rows as read once, with each row of the log applied in turn.

    `rows` are the values of the rows that the batch names, by clustering key and None for the static row, as
    `ModelPartition.select` returns them; `types` are the columns' types by name. Timestamps are ignored.
    """

    types: dict[str, CqlType]
    rows: dict[tuple | None, dict[str, Any]]
    static_known: bool

    def tell(self, key: tuple | None, columns: dict[str, tuple[Any, bool, tuple]]) -> None:
        """Apply a row of operation 1 or 2; columns are (value, whether it was deleted, deleted elements).

        Values are those of the log. By process_row_visitor a deletion clears the value and elements are added to it. A
        column without remaining elements is empty and not null, but user types always have a value.
        """
        self.static_known = self.static_known or key is None
        row = self.rows.setdefault(key, {})
        for name, (value, deleted, removed) in columns.items():
            kind = self.types[name]
            if not kind.multicell:
                row[name] = value
                continue
            previous = None if deleted else row.get(name)
            if value is None and (previous is None or not removed):
                row[name] = None
                continue
            merged = {**(previous or {}), **by_element(kind, value)}
            row[name] = {element: inner for element, inner in merged.items() if element not in removed}

    def forget(self, keys: list[tuple]) -> None:
        """Remove the images of deleted rows."""
        for key in keys:
            self.rows.pop(key, None)

    def image(self, key: tuple | None) -> dict[str, Any] | None:
        """Return the known columns of a row that have a value; None if it has no image."""
        if key not in self.rows and not (key is None and self.static_known):
            return None
        return {name: value for name, value in self.rows.get(key, {}).items() if value is not None}


def by_element(kind: CqlType, value: Any) -> dict[Any, Any]:
    """Return the elements of a value of the log by their keys."""
    if value is None:
        return {}
    if isinstance(kind, UserType):
        return {index: part for index, part in enumerate(value) if part is not None}
    return dict.fromkeys(value) if isinstance(kind, SetType) else dict(value)
