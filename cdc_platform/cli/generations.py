"""`cdc-platform generations`, `streams` and `diff`: list generations, print their streams, compare two of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from cdc_platform.cli.output import (
    format_optional_ms,
    json_option,
    to_json_value,
    write_json_rows,
)
from cdc_platform.cli.params import GENERATION, TIME
from cdc_platform.cli.render import View, show_rows, write_result
from cdc_platform.cli.session import CliSession, pass_session
from cdc_platform.clock import Microseconds, Milliseconds, format_ms, us_from_ms
from cdc_platform.errors import StateError

if TYPE_CHECKING:
    import pyarrow as pa

    from cdc_platform.delta import Lake
    from cdc_platform.generations import TopologyDescription
    from cdc_platform.timeline import Generation, GenerationSize, Timeline


@click.command()
@click.option("--since", type=TIME, help="Only generations that operate at this time or later.")
@json_option
@pass_session
def generations(session: CliSession, since: Microseconds | None, as_json: bool) -> None:
    """List the generations, newest first.

    With --since TIME: those that start at or after TIME, and the one before them, which operates at TIME. The state
    says what is known of each; a generation may be known by name without its description. Clients see published ones.

    \b
    Example:
      cdc-platform generations --since 2026-01-31T12:00:00Z
    """
    from cdc_platform.timeline import Timeline, read_generation_sizes, read_node_counts

    lake = session.view()
    timeline = Timeline.read(lake)
    known, now = timeline.known, timeline.operating(session.clock.now_us())
    listed = known if since is None else _operating_since(known, since)
    sizes = {size.time_ms: size for size in read_generation_sizes(lake)}
    owners = read_node_counts(lake)
    rows = [
        {
            "id": generation.id,
            "time": format_optional_ms(generation.time_ms),
            "expired": format_optional_ms(generation.expired_ms),
            "operating": generation == now,
            "state": str(generation.state),
            "published": generation.published,
            "nodes": owners.get(generation.id or ""),
            **_size_fields(sizes.get(generation.time_ms)),
        }
        for generation in reversed(listed)
    ]
    view = View("time id state num_ranges num_streams nodes expired", "Generations")
    screen = [row | {"state": _screen_state(row)} for row in rows]
    write_result({"generations": rows}, as_json=as_json, show=lambda: show_rows(screen, view))


def _screen_state(row: dict[str, Any]) -> str:
    """Return the state of a generation for people, which includes whether it operates."""
    if not row["operating"]:
        return row["state"]
    return "operating" if row["state"] == "published" else f"operating, {row['state']}"


def _size_fields(size: GenerationSize | None) -> dict[str, int | None]:
    """Return the numbers of ranges and streams; None if only the generation's time is known."""
    return {
        "num_ranges": (size and size.num_ranges) or None,
        "num_streams": (size and size.num_streams) or None,
    }


def _operating_since(known: list[Generation], since_us: Microseconds) -> list[Generation]:
    """Return the generations (oldest first) that start at or after a time, and the one before them."""
    later = sum(us_from_ms(generation.time_ms) >= since_us for generation in known)
    return known[-(later + 1) :]


_RANGES_PER_WRITE = 256


@click.command()
@click.argument("generation", metavar="TIME", type=GENERATION)
@json_option
@pass_session
def streams(session: CliSession, generation: str | Milliseconds, as_json: bool) -> None:
    """Print the published streams of the generation that starts at TIME (or has this UUID), in ring order.

    Within a range the streams are in shard order: position 0 is shard 0. A question mark stands for a shard whose
    position an import could not determine.

    \b
    Example:
      cdc-platform streams 2026-01-31T12:00:00.000Z
    """
    from cdc_platform.metastore import generations
    from cdc_platform.timeline import Timeline

    lake = session.view()
    time_ms = Timeline.read(lake).find_published(session.named(generation)).time_ms
    rows = generations.read_published_rows(lake, time_ms)
    if as_json:
        write_json_rows("ranges", _json_texts(rows), time=format_ms(time_ms))
        return
    click.echo(f"{'range_end':>20}  {'shard':>5}  stream_id")
    for lines in _line_texts(rows, _unordered_range_ends(lake, time_ms)):
        click.echo(lines)


def _unordered_range_ends(lake: Lake, time_ms: Milliseconds) -> set[int]:
    """Return the ends of the generation's ranges whose streams have no known order."""
    from cdc_platform.tables import STREAMS_DESCRIPTIONS_V2, UNORDERED_RANGES

    where = [("table_name", "=", STREAMS_DESCRIPTIONS_V2.full_name), ("generation", "=", format_ms(time_ms))]
    return set(lake.read(UNORDERED_RANGES, ["range_end"], where)["range_end"].to_pylist())


def _json_texts(rows: pa.Table) -> Iterator[str]:
    """Yield the ranges as JSON objects, some at a time, separated by commas."""
    for batch in _range_batches(rows):
        yield ",\n".join(
            f'{{"range_end": {json.dumps(to_json_value(end))}, "streams": ["0x' + '", "0x'.join(ids) + '"]}'
            for end, ids in batch
        )


def _line_texts(rows: pa.Table, unordered: set[int]) -> Iterator[str]:
    for batch in _range_batches(rows):
        yield "\n".join(
            f"{end:>20}  {'?' if end in unordered else shard:>5}  0x{id_}"
            for end, ids in batch
            for shard, id_ in enumerate(ids)
        )


def _range_batches(rows: pa.Table) -> Iterator[list[tuple[int, list[str]]]]:
    """Yield range ends with their streams as hexadecimal digits, `_RANGES_PER_WRITE` ranges at a time."""
    from cdc_platform.delta import flatten_stream_lists

    for at in range(0, rows.num_rows, _RANGES_PER_WRITE):
        part = rows.slice(at, _RANGES_PER_WRITE)
        counts, flat = flatten_stream_lists(part["streams"])
        digits = flat.tobytes().hex()
        ids = iter([digits[start : start + 32] for start in range(0, len(digits), 32)])
        ends = part["range_end"].to_pylist()
        yield [(end, [next(ids) for _ in range(count)]) for end, count in zip(ends, counts.tolist(), strict=True)]


@click.command()
@click.argument("old", metavar="GEN", type=GENERATION)
@click.argument("new", metavar="GEN", type=GENERATION)
@json_option
@pass_session
def diff(session: CliSession, old: str | Milliseconds, new: str | Milliseconds, as_json: bool) -> None:
    """Compare two generations, each named by its UUID or its time: ranges, streams, and the share of the ring whose
    writes go to another stream.

    \b
    Example:
      cdc-platform diff 2026-01-31T12:00:00.000Z 2026-02-01T12:00:00.000Z
    """
    from cdc_platform.generations import compare_generations
    from cdc_platform.timeline import Timeline

    lake = session.lake()
    timeline = Timeline.read(lake)
    (before, old_streams), (after, new_streams) = (
        _read_description(lake, timeline, name) for name in map(session.named, (old, new))
    )
    change = compare_generations(old_streams, new_streams)
    result = {
        "old": _generation_summary(before, old_streams),
        "new": _generation_summary(after, new_streams),
        "ranges_added": len(change.ranges_added),
        "ranges_removed": len(change.ranges_removed),
        "streams_kept": change.streams_kept,
        "changed_share": change.changed_share,
    }
    write_result(result, as_json=as_json)


def _read_description(
    lake: Lake, timeline: Timeline, name: str | Milliseconds
) -> tuple[Generation, TopologyDescription]:
    from cdc_platform.metastore import generations

    generation = timeline.find(name)
    id_ = generation.generation_id
    if id_ is None:
        raise StateError(
            f"generation {format_optional_ms(generation.time_ms)} is known by its time alone; import its "
            "cdc_generation_descriptions_v2 to compare it"
        )
    return generation, generations.read_generation_description(lake, id_)


def _generation_summary(generation: Generation, streams: TopologyDescription) -> dict[str, object]:
    return {
        "id": generation.id,
        "time": format_optional_ms(generation.time_ms),
        "num_ranges": len(streams),
        "num_streams": len(streams.streams),
    }
