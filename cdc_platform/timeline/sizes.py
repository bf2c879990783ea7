"""Numbers of ranges and streams of each known generation, from the ledger or else counted."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from cdc_platform.clock import Milliseconds, datetime_from_ms, ms_from_datetime
from cdc_platform.delta import Lake, compute
from cdc_platform.errors import NotFound, StateError
from cdc_platform.generations import GenerationId
from cdc_platform.metastore import generations
from cdc_platform.tables import GENERATIONS, STREAMS_DESCRIPTIONS, STREAMS_DESCRIPTIONS_V2, TOPOLOGY_DESCRIPTIONS
from cdc_platform.timeline.timeline import Timeline


@dataclass(frozen=True)
class GenerationSize:
    """A generation that starts at `time_ms` (ms), and its size; 0 if only its time is known."""

    time_ms: Milliseconds
    num_ranges: int
    num_streams: int
    is_v1: bool


def read_generation_sizes(lake: Lake) -> list[GenerationSize]:
    """Return the size of every known generation, oldest first. Rows are read only for those not in the ledger."""
    ledger = {
        ms_from_datetime(row["time"]): (row["num_ranges"], row["num_streams"])
        for row in lake.read(GENERATIONS, ["time", "num_ranges", "num_streams"]).to_pylist()
    }
    return [
        GenerationSize(
            known.time_ms, *(ledger.get(known.time_ms) or _count_streams(lake, known.time_ms)), known.format == "v1"
        )
        for known in Timeline.read(lake).known
        if known.time_ms in ledger or known.published or known.has_data
    ]


def read_node_counts(lake: Lake) -> dict[str, int]:
    """Return how many nodes own the ranges of each generation described here, by UUID."""
    rows = lake.read(TOPOLOGY_DESCRIPTIONS, ["generation_id", "owner"])
    counted = rows.group_by("generation_id").aggregate([("owner", "count_distinct")])
    return dict(zip(counted["generation_id"].to_pylist(), counted["owner_count_distinct"].to_pylist(), strict=True))


def _count_streams(lake: Lake, time_ms: Milliseconds) -> tuple[int, int]:
    """Count ranges and streams in the published rows, the V1 description, or the V1 streams table (no ranges known)."""
    where = [("time", "=", datetime_from_ms(time_ms))]
    published = lake.read(STREAMS_DESCRIPTIONS_V2, ["streams"], where)["streams"]
    if len(published):
        return len(published), _count_elements(published)
    try:
        description = generations.read_generation_description(lake, GenerationId(time_ms))
        return len(description), len(description.streams)
    except (NotFound, StateError):
        return 0, _count_elements(lake.read(STREAMS_DESCRIPTIONS, ["streams"], where)["streams"])


def _count_elements(lists: pa.ChunkedArray) -> int:
    return compute.sum(compute.list_value_length(lists)).as_py() or 0
