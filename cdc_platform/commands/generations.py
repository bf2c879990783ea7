"""`cdc-platform generations`: which generations are known, and which of them operates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cdc_platform.clock import Microseconds, us_of
from cdc_platform.commands.arguments import TIME
from cdc_platform.commands.output import json_option, time_of, write_json, write_table
from cdc_platform.commands.session import Session, pass_session

if TYPE_CHECKING:
    from cdc_platform.timeline import Generation
    from cdc_platform.timeline.generation_sizes import GenerationSize


@click.command()
@click.option("--since", type=TIME, help="Only those that operate at this time or later.")
@json_option
@pass_session
def generations(session: Session, since: Microseconds | None, as_json: bool) -> None:
    """List the generations, newest first.

    With --since TIME: those that start at or after it, and the one before them, which still operates at TIME; if
    none starts that late, the newest one. The state says what is known of each: one that somebody names and whose
    description is not here is in the list, too. Clients see those that are published.

    \b
    Example:
      cdc-platform generations --since 2026-01-31T12:00:00Z
    """
    from cdc_platform.timeline import Timeline
    from cdc_platform.timeline.generation_sizes import generation_sizes, node_counts

    lake = session.view()
    timeline = Timeline.read(lake)
    known, now = timeline.known, timeline.operating(session.clock.now_us())
    listed = known if since is None else _since(known, since)
    sizes = {each.time_ms: each for each in generation_sizes(lake)}
    owners = node_counts(lake)
    rows = [
        {
            "id": generation.id,
            "time": time_of(generation.time_ms),
            "expired": time_of(generation.expired_ms),
            "operating": generation == now,
            "state": str(generation.state),
            "published": generation.published,
            "nodes": owners.get(generation.id or ""),
            **_size(sizes.get(generation.time_ms)),
        }
        for generation in reversed(listed)
    ]
    if as_json:
        write_json(rows)
    else:
        columns = ("time", "id", "operating", "state", "nodes", "num_ranges", "num_streams", "expired")
        numbers = ("nodes", "num_ranges", "num_streams")
        shown = [f">{name.removeprefix('num_')}" if name in numbers else name for name in columns]
        write_table("Generations", shown, [[row[name] for name in columns] for row in rows])


def _size(size: GenerationSize | None) -> dict[str, int | None]:
    """Ranges and streams; null where only the time of a generation is known."""
    return {
        "num_ranges": (size and size.num_ranges) or None,
        "num_streams": (size and size.num_streams) or None,
    }


def _since(known: list[Generation], since_us: Microseconds) -> list[Generation]:
    """Of the generations (oldest first) those that start at or after a time, and the one before them."""
    later = sum(us_of(generation.time_ms) >= since_us for generation in known)
    return known[-(later + 1) :]
