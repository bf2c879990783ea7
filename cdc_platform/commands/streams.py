"""`cdc-platform streams`: what readers of a generation get, written range by range as fast as it can be piped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from cdc_platform.clock import Milliseconds, format_ms
from cdc_platform.commands.arguments import GENERATION
from cdc_platform.commands.output import json_option, plain, write_json_list
from cdc_platform.commands.session import Session, pass_session

if TYPE_CHECKING:
    import pyarrow as pa

    from cdc_platform.lake.lake import Lake

_ROWS_A_WRITE = 256


@click.command()
@click.argument("generation", metavar="TIME", type=GENERATION)
@json_option
@pass_session
def streams(session: Session, generation: str | Milliseconds, as_json: bool) -> None:
    """Print the published streams of the generation that starts at TIME (or has this UUID), in ring order.

    Within a range the streams are in shard order: position 0 is shard 0. Where an import could not tell the order, the
    shard shows as a question mark.

    \b
    Example:
      cdc-platform streams 2026-01-31T12:00:00.000Z
    """
    from cdc_platform.records import descriptions
    from cdc_platform.timeline import Timeline

    lake = session.view()
    time_ms = Timeline.read(lake).find_published(session.named(generation)).time_ms
    rows = descriptions.published_rows(lake, time_ms)
    if as_json:
        write_json_list(_as_json(rows))
        return
    click.echo(f"{'range_end':>20}  {'shard':>5}  stream_id")
    for lines in _as_lines(rows, _unordered(lake, time_ms)):
        click.echo(lines)


def _unordered(lake: Lake, time_ms: Milliseconds) -> set[int]:
    """The range ends of the generation whose streams are in no known order."""
    from cdc_platform.lake.tables import STREAMS_DESCRIPTIONS_V2, UNORDERED_RANGES

    where = [("table_name", "=", STREAMS_DESCRIPTIONS_V2.full_name), ("generation", "=", format_ms(time_ms))]
    return set(lake.read(UNORDERED_RANGES, ["range_end"], where)["range_end"].to_pylist())


def _as_json(rows: pa.Table) -> Iterator[str]:
    """Some ranges at a time as JSON objects, commas between them."""
    for batch in _batches(rows):
        yield ",\n".join(
            f'{{"range_end": {json.dumps(plain(end))}, "streams": ["0x' + '", "0x'.join(ids) + '"]}'
            for end, ids in batch
        )


def _as_lines(rows: pa.Table, unordered: set[int]) -> Iterator[str]:
    for batch in _batches(rows):
        yield "\n".join(
            f"{end:>20}  {'?' if end in unordered else shard:>5}  0x{id_}"
            for end, ids in batch
            for shard, id_ in enumerate(ids)
        )


def _batches(rows: pa.Table) -> Iterator[list[tuple[int, list[str]]]]:
    """Range ends with their streams as hexadecimal digits, some ranges at a time."""
    from cdc_platform.lake.arrow import flat_streams

    for at in range(0, rows.num_rows, _ROWS_A_WRITE):
        part = rows.slice(at, _ROWS_A_WRITE)
        counts, flat = flat_streams(part["streams"])
        digits = flat.tobytes().hex()
        ids = iter([digits[start : start + 32] for start in range(0, len(digits), 32)])
        ends = part["range_end"].to_pylist()
        yield [(end, [next(ids) for _ in range(count)]) for end, count in zip(ends, counts.tolist(), strict=True)]
