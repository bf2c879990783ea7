"""Explanation of a write to a table on vnodes: its range, owner, shard and stream, as a result for people.

It reads one row of streams instead of a whole description, and needs no JVM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cdc_platform.clock import Microseconds, datetime_from_ms, format_ms, format_us
from cdc_platform.delta import Lake
from cdc_platform.errors import NotFound, StateError
from cdc_platform.generations import (
    STREAM_ID_BYTES,
    AcceptancePolicy,
    GenerationId,
    WriteVerdict,
    decode_stream_ids,
    restore_shard_orders,
)
from cdc_platform.metastore import cluster_changes, generations, ring
from cdc_platform.ring import Ring, first_token_for_shard, shard_of
from cdc_platform.tables import (
    GENERATION_DESCRIPTIONS_V2,
    STREAMS_DESCRIPTIONS_V2,
    TOPOLOGY_DESCRIPTIONS,
    UNORDERED_RANGES,
    Table,
)
from cdc_platform.timeline.timeline import Generation


@dataclass(frozen=True)
class StreamPlacement:
    """Where a generation places a token. `shard` and `stream_id` are None if they are unknown; `note` says why.

    `misplaced`: the stream is not where its range and shard should put it; `note` says how.
    """

    range_start: int
    range_end: int
    vnode_index: int
    owner: str | None
    shard: int | None
    stream_id: bytes | None
    note: str | None
    misplaced: bool = False

    @property
    def verdict(self) -> WriteVerdict:
        """Return the verdict of the placement, for a write whose timestamp is accepted."""
        if self.stream_id is None:
            return WriteVerdict.STREAM_UNKNOWN
        return WriteVerdict.STREAM_MISPLACED if self.misplaced else WriteVerdict.OK


@dataclass(frozen=True)
class CurrentOwner:
    """Where the current ring places a token: the node and its shard."""

    owner: str
    shard: int

    def facts(self) -> dict[str, Any]:
        """Return the owner as plain values."""
        return {"owner": self.owner, "shard": self.shard}


@dataclass(frozen=True)
class VnodeExplanation:
    """The explanation for one token and write timestamp. Times in µs; `generation` operates at the write's timestamp.

    `note`: what the reason leaves open about the stream and its owner. `row_location` and `stream_location`: where the
    current ring places the base row and the log row, None if unknown. `others`: the verdict and reason of each other
    policy, by name.
    """

    token: int
    at_us: Microseconds
    now_us: Microseconds
    policy: AcceptancePolicy
    generation: Generation | None
    place: StreamPlacement | None
    verdict: WriteVerdict
    reason: str
    note: str | None = None
    row_location: CurrentOwner | None = None
    stream_location: CurrentOwner | None = None
    others: Mapping[str, tuple[WriteVerdict, str]] = field(default_factory=dict)

    @property
    def colocated(self) -> bool | None:
        """Return True if the log row is on the shard of the base row; None if either is unknown."""
        if self.row_location is None or self.stream_location is None:
            return None
        return self.row_location == self.stream_location

    @property
    def accepted(self) -> bool:
        """Return True if a coordinator at `now_us` accepts the write and its stream is known and in place."""
        return self.verdict is WriteVerdict.OK

    def facts(self) -> dict[str, Any]:
        """Return the explanation as plain values by name, in display order."""
        generation, place = self.generation, self.place
        return {
            "verdict": str(self.verdict),
            "accepted": self.accepted,
            "reason": self.reason,
            "note": self.note,
            "policy": self.policy,
            "token": self.token,
            "at": format_us(self.at_us),
            "now": format_us(self.now_us),
            "generation": generation and {"id": generation.id, "time": format_ms(generation.time_ms)},
            "range_start": place and place.range_start,
            "range_end": place and place.range_end,
            "vnode_index": place and place.vnode_index,
            "owner": place and place.owner,
            "shard": place and place.shard,
            "stream_id": place and place.stream_id,
            "row_location": self.row_location and self.row_location.facts(),
            "stream_location": self.stream_location and self.stream_location.facts(),
            "colocated": self.colocated,
            "other_policies": {
                name: {"accepted": verdict is WriteVerdict.OK, "verdict": str(verdict), "reason": reason}
                for name, (verdict, reason) in self.others.items()
            },
        }


def explain_unknown_owner(lake: Lake, now: Ring, place: StreamPlacement | None) -> str | None:
    """Return why the known ring cannot say where a placement's row and stream are, or None if it can.

    While the topology of a live cluster changes, this ring is the previous one. A generation's range that ends at none
    of its tokens belongs to a joining node.
    """
    if place is None or place.range_end in now.tokens:
        return None
    transition = cluster_changes.read_topology_transition(lake)
    if transition is None:
        return None
    return f"{transition}, and no node here has the token {place.range_end}: where the row lies cannot be told yet"


def find_current_owner(now: Ring, token: int) -> CurrentOwner | None:
    """Return where a ring places a token, or None if no node owns tokens."""
    if not now.has_tokens:
        return None
    node = now.owner_of(token)
    return CurrentOwner(str(node.host_id), int(shard_of(token, node.shard_count, node.ignore_msb)))


def find_stream_owner(now: Ring, place: StreamPlacement | None) -> CurrentOwner | None:
    """Return where a ring places the stream of a placement, or None if the stream is unknown."""
    if place is None or place.stream_id is None or len(place.stream_id) != STREAM_ID_BYTES:
        return None
    return find_current_owner(
        now, int(decode_stream_ids(np.frombuffer(place.stream_id, dtype=np.uint8).reshape(1, 16)).tokens[0])
    )


def try_locate_stream(
    lake: Lake, generation: Generation | None, token: int
) -> tuple[StreamPlacement | None, str | None]:
    """Return where a generation places a token, or None and the reason if that is unknown."""
    if generation is None:
        return None, None
    if generation.is_removed:
        return None, f"the generation of {format_ms(generation.time_ms)} was removed with its streams"
    try:
        return locate_stream(lake, generation, token), None
    except (NotFound, StateError) as error:
        return None, str(error)


def locate_stream(lake: Lake, generation: Generation, token: int) -> StreamPlacement:
    """Return where `generation` places `token`, from its V2 descriptions or else from its streams rows.

    For a V1 generation use its V1 description, which keeps the shard order.

    Raises:
        NotFound: nothing describes the generation.
        StateError: its descriptions are partial.
    """
    if generation.format == "v1":
        return _locate_v1_stream(lake, generation, token)
    table, key, ends = _read_range_ends(lake, generation)
    row = int(np.searchsorted(ends, token)) % ends.size
    start, end = int(ends[row - 1]), int(ends[row])
    stored_row = lake.read(table, filters=[key, ("range_end", "=", end)]).to_pylist()[0]
    streams: list[bytes] = stored_row["streams"]
    owner = _find_range_owner(lake, generation, end)
    msb = stored_row.get("ignore_msb", owner.ignore_msb)
    if "ignore_msb" not in stored_row and owner.shard_count not in (None, len(streams)):
        note = (
            f"the range has {len(streams)} streams, and its owner has {owner.shard_count} shards: the shard cannot be "
            "named; import its V2 descriptions"
        )
        return StreamPlacement(start, end, row, owner.host_id, None, None, note)
    shard, note = _find_shard(start, end, streams, token, msb, _read_unordered_reason(lake, table, generation, end))
    stream = None if shard is None else streams[shard]
    misplacement = None if shard is None else _explain_misplacement(start, end, streams, shard, msb)
    return StreamPlacement(
        start, end, row, owner.host_id, shard, stream, misplacement or note, misplaced=misplacement is not None
    )


def _locate_v1_stream(lake: Lake, generation: Generation, token: int) -> StreamPlacement:
    description = generations.read_generation_description(lake, GenerationId(generation.time_ms))
    row = int(np.searchsorted(description.range_ends, token)) % len(description)
    entry = description.entry(row)
    owner = _find_range_owner(lake, generation, entry.range_end)
    shard = int(shard_of(token, len(entry.streams), entry.ignore_msb))
    streams = [stream.tobytes() for stream in entry.streams]
    ends = entry.range_start, entry.range_end
    misplacement = _explain_misplacement(*ends, streams, shard, entry.ignore_msb)
    return StreamPlacement(
        *ends, row, owner.host_id, shard, streams[shard], misplacement, misplaced=misplacement is not None
    )


def _read_range_ends(lake: Lake, generation: Generation) -> tuple[Table, tuple[str, str, object], np.ndarray]:
    if generation.format == "v2" and generation.id is not None:
        key = ("id", "=", generation.id)
        return GENERATION_DESCRIPTIONS_V2, key, generations.read_v2_range_ends(lake, generation.id)
    ends = generations.read_published_range_ends(lake, generation.time_ms)
    if ends.size == 0:
        raise NotFound(
            f"generation {format_ms(generation.time_ms)} is known by its timestamp alone; import its streams rows"
        )
    return STREAMS_DESCRIPTIONS_V2, ("time", "=", datetime_from_ms(generation.time_ms)), ends


@dataclass(frozen=True)
class _RangeOwner:
    """The owner of a range and its sharding, each None if unknown."""

    host_id: str | None = None
    ignore_msb: int | None = None
    shard_count: int | None = None


def _find_range_owner(lake: Lake, generation: Generation, range_end: int) -> _RangeOwner:
    """Return the described owner of the range, or else the node that has the range end as a token now."""
    if generation.id is not None:
        where = [("generation_id", "=", generation.id), ("range_end", "=", range_end)]
        described = lake.read(TOPOLOGY_DESCRIPTIONS, ["owner", "ignore_msb"], where).to_pylist()
        if described:
            return _RangeOwner(described[0]["owner"], described[0]["ignore_msb"])
    node = ring.read_token_owner(lake, range_end)
    return _RangeOwner() if node is None else _RangeOwner(str(node.host_id), node.ignore_msb, node.shard_count)


def _explain_misplacement(start: int, end: int, streams: list[bytes], shard: int, msb: int | None) -> str | None:
    """Return how a shard's stream is outside its range or on another shard, or None if it is in place."""
    if len(streams[shard]) != STREAM_ID_BYTES:
        return f"its stream has {len(streams[shard])} bytes; a stream ID has {STREAM_ID_BYTES}"
    ids = decode_stream_ids(np.frombuffer(streams[shard], dtype=np.uint8).reshape(1, STREAM_ID_BYTES))
    token = int(ids.tokens[0])
    if not (start < token <= end if start < end else token > start or token <= end):
        return f"its stream has token {token}, which is outside of its range"
    lies_on = int(shard_of(token, len(streams), msb or 0))
    if lies_on != shard:
        return f"its stream has token {token}, which is on shard {lies_on} and not on shard {shard}"
    expected = int(first_token_for_shard(start, end, shard, len(streams), msb or 0))
    return (
        None
        if token == expected
        else f"its stream has token {token}, and that of its range and shard has token {expected}"
    )


def _read_unordered_reason(lake: Lake, table: Table, generation: Generation, end: int) -> str | None:
    """Return why the stream order of the row was unknown when it was imported, or None if it is known."""
    name = generation.id if table is GENERATION_DESCRIPTIONS_V2 else format_ms(generation.time_ms)
    where = [("table_name", "=", table.full_name), ("generation", "=", name), ("range_end", "=", end)]
    reasons = lake.read(UNORDERED_RANGES, ["reason"], where)["reason"].to_pylist()
    return reasons[0] if reasons else None


def _find_shard(
    start: int, end: int, streams: list[bytes], token: int, msb: int | None, mark: str | None
) -> tuple[int | None, str | None]:
    """Return the shard of `token` in its row, or a note that says why it is unknown.

    Even in a marked row a position may be certain: only shards that own nothing there are ambiguous, and no write goes
    to those.
    """
    count = len(streams)
    if count == 0:
        return None, "the range has no stream"
    if count == 1:
        return 0, None
    if msb is None:
        return None, f"the shard cannot be named: {mark or 'the ignore_msb of its owner is not known'}"
    shard = int(shard_of(token, count, msb))
    if mark is None:
        return shard, None
    if any(len(stream) != STREAM_ID_BYTES for stream in streams):
        return None, "a stream of the range has no 16 bytes"
    flat = np.frombuffer(b"".join(streams), dtype=np.uint8).reshape(count, STREAM_ID_BYTES)
    restored = restore_shard_orders([start], [end], [count], flat, [msb])
    if restored.settled[shard] and np.array_equal(restored.streams[shard], flat[shard]):
        return shard, None
    return None, f"the shard cannot be named: {mark}"
