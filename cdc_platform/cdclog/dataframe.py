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

# Of a file that is larger, parts of this size lie in any order.
_SORTED_BYTES = 1 << 25

ROWS_PER_FILE = 250_000
"""Of a log's files, each of which covers a time of its own: a reader of 1 % of 50 million rows reads two or three."""


def encode_dataframe(lake: Lake, schema: TableSchema, writes: DataFrame) -> DataFrame:
    """The log rows of typed writes (`log_table.writes_schema`; columns that are left out are null), in their streams.

    The streams are those of the table's tablets, or of the generations that the lake knows; whether a coordinator
    would have accepted a write is not asked, since the past is looked up; one whose generation an undecided switch may
    still change fails the job with a StateError. Rows of one write stand together, and a
    partition of `writes` stays one. A write that the table cannot have fails the job with an InputError.

    Images of a table that has any are those on the state that its log tells when this is called, see `imaged_volume`;
    then partitions of the base table come together, and `writes` is parted anew.

    Raises:
        InputError: the writes have other columns.
        StateError: the table has no log, or a generation has no ID, so that its description cannot be read.
    """
    if schema.cdc.has_images:
        return encode_dataframe_with_images(
            lake, schema, _align_columns(schema, writes), get_stream_lookup(lake, schema)
        )
    given, logged = _batch_encoder(lake, schema, writes)
    return given.mapInArrow(lambda batches: map(logged, batches), arrow_to_spark_schema(log_table(schema).schema))


def partition_by_time(rows: DataFrame, files: int) -> DataFrame:
    """Log rows in `files` parts, each of a time of its own and in its order, so that readers of a window skip most."""
    parted = rows.repartitionByRange(files, quote_spark_name(WRITTEN_AT))
    return parted.sortWithinPartitions(*map(quote_spark_name, _ORDER))


def append_log_rows(
    lake: Lake, schema: TableSchema, rows: DataFrame, *, files: int, transaction: tuple[str, int] | None = None
) -> None:
    """Append log rows to the log's Delta table, by time in `files` files.

    With a `transaction` (application and its number) the rows go in at most once: a number that the table has already
    seen, or a lower one, is passed over.

    Raises:
        InputError: the rows break the table's schema.
        ConflictError: other writers kept winning.
    """
    table = log_table(schema, exact=EXACT in rows.columns)
    ordered = partition_by_time(rows, files).select(*map(quote_spark_name, table.schema.names))
    _append_frame(lake, table, FrameRows(ordered, _file_batches), transaction)


def append_writes(
    lake: Lake, schema: TableSchema, writes: DataFrame, *, files: int, transaction: tuple[str, int] | None = None
) -> None:
    """Append the log rows of typed writes, as `append` does it with rows.

    Those without images are written by the tasks that make them, and parted and sorted before as the writes that they
    are made of: as a DataFrame they would go through the JVM once more, and be sorted there with all of their columns.

    Raises:
        InputError: the writes have other columns, or one of them is none that the table can have.
        ConflictError, StateError: as `append` and `encode_dataframe`.
    """
    if schema.cdc.has_images:
        append_log_rows(lake, schema, encode_dataframe(lake, schema, writes), files=files, transaction=transaction)
        return
    given, logged = _batch_encoder(lake, schema, writes)
    parted = given.repartitionByRange(files, "timestamp").sortWithinPartitions("timestamp")
    table = log_table(schema)
    _append_frame(lake, table, FrameRows(parted, _encode_in_order(logged, table.full_name)), transaction)


def _batch_encoder(
    lake: Lake, schema: TableSchema, writes: DataFrame
) -> tuple[DataFrame, Callable[[pa.RecordBatch], pa.RecordBatch]]:
    """The columns of typed writes that go to workers, and what makes log rows without images of a batch of them."""
    rows = _align_columns(schema, writes)
    streams_of = get_stream_lookup(lake, schema)
    schema = with_stored_names(schema)
    whole = pa.schema([typed_writes_schema(schema).field(name) for name in rows.columns])
    # To a worker goes what is there; columns that are null in every write it makes itself.
    given = [name for name in rows.columns if name in writes.columns]

    def logged(batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = dict(zip(given, batch.columns, strict=True))
        filled = [columns[each.name] if each.name in columns else pa.nulls(len(batch), each.type) for each in whole]
        return encode_log_batch(schema, pa.RecordBatch.from_arrays(filled, whole.names), streams_of)

    return rows.select(*map(quote_spark_name, given)), logged


def _encode_in_order(logged: Callable[[pa.RecordBatch], pa.RecordBatch], name: str) -> Callable[[Batches], Batches]:
    """What makes log rows of the log `name`, in their order, of writes that come in that of their times."""

    def timed(batches: Batches) -> Batches:
        for batch in batches:
            if batch.column("timestamp").null_count:
                logged(batch)  # which refuses it
            yield batch

    def ordered(batches: Batches) -> Batches:
        groups = group_batches_by_key(timed(batches), "timestamp", _SORTED_BYTES)
        try:
            yield from _file_batches(_sort_by_time(logged(pa.concat_batches(group))) for group in groups)
        except InputError as error:
            raise InputError(f"appending to {name}: {error}") from None

    return ordered


def _file_batches(batches: Batches) -> Batches:
    """The rows of a file, as one batch where they are not too many for that."""
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
    """Append log rows as `append` does, without Spark: one part, a file, is in this process's memory at a time.

    `exact`: whether any of them has a column for values that no native column holds.

    Raises:
        As `append`.
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
    """Put log rows that are in this process's memory, and their columns, in place of all that the log has.

    Raises:
        As `append`.
    """
    table = log_table(schema, exact=EXACT in rows.column_names)
    frames.replace_all_rows(TaskRunner.alone(), lake, table, _split_by_file(rows), transaction)


def _split_by_file(rows: pa.Table) -> TaskRows:
    """A part a file, each of a time of its own and in its order."""
    ordered = _sort_by_time(rows)
    files = [ordered.slice(first, ROWS_PER_FILE) for first in range(0, rows.num_rows, ROWS_PER_FILE)]
    return TaskRows(len(files), lambda number: iter(files[number].to_batches()))


def _sort_by_time(rows: _Rows) -> _Rows:
    return rows.sort_by([(name, "ascending") for name in _ORDER])


def _append_frame(lake: Lake, table: Table, rows: FrameRows, transaction: tuple[str, int] | None) -> None:
    session = rows.frame.sparkSession
    # A value may be a megabyte long.
    with limit_batch_bytes(session):
        frames.append_to_table(TaskRunner(lambda: session), lake, table, rows, transaction)


def _align_columns(schema: TableSchema, writes: DataFrame) -> DataFrame:
    """The writes with all columns that typed writes can have, in order."""
    from pyspark.sql import functions as F

    if not schema.cdc.enabled:
        raise StateError(f"{schema.full_name} has no CDC log; enable it with WITH cdc = {{'enabled': true}}")
    schema = with_stored_names(schema)
    expected = arrow_to_spark_schema(typed_writes_schema(schema))
    door = IncomingFrameSchema(f"typed writes to {schema.full_name}", expected, optional=expected.names, strict=True)
    misfits = door.misfits(writes)
    unknown = sorted(each.column for each in misfits if each.due is None)
    if unknown:
        raise InputError(f"{door.name} have no column {', '.join(unknown)}")
    for each in misfits:
        raise InputError(f"column {each.column} of {door.name} is {each.found}; it has to be {each.due}")
    given = set(writes.columns)
    # What no write needs is not carried: most have no ranges.
    spare = set(range_end_columns(schema)) - given
    columns = [
        F.col(quote_spark_name(field.name))
        if field.name in given
        else F.lit(None).cast(field.dataType).alias(field.name)
        for field in expected
        if field.name not in spare
    ]
    return writes.select(*columns)


def get_stream_lookup(lake: Lake, schema: TableSchema) -> StreamFinder:
    """What gives a table's writes their streams.

    Raises:
        StateError: a generation has no ID, or a stream set is damaged.
    """
    return StreamSources(lake).of(schema.keyspace, schema.name).finder()
