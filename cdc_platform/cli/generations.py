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
from cdc_platform.clock import Microseconds, Milliseconds, format_ms

if TYPE_CHECKING:
    import pyarrow as pa

    from cdc_platform.home import DescribedSize


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
    rows = [
        {
            "id": generation.id,
            "time": format_ms(generation.time_ms),
            "expired": format_optional_ms(generation.expired_ms),
            "operating": generation.operating,
            "state": str(generation.state),
            "published": generation.published,
            "nodes": generation.num_nodes,
            "num_ranges": generation.num_ranges,
            "num_streams": generation.num_streams,
        }
        for generation in session.open_home().generations(since)
    ]
    view = View("time id state num_ranges num_streams nodes expired", "Generations")
    screen = [row | {"state": _screen_state(row)} for row in rows]
    write_result({"generations": rows}, as_json=as_json, show=lambda: show_rows(screen, view))


def _screen_state(row: dict[str, Any]) -> str:
    """Return the state of a generation for people, which includes whether it operates."""
    if not row["operating"]:
        return row["state"]
    return "operating" if row["state"] == "published" else f"operating, {row['state']}"


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
    published = session.open_home().streams(generation)
    rows, time_ms = published.rows, published.generation.time_ms
    if as_json:
        write_json_rows("ranges", _json_texts(rows), time=format_ms(time_ms))
        return
    click.echo(f"{'range_end':>20}  {'shard':>5}  stream_id")
    for lines in _line_texts(rows, published.unordered_range_ends):
        click.echo(lines)


def _json_texts(rows: pa.Table) -> Iterator[str]:
    """Yield the ranges as JSON objects, some at a time, separated by commas."""
    for batch in _range_batches(rows):
        yield ",\n".join(
            f'{{"range_end": {json.dumps(to_json_value(end))}, "streams": ["0x' + '", "0x'.join(ids) + '"]}'
            for end, ids in batch
        )


def _line_texts(rows: pa.Table, unordered: frozenset[int]) -> Iterator[str]:
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
    change = session.open_home().diff(old, new)
    result = {
        "old": _size_document(change.old),
        "new": _size_document(change.new),
        "ranges_added": len(change.ranges_added),
        "ranges_removed": len(change.ranges_removed),
        "streams_kept": change.streams_kept,
        "changed_share": change.changed_share,
    }
    write_result(result, as_json=as_json)


def _size_document(size: DescribedSize) -> dict[str, object]:
    return {
        "id": size.generation.id,
        "time": format_ms(size.generation.time_ms),
        "num_ranges": size.num_ranges,
        "num_streams": size.num_streams,
    }
