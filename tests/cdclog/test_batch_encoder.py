"""Typed writes in columns have the same log rows as single writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.histories.log_histories import EPOCH_US, LIST_KEYS, ranges, schemas, values

from cdc_platform.cdclog import WRITTEN_AT, log_rows_from_arrow, log_table, to_arrow_value
from cdc_platform.cdclog.batch_encoder import encode_log_batch
from cdc_platform.cdclog.encoder import encode_mutation
from cdc_platform.cdclog.image_encoder import encode_batch_with_images
from cdc_platform.cdclog.schema import typed_writes_schema
from cdc_platform.cdclog.values import log_rows_to_arrow
from cdc_platform.clock import Microseconds
from cdc_platform.cql import (
    INT,
    TEXT,
    CdcOptions,
    Cell,
    CollectionChange,
    Column,
    ListType,
    MapType,
    Mutation,
    RangeTombstone,
    RowChange,
    RowMarker,
    SetType,
    TableSchema,
    TupleType,
    UserType,
    get_log_columns,
    merge_mutations,
    us_from_timeuuid,
)
from cdc_platform.cql.types import get_scalar_type, timeuuid_sort_key
from cdc_platform.delta import stream_ids_to_arrow
from cdc_platform.errors import InputError

ALWAYS = EPOCH_US
UUID_TEXT = "0dd381f0-2fea-11eb-af55-000000000001"
NUMBERED = ("cdc$time", WRITTEN_AT)


def _streams(keys: pa.Array, timestamps: pa.Array) -> pa.Array:
    """Return the key and the time as a stream, to show that both are passed."""
    ids = [
        bytes(key.as_py())[:8].ljust(8, b"\xff") + when.as_py().to_bytes(8, "big")
        for key, when in zip(keys, timestamps, strict=True)
    ]
    return stream_ids_to_arrow(np.frombuffer(b"".join(ids), dtype=np.uint8).reshape(-1, 16))


def _stream(schema: TableSchema, mutation: Mutation, timestamp: int) -> bytes:
    key = schema.partition_bytes(mutation.partition_key)
    return key[:8].ljust(8, b"\xff") + timestamp.to_bytes(8, "big")


@st.composite
def _column(draw: st.DrawFn, column: Column, timestamp: Microseconds, ttl: int) -> tuple[dict[str, Any], Any]:
    """Draw what one write does to a column: its typed columns, and the same as a change; ({}, None) for nothing."""
    name, kind = column.name, column.type
    if not kind.multicell:
        state = draw(st.sampled_from(["not", "dead", "live"]))
        if state == "live":
            value = draw(values(kind))
            return {name: to_arrow_value(kind, value)}, Cell(timestamp, value, ttl)
        return ({f"cdc$deleted_{name}": True}, Cell(timestamp, dead=True)) if state == "dead" else ({}, None)
    overwritten = draw(st.booleans())
    keys = _keys(kind)
    live, dead = draw(st.sets(keys, max_size=2)), draw(st.sets(keys, max_size=2))
    dead -= live
    elements = {key: Cell(timestamp, draw(_inner(kind, key)), ttl) for key in live}
    change = CollectionChange(
        Microseconds(timestamp - 1) if overwritten else None,
        elements | {key: Cell(timestamp, dead=True) for key in dead},
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
        typed[name] = {
            field: elements[index].value for index, (field, _) in enumerate(kind.fields) if index in live
        } or None
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
    """Draw one typed write, and the same write as a mutation."""
    timestamp, ttl = Microseconds(draw(st.integers(EPOCH_US, EPOCH_US + 3))), draw(st.sampled_from([0, 0, 5]))
    # An empty key is invalid.
    partition = tuple(draw(values(column.type).filter(lambda value: value != "")) for column in schema.partition_key)
    clustering = tuple(draw(values(column.type)) for column in schema.clustering_key)
    typed: dict[str, Any] = {"timestamp": timestamp, "ttl": ttl or draw(st.sampled_from([None, 0]))}
    typed |= {column.name: value for column, value in zip(schema.partition_key, partition, strict=True)}
    operation = draw(st.sampled_from([1, 1, 2, 2, 4] + [3, 5, 5] * bool(schema.clustering_key)))
    typed["operation"] = operation
    keys = {column.name: value for column, value in zip(schema.clustering_key, clustering, strict=True)}
    if operation == 5:
        tombstone = ranges(draw, schema, timestamp)
        return typed | _typed_range(schema, tombstone), Mutation(schema, partition, range_tombstones=(tombstone,))
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
    marker = RowMarker(timestamp, ttl) if operation == 2 else None
    rows = {clustering: RowChange(marker, changes["regular"])} if marker or changes["regular"] else {}
    return typed | (keys if rows else {}), Mutation(schema, partition, static=changes["static"], rows=rows)


def _typed_range(schema: TableSchema, tombstone: RangeTombstone) -> dict[str, Any]:
    """Return the columns of a range in a typed write."""
    columns: dict[str, Any] = {"operation": 6 if tombstone.start and not tombstone.start.inclusive else 5}
    if tombstone.start is not None:
        columns |= {key.name: value for key, value in zip(schema.clustering_key, tombstone.start.prefix, strict=False)}
    if tombstone.end is not None:
        columns["cdc$range_end"] = 7 if tombstone.end.inclusive else 8
        end_columns = zip(schema.clustering_key, tombstone.end.prefix, strict=False)
        columns |= {f"cdc$range_end_{key.name}": value for key, value in end_columns}
    return columns


def _batch(schema: TableSchema, typed: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(typed, schema=typed_writes_schema(schema))


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
    """For any table and any mixture of writes, the rows are equal except for the low half of cdc$time."""
    schema, writes = case
    batch = encode_log_batch(schema, _batch(schema, [typed for typed, _ in writes]), _streams)
    assert batch.schema.equals(log_table(schema).schema, check_metadata=False)
    expected = [
        row
        for _, mutation in writes
        for part in encode_mutation(mutation)
        for row in part.in_stream(_stream(schema, mutation, part.timestamp))
    ]
    actual = list(log_rows_from_arrow(schema, batch))
    assert [_plain(row) for row in actual] == [_plain(row) for row in expected]
    assert (
        log_rows_to_arrow(schema, actual).to_pylist()
        == pa.Table.from_batches([batch], log_rows_to_arrow(schema, []).schema).to_pylist()
    )


IMAGED = [
    CdcOptions(enabled=True, preimage="true"),
    CdcOptions(enabled=True, preimage="full", postimage=True),
    CdcOptions(enabled=True, postimage=True),
]


@given(
    st.sampled_from(IMAGED).flatmap(
        lambda options: schemas(options).flatmap(
            lambda schema: st.tuples(st.just(schema), st.lists(_writes(schema), min_size=1, max_size=8))
        )
    ),
    st.integers(0, 3),
)
def test_images_are_those_of_the_same_writes_one_by_one(
    case: tuple[TableSchema, list[tuple[dict[str, Any], Mutation]]], before: int
) -> None:
    """An image shows the partition's earlier state, writes of earlier times, and earlier writes at the same time."""
    schema, writes = case
    key_values = writes[0][1].partition_key
    partition_columns = dict(zip((column.name for column in schema.partition_key), key_values, strict=True))
    partition_writes = [
        (typed | partition_columns, replace(mutation, partition_key=key_values)) for typed, mutation in writes
    ]
    state = (
        merge_mutations([mutation for _, mutation in partition_writes[:before]]) if partition_writes[:before] else None
    )
    key = schema.partition_bytes(key_values)
    batch = _batch(schema, [typed for typed, _ in partition_writes[before:]])
    actual = list(log_rows_from_arrow(schema, encode_batch_with_images(schema, batch, _streams, {key: state}.get)))
    expected: list[list[Any]] = [[] for _ in partition_writes[before:]]
    for index in sorted(range(len(expected)), key=lambda index: partition_writes[before + index][0]["timestamp"]):
        typed, mutation = partition_writes[before + index]
        for part in encode_mutation(mutation, state, now_us=typed["timestamp"]):
            expected[index] += part.in_stream(_stream(schema, mutation, part.timestamp))
        state = mutation if state is None else merge_mutations([state, mutation])
    assert [_plain(row) for row in actual] == [_plain(row) for rows in expected for row in rows]
    plain = TableSchema("ks", "t", schema.columns, CdcOptions(enabled=True))
    deltas = {row["cdc$time"] for row in log_rows_from_arrow(plain, encode_log_batch(plain, batch, _streams))}
    assert {row["cdc$time"] for row in actual} == deltas


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"cdc$time": us_from_timeuuid(row["cdc$time"])}


@given(batches)
def test_cdc_time_belongs_to_one_write(case: tuple[TableSchema, list[tuple[dict[str, Any], Mutation]]]) -> None:
    """Rows of one write share it, no two writes do, and it is independent of writes to other partitions or times."""
    schema, writes = case
    batch = _batch(schema, [typed for typed, _ in writes])
    rows = list(log_rows_from_arrow(schema, encode_log_batch(schema, batch, _streams)))
    alone = [
        list(log_rows_from_arrow(schema, encode_log_batch(schema, batch.slice(index, 1), _streams)))
        for index in range(len(writes))
    ]
    ends = np.cumsum([0, *(len(part) for part in alone)])
    assert len(rows) == ends[-1]
    by_write = [rows[begin:end] for begin, end in pairwise(ends)]
    places = [(mutation.partition_key, typed["timestamp"]) for typed, mutation in writes]
    times: dict[Any, list[Any]] = {}
    for index, rows_of_write, by_itself in zip(places, by_write, alone, strict=True):
        assert len({row["cdc$time"] for row in rows_of_write}) <= 1
        assert [_plain(row) for row in rows_of_write] == [_plain(row) for row in by_itself]
        if places.count(index) == 1:
            assert rows_of_write == by_itself
        times.setdefault(index, []).extend(row["cdc$time"] for row in rows_of_write[:1])
    for write_times in times.values():
        assert write_times == sorted(set(write_times), key=timeuuid_sort_key)


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
        ({"operation": 7}, "operation 7"),
        ({"operation": 5}, "also write a column"),
        ({"operation": 6, "v": None, "k": None}, "exclude a key, and name none"),
        ({"operation": 5, "v": None, "cdc$range_end": 8}, "exclude a key, and name none"),
        ({"operation": 5, "v": None, "cdc$range_end": 5}, "range_end 5"),
        ({"operation": 3, "v": None, "cdc$range_end_k": 5}, "are of no range"),
        ({"timestamp": None}, "no timestamp"),
        ({"timestamp": -(2**62)}, "timestamp -4611686018427387904"),
        ({"timestamp": 2**62}, "timestamp 4611686018427387904"),
        ({"ttl": -1}, "ttl -1"),
        ({"ttl": 630_720_001}, "ttl 630720001"),
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
def test_invalid_writes_are_refused(wrong: dict[str, Any], said: str) -> None:
    """The error names what is wrong, and in how many writes; nothing of the batch is encoded."""

    def after_1970(keys: pa.Array, timestamps: pa.Array) -> pa.Array:
        return pa.array([None if when < 0 else bytes(16) for when in timestamps.to_pylist()], pa.binary())

    assert len(encode_log_batch(SIMPLE, _batch(SIMPLE, [GOOD, GOOD]), after_1970)) == 2
    with pytest.raises(InputError, match=said):
        encode_log_batch(SIMPLE, _batch(SIMPLE, [GOOD, GOOD | wrong]), after_1970)


@pytest.mark.parametrize(
    ("kind", "good", "wrong"),
    [
        ("ascii", ["a", "\x7f"], ["\x80", "é"]),
        ("time", [0, 86_399_999_999_999], [-1, 86_400_000_000_000]),
        ("timestamp", [0, -1_000], [1, -999, 2**63 - 808]),
        ("date", [0, -719_162, 2_932_896], [-719_163, 2_932_897, 2**31 - 1]),
        ("uuid", [UUID_TEXT, UUID_TEXT.upper()], ["", "0dd381f0", "z" + UUID_TEXT[1:]]),
        ("timeuuid", [UUID_TEXT], [UUID_TEXT.replace("-11eb", "-41eb")]),
        ("inet", ["127.0.0.1", "::1"], ["127.0.0.256", "localhost"]),
        ("varint", ["0", "-17", "9" * 5_000], ["", "1.5", "x", "--1"]),
        ("decimal", ["0", "-1.50", "1E+7"], ["", "NaN", "Infinity", "1e9999999999999999999"]),
        ("duration", ["1y2mo", "-3d"], ["", "1x", "3"]),
    ],
)
def test_values_must_fit_their_type(kind: str, good: list[Any], wrong: list[Any]) -> None:
    """As values, clustering keys, and in collections, user types and tuples; the error names the column."""
    value_type = get_scalar_type(kind)
    columns = [
        Column("p", INT, "partition"),
        Column("v", value_type),
        Column("l", ListType(value_type)),
        Column("m", MapType(INT, value_type)),
    ]
    columns += [
        Column("u", UserType("ks", "ut", (("a", INT), ("b", value_type)))),
        Column("f", TupleType((INT, value_type))),
    ]
    schema = TableSchema("ks", "t", tuple(columns), CdcOptions(enabled=True))
    columns_and_wrappers: list[tuple[str, Callable[[Any], Any]]] = [
        ("v", lambda value: value),
        ("l", lambda value: [(UUID_TEXT, value)]),
        ("m", lambda value: [(1, value)]),
        ("u", lambda value: {"a": 1, "b": value}),
        ("f", lambda value: {"_1": 1, "_2": value}),
    ]
    fields = typed_writes_schema(schema)
    for name, wrap in columns_and_wrappers:
        for value in [*good, *wrong]:
            write = {"operation": 1, "timestamp": ALWAYS, "p": 1}
            rows = [write, write | {name: wrap(value)}]
            batch = pa.RecordBatch.from_pylist(rows, schema=fields)
            if value in good:
                assert len(encode_log_batch(schema, batch, _streams)) >= 1
                continue
            with pytest.raises(InputError, match=f"column {name}.* no value of type {kind}"):
                encode_log_batch(schema, batch, _streams)


def test_a_partition_key_has_1_to_65535_bytes() -> None:
    """CQL requires at least one byte and at most 65,535."""
    schema = TableSchema("ks", "t", (Column("p", TEXT, "partition"), Column("v", INT)), SIMPLE.cdc)
    write = {"operation": 2, "timestamp": ALWAYS, "p": "x" * 65_535}
    assert len(encode_log_batch(schema, _batch(schema, [write]), _streams)) == 1
    for key, message in (("", "empty partition key"), ("x" * 65_536, "65536 bytes")):
        with pytest.raises(InputError, match=message):
            encode_log_batch(schema, _batch(schema, [write, write | {"p": key}]), _streams)


def test_a_null_element_is_refused() -> None:
    """CQL's collections contain no null."""
    with pytest.raises(InputError, match="column m: 1 elements are null"):
        encode_log_batch(SIMPLE, _batch(SIMPLE, [GOOD | {"m": [(1, None)]}]), _streams)


def test_a_table_without_clustering_columns_has_no_row_deletes() -> None:
    """Its row is its partition, as in CQL."""
    schema = TableSchema("ks", "t", (SIMPLE.columns[0], Column("v", INT)), SIMPLE.cdc)
    with pytest.raises(InputError, match="no clustering column"):
        encode_log_batch(schema, _batch(schema, [{"operation": 3, "timestamp": ALWAYS, "p": 1}]), _streams)


def test_every_column_of_the_log_is_encoded() -> None:
    """Columns are in the log's order; the write's time is among the first ones, whose bounds Delta stores."""
    names = log_table(SIMPLE).schema.names
    assert [name for name in names if name != WRITTEN_AT] == [column.name for column in get_log_columns(SIMPLE)]
    assert names.index(WRITTEN_AT) < 8
