"""A generation's data by its ID, whichever format it is in: V1 IDs name one cell, V2 IDs a partition of rows.

Reads with deltalake, no JVM, and writes nothing. Which IDs are known the timeline tells.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from cdc_platform.clock import Milliseconds, format_ms, ms_of, ms_to_datetime
from cdc_platform.errors import InputError, NotFound, StateError
from cdc_platform.generations import GenerationId, TopologyDescription
from cdc_platform.lake.added import assert_as_added_between
from cdc_platform.lake.arrow import flat_streams, stream_lists
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import GENERATION_DESCRIPTIONS, STREAMS, STREAMS_DESCRIPTIONS_V2, TIMESTAMP
from cdc_platform.records import descriptions
from cdc_platform.ring.tokens import Int64s


def description_of(lake: Lake, id: GenerationId) -> TopologyDescription:
    """The whole description of a generation: from its V2 rows, or where the ID has no UUID from its V1 cell.

    Raises:
        NotFound: there is no data of this generation.
        StateError: rows are missing, or what is there is no description.
    """
    if id.uuid is not None:
        return descriptions.read_description(lake, str(id.uuid))
    cell = read_cell(lake, id.time_ms)
    if cell is None:
        raise NotFound(f"generation {id} has no V1 description; import cdc_generation_descriptions")
    return parse_cell(id.time_ms, cell)


def complete_range_ends(lake: Lake, id: GenerationId) -> Int64s:
    """The range ends (int64[n], ascending) of a generation whose data is all there. Of V2 it reads no streams.

    Raises:
        NotFound, StateError: as `description_of`.
    """
    if id.uuid is not None:
        return descriptions.complete_range_ends(lake, str(id.uuid))
    return description_of(lake, id).range_ends


def described_times(lake: Lake) -> Int64s:
    """The times (ms, int64[n], ascending) that have a V1 description. Reads no description."""
    return np.sort(ms_of(np.asarray(lake.read(GENERATION_DESCRIPTIONS, ["time"])["time"].cast(pa.int64()))))


def read_cell(lake: Lake, time_ms: Milliseconds) -> pa.StructArray | None:
    """The entries of a V1 description as they are stored, None where there is no row of that time.

    Raises:
        StateError, EnvironmentProblem: the read failed; the next one may not.
    """
    where = [("time", "=", ms_to_datetime(time_ms))]
    rows = lake.read(GENERATION_DESCRIPTIONS, ["description"], where)["description"]
    if len(rows) == 0:
        return None
    return pa.concat_arrays(rows.chunks).flatten()


def assert_cell_as_committed(lake: Lake, time_ms: Milliseconds) -> None:
    """Hold that what was committed with the description of this time is what its file holds, before it is published.

    Raises:
        StoreFailure: it is not, or cannot be read.
    """
    moment = ms_to_datetime(time_ms)
    assert_as_added_between(lake, GENERATION_DESCRIPTIONS, "time", moment, moment)


def parse_cell(time_ms: Milliseconds, entries: pa.StructArray) -> TopologyDescription:
    """The description that a V1 cell holds.

    Raises:
        StateError: it is none: no ranges, range ends that do not ascend, streams that are no stream IDs.
    """
    try:
        counts, streams = flat_streams(entries.field("streams"))
        nulls = entries.null_count + sum(entries.field(name).null_count for name in _NUMBERS)
        if nulls or len(entries) == 0:
            raise InputError(f"{nulls} values are null" if nulls else "it has no ranges")
        ends, msbs = (np.asarray(entries.field(name)).astype(np.int64) for name in _NUMBERS)
        return TopologyDescription(ends, counts, msbs, streams)
    except InputError as error:
        raise StateError(f"the V1 description of generation {format_ms(time_ms)} is damaged: {error}") from None


_NUMBERS = ("token_range_end", "sharding_ignore_msb")


def cell_row(time_ms: Milliseconds, description: TopologyDescription) -> pa.Table:
    """A description as the one row of `cdc_generation_descriptions` that it is in the first format."""
    kind = GENERATION_DESCRIPTIONS.schema.field("description").type
    entry = kind.value_type
    columns = [
        pa.array(description.range_ends),
        stream_lists(description.stream_counts, description.streams).cast(STREAMS),
        pa.array(description.ignore_msbs.astype(np.int8)),
    ]
    entries = pa.StructArray.from_arrays(columns, fields=[entry.field(place) for place in range(entry.num_fields)])
    cell = pa.ListArray.from_arrays(pa.array([0, len(description)], pa.int32()), entries, type=kind)
    return pa.table(
        {"time": _time(time_ms, 1), "description": cell, "expired": pa.nulls(1, TIMESTAMP)},
        schema=GENERATION_DESCRIPTIONS.schema,
    )


def streams_rows(time_ms: Milliseconds, description: TopologyDescription) -> pa.Table:
    """A description as the rows of `cdc_streams_descriptions_v2`."""
    columns = {
        "time": _time(time_ms, len(description)),
        "range_end": pa.array(description.range_ends),
        "streams": stream_lists(description.stream_counts, description.streams).cast(STREAMS),
    }
    return pa.table(columns, schema=STREAMS_DESCRIPTIONS_V2.schema)


def _time(time_ms: Milliseconds, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(ms_to_datetime(time_ms), TIMESTAMP), rows)
