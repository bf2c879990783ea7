"""Encode typed writes to tables with images, each on the state of its partition, in process or on Spark.

Writes to one partition take effect by timestamp, and in the given order at equal timestamps. Images omit cells that
have expired by the time of their write. On Spark one task receives whole partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from cdc_platform.cdclog.batch_encoder import validate_batch
from cdc_platform.cdclog.column_codec import encode_partition_keys
from cdc_platform.cdclog.encoder import LogRow, Operation, encode_mutation
from cdc_platform.cdclog.fingerprint import fingerprint_rows
from cdc_platform.cdclog.schema import EXACT, RANGE_END, log_table, range_end_column, stored_type, with_stored_names
from cdc_platform.cdclog.state.store import StoredState, read_state
from cdc_platform.cdclog.values import log_rows_to_arrow, to_canonical_values
from cdc_platform.clock import ONE_US, Microseconds
from cdc_platform.cql import (
    Cell,
    CollectionChange,
    Column,
    ColumnChange,
    KeyValues,
    Mutation,
    RangeBound,
    RangeTombstone,
    RowChange,
    RowMarker,
    SetType,
    TableSchema,
    UserType,
    Value,
    get_element_key_type,
    get_logged_type,
    make_timeuuid,
    merge_mutations,
)
from cdc_platform.delta import Lake, compute, group_batches_by_key
from cdc_platform.ring import tokens_from_keys
from cdc_platform.spark import arrow_to_spark_schema, quote_spark_name
from cdc_platform.timeline import StreamFinder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

StateLookup = Callable[[bytes], Mutation | None]
"""Returns the state of a partition before a batch of writes, by serialized key; None if it is empty."""
_INCLUSIVE_OPERATIONS = (Operation.RANGE_START_INCLUSIVE, Operation.RANGE_END_INCLUSIVE)


def encode_batch_with_images(
    schema: TableSchema, writes: pa.RecordBatch, streams_of: StreamFinder, before: StateLookup, *, exact: bool = False
) -> pa.Table:
    """Return the log rows of a batch of typed writes, as `encode_log_batch`, with their images.

    Rows are in the order of the writes. The log's column of exact values is included with `exact`, or if a value needs
    it.

    Raises:
        InputError: as `encode_log_batch`.
    """
    keys, streams, lows = validate_batch(schema, writes, streams_of)
    states: dict[bytes, Mutation | None] = {}
    rows_by_write: list[list[LogRow]] = [[] for _ in range(len(writes))]
    partitions, mutations = keys.to_pylist(), list(mutations_from_writes(schema, writes))
    timestamps = np.asarray(writes.column("timestamp").cast(pa.int64()))
    for index in np.argsort(timestamps, kind="stable").tolist():
        key, mutation, at_us = partitions[index], mutations[index], Microseconds(int(timestamps[index]))
        if key not in states:
            states[key] = before(key)
        state = states[key]
        stream, time = streams[index].as_py(), make_timeuuid(at_us, int(lows[index]))
        # A typed write has one timestamp.
        for part in encode_mutation(mutation, state, now_us=at_us):
            rows_by_write[index] = [row | {"cdc$stream_id": stream, "cdc$time": time} for row in part.rows]
        states[key] = mutation if state is None else merge_mutations([state, mutation])
    return log_rows_to_arrow(schema, [row for rows in rows_by_write for row in rows], exact=exact)


def mutations_from_writes(schema: TableSchema, writes: pa.RecordBatch) -> Iterator[Mutation]:
    """Yield the mutation of each valid typed write."""
    columns = _canonical_columns(schema, writes)
    for index in range(len(writes)):
        yield _mutation_from_write(schema, {name: values[index] for name, values in columns.items()})


def _canonical_columns(schema: TableSchema, writes: pa.RecordBatch) -> Mapping[str, list[Any]]:
    """Return the columns of typed writes as canonical values, by their CQL names."""
    arrays = dict(zip(writes.schema.names, writes.columns, strict=True))
    values: dict[str, list[Any]] = {
        name: arrays[name].to_pylist() for name in ("operation", "timestamp", "ttl", RANGE_END) if name in arrays
    }
    for column, stored in zip(schema.columns, with_stored_names(schema).columns, strict=True):
        kind = stored_type(get_logged_type(column.type))
        values[column.name] = to_canonical_values(kind, arrays[stored.name])
        if column.kind == "clustering" and range_end_column(stored.name) in arrays:
            values[range_end_column(column.name)] = to_canonical_values(kind, arrays[range_end_column(stored.name)])
        if not column.is_key:
            deleted = arrays[f"cdc$deleted_{stored.name}"]
            values[f"cdc$deleted_{column.name}"] = compute.fill_null(deleted, False).to_pylist()
        if not column.is_key and column.type.multicell:
            elements = SetType(get_element_key_type(column.type).frozen(), True)
            deleted_elements = arrays[f"cdc$deleted_elements_{stored.name}"]
            values[f"cdc$deleted_elements_{column.name}"] = to_canonical_values(elements, deleted_elements)
    return values


def _mutation_from_write(schema: TableSchema, write: Mapping[str, Any]) -> Mutation:
    operation, at_us = write["operation"], Microseconds(write["timestamp"])
    mutation = Mutation(schema, tuple(write[column.name] for column in schema.partition_key))
    clustering = _key_prefix(write[column.name] for column in schema.clustering_key)
    if operation == Operation.PARTITION_DELETE:
        return replace(mutation, partition_tombstone=at_us)
    if operation == Operation.ROW_DELETE:
        return replace(mutation, row_tombstones={clustering: at_us})
    if operation in (Operation.RANGE_START_INCLUSIVE, Operation.RANGE_START_EXCLUSIVE):
        end = _key_prefix(write.get(range_end_column(column.name)) for column in schema.clustering_key)
        ends = Operation.RANGE_END_INCLUSIVE if write.get(RANGE_END) is None else write[RANGE_END]
        tombstone = RangeTombstone(_bound(clustering, operation), _bound(end, ends), at_us)
        return replace(mutation, range_tombstones=(tombstone,))
    ttl = schema.default_ttl if write["ttl"] is None else write["ttl"]
    static = _column_changes(schema.statics, write, at_us, ttl)
    regular = _column_changes(schema.regulars, write, at_us, ttl)
    marker = RowMarker(at_us, ttl) if operation == Operation.INSERT else None
    rows = {clustering: RowChange(marker, regular)} if marker is not None or regular else {}
    return replace(mutation, static=static, rows=rows)


def _key_prefix(values: Iterator[Value | None]) -> KeyValues:
    prefix: list[Value] = []
    for value in values:
        if value is None:
            break
        prefix.append(value)
    return tuple(prefix)


def _bound(prefix: KeyValues, operation: int) -> RangeBound | None:
    return RangeBound(prefix, operation in _INCLUSIVE_OPERATIONS) if prefix else None


def _column_changes(
    columns: tuple[Column, ...], write: Mapping[str, Any], at_us: Microseconds, ttl: int
) -> dict[str, ColumnChange]:
    changes = ((column.name, _column_change(column, write, at_us, ttl)) for column in columns)
    return {name: change for name, change in changes if change is not None}


def _column_change(column: Column, write: Mapping[str, Any], at_us: Microseconds, ttl: int) -> ColumnChange | None:
    value, deleted = write[column.name], write[f"cdc$deleted_{column.name}"]
    if not column.type.multicell:
        if deleted:
            return Cell(at_us, dead=True)
        return None if value is None else Cell(at_us, value, ttl)
    elements = {key: Cell(at_us, element, ttl) for key, element in _iter_elements(column, value)}
    deleted_keys = write[f"cdc$deleted_elements_{column.name}"] or ()
    elements |= {key: Cell(at_us, dead=True) for key in deleted_keys}
    # The log has the tombstone of a collection one microsecond late.
    tombstone = Microseconds(at_us - ONE_US) if deleted else None
    return CollectionChange(tombstone, elements) if deleted or elements else None


def _iter_elements(column: Column, value: Any) -> Iterator[tuple[Value, Value | None]]:
    """Yield the elements of a logged collection, with the keys of their cells."""
    if value is None:
        return
    if isinstance(column.type, UserType):
        yield from ((index, part) for index, part in enumerate(value) if part is not None)
    elif isinstance(column.type, SetType):
        yield from ((part, None) for part in value)
    else:
        yield from value


_KEY_COLUMN = "cdc$partition_key"


def read_states_before(lake: Lake, schema: TableSchema) -> StateLookup:
    """Return a lookup of the partitions' states according to the current log in the lake.

    Raises:
        InputError: a row of the log is invalid, or a batch of it is incomplete.
    """
    return _state_lookup(schema, read_state(lake, schema, lake.version(log_table(schema))))


def encode_dataframe_with_images(
    lake: Lake, schema: TableSchema, writes: DataFrame, streams_of: StreamFinder
) -> DataFrame:
    """Return log rows with images of writes (all columns of `typed_writes_schema`) on the state of the current log.

    Writes to one partition take effect by timestamp, and at one time in an order that depends only on the writes. A
    task holds the writes of one partition and one batch at a time.
    """
    from pyspark.sql import functions as F

    root, version, exact = str(lake.location), lake.version(log_table(schema)), has_exact_column(lake, schema)
    columns = log_table(schema, exact=exact).schema

    def keys(*of_key: pa.Array) -> pa.Array:
        return encode_partition_keys(with_stored_names(schema), of_key)

    def logged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        before = _state_lookup(schema, _cached_state(root, schema, version))
        for partition in group_batches_by_key(batches, _KEY_COLUMN):
            rows = encode_batch_with_images(schema, _sort_writes(partition), streams_of, before, exact=exact)
            yield from rows.select(columns.names).combine_chunks().to_batches()

    # The stubs only accept a function type argument, which pyspark warns about.
    arrow_udf: Any = F.arrow_udf
    key = arrow_udf(keys, "binary")(
        *(quote_spark_name(column.name) for column in with_stored_names(schema).partition_key)
    )
    keyed = (
        writes.withColumn(_KEY_COLUMN, key)
        .repartition(F.col(quote_spark_name(_KEY_COLUMN)))
        .sortWithinPartitions(quote_spark_name(_KEY_COLUMN))
    )
    return keyed.mapInArrow(logged, arrow_to_spark_schema(columns))


def _sort_writes(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Sort the writes of whole partitions in an order that does not depend on their arrival."""
    writes = pa.Table.from_batches(batches).drop_columns([_KEY_COLUMN]).combine_chunks().to_batches()[0]
    return writes.take(pa.array(np.argsort(fingerprint_rows(writes.columns, len(writes)), kind="stable")))


def _state_lookup(schema: TableSchema, state: StoredState) -> StateLookup:
    def find_partition(key: bytes) -> Mutation | None:
        return state.partition(schema, int(tokens_from_keys([key])[0]), key)

    return find_partition


@lru_cache(maxsize=2)
def _cached_state(root: str, schema: TableSchema, version: int | None) -> StoredState:
    """Return the state at a version of the log, opened once per worker."""
    return read_state(Lake(root), schema, version)


def has_exact_column(lake: Lake, schema: TableSchema) -> bool:
    """Return True if the stored log has the column for values that native columns cannot hold."""
    return lake.exists(log_table(schema)) and EXACT in lake.stored_schema(log_table(schema)).names
