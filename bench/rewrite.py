"""The row about the rewrite: one V1 generation, a single cell, into the rows and the timestamp that took its place."""

from __future__ import annotations

import uuid

import pyarrow as pa

from bench.cluster import nodes_of, ring_of
from bench.measure import Result, paired
from bench.session import CLOCK, FLOOR, Bench
from cdc_platform.clock import HOUR_MS, Milliseconds, ms_to_datetime
from cdc_platform.generations import RingLayout, generate
from cdc_platform.lake.arrow import stream_ids
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import GENERATION_DESCRIPTIONS, STREAMS, STREAMS_DESCRIPTIONS, TIMESTAMP
from cdc_platform.lifecycle.upgrade.rewrite import rewrite
from cdc_platform.records import cdc_tables, generation_data
from cdc_platform.records.ring import put_nodes
from cdc_platform.settings import Settings


def rewriting(bench: Bench) -> list[Result]:
    """The whole procedure for one node, from the scan to the marker, with one generation more to rewrite each time."""
    size = bench.sizes.cluster
    description = generate(RingLayout.of(ring_of(size)), uuid.UUID(int=size.streams))
    flat = stream_ids(description.streams)
    cell = pa.ListArray.from_arrays(pa.array([0, len(flat)], pa.int32()), flat, type=STREAMS)
    node = nodes_of(size)[0]
    with bench.scratch() as folder, bench.floor_write(size) as floor:
        lake, times = Lake(folder), iter(range(1_600_000_000_000, CLOCK.now_ms(), HOUR_MS))
        put_nodes(lake, [node])
        cdc_tables.add(lake, CLOCK, "ks", "t", ttl_seconds=0)

        def leave_one() -> None:
            time_ms = Milliseconds(next(times))
            lake.merge(GENERATION_DESCRIPTIONS, generation_data.cell_row(time_ms, description), update=False)
            moment = pa.array([ms_to_datetime(time_ms)], TIMESTAMP)
            row = pa.table(
                {"time": moment, "streams": cell, "expired": pa.nulls(1, TIMESTAMP)}, STREAMS_DESCRIPTIONS.schema
            )
            lake.merge(STREAMS_DESCRIPTIONS, row, update=False)

        def work() -> None:
            done = rewrite(lake, CLOCK, Settings(), [str(node.host_id)], again=True)
            assert done.decisions[-1].action == "rewrite"

        pairs = paired(work, floor, repeats=bench.sizes.repeats, warm_ups=2, prepare=leave_one)
    at = f"{size}, one V1 cell, in process"
    return [Result("rewrite", at, pairs.seconds, FLOOR, pairs.floor_seconds, pairs.ratio, 3.0)]
