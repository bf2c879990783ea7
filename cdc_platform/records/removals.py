"""The notes of generations that were removed: what is known of them when their rows are gone.

A removal is noted before anything goes; it is decided when the generation's timestamp goes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from cdc_platform.clock import Milliseconds, format_ms, ms_from_datetime
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import REMOVED_GENERATIONS
from cdc_platform.records import descriptions


@dataclass(frozen=True)
class Removal:
    """A generation whose removal was begun at `removed_ms`; no log could hold rows of it since `expired_ms`. In ms."""

    time_ms: Milliseconds
    id: str | None
    expired_ms: Milliseconds
    removed_ms: Milliseconds

    def __str__(self) -> str:
        return (
            f"was removed at {format_ms(self.removed_ms)}: since {format_ms(self.expired_ms)} no CDC log could hold "
            "rows of it"
        )


def noted(lake: Lake) -> dict[Milliseconds, Removal]:
    """The removals that were begun, by the generation's time (ms). A generation that is still listed is not gone."""
    rows = lake.read(REMOVED_GENERATIONS, ["time", "generation_id", "expired", "removed_at"]).to_pylist()
    return {
        time_ms: Removal(
            time_ms, row["generation_id"], ms_from_datetime(row["expired"]), ms_from_datetime(row["removed_at"])
        )
        for row in rows
        for time_ms in (ms_from_datetime(row["time"]),)
    }


def decided(begun: Mapping[Milliseconds, Removal], listed: Collection[Milliseconds]) -> dict[Milliseconds, Removal]:
    """Of the removals that were begun those whose timestamp is not `listed` (ms) any more, oldest first."""
    return {time_ms: begun[time_ms] for time_ms in sorted(begun.keys() - set(listed))}


def gone(lake: Lake) -> list[Removal]:
    """The generations that are gone, oldest first; of the newest of them some rows may be left for a moment."""
    begun = noted(lake)
    if not begun:
        return []
    listed = descriptions.listed_times(lake)
    return list(decided(begun, listed).values())
