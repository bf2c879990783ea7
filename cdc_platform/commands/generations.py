"""`cdc-platform generations`: which generations are known, and which of them operates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cdc_platform.clock import Microseconds, us_of
from cdc_platform.commands.arguments import CLOCK_TIME
from cdc_platform.commands.output import json_option, time_of, write_json, write_table
from cdc_platform.commands.session import Session, pass_session

if TYPE_CHECKING:
    from cdc_platform.timeline import Generation


@click.command()
@click.option("--since", type=CLOCK_TIME, help="Only those that operate at this time or later.")
@json_option
@pass_session
def generations(session: Session, since: Microseconds | None, as_json: bool) -> None:
    """List the generations, newest first.

    With --since TIME: those that start at or after it, and the one before them, which still operates at TIME; if
    none starts that late, the newest one.

    \b
    Example:
      cdc-platform generations --since 2026-01-31T12:00:00Z
    """
    from cdc_platform.timeline import Timeline

    timeline = Timeline.read(session.lake())
    known, now = timeline.known, timeline.operating(session.clock.now_us())
    listed = known if since is None else _since(known, since)
    rows = [
        {
            "id": generation.id,
            "time": time_of(generation.time_ms),
            "expired": time_of(generation.expired_ms),
            "operating": generation == now,
        }
        for generation in reversed(listed)
    ]
    if as_json:
        write_json(rows)
    else:
        columns = ("time", "id", "operating", "expired")
        write_table("Generations", columns, [[row[name] for name in columns] for row in rows])


def _since(known: list[Generation], since_us: Microseconds) -> list[Generation]:
    """Of the generations (oldest first) those that start at or after a time, and the one before them."""
    later = sum(us_of(generation.time_ms) >= since_us for generation in known)
    return known[-(later + 1) :]
