"""Encode a DataFrame of typed writes as log rows, and append log rows to a Delta table ordered by time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

import numpy as np
import pyarrow as pa

from cdc_platform.cdclog.batch_encoder import encode_log_batch
from cdc_platform.cdclog.fingerprint import fingerprint_values
from cdc_platform.cdclog.image_encoder import (
    encode_batch_with_images,
    encode_dataframe_with_images,
    has_exact_column,
    read_states_before,
)
from cdc_platform.cdclog.schema import (
    EXACT,
    WRITTEN_AT,
    log_table,
    range_end_columns,
    typed_writes_schema,
    with_stored_names,
)
from cdc_platform.clock import Microseconds, format_us, us_from_datetime
from cdc_platform.cql import TableSchema, us_from_timeuuid
from cdc_platform.delta import (
    STATISTICS_ROUNDING_US,
    Batches,
    FrameRows,
    Lake,
    TaskRows,
    TaskRunner,
    coalesce_batches,
    compute,
    freeze_worker_heap,
    group_batches_by_key,
    read_file_batches,
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


@dataclass(frozen=True)
class LoggedWrites:
    """The files of the log `name`, each with its first and last time (µs; None: unknown), pickled to tasks.

    Writes that are appended twice would have two rows for one key, so that their batches are damaged.
    """

    name: str
    files: tuple[tuple[str, Microseconds | None, Microseconds | None], ...]

    @classmethod
    def read(cls, lake: Lake, schema: TableSchema) -> LoggedWrites:
        """Return the files that a log has now."""
        files = lake.bounded_files(log_table(schema), WRITTEN_AT)
        return cls(schema.full_name, tuple((file.path, _bound_us(file.low), _bound_us(file.high)) for file in files))

    def refuse_repeated(self, batches: Batches) -> Batches:
        """Yield batches of log rows; raise InputError if the log has rows of the same writes."""
        for rows in batches:
            if rows.num_rows:
                self._refuse(rows)
            yield rows

    def _refuse(self, rows: pa.RecordBatch) -> None:
        times, own = compute.min_max(rows.column(WRITTEN_AT).cast(pa.int64())), rows.column("cdc$time")
        low, high = times["min"].as_py() - STATISTICS_ROUNDING_US, times["max"].as_py() + STATISTICS_ROUNDING_US
        for path, first, last in self.files:
            if (first is not None and first > high) or (last is not None and last < low):
                continue
            for stored in read_file_batches(path, ["cdc$time"]):
                repeated = own.filter(compute.is_in(own, value_set=stored.column(0)))
                if len(repeated):
                    at = format_us(us_from_timeuuid(UUID(repeated[0].as_py())))
                    raise InputError(
                        f"the log of {self.name} already has rows of the same writes, for example of {at}, in a batch "
                        "of another name; nothing was appended: leave those writes out"
                    )


def _bound_us(bound: datetime | None) -> Microseconds | None:
    return None if bound is None else us_from_datetime(bound)


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
    lake: Lake,
    schema: TableSchema,
    rows: DataFrame,
    *,
    files: int,
    transaction: tuple[str, int] | None = None,
    beside: Mapping[str, int] | None = None,
    stored: LoggedWrites | None = None,
) -> bool:
    """Append log rows to the log's Delta table, by time in `files` files; return True if they were appended.

    With a `transaction` (application and number) rows are appended at most once: a number not above the table's last
    one is ignored. `beside` are numbers of other applications to store in the same commit. Rows of writes that are
    `stored` already are refused.

    Raises:
        InputError: the rows do not fit the table's schema.
        ConflictError: other writers won every attempt.
    """
    table = log_table(schema, exact=EXACT in rows.columns)
    ordered = partition_by_time(rows, files).select(*map(quote_spark_name, table.schema.names))
    return _append_frame(lake, table, FrameRows(ordered, partial(_write_files, stored)), transaction, beside)


def append_writes(
    lake: Lake,
    schema: TableSchema,
    writes: DataFrame,
    *,
    files: int,
    transaction: tuple[str, int] | None = None,
    beside: Mapping[str, int] | None = None,
    stored: LoggedWrites | None = None,
) -> bool:
    """Append the log rows of typed writes; see `append_log_rows`.

    The same writes have the same log rows, whatever their order.

    Without images, the tasks that encode the rows also write them, and Spark partitions and sorts the writes. A
    DataFrame of log rows would pass through the JVM once more, and Spark would sort it with all columns.

    Raises:
        InputError: the writes have other columns, or one of them is invalid for the table.
        ConflictError, StateError: as `append_log_rows` and `encode_dataframe`.
    """
    if schema.cdc.has_images:
        rows = encode_dataframe(lake, schema, writes)
        return append_log_rows(lake, schema, rows, files=files, transaction=transaction, beside=beside, stored=stored)
    inputs, encode = _batch_encoder(lake, schema, writes)
    partitioned = inputs.repartitionByRange(files, "timestamp").sortWithinPartitions("timestamp")
    table = log_table(schema, exact=has_exact_column(lake, schema))
    ordered = _encode_in_order(lambda batch: _with_exact(table, encode(batch)), table.full_name, stored)
    return _append_frame(lake, table, FrameRows(partitioned, ordered), transaction, beside)


def append_writes_in_process(
    lake: Lake,
    schema: TableSchema,
    writes: pa.Table,
    transaction: tuple[str, int],
    beside: Mapping[str, int],
    stored: LoggedWrites,
) -> bool:
    """Append the log rows of typed writes (all columns of `typed_writes_schema`) in memory, as `append_writes` does.

    Raises:
        InputError: a write is invalid for the table.
        ConflictError, StateError: as `append_log_rows` and `encode_dataframe`.
    """
    batch = _sort_ties(pa.concat_batches(writes.sort_by("timestamp").to_batches()))
    streams_of, exact = get_stream_lookup(lake, schema), has_exact_column(lake, schema)
    if schema.cdc.has_images:
        rows = encode_batch_with_images(schema, batch, streams_of, read_states_before(lake, schema), exact=exact)
    else:
        rows = pa.Table.from_batches(
            [_with_exact(log_table(schema, exact=exact), encode_log_batch(schema, batch, streams_of))]
        )
    table = log_table(schema, exact=EXACT in rows.column_names)
    parts = _split_by_file(rows.select(table.schema.names).cast(table.schema)).through(stored.refuse_repeated)
    return frames.append_to_table(TaskRunner.alone(), lake, table, parts, transaction, beside)


def _with_exact(table: Table, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return log rows with all columns of the log: typed writes have no values that native columns cannot hold."""
    if EXACT not in table.schema.names:
        return rows
    exact = table.schema.field(EXACT)
    return pa.RecordBatch.from_arrays([*rows.columns, pa.nulls(len(rows), exact.type)], schema=table.schema)


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


def _encode_in_order(
    logged: Callable[[pa.RecordBatch], pa.RecordBatch], name: str, stored: LoggedWrites | None
) -> Callable[[Batches], Batches]:
    """Return a function that encodes time-ordered writes as log rows of the log `name`, in order."""

    def timed(batches: Batches) -> Batches:
        for batch in batches:
            if batch.column("timestamp").null_count:
                logged(batch)  # raises InputError
            yield batch

    def ordered(batches: Batches) -> Batches:
        groups = group_batches_by_key(timed(batches), "timestamp", _SORTED_BYTES)
        try:
            sorted_rows = (_sort_by_time(logged(_sort_ties(pa.concat_batches(group)))) for group in groups)
            yield from _write_files(stored, sorted_rows)
        except InputError as error:
            raise InputError(f"appending to {name}: {error}") from None

    return ordered


def _sort_ties(writes: pa.RecordBatch) -> pa.RecordBatch:
    """Order writes of one time, which arrive in any order, by their content; `writes` are ordered by time."""
    times = np.asarray(writes.column("timestamp"))
    same = times[1:] == times[:-1]
    rows = np.flatnonzero(np.append(same, False) | np.append(False, same))
    if not len(rows):
        return writes
    tied = writes.take(pa.array(rows))
    order = np.arange(len(writes))
    order[rows] = rows[np.lexsort((fingerprint_values(tied), times[rows]))]
    return writes.take(pa.array(order))


def _write_files(stored: LoggedWrites | None, batches: Batches) -> Batches:
    """Yield the rows of a file, as one batch unless they are too many; refuse those that are stored already."""
    batches = batches if stored is None else stored.refuse_repeated(batches)
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


def _append_frame(
    lake: Lake,
    table: Table,
    rows: FrameRows,
    transaction: tuple[str, int] | None,
    beside: Mapping[str, int] | None,
) -> bool:
    session = rows.frame.sparkSession
    # A value may have a megabyte.
    with limit_batch_bytes(session):
        return frames.append_to_table(TaskRunner(lambda: session), lake, table, rows, transaction, beside)


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
