"""Hypothesis strategies for the CDC log: tables of any shape, writes, batches of writes and histories of batches."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from cdc_platform.clock import ONE_US, Microseconds
from cdc_platform.cql import (
    INT,
    TEXT,
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

EPOCH_US = Microseconds(1_600_000_000_000_000)
TIMES = st.integers(EPOCH_US, EPOCH_US + 6)
"""Few times, so that writes have equal and adjacent timestamps."""
TTLS = st.sampled_from([0, 0, 0, 5, 9])
USER_TYPE = UserType("ks", "ut", (("a", INT), ("b", TEXT), ("c", INT)))
TYPES: list[CqlType] = [
    INT,
    TEXT,
    MapType(INT, TEXT),
    SetType(INT),
    ListType(INT),
    USER_TYPE,
    MapType(INT, INT, True),
    SetType(TEXT, True),
    ListType(INT, True),
    USER_TYPE.frozen(),
]
LIST_KEYS = [UUID(f"0000000{step}-1dd2-11b2-8{node}80-0000000000ff") for step in range(2) for node in "07f"]


def _texts() -> st.SearchStrategy[str]:
    return st.sampled_from(["", "a", "b"])


def values(kind: CqlType) -> st.SearchStrategy[Any]:
    """Return canonical values of one of `TYPES`, a few for each type."""
    if kind == INT:
        return st.integers(0, 2)
    if kind == TEXT:
        return _texts()
    if isinstance(kind, MapType):
        inner: st.SearchStrategy[Any] = st.dictionaries(values(kind.key), values(kind.value), max_size=2)
    elif isinstance(kind, SetType):
        inner = st.sets(values(kind.element), max_size=2)
    elif isinstance(kind, ListType):
        inner = st.lists(values(kind.element), max_size=2)
    else:
        inner = st.tuples(*(st.none() | values(part) for part in kind.parts))
    return inner.map(kind.canonical)


@st.composite
def schemas(draw: st.DrawFn, cdc: CdcOptions | None = None) -> TableSchema:
    """Draw tables with up to two partition columns, three clustering columns, static columns and any of `TYPES`."""
    keys = st.sampled_from([INT, TEXT])
    columns = [Column(f"p{n}", draw(keys), "partition") for n in range(draw(st.integers(1, 2)))]
    clustering = draw(st.integers(0, 3))
    columns += [Column(f"k{n}", draw(keys), "clustering", draw(st.booleans())) for n in range(clustering)]
    if clustering:
        columns += [Column(f"s{n}", draw(st.sampled_from(TYPES)), "static") for n in range(draw(st.integers(0, 2)))]
    columns += [Column(f"v{n}", draw(st.sampled_from(TYPES))) for n in range(draw(st.integers(0, 3)))]
    return TableSchema("ks", "t", tuple(columns), cdc or CdcOptions(enabled=True))


def _cells(draw: st.DrawFn, value: st.SearchStrategy[Any], timestamp: Microseconds, ttl: int) -> Cell:
    if draw(st.integers(0, 3)) == 0:
        return Cell(timestamp, dead=True)
    return Cell(timestamp, draw(value), ttl)


def _element_keys(kind: CqlType) -> st.SearchStrategy[Any]:
    if isinstance(kind, MapType):
        return values(kind.key)
    if isinstance(kind, SetType):
        return values(kind.element)
    return st.sampled_from(LIST_KEYS) if isinstance(kind, ListType) else st.integers(0, len(kind.parts) - 1)


def _element_values(kind: CqlType, key: Any) -> st.SearchStrategy[Any]:
    if isinstance(kind, SetType):
        return st.none()
    return values(kind.parts[key] if isinstance(kind, UserType) else kind.parts[-1])


def _change(draw: st.DrawFn, kind: CqlType, timestamp: Microseconds, ttl: int) -> Cell | CollectionChange:
    if not kind.multicell:
        return _cells(draw, values(kind), timestamp, ttl)
    # The tombstone of an overwrite is one microsecond earlier; that of a DELETE of the column has the write's time.
    tombstone = draw(st.sampled_from([None, None, timestamp - ONE_US, timestamp]))
    if tombstone == timestamp:
        return CollectionChange(tombstone)
    keys = draw(st.sets(_element_keys(kind), min_size=0 if tombstone else 1, max_size=3))
    elements = {key: _cells(draw, _element_values(kind, key), timestamp, ttl) for key in sorted(keys, key=str)}
    return CollectionChange(tombstone, elements)


def _columns(draw: st.DrawFn, columns: tuple[Column, ...], timestamp: Microseconds, ttl: int) -> dict[str, Any]:
    chosen = [column for column in columns if draw(st.booleans())]
    return {column.name: _change(draw, column.type, timestamp, ttl) for column in chosen}


def _key(draw: st.DrawFn, columns: tuple[Column, ...]) -> tuple:
    return tuple(draw(values(column.type)) for column in columns)


def ranges(draw: st.DrawFn, schema: TableSchema, timestamp: Microseconds) -> RangeTombstone:
    """Draw a range that CQL can express: equal columns first, then one or two bounds of the next column, or none."""
    columns = schema.clustering_key
    equal = _key(draw, columns[: draw(st.integers(0, len(columns) - 1))])
    rest = columns[len(equal)]
    whole = RangeBound(equal, True) if equal else None
    start, end = (
        draw(
            st.just(whole)
            | st.builds(
                lambda value, inclusive: RangeBound((*equal, value), inclusive), values(rest.type), st.booleans()
            )
        )
        for _ in range(2)
    )
    if start is None and end is None:
        end = RangeBound((draw(values(rest.type)),), True)
    return RangeTombstone(start, end, timestamp)


@st.composite
def mutations(draw: st.DrawFn, schema: TableSchema, partition_key: tuple) -> Mutation:
    """Draw one write to a partition, as one statement can make it."""
    timestamp, ttl = Microseconds(draw(TIMES)), draw(TTLS)
    empty = Mutation(schema, partition_key)
    kind = draw(st.sampled_from(["upsert", "upsert", "upsert", "static", "row", "range", "partition"]))
    if kind == "partition":
        return Mutation(schema, partition_key, timestamp)
    if kind == "row" and schema.clustering_key:
        return Mutation(schema, partition_key, row_tombstones={_key(draw, schema.clustering_key): timestamp})
    if kind == "range" and schema.clustering_key:
        return Mutation(schema, partition_key, range_tombstones=[ranges(draw, schema, timestamp)])
    static = _columns(draw, schema.statics, timestamp, ttl) if kind == "static" or draw(st.booleans()) else {}
    if kind == "static":
        return Mutation(schema, partition_key, static=static)
    marker = RowMarker(timestamp, ttl) if draw(st.booleans()) else None
    cells = _columns(draw, schema.regulars, timestamp, ttl)
    if marker is None and not cells:
        return Mutation(schema, partition_key, static=static) if static else empty
    return Mutation(
        schema, partition_key, static=static, rows={_key(draw, schema.clustering_key): RowChange(marker, cells)}
    )


@st.composite
def histories(draw: st.DrawFn, cdc: CdcOptions | None = None) -> tuple[TableSchema, list[list[Mutation]]]:
    """Draw a table and batches of writes to it, in send order; each batch writes to one partition."""
    schema = draw(schemas(cdc))
    partitions = [_key(draw, schema.partition_key) for _ in range(2)]
    batch = st.sampled_from(partitions).flatmap(
        lambda partition: st.lists(mutations(schema, partition), min_size=1, max_size=4)
    )
    return schema, draw(st.lists(batch, min_size=1, max_size=6))
