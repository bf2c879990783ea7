"""A random table on the stand-in that is written to with its log: both with one timestamp, by the rules alone.

The log rows of a statement are specified here, independent of the platform's own log.
"""

from __future__ import annotations

import json
import os
import random
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa
from cassandra.util import Date
from support.standin.world import World

from cdc_platform.clock import Milliseconds, us_from_ms
from cdc_platform.cql import (
    INT,
    TEXT,
    CdcOptions,
    Column,
    CqlType,
    ListType,
    MapType,
    SetType,
    TableSchema,
    TupleType,
    UserType,
)
from cdc_platform.cql.types import get_scalar_type
from cdc_platform.delta import tokens_from_keys
from cdc_platform.generations import StreamSet, TopologyDescription

UT = UserType("shop", "told", (("a", INT), ("b", TEXT)))
TIMESTAMP, DATE, DECIMAL, BLOB = map(get_scalar_type, ("timestamp", "date", "decimal", "blob"))
PAIR = TupleType((TIMESTAMP, TEXT))
KEYS: tuple[CqlType, ...] = (INT, INT, TEXT, TIMESTAMP, DATE, DECIMAL, BLOB, PAIR)
TYPES: tuple[CqlType, ...] = (
    INT, TEXT, MapType(INT, TEXT), SetType(INT), ListType(INT), UT, MapType(INT, INT, True), ListType(TEXT, True),
    TIMESTAMP, DATE, DECIMAL, BLOB, PAIR, MapType(DATE, TIMESTAMP), SetType(DATE), ListType(TIMESTAMP),
    MapType(TIMESTAMP, DATE, True),
)  # fmt: skip
VALUES: Mapping[CqlType, Sequence[Any]] = {
    INT: (0, 1, 2),
    TEXT: ("a", "b", "it's"),
    TIMESTAMP: (0, 253402300800000, 253402300800001, -(2**63)),
    DATE: (Date(0), Date(2**31 - 1), Date(2**31 - 2), Date(-(2**31))),
    DECIMAL: (Decimal("1.5"), Decimal("-3"), Decimal("1e-2147483")),
    BLOB: (b"\x00", b"\xff\x00", b"\x01"),
}
"""The written values. Some dates and timestamps are equal for every reader of Delta, but differ in CQL."""
HISTORIES = int(os.environ.get("CDC_PLATFORM_LIVE_HISTORIES", "1"))
"""The number of histories that are drawn for each property of such tables."""
_TICKS = 0x01B21DD213814000
Logged = list[dict[str, Any]]


def drawn(dice: random.Random, delta: Literal["full", "keys"] = "full") -> TableSchema:
    """Return a table of any shape: keys of one or two columns, with or without rows, static columns, any of `TYPES`."""
    columns = [Column(f"p{index}", dice.choice(KEYS), "partition") for index in range(dice.randint(1, 2))]
    clustering = dice.randint(0, 2)
    columns += [
        Column(f"k{index}", dice.choice(KEYS), "clustering", dice.random() < 0.5) for index in range(clustering)
    ]
    if clustering:
        columns += [Column(f"s{index}", dice.choice(TYPES), "static") for index in range(dice.randint(0, 2))]
    columns += [Column(f"v{index}", kind) for index, kind in enumerate(dice.sample(TYPES, dice.randint(1, 4)))]
    return TableSchema("shop", "t", tuple(columns), CdcOptions(enabled=True, ttl=0, delta=delta))


@dataclass
class LiveTable:
    """The table and its log. `generations` are by time (ms)."""

    world: World
    schema: TableSchema
    generations: Mapping[Milliseconds, TopologyDescription | StreamSet]
    dice: random.Random
    logged: int = 0
    times: set[int] = field(default_factory=set)
    _of_lists: dict[str, int] = field(default_factory=dict)

    def make(self) -> LiveTable:
        """Create the type and both tables, as of the first generation's time."""
        self.world.run("CREATE TYPE IF NOT EXISTS shop.told (a int, b text)")
        self.world.logged_table(self.schema, min(self.generations))
        return self

    def write(self, time_us: int, *, log: bool = True, ttl: int = 0) -> None:
        """Make one random write at a time (µs, each time once) to the table and, with `log`, to the log."""
        assert time_us not in self.times
        self.times.add(time_us)
        schema, dice = self.schema, self.dice
        kinds = ["insert"] * 4 + ["update"] * 4 + ["columns", "partition"]
        kinds += ["row", "range", "range"] if schema.clustering_key else []
        partition = {column.name: _value(column.type, dice) for column in schema.partition_key}
        text, rows = getattr(self, f"_{dice.choice(kinds)}")(partition, time_us, ttl)
        self.world.run(text)
        if log and rows:
            self.log(partition, time_us, rows)

    def log(self, partition: dict[str, Any], time_us: int, rows: Logged) -> None:
        """Log rows of one batch of a partition; the rows omit the columns that all of them share."""
        key = tuple(_plain(column.type, partition[column.name]) for column in self.schema.partition_key)
        token = tokens_from_keys(pa.array([self.schema.partition_bytes(key)], pa.binary()))
        begun = max(time for time in self.generations if us_from_ms(time) <= time_us)
        stream = self.generations[begun].streams_of(token)[0].tobytes()
        head = {"cdc$stream_id": stream, "cdc$time": _uuid(time_us, self.dice), **partition}
        if self.schema.cdc.delta == "keys":
            named = {column.name for column in self.schema.columns if column.is_key} | {"cdc$operation", "cdc$ttl"}
            rows = [
                {name: value for name, value in row.items() if name in named or row["cdc$operation"] in (0, 9)}
                for row in rows
            ]
        full = [
            {**head, "cdc$batch_seq_no": index, "cdc$end_of_batch": True if index == len(rows) - 1 else None, **row}
            for index, row in enumerate(rows)
        ]
        self.world.log_values(self.schema, full)
        self.logged += len(rows)

    def _where(self, key: Mapping[str, Any]) -> str:
        return " AND ".join(f"{name} = {_literal(value)}" for name, value in key.items())

    def _key(self) -> dict[str, Any]:
        return {column.name: _value(column.type, self.dice) for column in self.schema.clustering_key}

    def _some(self, columns: tuple[Column, ...]) -> list[Column]:
        return [column for column in columns if self.dice.random() < 0.5]

    def _insert(self, partition: dict[str, Any], time_us: int, ttl: int) -> tuple[str, Logged]:
        key, changes = self._key(), dict[str, tuple[str, dict[str, Any], dict[str, Any]]]()
        for column in self._some((*self.schema.statics, *self.schema.regulars)):
            changes[column.name] = self._overwrite(column, time_us)
        literals = {name: _literal(value) for name, value in (partition | key).items()}
        literals |= {name: change[0] for name, change in changes.items()}
        text = (
            f"INSERT INTO shop.t ({', '.join(literals)}) VALUES ({', '.join(literals.values())}){_using(time_us, ttl)}"
        )
        return text, self._upsert(key, 2, changes, ttl)

    def _update(self, partition: dict[str, Any], time_us: int, ttl: int) -> tuple[str, Logged]:
        chosen = self._some((*self.schema.statics, *self.schema.regulars)) or [self.dice.choice(self.schema.regulars)]
        changes, texts = {}, list[str]()
        for column in chosen:
            if column.type.multicell and self.dice.random() < 0.6 and self._has_its_place(column, time_us):
                written_text, *rest = self._elements(column, time_us)
                texts.append(written_text)
                changes[column.name] = ("", *rest)
            else:
                changes[column.name] = self._overwrite(column, time_us)
                texts.append(f"{column.name} = {changes[column.name][0]}")
        static = all(column.kind == "static" for column in chosen)
        key = {} if static else self._key()
        where = self._where(partition | key)
        text = f"UPDATE shop.t{_using(time_us, ttl)} SET {', '.join(texts)} WHERE {where}"
        return text, self._upsert(key, 1, changes, ttl)

    def _upsert(self, key: dict[str, Any], operation: int, changes: Mapping[str, Any], ttl: int) -> Logged:
        """Return static columns first, in their own row; expiring and lasting values are separate rows, too."""
        static = {column.name for column in self.schema.statics}
        rows: Logged = []
        for of_static, number in ((True, 1), (False, operation)):
            selected = [change for name, change in changes.items() if (name in static) == of_static]
            live = {name: value for change in selected for name, value in change[1].items()}
            dead = {name: value for change in selected for name, value in change[2].items()}
            row_key = {} if of_static else key
            if not ttl and (live or dead or (number == 2 and not of_static)):
                rows.append({"cdc$operation": number, **row_key, **live, **dead})
            elif ttl:
                if live or (number == 2 and not of_static):
                    rows.append({"cdc$operation": number, "cdc$ttl": ttl, **row_key, **live})
                rows += [{"cdc$operation": 1, **row_key, **dead}] if dead else []
        return rows

    def _overwrite(self, column: Column, time_us: int) -> tuple[str, dict[str, Any], dict[str, Any]]:
        """Return a value or null: its literal, and the live and deleted parts in the log."""
        deleted = {f"cdc$deleted_{column.name}": True}
        if self.dice.random() < 0.2 or not self._has_its_place(column, time_us):
            return "null", {}, deleted
        value = _value(column.type, self.dice)
        if not column.type.multicell:
            return _literal(value), {column.name: value}, {}
        return _literal(value), {column.name: self._in_log(column.type, value, time_us)} if value else {}, deleted

    def _has_its_place(self, column: Column, time_us: int) -> bool:
        """Return True if elements of that time come last in a list, considering the elements written so far.

        ScyllaDB orders elements by the times of their writes, Cassandra by the order in which it receives them.
        """
        if not isinstance(column.type, ListType) or not column.type.multicell:
            return True
        newest = self._of_lists[column.name] = max(time_us, self._of_lists.get(column.name, time_us))
        return time_us == newest

    def _in_log(self, kind: CqlType, value: Any, time_us: int) -> Any:
        if isinstance(kind, ListType):
            return {_uuid(time_us, self.dice, index): element for index, element in enumerate(value)}
        return tuple(value.get(name) for name in kind.field_names) if isinstance(kind, UserType) else value

    def _elements(self, column: Column, time_us: int) -> tuple[str, dict[str, Any], dict[str, Any]]:
        """Write or delete some elements."""
        kind, name, deletes = column.type, column.name, self.dice.random() < 0.4
        value = _value(kind, self.dice) or _value(kind, random.Random(3))
        deleted_name = f"cdc$deleted_elements_{name}"
        if isinstance(kind, ListType):
            value = value or [_value(kind.element, self.dice)]
            return f"{name} = {name} + {_literal(value)}", {name: self._in_log(kind, value, time_us)}, {}
        if isinstance(kind, UserType):
            index = self.dice.randrange(2)
            of, field_name = kind.parts[index], kind.field_names[index]
            if deletes:
                return f"{name}.{field_name} = null", {}, {deleted_name: {index}}
            one = _value(of, self.dice)
            parts = tuple(one if position == index else None for position in range(2))
            return f"{name}.{field_name} = {_literal(one)}", {name: parts}, {}
        if not value:
            one = _value(kind.parts[0], self.dice)
            value = {one: _value(kind.value, self.dice)} if isinstance(kind, MapType) else {one}
        if deletes:
            return f"{name} = {name} - {_literal(set(value))}", {}, {deleted_name: set(value)}
        return f"{name} = {name} + {_literal(value)}", {name: value}, {}

    def _columns(self, partition: dict[str, Any], time_us: int, ttl: int) -> tuple[str, Logged]:
        chosen = self._some(self.schema.regulars) or list(self.schema.regulars[:1])
        key = self._key()
        names = ", ".join(column.name for column in chosen)
        text = f"DELETE {names} FROM shop.t{_using(time_us)} WHERE {self._where(partition | key)}"
        if any(column.type.multicell for column in chosen):
            # DELETE puts the tombstone at the time itself, which the log shows a microsecond later: a row of the next
            # write.
            return self._insert(partition, time_us, ttl)
        return text, [{"cdc$operation": 1, **key, **{f"cdc$deleted_{column.name}": True for column in chosen}}]

    def _partition(self, partition: dict[str, Any], time_us: int, ttl: int) -> tuple[str, Logged]:
        return f"DELETE FROM shop.t{_using(time_us)} WHERE {self._where(partition)}", [{"cdc$operation": 4}]

    def _row(self, partition: dict[str, Any], time_us: int, ttl: int) -> tuple[str, Logged]:
        key = self._key()
        text = f"DELETE FROM shop.t{_using(time_us)} WHERE {self._where(partition | key)}"
        return text, [{"cdc$operation": 3, **key}]

    def _range(self, partition: dict[str, Any], time_us: int, ttl: int) -> tuple[str, Logged]:
        column, sides = self.schema.clustering_key[0], self.dice.choice((">", "<", "><"))
        where, bounds = [self._where(partition)], dict[str, tuple[Any, bool]]()
        for side in sides:
            bounds[side] = _value(column.type, self.dice), self.dice.random() < 0.5
            where.append(f"{column.name} {side}{'=' * bounds[side][1]} {_literal(bounds[side][0])}")
        start, end = ("<", ">") if column.descending else (">", "<")
        rows: Logged = []
        for side, inclusive, exclusive in ((start, 5, 6), (end, 7, 8)):
            value, closed = bounds.get(side, (None, True))
            rows.append({"cdc$operation": inclusive if closed else exclusive, column.name: value})
        return f"DELETE FROM shop.t{_using(time_us)} WHERE {' AND '.join(where)}", rows

    def rows(self) -> dict[tuple[Any, ...], dict[str, Any]]:
        """Return the rows of `SELECT *` on the cluster by key."""
        return by_key(self.schema, self.world.far_rows("SELECT * FROM shop.t"))


def by_key(schema: TableSchema, rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return rows by key, with comparable values: rows of the cluster, or of the lake with their exact values."""
    keys = [column.name for column in schema.columns if column.is_key]
    rows_by_key = {}
    for row in rows:
        beside = dict(row.get("cdc$exact") or ())
        plain = {
            column.name: _plain(column.type, _of_json(column.type, json.loads(beside[column.name])))
            if column.name in beside
            else _plain(column.type, row[column.name])
            for column in schema.columns
        }
        rows_by_key[tuple(plain[name] for name in keys)] = plain
    assert len(rows_by_key) == len(rows)
    return rows_by_key


def _plain(kind: CqlType, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(kind, MapType):
        return sorted((_plain(kind.key, key), _plain(kind.value, inner)) for key, inner in dict(value).items()) or None
    if isinstance(kind, UserType):
        return tuple(value.values()) if isinstance(value, dict) else tuple(value)
    if isinstance(kind, TupleType):
        parts = value.values() if isinstance(value, dict) else value
        return tuple(_plain(of, part) for of, part in zip(kind.components, parts, strict=True))
    if isinstance(kind, SetType | ListType):
        elements = [_plain(kind.element, part) for part in value]
        return (sorted(elements) if isinstance(kind, SetType) else elements) or (None if kind.multicell else [])
    if isinstance(value, Date):
        return value.days_from_epoch
    if isinstance(value, datetime):
        return (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    if isinstance(value, date):
        return value.toordinal() - date(1970, 1, 1).toordinal()
    return Decimal(value) if kind == DECIMAL else value


def _of_json(kind: CqlType, value: Any) -> Any:
    """Return a value of `cdc$exact`, with map keys that are hashable."""
    return {pair[0]: pair[1] for pair in value} if isinstance(kind, MapType) else value


def _value(kind: CqlType, dice: random.Random) -> Any:
    if kind in VALUES:
        return dice.choice(VALUES[kind])
    if isinstance(kind, MapType):
        return {_value(kind.key, dice): _value(kind.value, dice) for _ in range(dice.randrange(3))}
    if isinstance(kind, SetType):
        return {_value(kind.element, dice) for _ in range(dice.randrange(3))}
    if isinstance(kind, ListType):
        return [_value(kind.element, dice) for _ in range(dice.randrange(3))]
    if isinstance(kind, TupleType):
        return tuple(_value(of, dice) for of in kind.components)
    assert isinstance(kind, UserType)
    chosen = [field for field in kind.fields if dice.random() < 0.7] or kind.fields[:1]
    return {name: _value(of, dice) for name, of in chosen}


def _literal(value: Any) -> str:
    if isinstance(value, dict):
        named = all(isinstance(key, str) for key in value)
        return "{" + ", ".join(f"{key if named else _literal(key)}: {_literal(v)}" for key, v in value.items()) + "}"
    if isinstance(value, set):
        return "{" + ", ".join(map(_literal, sorted(value))) + "}"
    if isinstance(value, list | tuple):
        listed = ", ".join(map(_literal, value))
        return f"({listed})" if isinstance(value, tuple) else f"[{listed}]"
    if isinstance(value, Date):
        return str(value.days_from_epoch + 2**31)
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


def _using(time_us: int, ttl: int = 0) -> str:
    return f" USING TIMESTAMP {time_us}" + f" AND TTL {ttl}" * bool(ttl)


def _uuid(time_us: int, dice: random.Random, step: int = 0) -> uuid.UUID:
    """Return a timeuuid of the time plus some units of 100 ns, as ScyllaDB makes one."""
    ticks = time_us * 10 + step + _TICKS
    low = 0x8000_0000_0000_0000 | dice.getrandbits(62)
    high = (ticks & 0xFFFFFFFF) << 32 | (ticks >> 32 & 0xFFFF) << 16 | 0x1000 | ticks >> 48 & 0x0FFF
    return uuid.UUID(int=high << 64 | low)
