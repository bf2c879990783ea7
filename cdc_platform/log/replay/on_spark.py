"""Replaying a log in volume: a DataFrame of log rows becomes the rows of the base table, partition by partition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from cdc_platform.clock import Microseconds
from cdc_platform.cql.schema import TableSchema, log_columns
from cdc_platform.errors import InputError
from cdc_platform.lake.packing import by_key
from cdc_platform.lake.session import ROWS_PER_BATCH
from cdc_platform.lake.shape import Door, quoted, spark_struct
from cdc_platform.log.log_table import log_table
from cdc_platform.log.state.merging import merged
from cdc_platform.log.state.of_log import assert_full_delta, partition_keys, state_of_log
from cdc_platform.log.state.selecting import selected, selected_schema
from cdc_platform.log.stored_names import EXACT, stored

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

_LATER_ROLES = ("value", "deleted", "deleted_elements")
"""What a log lacks of a column that the base table got later."""


def replayed(schema: TableSchema, changes: DataFrame, *, now_us: Microseconds | None = None) -> DataFrame:
    """The rows of `SELECT *` of the base table that the rows of its log, in any order, amount to: see `replay`.

    Columns are those of `selected_schema`. Cells with a TTL are gone if they have expired by `now_us` (µs); None:
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
    schema = stored(schema)
    names = _columns(schema, changes)

    def keys(batch: pa.RecordBatch) -> pa.Array:
        # Spark would take 0.0 and -0.0 for one key, two texts of one UUID for two, and cannot group by maps at all.
        return partition_keys(schema, pa.Table.from_batches([batch]))

    def rows(log: pa.Table) -> Iterator[pa.RecordBatch]:
        return base_rows(schema, log, now_us)

    return by_key(changes.select(*map(quoted, names)), keys, rows, spark_struct(selected_schema(schema)))


def base_rows(schema: TableSchema, log: pa.Table, now_us: Microseconds | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of the base table (`selected_schema`) that rows of the log, all of some base partitions', amount to.

    In the order of their keys.

    Raises:
        InputError: a row is none of a log, or a batch of the log is not complete.
    """
    state = merged(schema, [state_of_log(schema, log.combine_chunks())])
    yield from selected(schema, state, now_us).to_batches(max_chunksize=ROWS_PER_BATCH)


def _columns(schema: TableSchema, changes: DataFrame) -> list[str]:
    """The names of the log's columns that the changes have; held to be enough, and of the types of the log."""
    told = log_columns(schema)
    due = spark_struct(log_table(schema).schema)
    columns = type(due)([due[each.name] for each in told])
    later = [each.name for each in told if each.role in _LATER_ROLES]
    for each in Door(f"changes of {schema.full_name}", columns, later, readable=_is_readable).misfits(changes):
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
