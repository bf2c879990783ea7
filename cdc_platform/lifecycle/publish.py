"""Publishing: a generation's streams go to the user-facing tables, and its timestamp after them as the commit mark.

A reader that has seen the timestamp sees every row. Any number of nodes may publish the same generation at once.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from cdc_platform import failpoints
from cdc_platform.clock import Clock, to_datetime
from cdc_platform.errors import StateError
from cdc_platform.lake import frames
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import (
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
    GENERATIONS,
    STREAMS_DESCRIPTIONS_V2,
)
from cdc_platform.lifecycle import reading

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)


def publish_streams(spark: SparkSession, lake: Lake, generation_id: str) -> int | None:
    """Insert the generation's streams rows, before its timestamp is to be seen; answers with the table's version.

    A generation that is published already is left alone and None is the answer.

    Raises:
        StateError: the generation has no timestamp yet, or not all of its V2 descriptions are there.
    """
    from pyspark.sql import functions as F

    time_ms = _introduced(lake, generation_id)
    expected = reading.complete_range_ends(lake, generation_id)
    if _is_listed(lake, time_ms) and np.array_equal(reading.published_range_ends(lake, time_ms), expected):
        log.info("Generation %s: streams description table already updated.", generation_id)
        return None
    time = F.timestamp_millis(F.lit(time_ms)).alias("time")
    rows = frames.read_slice(spark, lake, GENERATION_DESCRIPTIONS_V2, {"id": generation_id}).select(
        time, "range_end", "streams"
    )
    rows = _killable(rows)
    version = frames.replace_slice(spark, lake, STREAMS_DESCRIPTIONS_V2, rows, {"time": to_datetime(time_ms * 1000)})
    failpoints.reached(failpoints.AFTER_STREAMS)
    return version


def publish_timestamp(lake: Lake, clock: Clock, generation_id: str) -> int:
    """Insert the generation's timestamp, from which on readers rely on its rows; answers with it (ms).

    Raises:
        StateError: the streams rows of the generation are not all there.
    """
    time_ms = _introduced(lake, generation_id)
    expected = reading.complete_range_ends(lake, generation_id)
    published = reading.published_range_ends(lake, time_ms)
    if not np.array_equal(published, expected):
        raise StateError(
            f"generation {generation_id}: {published.size} of its {expected.size} streams rows are published; "
            "materialise cdc_streams_descriptions_v2 before its timestamp"
        )
    row = {"key": "timestamps", "time": to_datetime(time_ms * 1000), "expired": None}
    rows = pa.Table.from_pylist([row], schema=GENERATION_TIMESTAMPS.schema)
    lake.merge(GENERATION_TIMESTAMPS, rows, update=False)
    _mark_published(lake, clock, generation_id)
    return time_ms


def _introduced(lake: Lake, generation_id: str) -> int:
    time_ms = reading.introduced_at_ms(lake, generation_id)
    if time_ms is None:
        raise StateError(f"generation {generation_id} has no timestamp yet; materialise cdc_local first")
    return time_ms


def _is_listed(lake: Lake, time_ms: int) -> bool:
    when = to_datetime(time_ms * 1000)
    return lake.read(GENERATION_TIMESTAMPS, ["time"], [("time", "=", when)]).num_rows > 0


def _mark_published(lake: Lake, clock: Clock, generation_id: str) -> None:
    """Note in the ledger that the join is finished; the first note stays."""
    if reading.published_at_ms(lake, generation_id) is None:
        row = lake.read(GENERATIONS, filters=[("generation_id", "=", generation_id)]).to_pylist()[0]
        row["published_at"] = to_datetime(clock.now_us())
        lake.merge(GENERATIONS, pa.Table.from_pylist([row], schema=GENERATIONS.schema), update=True)


def _killable(rows: DataFrame) -> DataFrame:
    """Under test, a way to die while the streams are being written; otherwise the rows as they are."""
    if os.environ.get(failpoints.VARIABLE) != failpoints.IN_STREAMS:
        return rows
    driver = os.getpid()

    def die_after_the_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            os.environ[failpoints.VARIABLE] = failpoints.IN_STREAMS
            failpoints.reached(failpoints.IN_STREAMS, driver)

    write: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] = die_after_the_first
    return rows.mapInArrow(write, rows.schema)
