"""`cdc-platform diff`: what changes from one generation to another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cdc_platform.clock import Milliseconds
from cdc_platform.commands.arguments import GENERATION
from cdc_platform.commands.output import json_option, time_of, write_facts, write_json
from cdc_platform.commands.session import Session, pass_session
from cdc_platform.errors import StateError

if TYPE_CHECKING:
    from cdc_platform.generations import TopologyDescription
    from cdc_platform.lake.lake import Lake
    from cdc_platform.timeline import Generation, Timeline


@click.command()
@click.argument("old", metavar="GEN", type=GENERATION)
@click.argument("new", metavar="GEN", type=GENERATION)
@json_option
@pass_session
def diff(session: Session, old: str | Milliseconds, new: str | Milliseconds, as_json: bool) -> None:
    """Compare two generations, each named by its UUID or its time: ranges, streams, and the share of the ring whose
    writes go to another stream.

    \b
    Example:
      cdc-platform diff 2026-01-31T12:00:00.000Z 2026-02-01T12:00:00.000Z
    """
    from cdc_platform.generations.comparison import compare
    from cdc_platform.timeline import Timeline

    lake = session.lake()
    timeline = Timeline.read(lake)
    (before, old_streams), (after, new_streams) = (
        _described(lake, timeline, name) for name in map(session.named, (old, new))
    )
    change = compare(old_streams, new_streams)
    result = {
        "old": _named(before, old_streams),
        "new": _named(after, new_streams),
        "ranges_added": len(change.ranges_added),
        "ranges_removed": len(change.ranges_removed),
        "streams_kept": change.streams_kept,
        "changed_share": change.changed_share,
    }
    if as_json:
        write_json(result)
        return
    facts: list[tuple[str, object]] = []
    for name, generation, streams in (("old", before, old_streams), ("new", after, new_streams)):
        time = time_of(generation.time_ms)
        facts.append((name, f"{time}  {generation.id or '-'}  {len(streams)} ranges, {len(streams.streams)} streams"))
    facts += [
        ("ranges added", len(change.ranges_added)),
        ("ranges removed", len(change.ranges_removed)),
        ("streams kept", change.streams_kept),
        ("share of the ring that changes streams", f"{100 * change.changed_share:.3f} %"),
    ]
    write_facts(facts)


def _described(lake: Lake, timeline: Timeline, name: str | Milliseconds) -> tuple[Generation, TopologyDescription]:
    from cdc_platform.records import generation_data

    generation = timeline.find(name)
    id_ = generation.generation_id
    if id_ is None:
        raise StateError(
            f"generation {time_of(generation.time_ms)} is known by its time alone; import its "
            "cdc_generation_descriptions_v2 to compare it"
        )
    return generation, generation_data.description_of(lake, id_)


def _named(generation: Generation, streams: TopologyDescription) -> dict[str, object]:
    return {
        "id": generation.id,
        "time": time_of(generation.time_ms),
        "num_ranges": len(streams),
        "num_streams": len(streams.streams),
    }
