"""`cdc-platform rehearse`: what topology changes would do, before they are made. Writes nothing to the lake."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cdc_platform import drafts
from cdc_platform.clock import format_ms, seconds_of_ms
from cdc_platform.commands.arguments import IGNORE_MSB, SHARDS, TTL
from cdc_platform.commands.changing import warn_of_changing
from cdc_platform.commands.output import json_option, warn, write_json, write_table
from cdc_platform.commands.session import Session, pass_session
from cdc_platform.errors import InputError

if TYPE_CHECKING:
    from cdc_platform.lifecycle.rehearsal.rehearse import Effect
    from cdc_platform.lifecycle.rehearsal.start import Start
    from cdc_platform.settings import Settings
    from cdc_platform.sources.rehearsal_file import Step


@click.command()
@click.argument("file")
@click.option("--ring", "ring_file", metavar="FILE", help="Start from this ring snapshot and not from the lake's ring.")
@click.option("--shards", type=SHARDS, help="Shards of the snapshot's nodes where the file does not say.")
@click.option("--ignore-msb", type=IGNORE_MSB, help="ignore_msb of the snapshot's nodes where the file does not say.")
@click.option("--ttl", "ttls", type=TTL, multiple=True, metavar="SECONDS")
@click.option("--max-bytes", type=click.IntRange(1), help="Name the first step with a table larger in ScyllaDB.")
@click.option("--picture", metavar="FILE.png", help="Draw it too.")
@json_option
@pass_session
def rehearse(
    session: Session,
    file: str,
    ring_file: str | None,
    shards: int | None,
    ignore_msb: int | None,
    ttls: tuple[int, ...],
    max_bytes: int | None,
    picture: str | None,
    as_json: bool,
) -> None:
    """Play the topology changes that FILE lists (`-`: standard input) and say what each of them does.

    FILE is a JSON list of steps: {"add": {...}} as in a bootstrap file, with shard_count and num_tokens or tokens and
    perhaps times; {"remove": NODE}; {"reshard": {"node": NODE, "shard_count": N}}; {"repair": {"strict": true}};
    {"wait": SECONDS}. A NODE is a host_id or an address. --ttl says how long the rows of a CDC log live, once for each
    table (0: for ever); without it the lake's CDC-enabled tables say so, and where there are none everything is kept.

    \b
    Example:
      cdc-platform rehearse steps.json --max-bytes 1000000000 --picture rehearsal.png
      cdc-platform rehearse steps.json --ring ring.json --shards 8 --ignore-msb 12 --ttl 86400 --json
    """
    if ring_file is None and (shards is not None or ignore_msb is not None):
        raise click.UsageError("--shards and --ignore-msb are about the nodes of --ring FILE; the lake knows its nodes")
    home = _home_of(session)
    target = None if picture is None else _target(picture, home)
    from cdc_platform.lifecycle.rehearsal import rehearse as rehearsing
    from cdc_platform.lifecycle.rehearsal.start import with_ttls

    steps = _steps(file)
    start, settings = _start(session, ring_file, shards, ignore_msb)
    start = with_ttls(start, ttls) if ttls else start
    effects = rehearsing.play(start, steps, settings)
    beyond = {} if max_bytes is None else rehearsing.first_beyond(effects, max_bytes)
    if target is not None:
        _draw(target, home, effects, max_bytes)
    if as_json:
        passes = [_passes(effects, table, effect) for table, effect in beyond.items()]
        told = {"assumed_generation": ring_file is not None, "max_bytes": max_bytes, "passes": passes}
        write_json(told | {"picture": picture, "steps": [_told(effect) for effect in effects]})
        return
    _write(effects)
    for table, effect in beyond.items():
        place = effects.index(effect)
        change = f"{effect.kind} {effect.subject}".strip()
        passes = f"{table} passes {max_bytes} bytes in ScyllaDB after line {place} ({change}): {effect.kept[table]}"
        warn(passes, code="too-large")


def _steps(file: str) -> list[Step]:
    from cdc_platform.sources.rehearsal_file import parse_rehearsal, read_rehearsal
    from cdc_platform.user_files import STANDARD_INPUT, read_standard_input

    if file != "-":
        return read_rehearsal(file)
    return parse_rehearsal(read_standard_input(), STANDARD_INPUT)


def _start(
    session: Session, ring_file: str | None, shards: int | None, ignore_msb: int | None
) -> tuple[Start, Settings]:
    from cdc_platform.lifecycle.rehearsal.start import from_lake, from_ring

    if ring_file is None:
        home = session.open_home()
        warn_of_changing(session.lake())
        return from_lake(session.lake(), session.clock.now_ms()), home.settings
    from cdc_platform.home import is_there
    from cdc_platform.ring import Ring
    from cdc_platform.settings import Settings
    from cdc_platform.sources.ring_snapshots import read_ring_snapshot

    # A ring from a file needs no home; where there is one its settings hold.
    settings = session.open_home().settings if is_there(session.home) else Settings()
    ring = Ring.of(read_ring_snapshot(ring_file, shards, ignore_msb))
    return from_ring(ring, session.clock.now_ms()), settings


def _home_of(session: Session) -> Path | None:
    """The home's folder, None where there is no home: a ring from a file needs none."""
    from cdc_platform.home import is_there

    return session.open_home().path if is_there(session.home) else None


def _target(picture: str, home: Path | None) -> Path:
    """Where the picture goes, checked before anything is played."""
    path = Path(picture)
    if path.suffix.lower() != ".png":
        raise InputError(f"{picture}: the picture is a PNG; give it a name that ends in .png")
    drafts.assert_free(path, home)
    return path


def _draw(target: Path, home: Path | None, effects: Sequence[Effect], max_bytes: int | None) -> None:
    from cdc_platform.pictures.rehearsal import Played, rehearsal_picture

    played = [
        Played(
            effect.kept,
            effect.made.num_streams if effect.made else 0,
            effect.colocated.shard if effect.colocated else None,
            effect.excess_ranges > 0,
        )
        for effect in effects
    ]
    with drafts.new_file(target, home=home) as draft:
        draft.write_bytes(rehearsal_picture(played, max_bytes))


def _passes(effects: Sequence[Effect], table: str, effect: Effect) -> dict[str, object]:
    size = effect.kept[table]
    line, step = effects.index(effect), effect.number
    return {"table": table, "line": line, "step": step, "bytes": size, "bytes_in_scylladb": size}


def _told(effect: Effect) -> dict[str, object]:
    made = effect.made and {
        "id": effect.made.id.uuid,
        "time": format_ms(effect.made.id.time_ms),
        "format": effect.made.id.format,
        "num_ranges": effect.made.num_ranges,
        "num_streams": effect.made.num_streams,
        "bytes": effect.made.bytes,
        "bytes_in_scylladb": effect.made.bytes,
        "changed_share": effect.made.changed_share,
    }
    return {
        "step": effect.number,
        "change": effect.kind,
        "subject": effect.subject,
        "at": format_ms(effect.at_ms),
        "nodes": effect.nodes,
        "tokens": effect.tokens,
        "generation": made,
        "findings": [{"condition": each.condition.value, "detail": each.detail} for each in effect.findings],
        "excess_ranges": effect.excess_ranges,
        "excess_streams": effect.excess_streams,
        "vnode_colocation": effect.colocated and effect.colocated.vnode,
        "shard_colocation": effect.colocated and effect.colocated.shard,
        "risk_seconds": seconds_of_ms(effect.risk_ms),
        "risk_share": effect.risk_share,
        "tables": effect.kept,
    }


def _write(effects: Sequence[Effect]) -> None:
    tables = [table for table in effects[0].kept if any(effect.kept[table] for effect in effects)]
    columns = ("", "change", ">nodes", ">ranges", "generation", ">streams", ">changed", ">excess", ">vnodes", ">shards")
    columns += (">at risk", *(f">{_SHORT_NAMES[table.partition('.')[2]]}" for table in tables))
    write_table("", columns, [_row(place, effect, tables) for place, effect in enumerate(effects)])


# In a table for people: the two formats of descriptions, and what readers get.
_SHORT_NAMES = {
    "cdc_generation_descriptions_v2": "descriptions",
    "cdc_generation_descriptions": "descriptions (V1)",
    "cdc_streams_descriptions_v2": "published",
}


def _row(place: int, effect: Effect, tables: Sequence[str]) -> tuple[object, ...]:
    made, colocated = effect.made, effect.colocated
    what = f"{effect.kind} {effect.subject}".strip()
    if effect.kind == "repair" and made is None:
        what += " (not needed)"
    return (
        place,
        what,
        effect.nodes,
        effect.tokens,
        None if made is None else format_ms(made.id.time_ms),
        None if made is None else made.num_streams,
        None if made is None else _percent(made.changed_share),
        effect.excess_ranges,
        None if colocated is None else _percent(colocated.vnode),
        None if colocated is None else _percent(colocated.shard),
        f"{_percent(effect.risk_share)}, {seconds_of_ms(effect.risk_ms):g} s" if effect.risk_ms else None,
        *(effect.kept[table] for table in tables),
    )


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{100 * share:.3f}%"
