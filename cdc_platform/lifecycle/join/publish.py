"""Publishing of generations: streams go to the user-facing tables first, the timestamp after them as the commit mark.

A reader that sees the timestamp sees every row. Any number of nodes may publish the same generation at once. V1 cells
(at most 32 MB) are published without Spark, because starting an executor would take longer than the work.
"""

from __future__ import annotations

import logging
from datetime import datetime
from functools import partial

import numpy as np
import pyarrow as pa

from cdc_platform import failpoints
from cdc_platform.clock import Clock, Milliseconds, datetime_from_ms, datetime_from_us
from cdc_platform.delta import Lake, TaskRows, TaskRunner
from cdc_platform.errors import StateError
from cdc_platform.generations import GenerationId, TopologyDescription
from cdc_platform.metastore import cdc_local, generations, read_host_ids
from cdc_platform.spark import frames
from cdc_platform.tables import GENERATION_DESCRIPTIONS_V2, GENERATION_TIMESTAMPS, GENERATIONS, STREAMS_DESCRIPTIONS_V2


def write_published_streams(lake: Lake, time_ms: Milliseconds, description: TopologyDescription) -> int:
    """Replace the published rows of a time by those of `description` in one commit; return the table's version.

    Any number of processes may do so at once. Rows of other ranges, which the platform never leaves, are removed after
    it.
    """
    rows = generations.published_streams_rows(time_ms, description)
    version = lake.merge(STREAMS_DESCRIPTIONS_V2, rows, update=True).version
    strays = np.setdiff1d(generations.read_published_range_ends(lake, time_ms), description.range_ends)
    if strays.size:
        of_time = ("time", "=", datetime_from_ms(time_ms))
        lake.delete(STREAMS_DESCRIPTIONS_V2, [of_time, ("range_end", "in", strays.tolist())])
    return version


def write_published_timestamp(lake: Lake, time_ms: Milliseconds) -> None:
    """Insert the timestamp; readers rely on its rows from then on."""
    row = {"key": "timestamps", "time": datetime_from_ms(time_ms), "expired": None}
    lake.merge(GENERATION_TIMESTAMPS, pa.Table.from_pylist([row], schema=GENERATION_TIMESTAMPS.schema), update=False)


def is_timestamp_listed(lake: Lake, time_ms: Milliseconds) -> bool:
    """Return True if the timestamp is published."""
    when = datetime_from_ms(time_ms)
    return lake.read(GENERATION_TIMESTAMPS, ["time"], [("time", "=", when)]).num_rows > 0


log = logging.getLogger(__name__)


def publish_generation_streams(workers: TaskRunner, lake: Lake, generation_id: str) -> int | None:
    """Insert the generation's streams rows, before its timestamp becomes visible; return the table's version.

    Does nothing and returns None if the generation is already published.

    Raises:
        StateError: the generation has no timestamp yet, or some of its V2 descriptions are missing.
    """
    id_ = _require_generation_id(lake, generation_id)
    time_ms = id_.time_ms
    expected = generations.read_v2_range_ends(lake, generation_id)
    published = generations.read_published_range_ends(lake, time_ms)
    if is_timestamp_listed(lake, time_ms) and np.array_equal(published, expected):
        log.info("Generation %s: streams description table already updated.", generation_id)
        return None
    time = datetime_from_ms(time_ms)
    inserted = frames.get_verified_partition_rows(lake, GENERATION_DESCRIPTIONS_V2, {"id": generation_id})
    rows = inserted.changed(partial(_published_batch, time))
    version = frames.replace_partition(workers, lake, STREAMS_DESCRIPTIONS_V2, rows, {"time": time})
    failpoints.kill_if_selected(failpoints.AFTER_STREAMS)
    return version


def derive_published_rows(lake: Lake, generation_id: str, time_ms: Milliseconds) -> TaskRows:
    """Return the streams rows of a generation, derived from its V2 descriptions."""
    inserted = frames.get_partition_rows(
        lake, GENERATION_DESCRIPTIONS_V2, {"id": generation_id}, ["range_end", "streams"]
    )
    return inserted.map(partial(_published_batch, datetime_from_ms(time_ms)))


def publish_generation_timestamp(lake: Lake, clock: Clock, generation_id: str) -> int:
    """Insert the generation's timestamp and return it (ms); readers rely on its rows from then on.

    Raises:
        StateError: some streams rows of the generation are missing.
    """
    id_ = _require_generation_id(lake, generation_id)
    time_ms = id_.time_ms
    expected = generations.read_generation_range_ends(lake, id_)
    published = generations.read_published_range_ends(lake, time_ms)
    if not np.array_equal(published, expected):
        raise StateError(
            f"generation {generation_id}: {published.size} of its {expected.size} streams rows are published; "
            "materialise cdc_streams_descriptions_v2 before its timestamp"
        )
    write_published_timestamp(lake, time_ms)
    # Without this, `cdc_local` would always name the generation that each node introduced when it joined.
    cdc_local.advance_node_generation_ids(lake, read_host_ids(lake), id_)
    _mark_published(lake, clock, generation_id)
    failpoints.kill_if_selected(failpoints.AFTER_PUBLISHED)
    return time_ms


def publish_v1_generation_streams(lake: Lake, generation_id: str) -> int | None:
    """Insert the streams rows of a V1 generation, whose ID is its timestamp alone, from its cell.

    Does nothing and returns None if the generation is already published.

    Raises:
        StateError: the generation has no timestamp yet, or its cell is not as committed.
        NotFound: its cell does not exist.
    """
    id_ = _require_generation_id(lake, generation_id)
    generations.verify_v1_cell(lake, id_.time_ms)
    description = generations.read_generation_description(lake, id_)
    published = generations.read_published_range_ends(lake, id_.time_ms)
    if is_timestamp_listed(lake, id_.time_ms) and np.array_equal(published, description.range_ends):
        log.info("Generation %s: streams description table already updated.", generation_id)
        return None
    version = write_published_streams(lake, id_.time_ms, description)
    failpoints.kill_if_selected(failpoints.AFTER_STREAMS)
    return version


def _require_generation_id(lake: Lake, generation_id: str) -> GenerationId:
    id_ = generations.read_generation_id(lake, generation_id)
    if id_ is None:
        raise StateError(f"generation {generation_id} has no timestamp yet; materialise cdc_local first")
    return id_


def _mark_published(lake: Lake, clock: Clock, generation_id: str) -> None:
    """Record in the ledger that the join is finished; an existing record remains unchanged."""

    def noted() -> pa.Table | None:
        row = lake.read(GENERATIONS, filters=[("generation_id", "=", generation_id)]).to_pylist()[0]
        if row["published_at"] is not None:
            return None
        return pa.Table.from_pylist(
            [row | {"published_at": datetime_from_us(clock.now_us())}], schema=GENERATIONS.schema
        )

    lake.merge_judged(GENERATIONS, noted, update=True)


def _published_batch(time: datetime, batch: pa.RecordBatch) -> pa.RecordBatch:
    schema = STREAMS_DESCRIPTIONS_V2.schema
    times = pa.repeat(pa.scalar(time, schema.field("time").type), batch.num_rows)
    columns = {"time": times, **{name: batch.column(name) for name in ("range_end", "streams")}}
    return pa.RecordBatch.from_pydict({name: columns[name] for name in schema.names})
