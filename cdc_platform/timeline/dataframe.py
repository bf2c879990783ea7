"""Streams of base writes in DataFrames of any size: from key bytes and timestamp to stream ID.

It looks up the past and does not check whether a coordinator would accept the writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from cdc_platform.cql import LOG_SUFFIX, is_valid_name
from cdc_platform.delta import Batches, FrameRows, Lake, TaskRunner, freeze_worker_heap
from cdc_platform.errors import InputError
from cdc_platform.spark import IncomingFrameSchema, frames, spark_to_arrow_type
from cdc_platform.tables import TABLES, Table, column
from cdc_platform.timeline.sources import StreamSources

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField

STREAM_ID_COLUMN = "stream_id"
"""The column that is added to writes."""
_KEY_COLUMNS = ("key", "timestamp")
_FORBIDDEN_CHARACTERS = re.compile("[ ,;{}()\n\t=]")
"""The characters that Delta does not allow in column names."""


def assign_streams(lake: Lake, writes: DataFrame) -> DataFrame:
    """Add `stream_id` (binary) to writes with a serialized partition `key` (binary) and a `timestamp` (bigint, µs).

    The generation that operates at the timestamp assigns the stream to the key. The stream is null if the key or the
    timestamp is null, if no generation operated yet, and if the one that did was removed since. If 32,768 writes do not
    fit into memory, run them under `lake.session.bounded_batches`.

    Raises:
        InputError: a column is missing or has another type, or `stream_id` exists already.
        StateError: a generation that operated in between has no ID, so its description cannot be read.

    A write whose generation an undecided switch may still change fails the job: WriteRefused, UNDECIDED.
    """
    from pyspark.sql import types as T

    schema = T.StructType([*writes.schema.fields, T.StructField(STREAM_ID_COLUMN, T.BinaryType())])
    return writes.mapInArrow(_stream_assigner(lake, writes), schema)


def append_with_streams(lake: Lake, writes: DataFrame, name: str, transaction: tuple[str, int] | None = None) -> bool:
    """Append writes with their streams (see `assign_streams`) to a Delta table; return True if they were appended.

    `name` is `keyspace.table`; the table is created with the columns of the writes if it does not exist. Each partition
    of `writes` becomes a file that the task that assigns the streams writes itself, which takes half the time of
    Spark's own DataFrame writer. All files are in one commit. With a `transaction` (application and its number) they
    are appended at most once.

    Raises:
        InputError: as `assign_streams`; the name is invalid, or names one of the platform's own tables; a column has a
            type that no table of the platform has.
        StateError: as `assign_streams`; the table has other columns; an undecided switch may still change the
            generation of a write. Nothing is appended.
        ConflictError, EnvironmentProblem: as `frames.append`.
    """
    change = _stream_assigner(lake, writes)
    table = _delta_table(name, writes)
    return frames.append_to_table(
        TaskRunner(lambda: writes.sparkSession), lake, table, FrameRows(writes, change), transaction
    )


def _stream_assigner(lake: Lake, writes: DataFrame) -> Callable[[Batches], Batches]:
    """Return the function that tasks use to add streams to batches of writes."""
    from pyspark.sql import types as T

    due = T.StructType([T.StructField("key", T.BinaryType()), T.StructField("timestamp", T.LongType())])
    for misfit in IncomingFrameSchema("base writes", due).misfits(writes):
        raise InputError(
            f"writes need a column {misfit.column!r} of type {misfit.expected}; they have {writes.columns}"
        )
    if STREAM_ID_COLUMN in map(str.lower, writes.columns):
        raise InputError(f"writes have a column {STREAM_ID_COLUMN!r} already; drop it, or give it another name")
    streams_of = StreamSources(lake).generations.finder()

    def with_streams(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            streams = streams_of(batch.column("key"), batch.column("timestamp"))
            yield pa.RecordBatch.from_arrays([*batch.columns, streams], names=[*batch.schema.names, STREAM_ID_COLUMN])
        freeze_worker_heap()

    return with_streams


def _delta_table(name: str, writes: DataFrame) -> Table:
    """Return the Delta table of that name with the columns of the writes."""
    keyspace, _, table = name.partition(".")
    if not (is_valid_name(keyspace) and is_valid_name(table)):
        raise InputError(f"writes are appended to keyspace.table, not to {name!r}")
    if keyspace in {each.keyspace for each in TABLES.values()} or LOG_SUFFIX in name:
        raise InputError(f"{name} is reserved for the platform's own tables; append the writes to another table")
    for known, each in enumerate(writes.columns):
        if _FORBIDDEN_CHARACTERS.search(each) or each.lower() in map(str.lower, writes.columns[:known]):
            raise InputError(
                f"Delta has no column {each!r} beside {writes.columns[:known]}; rename it with withColumnRenamed"
            )
    fields = [_arrow_field(field) for field in writes.schema]
    stream = column(STREAM_ID_COLUMN, pa.binary(), "stream of the write, by its key and timestamp", null=True)
    return Table(
        keyspace, table, pa.schema([*fields, stream]), keys=_KEY_COLUMNS, comment="base writes with their streams"
    )


def _arrow_field(field: StructField) -> pa.Field:
    kind = spark_to_arrow_type(field.dataType)
    if kind is None:
        raise InputError(
            f"column {field.name!r} of the writes is {field.dataType.simpleString()}, which no table of the platform "
            "can store; drop the column, or cast it to text"
        )
    return column(field.name, kind, "as in the write", null=True)
