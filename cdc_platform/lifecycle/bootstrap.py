"""A node joins: its generation is described, inserted as V2 descriptions, and only then given its timestamp.

It knows the steps and what each relies on. Who is next is the inbox's business, the user-facing tables are
`publish`'s, the invariants are judged by `invariants`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from cdc_platform import failpoints
from cdc_platform.clock import Clock, from_datetime, to_datetime
from cdc_platform.errors import StateError
from cdc_platform.generations import RingLayout, generate_streams, new_generation_timestamp, next_generation_timestamp
from cdc_platform.lake import frames
from cdc_platform.lake.arrow import stream_lists
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.shape import spark_schema
from cdc_platform.lake.tables import (
    CDC_LOCAL,
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
    GENERATIONS,
    NODES,
    TOPOLOGY_DESCRIPTIONS,
)
from cdc_platform.lifecycle import inbox, reading
from cdc_platform.ring import Node, Ring
from cdc_platform.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# One task generates about a million streams: 16 MB of stream IDs, a second of one core with the write.
_STREAMS_A_TASK = 1 << 20
# One Arrow batch: 4 MB of stream IDs, which stay in the cache between the rules and the writer.
_STREAMS_A_BATCH = 1 << 18


@dataclass(frozen=True)
class Described:
    """What `describe` wrote: the ring without and with the joining node, and the table's version."""

    ring_before: Ring
    ring_after: Ring
    num_ranges: int
    num_streams: int
    version: int


def rings(lake: Lake, generation_id: str) -> tuple[Ring, Ring]:
    """The ring before and after the join that introduces this generation.

    Until the generation has its timestamp this is the ring as it stands; from then on it is the one that the
    description was made from, so that materialising it again gives the same bytes however far the ring has moved on.

    Raises:
        NotFound: no bootstrap event introduces this generation.
        InputError: the node cannot join the ring as it stands, say because a token has an owner by now.
    """
    event = inbox.event(lake, generation_id=generation_id)
    joining = replace(event.node, status=inbox.NORMAL)
    if reading.introduced_at_ms(lake, generation_id) is None:
        ring = inbox.current_ring(lake)
        before = Ring.of(node for node in ring.nodes if node.host_id != joining.host_id)
        return before, before.join(joining)
    after = reading.described_ring(lake, generation_id, joining)
    return Ring.of(node for node in after.nodes if node.host_id != joining.host_id), after


def describe(spark: SparkSession, lake: Lake, generation_id: str) -> Described:
    """Write the topology description of a joining node's generation; every range ends with a token of the ring after.

    Raises:
        NotFound: no bootstrap event introduces this generation.
        StateError: an earlier join is unfinished.
        InputError: the node cannot join the ring as it stands.
    """
    inbox.assert_next(lake, generation_id)
    before, after = rings(lake, generation_id)
    frame = description_frame(spark, after, generation_id)
    version = frames.replace_slice(spark, lake, TOPOLOGY_DESCRIPTIONS, frame, {"generation_id": generation_id})
    failpoints.reached(failpoints.AFTER_DESCRIPTION)
    return Described(before, after, after.tokens.size, int(after.shard_counts.sum()), version)


def description_frame(spark: SparkSession, ring: Ring, generation_id: str) -> DataFrame:
    """The rows of `platform.topology_descriptions` for a generation over `ring`, generated on the executors.

    Only the layout of the ring travels (a few bytes a range); the streams are made where they are written.
    """
    layout = RingLayout.of(ring)
    owners = np.array([str(node.host_id) for node in ring.nodes])
    bounds = _cut(layout.shard_counts, _STREAMS_A_TASK)
    tasks = len(bounds) - 1
    schema = spark_schema(TOPOLOGY_DESCRIPTIONS)
    generate = _description_batches(layout, owners, ring.owner_index, uuid.UUID(generation_id), bounds)
    return spark.range(0, tasks, 1, tasks).mapInArrow(generate, schema)


def insert_descriptions(spark: SparkSession, lake: Lake, generation_id: str) -> int:
    """Insert the audited description as V2 descriptions, each row with `num_ranges`; answers with the table's version.

    Raises:
        StateError: the description is missing or does not have a row a range of the ring after the join.
    """
    from pyspark.sql import functions as F

    inbox.assert_next(lake, generation_id)
    expected = rings(lake, generation_id)[1].tokens
    described = lake.read(TOPOLOGY_DESCRIPTIONS, ["range_end"], [("generation_id", "=", generation_id)])
    ends = np.sort(described["range_end"].to_numpy())
    if not np.array_equal(ends, expected):
        raise StateError(
            f"generation {generation_id}: its topology description has {ends.size} ranges, the ring has "
            f"{expected.size}; materialise topology_descriptions first"
        )
    frame = frames.read_slice(spark, lake, TOPOLOGY_DESCRIPTIONS, {"generation_id": generation_id}).select(
        F.col("generation_id").alias("id"),
        "range_end",
        "ignore_msb",
        F.lit(int(expected.size)).cast("int").alias("num_ranges"),
        "streams",
    )
    version = frames.replace_slice(spark, lake, GENERATION_DESCRIPTIONS_V2, frame, {"id": generation_id})
    failpoints.reached(failpoints.AFTER_V2_INSERT)
    return version


def introduce(lake: Lake, clock: Clock, settings: Settings, generation_id: str) -> int:
    """Give the inserted generation its timestamp (ms), as late as possible and once; keep its ID at the joining node.

    The ledger decides: whoever writes the generation's row first has chosen, everybody else takes that timestamp.

    Raises:
        StateError: not all of its V2 descriptions are there, or the clock is behind the newest generation.
    """
    num_ranges = reading.complete_range_ends(lake, generation_id).size
    event = inbox.event(lake, generation_id=generation_id)
    chosen = reading.introduced_at_ms(lake, generation_id)
    if chosen is None:
        inbox.assert_next(lake, generation_id)
        num_streams = int(rings(lake, generation_id)[1].shard_counts.sum())
        _enter_ledger(lake, clock, _choose(lake, clock, settings), event, num_ranges, num_streams)
        chosen = reading.introduced_at_ms(lake, generation_id)
    assert chosen is not None
    _keep_at_node(lake, event, chosen)
    failpoints.reached(failpoints.AFTER_TIMESTAMP)
    return chosen


def admit(lake: Lake, generation_id: str) -> Node:
    """The joining node becomes a NORMAL node of the ring.

    Raises:
        StateError: its generation has no timestamp yet: the ring must not grow before the generation is known.
    """
    node = replace(inbox.event(lake, generation_id=generation_id).node, status=inbox.NORMAL)
    if reading.introduced_at_ms(lake, generation_id) is None:
        raise StateError(f"generation {generation_id} has no timestamp yet; materialise cdc_local first")
    if reading.published_at_ms(lake, generation_id) is None:
        lake.merge(NODES, inbox.node_rows([node]), update=True)
    return node


def _choose(lake: Lake, clock: Clock, settings: Settings) -> int:
    times = [
        from_datetime(moment) // 1000
        for table in (GENERATIONS, GENERATION_TIMESTAMPS)
        for moment in lake.read(table, ["time"])["time"].to_pylist()
    ]
    delay = 2 * settings.ring_delay_ms + settings.generation_leeway_ms
    candidate = new_generation_timestamp(
        clock.now_ms(),
        ring_delay_ms=settings.ring_delay_ms,
        leeway_ms=settings.generation_leeway_ms,
        add_delay=bool(times) or settings.first_generation_delay,
    )
    return next_generation_timestamp(candidate, max(times, default=None), delay)


def _enter_ledger(
    lake: Lake, clock: Clock, time_ms: int, event: inbox.BootstrapEvent, num_ranges: int, num_streams: int
) -> None:
    row = {
        "generation_id": event.generation_id,
        "time": to_datetime(time_ms * 1000),
        "host_id": str(event.node.host_id),
        "event_id": event.event_id,
        "num_ranges": num_ranges,
        "num_streams": num_streams,
        "created_at": to_datetime(clock.now_us()),
        "published_at": None,
    }
    lake.merge(GENERATIONS, pa.Table.from_pylist([row], schema=GENERATIONS.schema), update=False)


def _keep_at_node(lake: Lake, event: inbox.BootstrapEvent, time_ms: int) -> None:
    """The two rows of the joining node in `cdc_local`: its generation ID, and that it has nothing to rewrite."""
    host = str(event.node.host_id)
    known = lake.read(CDC_LOCAL, ["streams_timestamp"], [("host_id", "=", host), ("key", "=", "cdc_local")])
    newest = known["streams_timestamp"].to_pylist()
    if newest and newest[0] is not None and from_datetime(newest[0]) > time_ms * 1000:
        return  # the node has learnt of a newer generation since; its ID never goes back
    rows = [
        {
            "host_id": host,
            "key": "cdc_local",
            "streams_timestamp": to_datetime(time_ms * 1000),
            "uuid": event.generation_id,
        },
        {"host_id": host, "key": "rewritten", "streams_timestamp": None, "uuid": None},
    ]
    lake.merge(CDC_LOCAL, pa.Table.from_pylist(rows, schema=CDC_LOCAL.schema), update=True)


def _cut(stream_counts: np.ndarray, size: int) -> np.ndarray:
    """Row bounds that cut a description into pieces of about `size` streams, int64[pieces + 1]."""
    totals = np.cumsum(stream_counts)
    pieces = max(1, -(-int(totals[-1]) // size)) if totals.size else 1
    inner = np.searchsorted(totals, totals[-1] * np.arange(1, pieces) / pieces) if totals.size else []
    return np.unique(np.concatenate([[0], inner, [totals.size]]).astype(np.int64))


def _description_batches(
    layout: RingLayout, owners: np.ndarray, owner_index: np.ndarray, generation_id: uuid.UUID, bounds: np.ndarray
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def batches(tasks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for task in (number for batch in tasks for number in batch.column(0).to_pylist()):
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
