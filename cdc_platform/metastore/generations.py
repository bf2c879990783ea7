"""Rows of generations in both formats: descriptions, published streams, timestamps, the ledger and removals.

V1 IDs name one cell, V2 IDs a partition of rows. The first process to write a generation's ledger row determines its
timestamp. Readers refuse partial generations (design document 001). `timeline` decides which generations exist.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa

from cdc_platform.clock import Milliseconds, datetime_from_ms, format_ms, ms_from_datetime, ms_from_us
from cdc_platform.delta import (
    Lake,
    compute,
    flatten_stream_lists,
    stream_lists_to_arrow,
    to_milliseconds_without_nulls,
    to_python_values,
    verify_added_files_between,
)
from cdc_platform.errors import InputError, NotFound, StateError
from cdc_platform.generations import GenerationId, TopologyDescription
from cdc_platform.ring import Int64s, Node, Ring
from cdc_platform.tables import (
    COMMITTED_GENERATIONS,
    GENERATION_DESCRIPTIONS,
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
    GENERATIONS,
    REMOVED_GENERATIONS,
    STREAMS_DESCRIPTIONS_V2,
    STREAMS_TYPE,
    TIMESTAMP,
    TOPOLOGY_DESCRIPTIONS,
    UNORDERED_RANGES,
    Table,
)


def read_v2_range_ends(lake: Lake, generation_id: str) -> np.ndarray:
    """Return the range ends (int64[num_ranges], ascending) of a generation with complete V2 descriptions.

    Reads no streams. Refuses a partial generation, as design document 001 requires of every reader.

    Raises:
        NotFound: the generation has no V2 descriptions.
        StateError: the number of rows differs from `num_ranges`.
    """
    rows = lake.read(GENERATION_DESCRIPTIONS_V2, ["range_end", "num_ranges"], [("id", "=", generation_id)])
    if rows.num_rows == 0:
        raise NotFound(f"generation {generation_id} has no V2 descriptions; insert them first")
    _check_num_ranges(generation_id, rows)
    return np.sort(rows["range_end"].to_numpy())


def read_published_range_ends(lake: Lake, time_ms: Milliseconds) -> np.ndarray:
    """Return the range ends (int64[], ascending) of the streams rows at a timestamp, even if they are incomplete."""
    rows = lake.read(STREAMS_DESCRIPTIONS_V2, ["range_end"], [("time", "=", datetime_from_ms(time_ms))])
    return np.sort(rows["range_end"].to_numpy())


def read_v2_description(lake: Lake, generation_id: str) -> TopologyDescription:
    """Return the whole description of a generation, from its V2 rows.

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
        counts, streams = flatten_stream_lists(rows["streams"])
    except InputError as error:
        raise StateError(f"generation {generation_id} is damaged: {error}; insert it again") from None
    return TopologyDescription(
        range_ends=rows["range_end"].to_numpy(),
        stream_counts=counts,
        ignore_msbs=rows["ignore_msb"].to_numpy().astype(np.int64),
        streams=streams,
    )


def read_unordered_ranges(lake: Lake, id: GenerationId) -> list[int]:
    """Return the ends of a generation's ranges whose shard order the import could not determine."""
    table, name = (
        (GENERATION_DESCRIPTIONS, format_ms(id.time_ms))
        if id.uuid is None
        else (GENERATION_DESCRIPTIONS_V2, str(id.uuid))
    )
    where = [("table_name", "=", table.full_name), ("generation", "=", name)]
    return lake.read(UNORDERED_RANGES, ["range_end"], where)["range_end"].to_pylist()


def read_published_times(lake: Lake) -> set[Milliseconds]:
    """Return the times (ms) that have rows of streams, from Delta's log alone."""
    return {ms_from_datetime(part.key[0]) for part in lake.partitions(STREAMS_DESCRIPTIONS_V2) if part.rows}


def read_listed_times(lake: Lake) -> set[Milliseconds]:
    """Return the times (ms) that readers see."""
    return read_row_times(lake, GENERATION_TIMESTAMPS)


def read_row_times(lake: Lake, table: Table) -> set[Milliseconds]:
    """Return the times (ms) of a table's rows without reading other columns."""
    return set(to_milliseconds_without_nulls(lake.read(table, ["time"])["time"]))


def read_published_rows(lake: Lake, time_ms: Milliseconds) -> pa.Table:
    """Return the streams rows (range_end bigint, streams list<binary>) of a listed timestamp, in ring order.

    Raises:
        StateError: the timestamp is published without any rows.
    """
    where = [("time", "=", datetime_from_ms(time_ms))]
    rows = lake.read(STREAMS_DESCRIPTIONS_V2, ["range_end", "streams"], where)
    if rows.num_rows == 0:
        raise StateError(
            f"generation {format_ms(time_ms)} is published but has no streams rows; look at: cdc-platform check"
        )
    return rows.sort_by("range_end")


def read_described_ring(lake: Lake, generation_id: str, joining: Node | None = None) -> Ring:
    """Rebuild the ring for which a generation was described from the owners in its topology description.

    `joining` is the node that introduced it, if one joined. Of the other nodes, only the facts in the description are
    known.

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
        numbers = ", ".join(str(number) for number in claimed)
        raise StateError(
            f"generation {generation_id} is partial: num_ranges claims {numbers} rows, {rows.num_rows} are there; "
            "insert it again"
        )


def read_generation_description(lake: Lake, id: GenerationId) -> TopologyDescription:
    """Return the whole description of a generation from its V2 rows, or from its V1 cell if the ID has no UUID.

    Raises:
        NotFound: there is no data of this generation.
        StateError: rows are missing, or the data is not a description.
    """
    if id.uuid is not None:
        return read_v2_description(lake, str(id.uuid))
    cell = read_v1_cell(lake, id.time_ms)
    if cell is None:
        raise NotFound(f"generation {id} has no V1 description; import cdc_generation_descriptions")
    return parse_v1_cell(id.time_ms, cell)


def read_generation_range_ends(lake: Lake, id: GenerationId) -> Int64s:
    """Return the range ends (int64[n], ascending) of a complete generation. Reads no streams of V2.

    Raises:
        NotFound, StateError: as `read_generation_description`.
    """
    if id.uuid is not None:
        return read_v2_range_ends(lake, str(id.uuid))
    return read_generation_description(lake, id).range_ends


def read_v1_times(lake: Lake) -> Int64s:
    """Return the times (ms, int64[n], ascending) that have a V1 description. Reads no description."""
    return np.sort(ms_from_us(np.asarray(lake.read(GENERATION_DESCRIPTIONS, ["time"])["time"].cast(pa.int64()))))


def read_v1_cell(lake: Lake, time_ms: Milliseconds) -> pa.StructArray | None:
    """Return the stored entries of a V1 description, None if there is no row of that time.

    Raises:
        StateError, EnvironmentProblem: the read failed; the next one may succeed.
    """
    where = [("time", "=", datetime_from_ms(time_ms))]
    rows = lake.read(GENERATION_DESCRIPTIONS, ["description"], where)["description"]
    if len(rows) == 0:
        return None
    return pa.concat_arrays(rows.chunks).flatten()


def verify_v1_cell(lake: Lake, time_ms: Milliseconds) -> None:
    """Check, before publishing, that the file with this time's description contains what was committed.

    Raises:
        StoreFailure: the content differs, or cannot be read.
    """
    moment = datetime_from_ms(time_ms)
    verify_added_files_between(lake, GENERATION_DESCRIPTIONS, "time", moment, moment)


def parse_v1_cell(time_ms: Milliseconds, entries: pa.StructArray) -> TopologyDescription:
    """Parse the description in a V1 cell.

    Raises:
        StateError: the cell is not a description: no ranges, range ends that do not ascend, or invalid stream IDs.
    """
    try:
        counts, streams = flatten_stream_lists(entries.field("streams"))
        nulls = entries.null_count + sum(entries.field(name).null_count for name in _NUMBER_FIELDS)
        if nulls or len(entries) == 0:
            raise InputError(f"{nulls} values are null" if nulls else "it has no ranges")
        ends, msbs = (np.asarray(entries.field(name)).astype(np.int64) for name in _NUMBER_FIELDS)
        return TopologyDescription(ends, counts, msbs, streams)
    except InputError as error:
        raise StateError(f"the V1 description of generation {format_ms(time_ms)} is damaged: {error}") from None


_NUMBER_FIELDS = ("token_range_end", "sharding_ignore_msb")


def v1_cell_row(time_ms: Milliseconds, description: TopologyDescription) -> pa.Table:
    """Build the row of `cdc_generation_descriptions` that holds a whole description in the V1 format."""
    kind = GENERATION_DESCRIPTIONS.schema.field("description").type
    entry = kind.value_type
    columns = [
        pa.array(description.range_ends),
        stream_lists_to_arrow(description.stream_counts, description.streams).cast(STREAMS_TYPE),
        pa.array(description.ignore_msbs.astype(np.int8)),
    ]
    entries = pa.StructArray.from_arrays(columns, fields=[entry.field(index) for index in range(entry.num_fields)])
    cell = pa.ListArray.from_arrays(pa.array([0, len(description)], pa.int32()), entries, type=kind)
    return pa.table(
        {"time": _time_column(time_ms, 1), "description": cell, "expired": pa.nulls(1, TIMESTAMP)},
        schema=GENERATION_DESCRIPTIONS.schema,
    )


def published_streams_rows(time_ms: Milliseconds, description: TopologyDescription) -> pa.Table:
    """Build the rows of `cdc_streams_descriptions_v2` from a description."""
    columns = {
        "time": _time_column(time_ms, len(description)),
        "range_end": pa.array(description.range_ends),
        "streams": stream_lists_to_arrow(description.stream_counts, description.streams).cast(STREAMS_TYPE),
    }
    return pa.table(columns, schema=STREAMS_DESCRIPTIONS_V2.schema)


def _time_column(time_ms: Milliseconds, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(datetime_from_ms(time_ms), TIMESTAMP), rows)


@dataclass(frozen=True)
class GenerationRemoval:
    """A generation whose removal began at `removed_ms`; no log could hold rows of it since `expired_ms`. In ms."""

    time_ms: Milliseconds
    id: str | None
    expired_ms: Milliseconds
    removed_ms: Milliseconds

    def __str__(self) -> str:
        return (
            f"was removed at {format_ms(self.removed_ms)}: since {format_ms(self.expired_ms)} no CDC log could hold "
            "rows of it"
        )


def read_removals(lake: Lake) -> dict[Milliseconds, GenerationRemoval]:
    """Return the removals that were begun, by the generation's time (ms).

    A generation still listed is not removed yet.
    """
    rows = lake.read(REMOVED_GENERATIONS, ["time", "generation_id", "expired", "removed_at"]).to_pylist()
    return {
        time_ms: GenerationRemoval(
            time_ms, row["generation_id"], ms_from_datetime(row["expired"]), ms_from_datetime(row["removed_at"])
        )
        for row in rows
        for time_ms in (ms_from_datetime(row["time"]),)
    }


def decided_removals(
    begun: Mapping[Milliseconds, GenerationRemoval], listed: Collection[Milliseconds]
) -> dict[Milliseconds, GenerationRemoval]:
    """Return the begun removals whose timestamp is no longer `listed` (ms), oldest first."""
    return {time_ms: begun[time_ms] for time_ms in sorted(begun.keys() - set(listed))}


def read_removed_generations(lake: Lake) -> list[GenerationRemoval]:
    """Return the removed generations, oldest first; rows of the newest may still exist for a moment."""
    begun = read_removals(lake)
    if not begun:
        return []
    listed = read_listed_times(lake)
    return list(decided_removals(begun, listed).values())


class LedgerEntry(NamedTuple):
    """A generation that has its timestamp (ms), the format of its data, and whether it was imported."""

    generation_id: str
    time_ms: Milliseconds
    format: Literal["v1", "v2"]
    is_imported: bool = False


def read_ledger(lake: Lake) -> list[LedgerEntry]:
    """Return every generation that was assigned a timestamp here, including removed ones, in no order."""
    rows = lake.read(GENERATIONS, ["generation_id", "time", "format", "event_id"])
    ids, formats, events = (to_python_values(rows[name]) for name in ("generation_id", "format", "event_id"))
    return [
        LedgerEntry(id_, time_ms, "v1" if format_ == "v1" else "v2", event is None)
        for id_, time_ms, format_, event in zip(
            ids, to_milliseconds_without_nulls(rows["time"]), formats, events, strict=True
        )
    ]


def read_committed_elsewhere(lake: Lake) -> dict[Milliseconds, str]:
    """Return the UUIDs, by time (ms), of generations that a cluster committed before any row of them arrived here."""
    rows = lake.read(COMMITTED_GENERATIONS, ["time", "generation_id"])
    return dict(zip(to_milliseconds_without_nulls(rows["time"]), to_python_values(rows["generation_id"]), strict=True))


def read_generation_time_ms(lake: Lake, generation_id: str) -> Milliseconds | None:
    """Return the timestamp (ms) of the generation, or None while it has none."""
    id_ = read_generation_id(lake, generation_id)
    return None if id_ is None else id_.time_ms


def read_generation_id(lake: Lake, generation_id: str) -> GenerationId | None:
    """Return the V1 or V2 ID by which nodes know the generation; None while it has no timestamp.

    Raises:
        StateError: the generation was removed, and no step may restore it.
    """
    rows = lake.read(GENERATIONS, ["time", "format"], [("generation_id", "=", generation_id)]).to_pylist()
    if not rows:
        return None
    removal = next((removed for removed in read_removed_generations(lake) if removed.id == generation_id), None)
    if removal is not None:
        raise StateError(f"generation {generation_id} {removal}; it is not made again")
    return GenerationId(
        ms_from_datetime(rows[0]["time"]), None if rows[0]["format"] == "v1" else uuid.UUID(generation_id)
    )


def read_published_at_ms(lake: Lake, generation_id: str) -> Milliseconds | None:
    """Return when (ms) the join that introduces the generation was finished, or None."""
    rows = lake.read(GENERATIONS, ["published_at"], [("generation_id", "=", generation_id)])["published_at"].to_pylist()
    return ms_from_datetime(rows[0]) if rows and rows[0] is not None else None
