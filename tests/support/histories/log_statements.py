"""Random CQL for the log: tables and writes as text, each with its effect by the rules, for the model.

The effect of a statement is written here cell by cell, independent of the platform.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st
from support.histories.log_histories import LIST_KEYS, values

from cdc_platform.clock import Microseconds
from cdc_platform.cql import (
    CdcOptions,
    Cell,
    CollectionChange,
    Column,
    CqlType,
    ListType,
    MapType,
    Mutation,
    RangeBound,
    RangeTombstone,
    RowChange,
    RowMarker,
    SetType,
    TableSchema,
    UserType,
)


@dataclass(frozen=True)
class Written:
    """A statement, and its effect on one partition.

    `asks` is the condition of a conditional statement: partition, clustering key, and whether the row must exist.
    `logs` tells for a change of the CDC options whether later writes are logged; it is None for writes. `times` are
    the partitions that the statement writes to, each with its timestamp.
    """

    text: str
    mutations: tuple[Mutation, ...]
    asks: tuple[tuple, tuple, bool] | None = None
    logs: bool | None = None
    times: tuple[tuple[tuple, Microseconds], ...] = ()


OPTIONS = [
    CdcOptions(enabled=True),
    CdcOptions(enabled=True, preimage="true"),
    CdcOptions(enabled=True, preimage="full", postimage=True),
    CdcOptions(enabled=True, postimage=True, ttl=0),
]


def options(cdc: CdcOptions) -> str:
    """Return CDC options as CQL."""
    return (
        f"{{'enabled': {str(cdc.enabled).lower()}, 'preimage': '{cdc.preimage}',"
        f" 'postimage': {str(cdc.postimage).lower()}, 'ttl': {cdc.ttl}}}"
    )


def definition(schema: TableSchema) -> str:
    """Return the script that creates the table."""
    columns = [f"{column.name} {column.type.cql}{' static' * (column.kind == 'static')}" for column in schema.columns]
    partition = ", ".join(column.name for column in schema.partition_key)
    clustering = "".join(f", {column.name}" for column in schema.clustering_key)
    order = ", ".join(f"{column.name} {'DESC' if column.descending else 'ASC'}" for column in schema.clustering_key)
    ordered = f" AND CLUSTERING ORDER BY ({order})" if order else ""
    return (
        "CREATE KEYSPACE ks WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1};\n"
        "CREATE TYPE ks.ut (a int, b text, c int);\n"
        f"CREATE TABLE ks.t ({', '.join(columns)}, PRIMARY KEY (({partition}){clustering}))"
        f" WITH cdc = {options(schema.cdc)}{ordered};\n"
    )


def literal(kind: CqlType, value: Any) -> str:
    """Return a value as a CQL literal."""
    if value is None:
        return "null"
    match kind:
        case MapType():
            return "{" + ", ".join(f"{literal(kind.key, k)}: {literal(kind.value, v)}" for k, v in value) + "}"
        case SetType():
            return "{" + ", ".join(literal(kind.element, part) for part in value) + "}"
        case ListType():
            return "[" + ", ".join(literal(kind.element, part) for part in value) + "]"
        case UserType():
            fields = zip(kind.fields, value, strict=True)
            return (
                "{" + ", ".join(f"{name}: {literal(of, part)}" for (name, of), part in fields if part is not None) + "}"
            )
    return f"'{value}'" if isinstance(value, str) else str(value)


Change = tuple[str, Cell | CollectionChange]
"""The text after SET, and its effect."""


def _elements(kind: CqlType, value: Any, timestamp: Microseconds, ttl: int) -> dict[Any, Cell]:
    if isinstance(kind, SetType):
        return {part: Cell(timestamp, None, ttl) for part in value}
    pairs = enumerate(value) if isinstance(kind, UserType) else value
    return {key: Cell(timestamp, part, ttl) for key, part in pairs if part is not None}


def _overwrites(column: Column, timestamp: Microseconds, ttl: int) -> st.SearchStrategy[Change]:
    """Draw `X = literal` or `X = null`, as in UPDATE and INSERT."""
    kind, name = column.type, column.name
    if not kind.multicell:
        dead = (f"{name} = null", Cell(timestamp, dead=True))
        live = values(kind).map(lambda value: (f"{name} = {literal(kind, value)}", Cell(timestamp, value, ttl)))
        return st.just(dead) | live
    null = (f"{name} = null", CollectionChange(Microseconds(timestamp - 1)))
    if isinstance(kind, ListType):
        return st.just(null) | st.just((f"{name} = []", CollectionChange(Microseconds(timestamp - 1))))
    return st.just(null) | st.tuples(values(kind), st.booleans()).map(
        lambda drawn: (
            f"{name} = {doubled(kind, drawn[0]) if drawn[1] else literal(kind, drawn[0])}",
            CollectionChange(Microseconds(timestamp - 1), _elements(kind, drawn[0], timestamp, ttl)),
        )
    )


def doubled(kind: CqlType, value: Any) -> str:
    """Return a set or map as a literal that repeats each of its elements, with the same meaning."""
    if not isinstance(kind, SetType | MapType):
        return literal(kind, value)
    inner = literal(kind, value)[1:-1]
    return f"{{{inner}, {inner}}}" if inner else "{}"


def _keeps_elements(change: Change) -> bool:
    text, effect = change
    if text.partition(" = ")[2] in ("null", "[]"):
        return False
    return isinstance(effect, CollectionChange) and effect.tombstone is None


def _element_writes(column: Column, timestamp: Microseconds, ttl: int) -> st.SearchStrategy[Change]:
    """Draw writes that only UPDATE can make: to single elements of a collection or user type."""
    kind, name = column.type, column.name

    def one(target: str, of: CqlType, key: Any) -> st.SearchStrategy[Change]:
        return (st.none() | values(of)).map(
            lambda value: (
                f"{target} = {literal(of, value)}",
                CollectionChange(
                    None,
                    {key: Cell(timestamp, value, ttl) if value is not None else Cell(timestamp, dead=True)},
                ),
            )
        )

    def removed(keys: Sequence[Any], of: CqlType) -> Change:
        dead = CollectionChange(None, {key: Cell(timestamp, dead=True) for key in keys})
        return f"{name} = {name} - {{{', '.join(literal(of, key) for key in keys)}}}", dead

    match kind:
        case MapType():
            keys = st.sets(values(kind.key), min_size=1, max_size=2).map(sorted)
            empty = (f"{name} = {name} + {{}}", CollectionChange(None))
            added = (
                values(kind)
                .filter(bool)
                .map(
                    lambda value: (
                        f"{name} = {name} + {literal(kind, value)}",
                        CollectionChange(None, _elements(kind, value, timestamp, ttl)),
                    )
                )
            )
            single = values(kind.key).flatmap(lambda key: one(f"{name}[{literal(kind.key, key)}]", kind.value, key))
            return added | single | keys.map(lambda chosen: removed(chosen, kind.key)) | st.just(empty)
        case SetType():
            parts = values(kind).filter(bool)
            added = parts.map(
                lambda value: (
                    f"{name} = {name} + {literal(kind, value)}",
                    CollectionChange(None, _elements(kind, value, timestamp, ttl)),
                )
            )
            # A set to which nothing is added stays untouched (cql3/sets.cc, adder).
            doubly = parts.map(
                lambda value: (
                    f"{name} += {doubled(kind, value)}",
                    CollectionChange(None, _elements(kind, value, timestamp, ttl)),
                )
            )
            return added | doubly | parts.map(lambda elements: removed(elements, kind.element))
        case ListType():
            return st.sampled_from(LIST_KEYS).flatmap(
                lambda key: one(f"{name}[SCYLLA_TIMEUUID_LIST_INDEX({key})]", kind.element, key)
            )
        case UserType():
            fields = st.sampled_from(list(enumerate(kind.fields)))
            return fields.flatmap(lambda field: one(f"{name}.{field[1][0]}", field[1][1], field[0]))
    raise AssertionError(kind)


def _deletion(column: Column, timestamp: Microseconds) -> Cell | CollectionChange:
    return CollectionChange(timestamp) if column.type.multicell else Cell(timestamp, dead=True)


def _where(columns: Sequence[Column], key: tuple) -> list[str]:
    return [f"{column.name} = {literal(column.type, value)}" for column, value in zip(columns, key, strict=False)]


@dataclass(frozen=True)
class _Drawing:
    """Draws one statement on one partition, at one timestamp."""

    draw: st.DrawFn
    schema: TableSchema
    partition: tuple
    timestamp: Microseconds
    using: bool
    known: tuple[tuple, ...] = ()
    """Clustering keys with which earlier statements wrote rows of the partition."""
    sure: bool = False
    """If True, choose one of those if there is any."""

    def conditional(self) -> Written:
        """Draw a statement that depends on the existence of its row, at the clock's time."""
        kinds = ["insert", "insert", "columns", "update", *(["row"] if self.schema.clustering_key else [])]
        while True:
            kind = self.draw(st.sampled_from(kinds))
            written = replace(self, sure=kind == "insert")._drawn([kind])
            keys = {key for mutation in written.mutations for key in (*mutation.rows, *mutation.row_tombstones)}
            if len(keys) == 1:
                break
        exists = not written.text.startswith("INSERT")
        text = written.text.removesuffix(";")
        using = text.find(" USING TTL") if not exists else -1
        condition = " IF EXISTS" if exists else " IF NOT EXISTS"
        text = f"{text[:using]}{condition}{text[using:]};" if using >= 0 else f"{text}{condition};"
        return replace(written, text=text, asks=(self.partition, keys.pop(), exists))

    def statement(self) -> Written:
        kinds = ["insert", "insert", "update", "update", "update", "columns", "partition"]
        kinds += ["row", "range"] if self.schema.clustering_key else []
        return self._drawn(kinds)

    def _drawn(self, kinds: Sequence[str]) -> Written:
        written = getattr(self, f"_{self.draw(st.sampled_from(kinds))}")()
        return replace(written, times=((self.partition, self.timestamp),))

    def _mutation(self, **parts: Any) -> Mutation:
        return Mutation(self.schema, self.partition, **parts)

    def _ttl(self) -> int:
        return self.draw(st.sampled_from([0, 0, 5, 9]))

    def _using(self, ttl: int = 0) -> str:
        parts = [f"TIMESTAMP {self.timestamp}"] * self.using + [f"TTL {ttl}"] * bool(ttl)
        return f" USING {' AND '.join(parts)}" if parts else ""

    def _row_key(self) -> tuple:
        """Draw a clustering key, often a known one, so that conditions meet existing rows."""
        if self.known and (self.sure or self.draw(st.booleans())):
            return self.draw(st.sampled_from(self.known))
        return self._key(self.schema.clustering_key)

    def _key(self, columns: Sequence[Column]) -> tuple:
        return tuple(self.draw(values(column.type)) for column in columns)

    def _some(self, columns: Sequence[Column]) -> list[Column]:
        return [column for column in columns if self.draw(st.booleans())]

    def _insert(self) -> Written:
        ttl, schema = self._ttl(), self.schema
        chosen = self._some([*schema.statics, *schema.regulars])
        changes = {column.name: self.draw(_overwrites(column, Microseconds(self.timestamp), ttl)) for column in chosen}
        key = self._row_key()
        keyed = zip((*schema.partition_key, *schema.clustering_key), (*self.partition, *key), strict=True)
        cells = [(column.name, literal(column.type, value)) for column, value in keyed]
        cells += [(name, text.partition(" = ")[2]) for name, (text, _) in changes.items()]
        names, texts = zip(*cells, strict=True)
        text = f"INSERT INTO ks.t ({', '.join(names)}) VALUES ({', '.join(texts)}){self._using(ttl)};"
        return Written(text, (self._upsert(key, RowMarker(Microseconds(self.timestamp), ttl), changes),))

    def _upsert(self, key: tuple, marker: RowMarker | None, changes: dict[str, Change]) -> Mutation:
        static = {column.name for column in self.schema.statics}
        cells = {name: change for name, (_, change) in changes.items() if name not in static}
        rows = {key: RowChange(marker, cells)} if marker is not None or cells else {}
        return self._mutation(
            static={name: change for name, (_, change) in changes.items() if name in static}, rows=rows
        )

    def _update(self) -> Written:
        ttl, schema = self._ttl(), self.schema
        chosen = self._some([*schema.statics, *schema.regulars])
        if not chosen:
            return self._insert()
        changes = {}
        for column in chosen:
            ways = _overwrites(column, Microseconds(self.timestamp), ttl)
            changes[column.name] = self.draw(
                ways | _element_writes(column, Microseconds(self.timestamp), ttl) if column.type.multicell else ways
            )
        static_alone = all(column.kind == "static" for column in chosen) and bool(schema.clustering_key)
        key = () if static_alone else self._row_key()
        where = _where((*schema.partition_key, *schema.clustering_key), (*self.partition, *key))
        more = {
            column.name: self.draw(_element_writes(column, self.timestamp, ttl))
            for column in chosen
            if column.type.multicell
            and not isinstance(column.type, UserType)
            and _keeps_elements(changes[column.name])
            and self.draw(st.booleans())
        }
        sets = ", ".join(text for text, _ in (*changes.values(), *more.values()))
        text = f"UPDATE ks.t{self._using(ttl)} SET {sets} WHERE {' AND '.join(where)};"
        both = [self._upsert(key, None, changes), *([self._upsert(key, None, more)] if more else [])]
        return Written(text, tuple(both))

    def _columns(self) -> Written:
        chosen = self._some(self.schema.regulars)
        if not chosen:
            return self._partition()
        key = self._row_key()
        where = _where((*self.schema.partition_key, *self.schema.clustering_key), (*self.partition, *key))
        changes = {column.name: ("", _deletion(column, Microseconds(self.timestamp))) for column in chosen}
        text = f"DELETE {', '.join(changes)} FROM ks.t{self._using()} WHERE {' AND '.join(where)};"
        return Written(text, (self._upsert(key, None, changes),))

    def _partition(self) -> Written:
        where = " AND ".join(_where(self.schema.partition_key, self.partition))
        text = f"DELETE FROM ks.t{self._using()} WHERE {where};"
        return Written(text, (self._mutation(partition_tombstone=self.timestamp),))

    def _row(self) -> Written:
        key = self._row_key()
        where = _where((*self.schema.partition_key, *self.schema.clustering_key), (*self.partition, *key))
        text = f"DELETE FROM ks.t{self._using()} WHERE {' AND '.join(where)};"
        return Written(text, (self._mutation(row_tombstones={key: self.timestamp}),))

    def _range(self) -> Written:
        columns = self.schema.clustering_key
        equal = self._key(columns[: self.draw(st.integers(0, len(columns) - 1))])
        column = columns[len(equal)]
        bounds: dict[str, RangeBound | None] = dict.fromkeys("><", RangeBound(equal, True) if equal else None)
        where = _where((*self.schema.partition_key, *columns), (*self.partition, *equal))
        sides = self.draw(st.sampled_from([">", "<", "><"] + ["="] * bool(equal)))
        for side in sides.replace("=", ""):
            value, inclusive = self.draw(values(column.type)), self.draw(st.booleans())
            bounds[side] = RangeBound((*equal, value), inclusive)
            where.append(f"{column.name} {side}{'=' * inclusive} {literal(column.type, value)}")
        start, end = (bounds["<"], bounds[">"]) if column.descending else (bounds[">"], bounds["<"])
        text = f"DELETE FROM ks.t{self._using()} WHERE {' AND '.join(where)};"
        return Written(
            text, (self._mutation(range_tombstones=[RangeTombstone(start, end, Microseconds(self.timestamp))]),)
        )


@st.composite
def scripts(draw: st.DrawFn, schema: TableSchema, base_us: Microseconds, now_us: Microseconds) -> list[Written]:
    """Draw writes to the table, alone and in batches, with timestamps within a few µs of `base_us` or the batch's.

    Some of them are conditional, with the clock's time (`now_us`, one µs more for each); others change CDC options.
    """
    partitions = [
        tuple(draw(values(column.type).filter(lambda value: value != "")) for column in schema.partition_key)
        for _ in range(2)
    ]
    times = st.integers(base_us, base_us + 6)
    written: list[Written] = []
    conditionals = 0
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["write", "write", "write", "write", "conditional", "options"]))
        if kind == "options":
            cdc = draw(st.sampled_from([*OPTIONS, CdcOptions()]))
            text = f"ALTER TABLE ks.t WITH cdc = {options(cdc)};"
            written.append(Written(text, (), logs=cdc.enabled))
            continue
        if kind == "conditional":
            at = Microseconds(now_us + conditionals)
            conditionals += 1
            partition = draw(st.sampled_from(partitions))
            written.append(_Drawing(draw, schema, partition, at, False, _keys_of(written, partition)).conditional())
            continue
        count = draw(st.sampled_from([1, 1, 2, 3]))
        shared = draw(times) if count > 1 and draw(st.booleans()) else None
        parts = [
            _Drawing(
                draw, schema, draw(st.sampled_from(partitions)), Microseconds(shared or draw(times)), shared is None
            ).statement()
            for _ in range(count)
        ]
        if count == 1:
            written += parts
            continue
        using = "" if shared is None else f" USING TIMESTAMP {shared}"
        text = f"BEGIN UNLOGGED BATCH{using}\n  " + "\n  ".join(part.text for part in parts) + "\nAPPLY BATCH;"
        mutations = tuple(mutation for part in parts for mutation in part.mutations)
        written.append(Written(text, mutations, times=tuple(time for part in parts for time in part.times)))
    return written


def _keys_of(written: list[Written], partition: tuple) -> tuple[tuple, ...]:
    """Return the clustering keys of the rows that statements have written to a partition, in order."""
    mutations = (
        mutation for statement in written for mutation in statement.mutations if mutation.partition_key == partition
    )
    return tuple(dict.fromkeys(key for mutation in mutations for key in mutation.rows))


def drawn_of(written: Written, before: Sequence[Written]) -> set[str]:
    """Return the features that a history must cover and that a statement has, given the statements `before` it."""
    if written.logs is not None:
        return {"changed options"}
    text, mutations = written.text, written.mutations
    earlier = {time for one in before for time in one.times}
    features = {
        "a null": re.search(r"\bnull\b", text),
        "an empty collection": re.search(r"\[\]|\{\}", text),
        "a doubled collection": re.search(r"\{([^{}]+), \1\}", text),
        "a static column": any(mutation.static for mutation in mutations),
        "a tie": len({*written.times} - earlier) < len(written.times),
        "a late write": any(key == other and time < later for key, time in written.times for other, later in earlier),
    }
    return {name for name, is_present in features.items() if is_present}
