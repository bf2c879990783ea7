"""Descriptions of generations as rows: the V2 ones that nodes read, the published ones, the ring they were made for.

Reads with deltalake, no JVM, and writes nothing. Partial generations are refused.
"""

from __future__ import annotations

import uuid

import numpy as np
import pyarrow as pa

from cdc_platform.clock import Milliseconds, format_ms, ms_from_datetime, ms_to_datetime
from cdc_platform.errors import InputError, NotFound, StateError
from cdc_platform.generations import GenerationId, TopologyDescription
from cdc_platform.lake.arrow import compute, flat_streams, known_milliseconds
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import (
    GENERATION_DESCRIPTIONS,
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
    STREAMS_DESCRIPTIONS_V2,
    TOPOLOGY_DESCRIPTIONS,
    UNORDERED_RANGES,
    Table,
)
from cdc_platform.ring import Node, Ring


def complete_range_ends(lake: Lake, generation_id: str) -> np.ndarray:
    """The range ends (int64[num_ranges], ascending) of a generation whose V2 descriptions are all there.

    Reads no streams. A partial generation is refused, as design document 001 asks of every reader.

    Raises:
        NotFound: the generation has no V2 descriptions.
        StateError: the number of rows is not what `num_ranges` claims.
    """
    rows = lake.read(GENERATION_DESCRIPTIONS_V2, ["range_end", "num_ranges"], [("id", "=", generation_id)])
    if rows.num_rows == 0:
        raise NotFound(f"generation {generation_id} has no V2 descriptions; insert them first")
    _check_num_ranges(generation_id, rows)
    return np.sort(rows["range_end"].to_numpy())


def published_range_ends(lake: Lake, time_ms: Milliseconds) -> np.ndarray:
    """The range ends (int64[], ascending) of the streams rows that are there for a timestamp, complete or not."""
    rows = lake.read(STREAMS_DESCRIPTIONS_V2, ["range_end"], [("time", "=", ms_to_datetime(time_ms))])
    return np.sort(rows["range_end"].to_numpy())


def read_description(lake: Lake, generation_id: str) -> TopologyDescription:
    """The whole description of a generation, from its V2 rows.

    Raises:
        NotFound: the generation has no V2 descriptions.
        StateError: rows are missing, or a stream ID is not 16 bytes.
    """
    rows = lake.read(GENERATION_DESCRIPTIONS_V2, filters=[("id", "=", generation_id)])
    if rows.num_rows == 0:
        raise NotFound(f"generation {generation_id} has no V2 descriptions; insert them first")
    _check_num_ranges(generation_id, rows)
    rows = rows.sort_by("range_end").combine_chunks()
    try:
        counts, streams = flat_streams(rows["streams"])
    except InputError as error:
        raise StateError(f"generation {generation_id} is damaged: {error}; insert it again") from None
    return TopologyDescription(
        range_ends=rows["range_end"].to_numpy(),
        stream_counts=counts,
        ignore_msbs=rows["ignore_msb"].to_numpy().astype(np.int64),
        streams=streams,
    )


def unordered_ranges(lake: Lake, id: GenerationId) -> list[int]:
    """The ends of a generation's ranges whose shard order could not be told when it was imported."""
    table, name = (
        (GENERATION_DESCRIPTIONS, format_ms(id.time_ms))
        if id.uuid is None
        else (GENERATION_DESCRIPTIONS_V2, str(id.uuid))
    )
    where = [("table_name", "=", table.full_name), ("generation", "=", name)]
    return lake.read(UNORDERED_RANGES, ["range_end"], where)["range_end"].to_pylist()


def published_times(lake: Lake) -> set[Milliseconds]:
    """The times (ms) of which there is any row of streams, by Delta's log alone."""
    return {ms_from_datetime(part.key[0]) for part in lake.slices(STREAMS_DESCRIPTIONS_V2) if part.rows}


def listed_times(lake: Lake) -> set[Milliseconds]:
    """The times (ms) that readers see."""
    return row_times(lake, GENERATION_TIMESTAMPS)


def row_times(lake: Lake, table: Table) -> set[Milliseconds]:
    """The times (ms) of a table's rows, of which no other column is read."""
    return set(known_milliseconds(lake.read(table, ["time"])["time"]))


def published_rows(lake: Lake, time_ms: Milliseconds) -> pa.Table:
    """The streams rows (range_end bigint, streams list<binary>) of a timestamp that readers see, in ring order.

    Raises:
        StateError: the timestamp is published without any rows.
    """
    where = [("time", "=", ms_to_datetime(time_ms))]
    rows = lake.read(STREAMS_DESCRIPTIONS_V2, ["range_end", "streams"], where)
    if rows.num_rows == 0:
        raise StateError(
            f"generation {format_ms(time_ms)} is published but has no streams rows; look at: cdc-platform check"
        )
    return rows.sort_by("range_end")


def described_ring(lake: Lake, generation_id: str, joining: Node | None = None) -> Ring:
    """The ring that a generation was described for, rebuilt from its topology description's owners.

    `joining` is the node that introduced it, if one joined; of the others only what the description tells is known.

    Raises:
        StateError: the topology description is gone or a range lost its streams.
    """
    where = [("generation_id", "=", generation_id)]
    rows = lake.read(TOPOLOGY_DESCRIPTIONS, ["range_end", "owner", "ignore_msb", "streams"], where)
    shards = compute.list_value_length(rows["streams"]).to_numpy(zero_copy_only=False)
    owners = rows["owner"].to_numpy(zero_copy_only=False)
    ends, msbs = rows["range_end"].to_numpy(), rows["ignore_msb"].to_numpy()
    if rows.num_rows == 0 or not (shards > 0).all():
        raise StateError(
            f"generation {generation_id}: its topology description is missing or damaged; its V2 rows stay valid"
        )
    names, first, inverse = np.unique(owners.astype(str), return_index=True, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    tokens = np.split(ends[order], np.cumsum(np.bincount(inverse))[:-1])
    return Ring.of(
        joining
        if joining is not None and name == str(joining.host_id)
        else Node(uuid.UUID(name), tuple(tokens[i].tolist()), int(shards[first[i]]), int(msbs[first[i]]))
        for i, name in enumerate(names.tolist())
    )


def _check_num_ranges(generation_id: str, rows: pa.Table) -> None:
    claimed = compute.unique(rows["num_ranges"]).to_pylist()
    if claimed != [rows.num_rows]:
        shown = ", ".join(str(number) for number in claimed)
        raise StateError(
            f"generation {generation_id} is partial: num_ranges claims {shown} rows, {rows.num_rows} are there; "
            "insert it again"
        )
