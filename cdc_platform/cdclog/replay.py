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
    """Return the partitions of the base table that its log's rows amount to, by serialized partition key.

    Rows may be in any order. Cells, markers and tombstones keep the timestamps and TTLs of their writes; images are
    ignored. Columns of `schema` that the rows lack count as null.

    Raises:
        StateError: the log holds only keys.
        InputError: a row is not a valid log row, or a batch is incomplete.
    """
    assert_full_delta(schema)
    names = [column.name for column in get_log_columns(schema)]
    complete_rows = [{name: row.get(name) for name in names} for row in rows]
    if not complete_rows:
        return {}
    return mutations_from_state(
        schema, merge_states(schema, [state_from_log(schema, log_rows_to_arrow(schema, complete_rows))])
    )


_OPTIONAL_ROLES = ("value", "deleted", "deleted_elements")
"""The roles of log columns that may be missing, since the base table got their column later."""


def replay_dataframe(schema: TableSchema, changes: DataFrame, *, now_us: Microseconds | None = None) -> DataFrame:
    """Return the rows of `SELECT *` of the base table that its log's rows, in any order, amount to; see `replay_log`.

    Columns are those of `select_schema`. Cells with a TTL are absent if they have expired by `now_us` (µs); None:
    nothing expires. Rows of a base partition are together, in clustering order. A task holds the log rows of one part
    of the ring at a time, an eighth of its share; if those do not fit into memory, set more shuffle partitions. The log
    rows of each base partition must fit into memory, and into the 2 GiB of a batch.

    Columns that the base table got later and that `changes` lacks are null; unknown columns are ignored. An invalid log
    row or an incomplete batch fails the job with an InputError: run it under `delta.translate_errors`.

    Raises:
        StateError: the log holds only keys.
        InputError: a column of the log is missing, or has another type.
    """
    assert_full_delta(schema)
    schema = with_stored_names(schema)
    names = _available_columns(schema, changes)

    def keys(batch: pa.RecordBatch) -> pa.Array:
        # Spark would treat 0.0 and -0.0 as one key, two texts of one UUID as two, and cannot group by maps at all.
        return log_partition_keys(schema, pa.Table.from_batches([batch]))

    def rows(log: pa.Table) -> Iterator[pa.RecordBatch]:
        return replay_batches(schema, log, now_us)

    return apply_by_key(
        changes.select(*map(quote_spark_name, names)), keys, rows, arrow_to_spark_schema(select_schema(schema))
    )


def replay_batches(schema: TableSchema, log: pa.Table, now_us: Microseconds | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the base table's rows (`select_schema`) from all log rows of some base partitions, in key order.

    Raises:
        InputError: a row is not a valid log row, or a batch of the log is incomplete.
    """
    state = merge_states(schema, [state_from_log(schema, log.combine_chunks())])
    yield from select_rows(schema, state, now_us).to_batches(max_chunksize=MAX_BATCH_ROWS)


def _available_columns(schema: TableSchema, changes: DataFrame) -> list[str]:
    """Return the log's columns in the changes; raise InputError if required ones are missing or types differ."""
    log_columns = get_log_columns(schema)
    expected = arrow_to_spark_schema(log_table(schema).schema)
    columns = type(expected)([expected[item.name] for item in log_columns])
    optional = [item.name for item in log_columns if item.role in _OPTIONAL_ROLES]
    for item in IncomingFrameSchema(f"changes of {schema.full_name}", columns, optional, readable=_is_readable).misfits(
        changes
    ):
        if item.actual is None:
            raise InputError(f"the changes have no column {item.column}; every log of {schema.full_name} has it")
        raise InputError(
            f"column {item.column} of the changes is {item.actual}; in a log of {schema.full_name} "
            f"it is {item.expected}"
        )
    return [item for item in (*columns.names, EXACT) if item in changes.columns]


def _is_readable(kind: DataType, due: DataType) -> bool:
    """Return True if values of `kind` fit `due`, whose user types may have fields that were added later."""
    from pyspark.sql import types as T

    if isinstance(kind, T.StructType) and isinstance(due, T.StructType):
        kinds = {field.name: field.dataType for field in due}
        return all(nested.name in kinds and _is_readable(nested.dataType, kinds[nested.name]) for nested in kind)
    if isinstance(kind, T.ArrayType) and isinstance(due, T.ArrayType):
        return _is_readable(kind.elementType, due.elementType)
    if isinstance(kind, T.MapType) and isinstance(due, T.MapType):
        return _is_readable(kind.keyType, due.keyType) and _is_readable(kind.valueType, due.valueType)
    return kind.simpleString() == due.simpleString()
