"""Bring rows with the same partition key into one Spark task, as packed Arrow blobs instead of rows.

Shuffling and sorting wide log rows in the JVM took three times as long as the work on them. Batches are cut by token
into equal arcs of the ring, one Arrow stream each.
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
"""Into so many parts of the ring each task's share is cut: a task holds one of them at a time."""
_DEFAULT_TASKS = 200
"""Spark's own default, where a platform leaves the number to itself."""
_PART_COLUMN, _ROWS_COLUMN = "part", "rows"
_PACKED_SCHEMA = f"{_PART_COLUMN} int, {_ROWS_COLUMN} binary"
_BUFFERED_ROWS, _BUFFERED_BYTES = 1 << 17, 1 << 26
"""So much is held before it is packed, that blobs of many parts are not small ones."""
_SIGN_BIT = np.uint64(1 << 63)
_HALF_BITS = np.uint64(32)

KeyFunction = Callable[[pa.RecordBatch], pa.Array]
PartFunction = Callable[[pa.Table], Iterable[pa.RecordBatch]]


def apply_by_key(frame: DataFrame, keys: KeyFunction, work: PartFunction, schema: StructType) -> DataFrame:
    """What `work` makes of all rows of a part of the ring, part by part; `schema` is that of what it makes.

    `keys` are the serialized partition keys (binary, none null) of a batch. All rows of a key come in one table, in no
    order and with others, with all of the frame's columns as they come to `mapInArrow`. There are `PARTS_PER_TASK`
    parts
    for each of the session's shuffle partitions; a part has to fit into a task's memory, and into the 2 GiB of a batch.
    """
    tasks = frame.sparkSession.conf.get("spark.sql.shuffle.partitions") or ""
    parts = PARTS_PER_TASK * (int(tasks) if tasks.isdigit() else _DEFAULT_TASKS)

    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return pack_batches(batches, keys, parts)

    def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return iter(work(unpack_rows(pa.Table.from_batches(batches))))

    return frame.mapInArrow(pack, _PACKED_SCHEMA).groupBy(_PART_COLUMN).applyInArrow(unpack, schema)


def pack_batches(batches: Iterable[pa.RecordBatch], keys: KeyFunction, parts: int) -> Iterator[pa.RecordBatch]:
    """Batches as blobs by part of the ring (columns `part` int32, `rows` binary)."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in (piece for whole in batches for piece in _split_batch(whole)):
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _BUFFERED_ROWS or size >= _BUFFERED_BYTES:
            yield from _pack_parts(held, keys, parts)
            held, rows, size = [], 0, 0
    if rows:
        yield from _pack_parts(held, keys, parts)


def _split_batch(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch in pieces of about `_BUFFERED_BYTES`: the blobs of what is packed at once have offsets of 31 bits."""
    rows = max(1, batch.num_rows * _BUFFERED_BYTES // max(batch.nbytes, 1))
    return (batch.slice(start, rows) for start in range(0, batch.num_rows, rows))


def unpack_rows(blobs: pa.Table) -> pa.Table:
    """The rows that blobs hold, in their order."""
    return pa.concat_tables([ipc.open_stream(blob.as_buffer()).read_all() for blob in blobs.column(_ROWS_COLUMN)])


def _pack_parts(batches: list[pa.RecordBatch], keys: KeyFunction, parts: int) -> Iterator[pa.RecordBatch]:
    (batch,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    place = _get_ring_parts(keys(batch), parts)
    order = np.argsort(place, kind="stable")
    batch, place = batch.take(pa.array(order)), place[order]
    starts = np.flatnonzero(np.diff(place, prepend=-1))
    ends = np.append(starts[1:], len(place))
    sink, edges = pa.BufferOutputStream(), [0]
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        with ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch.slice(start, end - start))
        edges.append(sink.tell())
    blobs = binaries_from_buffer(np.frombuffer(sink.getvalue(), dtype=np.uint8), np.array(edges))
    yield pa.RecordBatch.from_arrays(
        [pa.array(place[starts].astype(np.int32)), blobs], names=[_PART_COLUMN, _ROWS_COLUMN]
    )


def _get_ring_parts(keys: pa.Array, parts: int) -> np.ndarray:
    """The part (int64) of each key by its token: equal arcs of the ring, from the lowest token on."""
    tokens = tokens_from_keys(keys).view(np.uint64) ^ _SIGN_BIT
    return ((tokens >> _HALF_BITS) * np.uint64(parts) >> _HALF_BITS).astype(np.int64)
