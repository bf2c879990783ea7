"""The base table once more: one cell at a time, last write wins, deletions asked for row by row.

Written from the rules alone; shares no code with the platform but the classes that carry a mutation.
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
"""What decides between two cells: timestamp, dead, expiry, bytes.

It is compare_atomic_cell_for_merge of ScyllaDB's mutation/atomic_cell.cc. The TTL stands for the expiry, 0 for none:
both cells have one timestamp, and one that expires beats one that does not.
"""


def encoded(kind: CqlType, value: Any) -> bytes:
    """A value as the CQL protocol writes it; of the types that the tests draw."""
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
    """A partition: every cell with its best write so far, and every deletion that was ever sent.

    `types` are the columns' by name, `descending` says it of each clustering column.
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
        """Let a write take effect."""
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
            place, kind = (key, name), self.types[name]
            if isinstance(change, CollectionChange):
                if change.tombstone is not None:
                    self.tombstones[place] = max(change.tombstone, self.tombstones.get(place, change.tombstone))
                for element, cell in change.elements.items():
                    mine = self.elements.get((*place, element))
                    self.elements[*place, element] = _best(_element_kind(kind, element), mine, cell)
            else:
                self.cells[place] = _best(kind, self.cells.get(place), change)

    def deleted(self, key: tuple | None) -> int | None:
        """The time up to which a row (None: the static one) is deleted."""
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
        for mine, theirs, descending in zip(key, prefix, self.descending, strict=False):
            if mine != theirs:
                return -1 if (mine < theirs) != descending else 1
        return 0

    def contents(self) -> dict[tuple, tuple]:
        """All that tombstones leave of cells, markers and collections' tombstones, dead cells too, by place."""
        found: dict[tuple, tuple] = {}
        for (key, name), cell in self.cells.items():
            if self._left(cell.timestamp, self.deleted(key)):
                found["cell", key, name] = _shown(cell)
        for (key, name), when in self.tombstones.items():
            if self._left(when, self.deleted(key)):
                found["tombstone", key, name] = (when,)
        for (key, name, element), cell in self.elements.items():
            if self._left(cell.timestamp, self.deleted(key)) and self._left(
                cell.timestamp, self.tombstones.get((key, name))
            ):
                found["element", key, name, element] = _shown(cell)
        for key, marker in self.markers.items():
            if self._left(marker[0], self.deleted(key)):
                found["marker", key] = marker
        return found

    @staticmethod
    def _left(when: int, deleted: int | None) -> bool:
        return deleted is None or when > deleted

    def select(self, now_us: int) -> dict[tuple | None, dict[str, Any]]:
        """The rows that are alive with their values by column; collections as {element: value}."""
        rows: dict[tuple | None, dict[str, Any]] = {}
        for place, part in self.contents().items():
            if place[0] == "tombstone" or (place[0] != "marker" and part[1]):
                continue
            when, ttl = (part[0], part[-1])
            if ttl and when + ttl * 1_000_000 <= now_us:
                continue
            row = rows.setdefault(place[1], {})
            if place[0] == "cell":
                row[place[2]] = part[2]
            elif place[0] == "element":
                row.setdefault(place[2], {})[place[3]] = part[2]
        return rows


def _shown(cell: Cell) -> tuple:
    return cell.timestamp, cell.dead, None if cell.dead else cell.value, 0 if cell.dead else cell.ttl


@dataclass
class ImageModel:
    """Images as ScyllaDB makes them (cdc/log.cc): what was read once, and each row of the log put over it in turn.

    `rows` are the values of the rows that the batch names, by clustering key and None for the static one, as
    `ModelPartition.select` has them; `types` are the columns' by name. Timestamps play no part.
    """

    types: dict[str, CqlType]
    rows: dict[tuple | None, dict[str, Any]]
    static_known: bool

    def tell(self, key: tuple | None, columns: dict[str, tuple[Any, bool, tuple]]) -> None:
        """A row of operation 1 or 2: of each touched column the value, whether it was deleted, the elements that were.

        Values as the log has them. process_row_visitor: a deletion forgets, elements come on top, a column of which
        nothing is left is empty and not null; but user types always have a value.
        """
        self.static_known = self.static_known or key is None
        row = self.rows.setdefault(key, {})
        for name, (value, deleted, gone) in columns.items():
            kind = self.types[name]
            if not kind.multicell:
                row[name] = value
                continue
            known = None if deleted else row.get(name)
            if value is None and (known is None or not gone):
                row[name] = None
                continue
            merged = {**(known or {}), **by_element(kind, value)}
            row[name] = {element: inner for element, inner in merged.items() if element not in gone}

    def forget(self, keys: list[tuple]) -> None:
        """Rows that were deleted: they have no image any more."""
        for key in keys:
            self.rows.pop(key, None)

    def image(self, key: tuple | None) -> dict[str, Any] | None:
        """What is known of a row, columns without a value left out; None where it has no image."""
        if key not in self.rows and not (key is None and self.static_known):
            return None
        return {name: value for name, value in self.rows.get(key, {}).items() if value is not None}


def by_element(kind: CqlType, value: Any) -> dict[Any, Any]:
    """The elements of a value of the log by what tells them apart."""
    if value is None:
        return {}
    if isinstance(kind, UserType):
        return {index: part for index, part in enumerate(value) if part is not None}
    return dict.fromkeys(value) if isinstance(kind, SetType) else dict(value)
