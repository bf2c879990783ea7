"""The ledger of generations, `platform.generations`: the one timestamp that each was given here, and its join's end.

Whoever writes a generation's row first has chosen its timestamp. Which other generations there are is the timeline's.
"""

from __future__ import annotations

import uuid
from typing import Literal, NamedTuple

from cdc_platform.clock import Milliseconds, ms_from_datetime
from cdc_platform.errors import StateError
from cdc_platform.generations import GenerationId
from cdc_platform.lake.arrow import known_milliseconds, values
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import COMMITTED_GENERATIONS, GENERATIONS
from cdc_platform.records import removals


class Entry(NamedTuple):
    """A generation that was given its timestamp (ms), the format of its data, and whether it was made elsewhere."""

    generation_id: str
    time_ms: Milliseconds
    format: Literal["v1", "v2"]
    is_imported: bool = False


def entries(lake: Lake) -> list[Entry]:
    """Every generation that was given a timestamp here, those that were removed since among them; in no order."""
    rows = lake.read(GENERATIONS, ["generation_id", "time", "format", "event_id"])
    ids, formats, events = (values(rows[name]) for name in ("generation_id", "format", "event_id"))
    return [
        Entry(id_, time_ms, "v1" if format_ == "v1" else "v2", event is None)
        for id_, time_ms, format_, event in zip(ids, known_milliseconds(rows["time"]), formats, events, strict=True)
    ]


def committed_elsewhere(lake: Lake) -> dict[Milliseconds, str]:
    """The UUIDs of generations that a cluster has committed and of which no row had come here, by time (ms)."""
    rows = lake.read(COMMITTED_GENERATIONS, ["time", "generation_id"])
    return dict(zip(known_milliseconds(rows["time"]), values(rows["generation_id"]), strict=True))


def introduced_at_ms(lake: Lake, generation_id: str) -> Milliseconds | None:
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
    removal = next((each for each in removals.gone(lake) if each.id == generation_id), None)
    if removal is not None:
        raise StateError(f"generation {generation_id} {removal}; it is not made again")
    return GenerationId(
        ms_from_datetime(rows[0]["time"]), None if rows[0]["format"] == "v1" else uuid.UUID(generation_id)
    )


def published_at_ms(lake: Lake, generation_id: str) -> Milliseconds | None:
    """When (ms) the join that introduces the generation was finished, or None."""
    rows = lake.read(GENERATIONS, ["published_at"], [("generation_id", "=", generation_id)])["published_at"].to_pylist()
    return ms_from_datetime(rows[0]) if rows and rows[0] is not None else None
