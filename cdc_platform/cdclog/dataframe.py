"""Encode a DataFrame of typed writes as log rows, and append log rows to a Delta table ordered by time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from cdc_platform.cdclog.batch_encoder import encode_log_batch
from cdc_platform.cdclog.image_encoder import encode_dataframe_with_images
from cdc_platform.cdclog.schema import (
    EXACT,
    WRITTEN_AT,
    log_table,
    range_end_columns,
    typed_writes_schema,
    with_stored_names,
)
from cdc_platform.cql import TableSchema
from cdc_platform.delta import (
    Batches,
    FrameRows,
    Lake,
    TaskRows,
    TaskRunner,
    coalesce_batches,
    freeze_worker_heap,
    group_batches_by_key,
)
from cdc_platform.errors import InputError, StateError
from cdc_platform.spark import IncomingFrameSchema, arrow_to_spark_schema, frames, limit_batch_bytes, quote_spark_name
from cdc_platform.tables import Table
from cdc_platform.timeline import StreamFinder, StreamSources

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_Rows = TypeVar("_Rows", pa.Table, pa.RecordBatch)
_ORDER = (WRITTEN_AT, "cdc$time", "cdc$batch_seq_no")

# A larger file is only sorted within parts of this size.
_SORTED_BYTES = 1 << 25

ROWS_PER_FILE = 250_000
"""Rows per file of a log, each of its own time interval: reading 1 % of 50 million rows opens two or three files."""


def encode_dataframe(lake: Lake, schema: TableSchema, writes: DataFrame) -> DataFrame:
    """Return the log rows of typed writes (`typed_writes_schema`; missing columns are null), in their streams.

    The streams are those of the table's tablets, or of the generations in the lake. A coordinator's acceptance rule is
    not applied, since the writes are in the past. A write whose generation an undecided switch may still change fails
    the job with a StateError, and an invalid write with an InputError. Rows of one write are together, and partitions
    of `writes` stay.

    Images use the state of the log at the time of the call, see `encode_dataframe_with_images`; then `writes` is
    repartitioned by partition key.

    Raises:
        InputError: the writes have other columns.
        StateError: the table has no log, or a generation has no ID, so that its description cannot be read.
    """
    if schema.cdc.has_images:
        return encode_dataframe_with_images(
            lake, schema, _align_columns(schema, writes), get_stream_lookup(lake, schema)
        )
    inputs, encode = _batch_encoder(lake, schema, writes)
    return inputs.mapInArrow(lambda batches: map(encode, batches), arrow_to_spark_schema(log_table(schema).schema))


def partition_by_time(rows: DataFrame, files: int) -> DataFrame:
    """Partition log rows into `files` sorted time intervals, so that readers of a window skip most files."""
    partitioned = rows.repartitionByRange(files, quote_spark_name(WRITTEN_AT))
    return partitioned.sortWithinPartitions(*map(quote_spark_name, _ORDER))


def append_log_rows(
    lake: Lake, schema: TableSchema, rows: DataFrame, *, files: int, transaction: tuple[str, int] | None = None
) -> None:
    """Append log rows to the log's Delta table, by time in `files` files.

    With a `transaction` (application and number) rows are appended at most once: a number not above the table's last
    one is ignored.

    Raises:
        InputError: the rows do not fit the table's schema.
        ConflictError: other writers won every attempt.
    """
    table = log_table(schema, exact=EXACT in rows.columns)
    ordered = partition_by_time(rows, files).select(*map(quote_spark_name, table.schema.names))
    _append_frame(lake, table, FrameRows(ordered, _file_batches), transaction)


def append_writes(
    lake: Lake, schema: TableSchema, writes: DataFrame, *, files: int, transaction: tuple[str, int] | None = None
) -> None:
    """Append the log rows of typed writes; see `append_log_rows`.

    Without images, the tasks that encode the rows also write them, and Spark partitions and sorts the writes. A
    DataFrame of log rows would pass through the JVM once more, and Spark would sort it with all columns.

    Raises:
        InputError: the writes have other columns, or one of them is invalid for the table.
        ConflictError, StateError: as `append_log_rows` and `encode_dataframe`.
    """
    if schema.cdc.has_images:
        append_log_rows(lake, schema, encode_dataframe(lake, schema, writes), files=files, transaction=transaction)
        return
    inputs, encode = _batch_encoder(lake, schema, writes)
    partitioned = inputs.repartitionByRange(files, "timestamp").sortWithinPartitions("timestamp")
    table = log_table(schema)
    _append_frame(lake, table, FrameRows(partitioned, _encode_in_order(encode, table.full_name)), transaction)


def _batch_encoder(
    lake: Lake, schema: TableSchema, writes: DataFrame
) -> tuple[DataFrame, Callable[[pa.RecordBatch], pa.RecordBatch]]:
    """Return the columns of typed writes to send to workers, and a function from a batch to log rows without images."""
    rows = _align_columns(schema, writes)
    streams_of = get_stream_lookup(lake, schema)
    schema = with_stored_names(schema)
    whole = pa.schema([typed_writes_schema(schema).field(name) for name in rows.columns])
    # Send only the given columns; workers create the columns that are null in every write.
    present = [name for name in rows.columns if name in writes.columns]

    def logged(batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = dict(zip(present, batch.columns, strict=True))
        filled = [columns[field.name] if field.name in columns else pa.nulls(len(batch), field.type) for field in whole]
        return encode_log_batch(schema, pa.RecordBatch.from_arrays(filled, whole.names), streams_of)

    return rows.select(*map(quote_spark_name, present)), logged


def _encode_in_order(logged: Callable[[pa.RecordBatch], pa.RecordBatch], name: str) -> Callable[[Batches], Batches]:
    """Return a function that encodes time-ordered writes as log rows of the log `name`, in order."""

    def timed(batches: Batches) -> Batches:
        for batch in batches:
            if batch.column("timestamp").null_count:
                logged(batch)  # raises InputError
            yield batch

    def ordered(batches: Batches) -> Batches:
        groups = group_batches_by_key(timed(batches), "timestamp", _SORTED_BYTES)
        try:
            yield from _file_batches(_sort_by_time(logged(pa.concat_batches(group))) for group in groups)
        except InputError as error:
            raise InputError(f"appending to {name}: {error}") from None

    return ordered


def _file_batches(batches: Batches) -> Batches:
    """Yield the rows of a file, as one batch unless they are too many."""
    yield from coalesce_batches(batches, _SORTED_BYTES)
    freeze_worker_heap()


def append_log_parts(
    lake: Lake,
    schema: TableSchema,
    parts: int,
    part: Callable[[int], pa.Table],
    transaction: tuple[str, int],
    *,
    exact: bool = False,
) -> None:
    """Append log rows as `append_log_rows` does, without Spark; one part, a file, is in memory at a time.

    `exact`: some part has the column for values that native columns cannot hold.

    Raises:
        As `append_log_rows`.
    """
    table = log_table(schema, exact=exact)

    def batches(number: int) -> Iterator[pa.RecordBatch]:
        rows = part(number)
        if exact and EXACT not in rows.column_names:
            rows = rows.append_column(
                table.schema.field(EXACT), pa.nulls(rows.num_rows, table.schema.field(EXACT).type)
            )
        return iter(_sort_by_time(rows).cast(table.schema).to_batches())

    frames.append_to_table(TaskRunner.alone(), lake, table, TaskRows(parts, batches), transaction)


def replace_log(lake: Lake, schema: TableSchema, rows: pa.Table, transaction: tuple[str, int]) -> None:
    """Replace all rows and columns of the log with log rows in memory.

    Raises:
        As `append_log_rows`.
    """
    table = log_table(schema, exact=EXACT in rows.column_names)
    frames.replace_all_rows(TaskRunner.alone(), lake, table, _split_by_file(rows), transaction)


def _split_by_file(rows: pa.Table) -> TaskRows:
    """Return the rows in one part per file, each a sorted time interval of its own."""
    ordered = _sort_by_time(rows)
    files = [ordered.slice(first, ROWS_PER_FILE) for first in range(0, rows.num_rows, ROWS_PER_FILE)]
    return TaskRows(len(files), lambda number: iter(files[number].to_batches()))


def _sort_by_time(rows: _Rows) -> _Rows:
    return rows.sort_by([(name, "ascending") for name in _ORDER])


def _append_frame(lake: Lake, table: Table, rows: FrameRows, transaction: tuple[str, int] | None) -> None:
    session = rows.frame.sparkSession
    # A value may have a megabyte.
    with limit_batch_bytes(session):
        frames.append_to_table(TaskRunner(lambda: session), lake, table, rows, transaction)


def _align_columns(schema: TableSchema, writes: DataFrame) -> DataFrame:
    """Return the writes with all columns of typed writes, in order."""
    from pyspark.sql import functions as F

    if not schema.cdc.enabled:
        raise StateError(f"{schema.full_name} has no CDC log; enable it with WITH cdc = {{'enabled': true}}")
    schema = with_stored_names(schema)
    expected = arrow_to_spark_schema(typed_writes_schema(schema))
    incoming = IncomingFrameSchema(
        f"typed writes to {schema.full_name}", expected, optional=expected.names, strict=True
    )
    misfits = incoming.misfits(writes)
    unknown = sorted(misfit.column for misfit in misfits if misfit.expected is None)
    if unknown:
        raise InputError(f"{incoming.name} have no column {', '.join(unknown)}")
    for misfit in misfits:
        raise InputError(
            f"column {misfit.column} of {incoming.name} is {misfit.actual}; it has to be {misfit.expected}"
        )
    present = set(writes.columns)
    # Omit missing columns for ranges, since most writes have no ranges.
    unused = set(range_end_columns(schema)) - present
    columns = [
        F.col(quote_spark_name(field.name))
        if field.name in present
        else F.lit(None).cast(field.dataType).alias(field.name)
        for field in expected
        if field.name not in unused
    ]
    return writes.select(*columns)


def get_stream_lookup(lake: Lake, schema: TableSchema) -> StreamFinder:
    """Return the lookup from a table's writes to their streams.

    Raises:
        StateError: a generation has no ID, or a stream set is damaged.
    """
    return StreamSources(lake).of(schema.keyspace, schema.name).finder()
