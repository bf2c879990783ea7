"""Rows that belong together by a key are brought into one task, packed: Spark shuffles a few blobs, not rows.

A row that Spark shuffles and sorts is made of columns, and columns again of it, in the JVM; of a log's wide rows with
collections that took three times what is done with them. Here batches are cut by the tokens of their keys as they
come, a blob (an Arrow stream) a part of the ring, and the parts are what Spark brings together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from cdc_platform.lake.arrow import cut_binaries, tokens_of_column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

PARTS_A_TASK = 8
"""Into so many parts of the ring each task's share is cut: a task holds one of them at a time."""
_TASKS = 200
"""Spark's own default, where a platform leaves the number to itself."""
_PART, _ROWS = "part", "rows"
_PACKED = f"{_PART} int, {_ROWS} binary"
_HELD_ROWS, _HELD_BYTES = 1 << 17, 1 << 26
"""So much is held before it is packed, that blobs of many parts are not small ones."""
_SIGN = np.uint64(1 << 63)
_HALF = np.uint64(32)

Keys = Callable[[pa.RecordBatch], pa.Array]
Work = Callable[[pa.Table], Iterable[pa.RecordBatch]]


def by_key(frame: DataFrame, keys: Keys, work: Work, schema: StructType) -> DataFrame:
    """What `work` makes of all rows of a part of the ring, part by part; `schema` is that of what it makes.

    `keys` are the serialized partition keys (binary, none null) of a batch. All rows of a key come in one table, in no
    order and with others, with all of the frame's columns as they come to `mapInArrow`. There are `PARTS_A_TASK` parts
    for each of the session's shuffle partitions; a part has to fit into a task's memory, and into the 2 GiB of a batch.
    """
    tasks = frame.sparkSession.conf.get("spark.sql.shuffle.partitions") or ""
    parts = PARTS_A_TASK * (int(tasks) if tasks.isdigit() else _TASKS)

    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return packed(batches, keys, parts)

    def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return iter(work(unpacked(pa.Table.from_batches(batches))))

    return frame.mapInArrow(pack, _PACKED).groupBy(_PART).applyInArrow(unpack, schema)


def packed(batches: Iterable[pa.RecordBatch], keys: Keys, parts: int) -> Iterator[pa.RecordBatch]:
    """Batches as blobs by part of the ring (columns `part` int32, `rows` binary)."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in (piece for whole in batches for piece in _pieces(whole)):
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _HELD_ROWS or size >= _HELD_BYTES:
            yield from _packed(held, keys, parts)
            held, rows, size = [], 0, 0
    if rows:
        yield from _packed(held, keys, parts)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch in pieces of about `_HELD_BYTES`: the blobs of what is packed at once have offsets of 31 bits."""
    rows = max(1, batch.num_rows * _HELD_BYTES // max(batch.nbytes, 1))
    return (batch.slice(start, rows) for start in range(0, batch.num_rows, rows))


def unpacked(blobs: pa.Table) -> pa.Table:
    """The rows that blobs hold, in their order."""
    return pa.concat_tables([ipc.open_stream(blob.as_buffer()).read_all() for blob in blobs.column(_ROWS)])


def _packed(batches: list[pa.RecordBatch], keys: Keys, parts: int) -> Iterator[pa.RecordBatch]:
    (batch,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    place = _parts(keys(batch), parts)
    order = np.argsort(place, kind="stable")
    batch, place = batch.take(pa.array(order)), place[order]
    starts = np.flatnonzero(np.diff(place, prepend=-1))
    ends = np.append(starts[1:], len(place))
    sink, edges = pa.BufferOutputStream(), [0]
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        with ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch.slice(start, end - start))
        edges.append(sink.tell())
    blobs = cut_binaries(np.frombuffer(sink.getvalue(), dtype=np.uint8), np.array(edges))
    yield pa.RecordBatch.from_arrays([pa.array(place[starts].astype(np.int32)), blobs], names=[_PART, _ROWS])


def _parts(keys: pa.Array, parts: int) -> np.ndarray:
    """The part (int64) of each key by its token: equal arcs of the ring, from the lowest token on."""
    tokens = tokens_of_column(keys).view(np.uint64) ^ _SIGN
    return ((tokens >> _HALF) * np.uint64(parts) >> _HALF).astype(np.int64)
