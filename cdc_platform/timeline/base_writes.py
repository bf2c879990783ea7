"""Which stream every base write gets: key bytes and timestamp in, stream ID out, for DataFrames of any size.

It knows how batches travel through Spark. Whether a coordinator would accept a write is not asked: the past is looked
up.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from cdc_platform.errors import InputError
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.shape import Door
from cdc_platform.lake.volume import settle_worker
from cdc_platform.timeline.stream_sources import StreamSources

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def assign_streams(lake: Lake, writes: DataFrame) -> DataFrame:
    """Add `stream_id` (binary) to writes with a serialized partition `key` (binary) and a `timestamp` (bigint, µs).

    The stream is the one that the generation operating at the timestamp gives the key. It is null where the key or
    the timestamp is null, where no generation operated yet, and where the one that did was removed since. Writes of
    which 32,768 don't fit into memory are run under `lake.session.bounded_batches`.

    Raises:
        InputError: a column is missing or has another type.
        StateError: a generation that operated in between has no ID, so that its description cannot be read.

    A write whose generation an undecided switch may still change fails the job: WriteRefused, UNDECIDED.
    """
    from pyspark.sql import types as T

    due = T.StructType([T.StructField("key", T.BinaryType()), T.StructField("timestamp", T.LongType())])
    for each in Door("base writes", due).misfits(writes):
        raise InputError(f"writes need a column {each.column!r} of type {each.due}; they have {writes.columns}")
    streams_of = StreamSources(lake).generations.finder()
    schema = T.StructType([*writes.schema.fields, T.StructField("stream_id", T.BinaryType())])

    def with_streams(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            streams = streams_of(batch.column("key"), batch.column("timestamp"))
            yield pa.RecordBatch.from_arrays([*batch.columns, streams], names=[*batch.schema.names, "stream_id"])
        settle_worker()

    return writes.mapInArrow(with_streams, schema)
