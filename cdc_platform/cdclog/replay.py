"""Rebuild the base table from the rows of its log, in this process or as a DataFrame, partition by partition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from cdc_platform.cdclog.schema import EXACT, log_table, with_stored_names
from cdc_platform.cdclog.state.from_log import assert_full_delta, log_partition_keys, state_from_log
from cdc_platform.cdclog.state.merge import merge_states
from cdc_platform.cdclog.state.mutations import mutations_from_state
from cdc_platform.cdclog.state.select import select_rows, select_schema
from cdc_platform.cdclog.values import log_rows_to_arrow
from cdc_platform.clock import Microseconds
from cdc_platform.cql import Mutation, TableSchema, Value, get_log_columns
from cdc_platform.errors import InputError
from cdc_platform.spark import (
    MAX_BATCH_ROWS,
    IncomingFrameSchema,
    apply_by_key,
    arrow_to_spark_schema,
    quote_spark_name,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

ReplayedRow = Mapping[str, Value | None]


def replay_log(schema: TableSchema, rows: Iterable[ReplayedRow]) -> dict[bytes, Mutation]:
    """The partitions of the base table, by serialized partition key, that the rows of its log amount to.

    Rows may come in any order. Cells, markers and tombstones have the timestamps and TTLs that they were written
    with; images are passed over. What the rows lack of the columns of `schema` counts as null.

    Raises:
        StateError: the log holds keys alone.
        InputError: a row is none of a log, or a batch is not complete.
    """
    assert_full_delta(schema)
    names = [column.name for column in get_log_columns(schema)]
    given = [{name: row.get(name) for name in names} for row in rows]
    if not given:
        return {}
    return mutations_from_state(
        schema, merge_states(schema, [state_from_log(schema, log_rows_to_arrow(schema, given))])
    )


_OPTIONAL_ROLES = ("value", "deleted", "deleted_elements")
"""What a log lacks of a column that the base table got later."""


def replay_dataframe(schema: TableSchema, changes: DataFrame, *, now_us: Microseconds | None = None) -> DataFrame:
    """The rows of `SELECT *` of the base table that the rows of its log, in any order, amount to: see `replay`.

    Columns are those of `select_schema`. Cells with a TTL are gone if they have expired by `now_us` (µs); None:
    nothing expires. Rows of a base partition stand together, in clustering order. A task holds the log's rows of one
    part of the ring at a time, an eighth of its share: where those don't fit into memory set more shuffle
    partitions. A base partition of the log's rows has to fit in any case, and into the 2 GiB of a batch.

    Columns that `changes` lacks of those that the base table got later are null; others that it has are passed over.
    A row that is none of the log, or a batch that is not complete, fails the job with an InputError: run it under
    `lake.translate.translated`.

    Raises:
        StateError: the log holds keys alone.
        InputError: a column of the log is missing, or has another type.
    """
    assert_full_delta(schema)
    schema = with_stored_names(schema)
    names = _available_columns(schema, changes)

    def keys(batch: pa.RecordBatch) -> pa.Array:
        # Spark would take 0.0 and -0.0 for one key, two texts of one UUID for two, and cannot group by maps at all.
        return log_partition_keys(schema, pa.Table.from_batches([batch]))

    def rows(log: pa.Table) -> Iterator[pa.RecordBatch]:
        return replay_batches(schema, log, now_us)

    return apply_by_key(
        changes.select(*map(quote_spark_name, names)), keys, rows, arrow_to_spark_schema(select_schema(schema))
    )


def replay_batches(schema: TableSchema, log: pa.Table, now_us: Microseconds | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of the base table (`select_schema`) that rows of the log, all of some base partitions', amount to.

    In the order of their keys.

    Raises:
        InputError: a row is none of a log, or a batch of the log is not complete.
    """
    state = merge_states(schema, [state_from_log(schema, log.combine_chunks())])
    yield from select_rows(schema, state, now_us).to_batches(max_chunksize=MAX_BATCH_ROWS)


def _available_columns(schema: TableSchema, changes: DataFrame) -> list[str]:
    """The names of the log's columns that the changes have; held to be enough, and of the types of the log."""
    told = get_log_columns(schema)
    due = arrow_to_spark_schema(log_table(schema).schema)
    columns = type(due)([due[each.name] for each in told])
    later = [each.name for each in told if each.role in _OPTIONAL_ROLES]
    for each in IncomingFrameSchema(f"changes of {schema.full_name}", columns, later, readable=_is_readable).misfits(
        changes
    ):
        if each.found is None:
            raise InputError(f"the changes have no column {each.column}; every log of {schema.full_name} has it")
        raise InputError(
            f"column {each.column} of the changes is {each.found}; in a log of {schema.full_name} it is {each.due}"
        )
    return [each for each in (*columns.names, EXACT) if each in changes.columns]


def _is_readable(found: DataType, due: DataType) -> bool:
    """Whether values of one Spark type are ones of another, which may have fields that a user type got later."""
    from pyspark.sql import types as T

    if isinstance(found, T.StructType) and isinstance(due, T.StructType):
        kinds = {field.name: field.dataType for field in due}
        return all(each.name in kinds and _is_readable(each.dataType, kinds[each.name]) for each in found)
    if isinstance(found, T.ArrayType) and isinstance(due, T.ArrayType):
        return _is_readable(found.elementType, due.elementType)
    if isinstance(found, T.MapType) and isinstance(due, T.MapType):
        return _is_readable(found.keyType, due.keyType) and _is_readable(found.valueType, due.valueType)
    return found.simpleString() == due.simpleString()
