"""The row about the rewrite: one V1 generation, a single cell, becomes the rows and the timestamp that replace it."""

from __future__ import annotations

import uuid

import pyarrow as pa

from bench.cluster import nodes_of, ring_of
from bench.measure import Result, paired
from bench.session import CLOCK, FLOOR, Bench
from cdc_platform.clock import HOUR_MS, Milliseconds, datetime_from_ms
from cdc_platform.delta import Lake, stream_ids_to_arrow
from cdc_platform.generations import RingLayout, generate_description
from cdc_platform.lifecycle.rewrite import rewrite_streams_tables
from cdc_platform.metastore import cdc_tables, generations, write_nodes
from cdc_platform.settings import Settings
from cdc_platform.tables import GENERATION_DESCRIPTIONS, STREAMS_DESCRIPTIONS, STREAMS_TYPE, TIMESTAMP


def rewriting(bench: Bench) -> list[Result]:
    """Measure the whole procedure for one node, from the scan to the marker, with one more generation each time."""
    size = bench.sizes.cluster
    description = generate_description(RingLayout.of(ring_of(size)), uuid.UUID(int=size.streams))
    flat = stream_ids_to_arrow(description.streams)
    cell = pa.ListArray.from_arrays(pa.array([0, len(flat)], pa.int32()), flat, type=STREAMS_TYPE)
    node = nodes_of(size)[0]
    with bench.scratch() as folder, bench.floor_write(size) as floor:
        lake, times = Lake(folder), iter(range(1_600_000_000_000, CLOCK.now_ms(), HOUR_MS))
        write_nodes(lake, [node])
        cdc_tables.add_cdc_table(lake, CLOCK, "ks", "t", ttl_seconds=0)

        def leave_one() -> None:
            time_ms = Milliseconds(next(times))
            lake.merge(GENERATION_DESCRIPTIONS, generations.v1_cell_row(time_ms, description), update=False)
            moment = pa.array([datetime_from_ms(time_ms)], TIMESTAMP)
            row = pa.table(
                {"time": moment, "streams": cell, "expired": pa.nulls(1, TIMESTAMP)}, STREAMS_DESCRIPTIONS.schema
            )
            lake.merge(STREAMS_DESCRIPTIONS, row, update=False)

        def work() -> None:
            done = rewrite_streams_tables(lake, CLOCK, Settings(), [str(node.host_id)], force=True)
            assert done.decisions[-1].action == "rewrite"

        pairs = paired(work, floor, repeats=bench.sizes.repeats, warm_ups=2, prepare=leave_one)
    at = f"{size}, one V1 cell, in process"
    return [Result("rewrite", at, pairs.seconds, FLOOR, pairs.floor_seconds, pairs.ratio, 3.0)]
