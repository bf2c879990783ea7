"""Typed writes in columns have the log rows that the same writes have one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.histories.log_histories import EPOCH_US, LIST_KEYS, schemas, values

from cdc_platform.cql.mutation import Cell, CollectionChange, Marker, Mutation, RowChange
from cdc_platform.cql.schema import CdcOptions, Column, TableSchema, log_columns
from cdc_platform.cql.types import INT, TEXT, ListType, MapType, SetType, UserType, timeuuid_us
from cdc_platform.errors import InputError
from cdc_platform.lake.arrow import stream_ids
from cdc_platform.log.columns import log_batch
from cdc_platform.log.log_table import WRITTEN_AT, log_table, writes_schema
from cdc_platform.log.log_values import arrow_value, rows_table, table_rows
from cdc_platform.log.rows import log_mutations

ALWAYS = EPOCH_US
NUMBERED = ("cdc$time", WRITTEN_AT)


def _streams(keys: pa.Array, timestamps: pa.Array) -> pa.Array:
    """The key and the time as a stream, to see that both arrive."""
    ids = [
        bytes(key.as_py())[:8].ljust(8, b"\xff") + when.as_py().to_bytes(8, "big")
        for key, when in zip(keys, timestamps, strict=True)
    ]
    return stream_ids(np.frombuffer(b"".join(ids), dtype=np.uint8).reshape(-1, 16))


def _stream(schema: TableSchema, mutation: Mutation, timestamp: int) -> bytes:
    key = schema.partition_bytes(mutation.partition_key)
    return key[:8].ljust(8, b"\xff") + timestamp.to_bytes(8, "big")


@st.composite
def _column(draw: st.DrawFn, column: Column, timestamp: int, ttl: int) -> tuple[dict[str, Any], Any]:
    """What one write does to a column: its typed columns, and the same as a change; nothing for ({}, None)."""
    name, kind = column.name, column.type
    if not kind.multicell:
        how = draw(st.sampled_from(["not", "dead", "live"]))
        if how == "live":
            value = draw(values(kind))
            return {name: arrow_value(kind, value)}, Cell(timestamp, value, ttl)
        return ({f"cdc$deleted_{name}": True}, Cell(timestamp, dead=True)) if how == "dead" else ({}, None)
    overwritten = draw(st.booleans())
    keys = _keys(kind)
    live, dead = draw(st.sets(keys, max_size=2)), draw(st.sets(keys, max_size=2))
    dead -= live
    elements = {key: Cell(timestamp, draw(_inner(kind, key)), ttl) for key in live}
    change = CollectionChange(
        timestamp - 1 if overwritten else None, elements | {key: Cell(timestamp, dead=True) for key in dead}
    )
    typed: dict[str, Any] = {f"cdc$deleted_{name}": True} if overwritten else {}
    if dead:
        typed[f"cdc$deleted_elements_{name}"] = [
            str(key) if isinstance(kind, ListType) else key for key in sorted(dead, key=_order(kind))
        ]
    ordered = sorted(live, key=_order(kind))
    if isinstance(kind, SetType):
        typed[name] = ordered or None
    elif isinstance(kind, UserType):
        typed[name] = {field: elements[at].value for at, (field, _) in enumerate(kind.fields) if at in live} or None
    else:
        typed[name] = [
            (str(key) if isinstance(kind, ListType) else key, elements[key].value) for key in ordered
        ] or None
    return typed, change if overwritten or elements or dead else None


def _order(kind: Any) -> Any:
    if isinstance(kind, ListType):
        return lambda key: (key.time, [byte - 256 * (byte > 127) for byte in key.bytes[8:]])
    return lambda key: key


def _keys(kind: Any) -> st.SearchStrategy[Any]:
    if isinstance(kind, ListType):
        return st.sampled_from(LIST_KEYS)
    return st.integers(0, len(kind.parts) - 1) if isinstance(kind, UserType) else values(kind.parts[0])


def _inner(kind: Any, key: Any) -> st.SearchStrategy[Any]:
    if isinstance(kind, SetType):
        return st.none()
    return values(kind.parts[key] if isinstance(kind, UserType) else kind.parts[-1])


@st.composite
def _writes(draw: st.DrawFn, schema: TableSchema) -> tuple[dict[str, Any], Mutation]:
    """One typed write, and the same as a mutation."""
    timestamp, ttl = draw(st.integers(EPOCH_US, EPOCH_US + 3)), draw(st.sampled_from([0, 0, 5]))
    partition = tuple(draw(values(column.type)) for column in schema.partition_key)
    clustering = tuple(draw(values(column.type)) for column in schema.clustering_key)
    typed: dict[str, Any] = {"timestamp": timestamp, "ttl": ttl or draw(st.sampled_from([None, 0]))}
    typed |= {column.name: value for column, value in zip(schema.partition_key, partition, strict=True)}
    operation = draw(st.sampled_from([1, 1, 2, 2, 4] + [3] * bool(schema.clustering_key)))
    typed["operation"] = operation
    keys = {column.name: value for column, value in zip(schema.clustering_key, clustering, strict=True)}
    if operation == 4:
        return typed, Mutation(schema, partition, timestamp)
    if operation == 3:
        return typed | keys, Mutation(schema, partition, row_tombstones={clustering: timestamp})
    changes: dict[str, dict[str, Any]] = {"static": {}, "regular": {}}
    for column in (*schema.statics, *schema.regulars):
        part, change = draw(_column(column, timestamp, ttl))
        if change is not None:
            typed |= part
            changes[column.kind][column.name] = change
    marker = Marker(timestamp, ttl) if operation == 2 else None
    rows = {clustering: RowChange(marker, changes["regular"])} if marker or changes["regular"] else {}
    return typed | (keys if rows else {}), Mutation(schema, partition, static=changes["static"], rows=rows)


def _batch(schema: TableSchema, typed: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(typed, schema=writes_schema(schema))


OPTIONS = [CdcOptions(enabled=True), CdcOptions(enabled=True), CdcOptions(enabled=True, delta="keys")]
batches = st.sampled_from(OPTIONS).flatmap(
    lambda options: schemas(options).flatmap(
        lambda schema: st.tuples(st.just(schema), st.lists(_writes(schema), max_size=6))
    )
)


@given(batches)
def test_columns_and_single_writes_have_the_same_rows(
    case: tuple[TableSchema, list[tuple[dict[str, Any], Mutation]]],
) -> None:
    """Any table, any mixture of writes in a batch: row for row, but for the low half of cdc$time."""
    schema, writes = case
    batch = log_batch(schema, _batch(schema, [typed for typed, _ in writes]), _streams)
    assert batch.schema.equals(log_table(schema).schema, check_metadata=False)
    expected = [
        row
        for _, mutation in writes
        for part in log_mutations(mutation)
        for row in part.in_stream(_stream(schema, mutation, part.timestamp))
    ]
    found = list(table_rows(schema, batch))
    assert [_plain(row) for row in found] == [_plain(row) for row in expected]
    assert (
        rows_table(schema, found).to_pylist()
        == pa.Table.from_batches([batch], rows_table(schema, []).schema).to_pylist()
    )


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"cdc$time": timeuuid_us(row["cdc$time"])}


@given(batches)
def test_cdc_time_belongs_to_one_write(case: tuple[TableSchema, list[tuple[dict[str, Any], Mutation]]]) -> None:
    """Rows of one write share it, writes that differ do not, and it does not depend on the batch."""
    schema, writes = case
    batch = _batch(schema, [typed for typed, _ in writes])
    rows = list(table_rows(schema, log_batch(schema, batch, _streams)))
    alone = [
        list(table_rows(schema, log_batch(schema, batch.slice(place, 1), _streams))) for place in range(len(writes))
    ]
    assert [row for part in alone for row in part] == rows
    times = {
        str(typed): {row["cdc$time"] for row in part} for (typed, _), part in zip(writes, alone, strict=True) if part
    }
    assert all(len(each) == 1 for each in times.values())
    assert len(set().union(*times.values())) == len(times)


SIMPLE = TableSchema(
    "ks",
    "t",
    (
        Column("p", INT, "partition"),
        Column("k", INT, "clustering"),
        Column("s", INT, "static"),
        Column("v", TEXT),
        Column("m", MapType(INT, INT)),
    ),
    CdcOptions(enabled=True),
)
GOOD = {"operation": 1, "timestamp": ALWAYS, "p": 1, "k": 2, "v": "x"}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"operation": None}, "no operation"),
        ({"operation": 0}, "operation 0"),
        ({"operation": 5}, "operation 5"),
        ({"timestamp": None}, "no timestamp"),
        ({"timestamp": -(2**62)}, "timestamp -4611686018427387904"),
        ({"timestamp": 2**62}, "timestamp 4611686018427387904"),
        ({"ttl": -1}, "ttl -1"),
        ({"p": None}, "no p"),
        ({"k": None}, "no k"),
        ({"k": None, "operation": 2, "v": None}, "no k"),
        ({"k": None, "operation": 3, "v": None}, "no k"),
        ({"operation": 3}, "also write a column"),
        ({"operation": 4, "v": None, "m": [(1, 1)]}, "also write a column"),
        ({"cdc$deleted_v": True}, "both set v and delete it"),
        ({"timestamp": -5}, "no known generation"),
    ],
)
def test_writes_that_no_table_can_have_are_refused(wrong: dict[str, Any], said: str) -> None:
    """Before anything is made of the batch; the error says what, and of how many."""

    def after_1970(keys: pa.Array, timestamps: pa.Array) -> pa.Array:
        return pa.array([None if when < 0 else bytes(16) for when in timestamps.to_pylist()], pa.binary())

    assert len(log_batch(SIMPLE, _batch(SIMPLE, [GOOD, GOOD]), after_1970)) == 2
    with pytest.raises(InputError, match=said):
        log_batch(SIMPLE, _batch(SIMPLE, [GOOD, GOOD | wrong]), after_1970)


def test_a_table_without_clustering_columns_has_no_row_deletes() -> None:
    """Its row is its partition, as CQL has it."""
    schema = TableSchema("ks", "t", (SIMPLE.columns[0], Column("v", INT)), SIMPLE.cdc)
    with pytest.raises(InputError, match="no clustering column"):
        log_batch(schema, _batch(schema, [{"operation": 3, "timestamp": ALWAYS, "p": 1}]), _streams)


def test_every_column_of_the_log_has_a_place() -> None:
    """In the log's order, with the time of the write among the first, whose bounds Delta keeps."""
    names = log_table(SIMPLE).schema.names
    assert [name for name in names if name != WRITTEN_AT] == [each.name for each in log_columns(SIMPLE)]
    assert names.index(WRITTEN_AT) < 8
