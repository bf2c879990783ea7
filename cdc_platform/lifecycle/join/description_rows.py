"""The rows of a generation's description, made by Spark's tasks where they are written.

It knows how a description is cut into tasks and batches, and the columns of its tables; which streams there are is left
to `generations`, the files to `lake`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from cdc_platform.generations import RingLayout, generate_streams
from cdc_platform.lake.arrow import stream_lists
from cdc_platform.lake.tables import GENERATION_DESCRIPTIONS_V2, TOPOLOGY_DESCRIPTIONS
from cdc_platform.lake.volume import TaskRows
from cdc_platform.ring import Ring

# One task generates about a million streams: 16 MB of stream IDs, a second of one core with the write.
_STREAMS_A_TASK = 1 << 20
# One Arrow batch: 4 MB of stream IDs, which stay in the cache between the rules and the writer.
_STREAMS_A_BATCH = 1 << 18


def description_rows(ring: Ring, generation_id: str, layout: RingLayout | None = None) -> TaskRows:
    """The rows of `platform.topology_descriptions` for a generation over `ring`, generated on the executors.

    Only the layout (by default that of the ring) travels, a few bytes a range; the streams are made where they are
    written.
    """
    layout = RingLayout.of(ring) if layout is None else layout
    owners = np.array([str(node.host_id) for node in ring.nodes])
    bounds = _cut(layout.shard_counts, _STREAMS_A_TASK)
    return TaskRows(
        len(bounds) - 1, _description_batches(layout, owners, ring.owner_index, uuid.UUID(generation_id), bounds)
    )


def v2_rows(rows: TaskRows, generation_id: str, num_ranges: int) -> TaskRows:
    """Rows of the V2 descriptions, out of rows that have at least range_end, ignore_msb and streams."""
    return rows.map(as_v2(generation_id, num_ranges))


def as_v2(generation_id: str, num_ranges: int) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """What makes rows of the V2 descriptions, a batch at a time, out of such rows."""

    def change(batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = {
            "id": pa.repeat(generation_id, batch.num_rows),
            "num_ranges": pa.repeat(pa.scalar(num_ranges, pa.int32()), batch.num_rows),
            **{name: batch.column(name) for name in ("range_end", "ignore_msb", "streams")},
        }
        return pa.RecordBatch.from_pydict({name: columns[name] for name in GENERATION_DESCRIPTIONS_V2.schema.names})

    return change


def _cut(stream_counts: np.ndarray, size: int) -> np.ndarray:
    """Row bounds that cut a description into pieces of about `size` streams, int64[pieces + 1]."""
    totals = np.cumsum(stream_counts)
    pieces = max(1, -(-int(totals[-1]) // size)) if totals.size else 1
    inner = np.searchsorted(totals, totals[-1] * np.arange(1, pieces) / pieces) if totals.size else []
    return np.unique(np.concatenate([[0], inner, [totals.size]]).astype(np.int64))


def _description_batches(
    layout: RingLayout, owners: np.ndarray, owner_index: np.ndarray, generation_id: uuid.UUID, bounds: np.ndarray
) -> Callable[[int], Iterator[pa.RecordBatch]]:
    def batches(task: int) -> Iterator[pa.RecordBatch]:
        first, last = int(bounds[task]), int(bounds[task + 1])
        cuts = first + _cut(layout.shard_counts[first:last], _STREAMS_A_BATCH)
        for lo, hi in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
            yield _description_batch(layout, owners[owner_index[lo:hi]], generation_id, lo, hi)

    return batches


def _description_batch(
    layout: RingLayout, owners: np.ndarray, generation_id: uuid.UUID, lo: int, hi: int
) -> pa.RecordBatch:
    counts, streams = generate_streams(layout, generation_id, lo, hi)
    columns = {
        "generation_id": pa.repeat(str(generation_id), hi - lo),
        "range_end": pa.array(layout.range_ends[lo:hi]),
        "range_start": pa.array(layout.range_starts[lo:hi]),
        "vnode_index": pa.array(np.arange(lo, hi, dtype=np.int32)),
        "owner": pa.array(owners),
        "streams": stream_lists(counts, streams),
        "ignore_msb": pa.array(layout.ignore_msbs[lo:hi].astype(np.int8)),
    }
    schema = TOPOLOGY_DESCRIPTIONS.schema
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], names=schema.names)
