"""Bring rows with the same partition key into one Spark task, as packed Arrow blobs instead of rows.

Shuffling and sorting wide log rows in the JVM took three times as long as the work on them. Batches are cut by token
into equal arcs of the ring, with one Arrow stream each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from cdc_platform.delta import binaries_from_buffer, tokens_from_keys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

PARTS_PER_TASK = 8
"""The number of parts of the ring per task; a task holds one part in memory at a time."""
_DEFAULT_TASKS = 200
"""Spark's default number of shuffle partitions, for platforms that choose the number themselves."""
_PART_COLUMN, _ROWS_COLUMN = "part", "rows"
_PACKED_SCHEMA = f"{_PART_COLUMN} int, {_ROWS_COLUMN} binary"
_BUFFERED_ROWS, _BUFFERED_BYTES = 1 << 17, 1 << 26
"""How many rows or bytes to buffer before packing, so that the blobs of many parts are not small."""
_SIGN_BIT = np.uint64(1 << 63)
_HALF_BITS = np.uint64(32)

KeyFunction = Callable[[pa.RecordBatch], pa.Array]
PartFunction = Callable[[pa.Table], Iterable[pa.RecordBatch]]


def apply_by_key(frame: DataFrame, keys: KeyFunction, work: PartFunction, schema: StructType) -> DataFrame:
    """Apply `work` to all rows of each part of the ring, part by part; `schema` is that of its output.

    `keys` returns the serialized partition keys (binary, none null) of a batch. All rows of a key arrive in one table,
    in no order and mixed with rows of other keys, with all columns of the frame as `mapInArrow` passes them. There are
    `PARTS_PER_TASK` parts for each of the session's shuffle partitions. A part must fit into a task's memory and into
    the 2 GiB of a batch.
    """
    tasks = frame.sparkSession.conf.get("spark.sql.shuffle.partitions") or ""
    parts = PARTS_PER_TASK * (int(tasks) if tasks.isdigit() else _DEFAULT_TASKS)

    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return pack_batches(batches, keys, parts)

    def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return iter(work(unpack_rows(pa.Table.from_batches(batches))))

    return frame.mapInArrow(pack, _PACKED_SCHEMA).groupBy(_PART_COLUMN).applyInArrow(unpack, schema)


def pack_batches(batches: Iterable[pa.RecordBatch], keys: KeyFunction, parts: int) -> Iterator[pa.RecordBatch]:
    """Yield batches as blobs by part of the ring (columns `part` int32, `rows` binary)."""
    buffered: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in (piece for whole in batches for piece in _split_batch(whole)):
        buffered.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _BUFFERED_ROWS or size >= _BUFFERED_BYTES:
            yield from _pack_parts(buffered, keys, parts)
            buffered, rows, size = [], 0, 0
    if rows:
        yield from _pack_parts(buffered, keys, parts)


def _split_batch(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield a batch in pieces of about `_BUFFERED_BYTES`, because the offsets of blobs packed at once have 31 bits."""
    rows = max(1, batch.num_rows * _BUFFERED_BYTES // max(batch.nbytes, 1))
    return (batch.slice(start, rows) for start in range(0, batch.num_rows, rows))


def unpack_rows(blobs: pa.Table) -> pa.Table:
    """Return the rows of blobs, in order."""
    return pa.concat_tables([ipc.open_stream(blob.as_buffer()).read_all() for blob in blobs.column(_ROWS_COLUMN)])


def _pack_parts(batches: list[pa.RecordBatch], keys: KeyFunction, parts: int) -> Iterator[pa.RecordBatch]:
    (batch,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    row_parts = _get_ring_parts(keys(batch), parts)
    order = np.argsort(row_parts, kind="stable")
    batch, row_parts = batch.take(pa.array(order)), row_parts[order]
    starts = np.flatnonzero(np.diff(row_parts, prepend=-1))
    ends = np.append(starts[1:], len(row_parts))
    sink, edges = pa.BufferOutputStream(), [0]
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        with ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch.slice(start, end - start))
        edges.append(sink.tell())
    blobs = binaries_from_buffer(np.frombuffer(sink.getvalue(), dtype=np.uint8), np.array(edges))
    yield pa.RecordBatch.from_arrays(
        [pa.array(row_parts[starts].astype(np.int32)), blobs], names=[_PART_COLUMN, _ROWS_COLUMN]
    )


def _get_ring_parts(keys: pa.Array, parts: int) -> np.ndarray:
    """Return the part (int64) of each key by its token: equal arcs of the ring from the lowest token on."""
    tokens = tokens_from_keys(keys).view(np.uint64) ^ _SIGN_BIT
    return ((tokens >> _HALF_BITS) * np.uint64(parts) >> _HALF_BITS).astype(np.int64)
