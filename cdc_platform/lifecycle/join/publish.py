"""Publishing: a generation's streams go to the user-facing tables, and its timestamp after them as the commit mark.

A reader that has seen the timestamp sees every row. Any number of nodes may publish the same generation at once.
"""

from __future__ import annotations

import logging
from datetime import datetime
from functools import partial

import numpy as np
import pyarrow as pa

from cdc_platform import failpoints
from cdc_platform.clock import Clock, Milliseconds, ms_to_datetime, to_datetime
from cdc_platform.errors import StateError
from cdc_platform.generations import GenerationId
from cdc_platform.lake import frames
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import (
    GENERATION_DESCRIPTIONS_V2,
    GENERATIONS,
    STREAMS_DESCRIPTIONS_V2,
)
from cdc_platform.lake.volume import TaskRows, Workers
from cdc_platform.lifecycle.upgrade import publish_v1
from cdc_platform.records import cdc_local, descriptions, generation_data, ledger
from cdc_platform.records.ring import host_ids

log = logging.getLogger(__name__)


def publish_streams(workers: Workers, lake: Lake, generation_id: str) -> int | None:
    """Insert the generation's streams rows, before its timestamp is to be seen; answers with the table's version.

    A generation that is published already is left alone and None is the answer.

    Raises:
        StateError: the generation has no timestamp yet, or not all of its V2 descriptions are there.
    """
    id_ = _introduced(lake, generation_id)
    time_ms = id_.time_ms
    expected = descriptions.complete_range_ends(lake, generation_id)
    published = descriptions.published_range_ends(lake, time_ms)
    if publish_v1.is_listed(lake, time_ms) and np.array_equal(published, expected):
        log.info("Generation %s: streams description table already updated.", generation_id)
        return None
    time = ms_to_datetime(time_ms)
    inserted = frames.committed_rows(lake, GENERATION_DESCRIPTIONS_V2, {"id": generation_id})
    rows = inserted.changed(partial(_published, time))
    version = frames.replace_slice(workers, lake, STREAMS_DESCRIPTIONS_V2, rows, {"time": time})
    failpoints.reached(failpoints.AFTER_STREAMS)
    return version


def published_rows(lake: Lake, generation_id: str, time_ms: Milliseconds) -> TaskRows:
    """The streams rows of a generation, out of its V2 descriptions."""
    inserted = frames.slice_rows(lake, GENERATION_DESCRIPTIONS_V2, {"id": generation_id}, ["range_end", "streams"])
    return inserted.map(partial(_published, ms_to_datetime(time_ms)))


def publish_timestamp(lake: Lake, clock: Clock, generation_id: str) -> int:
    """Insert the generation's timestamp, from which on readers rely on its rows; answers with it (ms).

    Raises:
        StateError: the streams rows of the generation are not all there.
    """
    id_ = _introduced(lake, generation_id)
    time_ms = id_.time_ms
    expected = generation_data.complete_range_ends(lake, id_)
    published = descriptions.published_range_ends(lake, time_ms)
    if not np.array_equal(published, expected):
        raise StateError(
            f"generation {generation_id}: {published.size} of its {expected.size} streams rows are published; "
            "materialise cdc_streams_descriptions_v2 before its timestamp"
        )
    publish_v1.publish_timestamp(lake, time_ms)
    # Without it `cdc_local` would name, for ever, the generation that each node once introduced.
    cdc_local.raise_at(lake, host_ids(lake), id_)
    _mark_published(lake, clock, generation_id)
    failpoints.reached(failpoints.AFTER_PUBLISHED)
    return time_ms


def publish_streams_v1(lake: Lake, generation_id: str) -> int | None:
    """Insert the streams rows of a generation of the first format, whose ID is its timestamp alone, from its cell.

    A generation that is published already is left alone and None is the answer.

    Raises:
        StateError: the generation has no timestamp yet, or its cell is not what was committed.
        NotFound: its cell is not there.
    """
    id_ = _introduced(lake, generation_id)
    generation_data.assert_cell_as_committed(lake, id_.time_ms)
    description = generation_data.description_of(lake, id_)
    published = descriptions.published_range_ends(lake, id_.time_ms)
    if publish_v1.is_listed(lake, id_.time_ms) and np.array_equal(published, description.range_ends):
        log.info("Generation %s: streams description table already updated.", generation_id)
        return None
    version = publish_v1.publish_streams(lake, id_.time_ms, description)
    failpoints.reached(failpoints.AFTER_STREAMS)
    return version


def _introduced(lake: Lake, generation_id: str) -> GenerationId:
    id_ = ledger.introduced_id(lake, generation_id)
    if id_ is None:
        raise StateError(f"generation {generation_id} has no timestamp yet; materialise cdc_local first")
    return id_


def _mark_published(lake: Lake, clock: Clock, generation_id: str) -> None:
    """Note in the ledger that the join is finished; the first note stays."""

    def noted() -> pa.Table | None:
        row = lake.read(GENERATIONS, filters=[("generation_id", "=", generation_id)]).to_pylist()[0]
        if row["published_at"] is not None:
            return None
        return pa.Table.from_pylist([row | {"published_at": to_datetime(clock.now_us())}], schema=GENERATIONS.schema)

    lake.merge_judged(GENERATIONS, noted, update=True)


def _published(time: datetime, batch: pa.RecordBatch) -> pa.RecordBatch:
    schema = STREAMS_DESCRIPTIONS_V2.schema
    times = pa.repeat(pa.scalar(time, schema.field("time").type), batch.num_rows)
    columns = {"time": times, **{name: batch.column(name) for name in ("range_end", "streams")}}
    return pa.RecordBatch.from_pydict({name: columns[name] for name in schema.names})
