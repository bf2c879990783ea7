"""Looking at generations without a JVM: which are known, what they describe, which rows are complete.

Reads the tables with deltalake; nothing here writes. Which generation a write gets is `explain`'s business.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import numpy as np
import pyarrow as pa

from cdc_platform.clock import format_ms, from_datetime, to_datetime
from cdc_platform.errors import InputError, NotFound, StateError
from cdc_platform.generations import GenerationId, TopologyDescription
from cdc_platform.lake.arrow import compute, flat_streams
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import (
    GENERATION_DESCRIPTIONS,
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
    GENERATIONS,
    REMOVED_GENERATIONS,
    STREAMS_DESCRIPTIONS_V2,
    TOPOLOGY_DESCRIPTIONS,
)
from cdc_platform.ring import Node, Ring


@dataclass(frozen=True)
class KnownGeneration:
    """A generation that nodes or readers know. `id` is None where only its timestamp is known.

    `published`: its timestamp is in `cdc_generation_timestamps`; until then only nodes know it. `format` says where
    its data is: `v1` in a cell that its time names, `v2` in rows that its ID names, None where there is none.
    A V1 generation has an `id` only if it was made here: the UUID of its event, which is no part of its V1 ID.
    `removed_ms`: since when its rows are gone; only `timeline` tells of such ones.
    """

    time_ms: int
    id: str | None
    expired_ms: int | None
    published: bool
    format: Literal["v1", "v2"] | None = None
    removed_ms: int | None = None

    @property
    def generation_id(self) -> GenerationId | None:
        """The ID that nodes gossip and find its data by; None where there is no data."""
        if self.format is None:
            return None
        return GenerationId(self.time_ms, uuid.UUID(self.id) if self.format == "v2" and self.id else None)


def known_generations(lake: Lake) -> list[KnownGeneration]:
    """All generations that have a timestamp, oldest first: the ledger's, the published and the V1 ones together.

    A V1 generation has its time before its data: without the data no node knows it yet. One that was removed is no
    longer known from the moment in which its timestamp is gone.
    """
    ledger = lake.read(GENERATIONS, ["generation_id", "time", "format"]).to_pylist()
    v1 = {_ms(time) for time in lake.read(GENERATION_DESCRIPTIONS, ["time"])["time"].to_pylist()}
    listed = {
        _ms(row["time"]): None if row["expired"] is None else _ms(row["expired"])
        for row in lake.read(GENERATION_TIMESTAMPS, ["time", "expired"]).to_pylist()
    }
    gone = begun_removals(lake).keys() - listed.keys()
    v1 -= gone
    entered = {_ms(row["time"]): row for row in ledger if _ms(row["time"]) not in gone}
    ids = {
        time: row["generation_id"]
        for time, row in entered.items()
        if row["format"] != "v1" or time in v1 or time in listed
    }
    v2 = {time for time in ids if entered[time]["format"] != "v1"}
    return [
        KnownGeneration(
            time,
            ids.get(time),
            listed.get(time),
            time in listed,
            "v2" if time in v2 else "v1" if time in v1 else None,
        )
        for time in sorted(ids.keys() | listed.keys() | v1)
    ]


def timeline(lake: Lake) -> list[KnownGeneration]:
    """Every generation that there ever was, oldest first: the known ones and, in their places, the removed ones.

    Who asks which generation operated at some time in the past has to ask this one: of the known ones alone, the
    one before a removed one would seem to go on.
    """
    return sorted([*known_generations(lake), *removed_generations(lake)], key=lambda each: each.time_ms)


def removed_generations(lake: Lake) -> list[KnownGeneration]:
    """The generations that are gone, oldest first; of the newest of them some rows may be left for a moment."""
    begun = begun_removals(lake)
    if not begun:
        return []
    listed = {_ms(time) for time in lake.read(GENERATION_TIMESTAMPS, ["time"])["time"].to_pylist()}
    return [begun[time] for time in sorted(begun.keys() - listed)]


def begun_removals(lake: Lake) -> dict[int, KnownGeneration]:
    """The generations whose removal was begun, by their time (ms). One that is still listed is not gone yet."""
    rows = lake.read(REMOVED_GENERATIONS, ["time", "generation_id", "expired", "removed_at"]).to_pylist()
    return {
        _ms(row["time"]): KnownGeneration(
            _ms(row["time"]),
            row["generation_id"],
            _ms(row["expired"]),
            published=False,
            removed_ms=_ms(row["removed_at"]),
        )
        for row in rows
    }


def assert_not_removed(lake: Lake, name: str | int) -> None:
    """Refuse a generation, named by its UUID (text) or timestamp (ms), that is gone.

    Raises:
        NotFound: it was removed.
    """
    for gone in removed_generations(lake):
        if name in (gone.id, gone.time_ms):
            shown = format_ms(name) if isinstance(name, int) else name
            raise NotFound(f"generation {shown} {_was_removed(gone)}")


def operating(generations: list[KnownGeneration], now_ms: int) -> KnownGeneration | None:
    """The generation that operates at `now_ms`: the newest that has started; `generations` are oldest first."""
    started = [generation for generation in generations if generation.time_ms <= now_ms]
    return started[-1] if started else None


def find_generation(lake: Lake, name: str | int) -> KnownGeneration:
    """The generation with this UUID (text) or this timestamp (ms).

    Raises:
        NotFound: no generation has it.
    """
    for generation in known_generations(lake):
        if name in (generation.id, generation.time_ms):
            return generation
    shown = format_ms(name) if isinstance(name, int) else name
    assert_not_removed(lake, name)
    raise NotFound(f"no generation {shown} is known; list them with: cdc-platform generations")


def introduced_at_ms(lake: Lake, generation_id: str) -> int | None:
    """The timestamp (ms) that the generation was given, or None while it has none."""
    id_ = introduced_id(lake, generation_id)
    return None if id_ is None else id_.time_ms


def introduced_id(lake: Lake, generation_id: str) -> GenerationId | None:
    """The ID that nodes know the generation by, V1 or V2; None while it has no timestamp.

    Raises:
        StateError: the generation was removed: no step of its life may bring it back.
    """
    rows = lake.read(GENERATIONS, ["time", "format"], [("generation_id", "=", generation_id)]).to_pylist()
    if not rows:
        return None
    gone = next((each for each in removed_generations(lake) if each.id == generation_id), None)
    if gone is not None:
        raise StateError(f"generation {generation_id} {_was_removed(gone)}; it is not made again")
    return GenerationId(_ms(rows[0]["time"]), None if rows[0]["format"] == "v1" else uuid.UUID(generation_id))


def published_at_ms(lake: Lake, generation_id: str) -> int | None:
    """When (ms) the join that introduces the generation was finished, or None."""
    rows = lake.read(GENERATIONS, ["published_at"], [("generation_id", "=", generation_id)])["published_at"].to_pylist()
    return _ms(rows[0]) if rows and rows[0] is not None else None


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


def published_range_ends(lake: Lake, time_ms: int) -> np.ndarray:
    """The range ends (int64[], ascending) of the streams rows that are there for a timestamp, complete or not."""
    rows = lake.read(STREAMS_DESCRIPTIONS_V2, ["range_end"], [("time", "=", to_datetime(time_ms * 1000))])
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


def streams_rows(lake: Lake, time_ms: int) -> pa.Table:
    """The published rows (range_end bigint, streams list<binary>) of a generation, in ring order.

    Raises:
        NotFound: no generation with that timestamp is published: readers rely on rows only after the timestamp.
        StateError: the timestamp is published without any rows.
    """
    if not find_generation(lake, time_ms).published:
        raise NotFound(f"generation {format_ms(time_ms)} is not published yet; its streams are not to be read")
    where = [("time", "=", to_datetime(time_ms * 1000))]
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


def _was_removed(generation: KnownGeneration) -> str:
    shown = [format_ms(ms) for ms in (generation.removed_ms, generation.expired_ms) if ms is not None]
    return f"was removed at {shown[0]}: since {shown[-1]} no CDC log could hold rows of it"


def _check_num_ranges(generation_id: str, rows: pa.Table) -> None:
    claimed = compute.unique(rows["num_ranges"]).to_pylist()
    if claimed != [rows.num_rows]:
        shown = ", ".join(str(number) for number in claimed)
        raise StateError(
            f"generation {generation_id} is partial: num_ranges claims {shown} rows, {rows.num_rows} are there; "
            "insert it again"
        )


def _ms(moment: datetime) -> int:
    return from_datetime(moment) // 1000
