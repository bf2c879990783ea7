"""The notes of generations that were removed: what is known of them when their rows are gone.

A removal is noted before anything goes; it is decided when the generation's timestamp goes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from cdc_platform.clock import format_ms, from_datetime
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import GENERATION_TIMESTAMPS, REMOVED_GENERATIONS


@dataclass(frozen=True)
class Removal:
    """A generation whose removal was begun at `removed_ms`; no log could hold rows of it since `expired_ms`. In ms."""

    time_ms: int
    id: str | None
    expired_ms: int
    removed_ms: int

    def __str__(self) -> str:
        return (
            f"was removed at {format_ms(self.removed_ms)}: since {format_ms(self.expired_ms)} no CDC log could hold "
            "rows of it"
        )


def noted(lake: Lake) -> dict[int, Removal]:
    """The removals that were begun, by the generation's time (ms). A generation that is still listed is not gone."""
    rows = lake.read(REMOVED_GENERATIONS, ["time", "generation_id", "expired", "removed_at"]).to_pylist()
    return {
        time_ms: Removal(time_ms, row["generation_id"], _ms(row["expired"]), _ms(row["removed_at"]))
        for row in rows
        for time_ms in (_ms(row["time"]),)
    }


def decided(begun: Mapping[int, Removal], listed: Collection[int]) -> dict[int, Removal]:
    """Of the removals that were begun those whose timestamp is not `listed` (ms) any more, oldest first."""
    return {time_ms: begun[time_ms] for time_ms in sorted(begun.keys() - set(listed))}


def gone(lake: Lake) -> list[Removal]:
    """The generations that are gone, oldest first; of the newest of them some rows may be left for a moment."""
    begun = noted(lake)
    if not begun:
        return []
    listed = [_ms(time) for time in lake.read(GENERATION_TIMESTAMPS, ["time"])["time"].to_pylist()]
    return list(decided(begun, listed).values())


def _ms(moment: datetime) -> int:
    return from_datetime(moment) // 1000
