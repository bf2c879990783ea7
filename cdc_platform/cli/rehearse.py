"""`cdc-platform rehearse`: simulate topology changes without writing to the lake."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cdc_platform.cli.next_steps import NextStep, build_next_step
from cdc_platform.cli.output import json_option, warn, warn_if_topology_changing
from cdc_platform.cli.params import IGNORE_MSB, SHARDS, TTL
from cdc_platform.cli.progress import show_progress
from cdc_platform.cli.render import View, format_bytes, format_percent, show_rows, write_result
from cdc_platform.cli.session import CliSession, pass_session
from cdc_platform.clock import format_ms, seconds_from_ms
from cdc_platform.errors import InputError
from cdc_platform.storage import atomic

if TYPE_CHECKING:
    from cdc_platform.importing import RehearsalFileStep
    from cdc_platform.lifecycle import RehearsalStart, StepEffect
    from cdc_platform.settings import Settings


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
    session: CliSession,
    file: str,
    ring_file: str | None,
    shards: int | None,
    ignore_msb: int | None,
    ttls: tuple[int, ...],
    max_bytes: int | None,
    picture: str | None,
    as_json: bool,
) -> None:
    """Simulate the topology changes that FILE lists (`-`: standard input) and show the effect of each.

    FILE is a JSON list of steps: {"add": {...}} as in a bootstrap file, with shard_count and num_tokens or tokens and
    optionally times; {"remove": NODE}; {"reshard": {"node": NODE, "shard_count": N}}; {"repair": {"strict": true}};
    {"wait": SECONDS}. A NODE is a host_id or an address. --ttl is the TTL of a CDC log, once for each table (0: rows
    never expire). The default is the TTLs of the lake's CDC-enabled tables; without such tables nothing expires.

    \b
    Example:
      cdc-platform rehearse steps.json --max-bytes 1000000000 --picture rehearsal.png
      cdc-platform rehearse steps.json --ring ring.json --shards 8 --ignore-msb 12 --ttl 86400 --json
    """
    if ring_file is None and (shards is not None or ignore_msb is not None):
        raise click.UsageError("--shards and --ignore-msb are about the nodes of --ring FILE; the lake knows its nodes")
    home = _find_home_folder(session)
    target = None if picture is None else _check_plot_path(picture, home)
    from cdc_platform.lifecycle import rehearsal as rehearsing
    from cdc_platform.lifecycle import start_with_ttls

    steps = _read_steps(file)
    start, settings = _read_start(session, ring_file, shards, ignore_msb)
    start = start_with_ttls(start, ttls) if ttls else start
    with show_progress("simulating"):
        effects = rehearsing.play_rehearsal(start, steps, settings)
    beyond = {} if max_bytes is None else rehearsing.first_effects_above(effects, max_bytes)
    if target is not None:
        _write_plot(target, home, effects, max_bytes)
    limits = [_limit_document(effects, table, effect) for table, effect in beyond.items()]
    document = {
        "assumed_generation": ring_file is not None,
        "max_bytes": max_bytes,
        "over_limit": limits,
        "picture": picture,
        "steps": [_effect_document(effect) for effect in effects],
    }
    nodes = ("--nodes", effects[0].nodes) if ring_file is not None else ()
    next_steps = _suggest_simulation(effects, nodes)
    write_result(document, as_json=as_json, show=lambda: _show_effects(effects), next_steps=next_steps)
    if as_json:
        return
    for table, effect in beyond.items():
        index = effects.index(effect)
        change = f"{effect.kind} {effect.subject}".strip()
        size, limit = format_bytes(effect.stored_bytes[table]), format_bytes(max_bytes or 0)
        warn(f"after step {index} ({change}) {table} has {size} in ScyllaDB, more than {limit}", code="too-large")


def _suggest_simulation(effects: Sequence[StepEffect], nodes: Sequence[object]) -> list[NextStep]:
    """Return the command that simulates as many joins and repairs under faults; none if no step makes a generation."""
    from cdc_platform.cli.simulate import MAX_JOINS, MAX_NODES

    creating = Counter(effect.kind for effect in effects if effect.generation is not None)
    joins, repairs = (min(creating[kind], MAX_JOINS) for kind in ("add", "repair"))
    if not joins + repairs or effects[0].nodes > MAX_NODES or not effects[0].nodes:
        return []
    options = ["--join", joins, *(["--repair", repairs] if repairs else [])]
    why = "what failures, clocks and delays do to these switches"
    return [build_next_step("simulate", *nodes, *options, why=why)]


def _read_steps(file: str) -> list[RehearsalFileStep]:
    from cdc_platform.importing import parse_rehearsal, read_rehearsal
    from cdc_platform.storage import STANDARD_INPUT, read_standard_input

    if file != "-":
        return read_rehearsal(file)
    return parse_rehearsal(read_standard_input(), STANDARD_INPUT)


def _read_start(
    session: CliSession, ring_file: str | None, shards: int | None, ignore_msb: int | None
) -> tuple[RehearsalStart, Settings]:
    from cdc_platform.lifecycle import start_from_lake, start_from_ring

    if ring_file is None:
        home = session.open_location()
        warn_if_topology_changing(session.lake())
        return start_from_lake(session.lake(), session.clock.now_ms()), home.settings
    from cdc_platform.home_location import home_exists
    from cdc_platform.importing import read_ring_snapshot
    from cdc_platform.ring import Ring
    from cdc_platform.settings import Settings

    # A ring from a file needs no home. If there is one, its settings apply.
    settings = session.open_location().settings if home_exists(session.home) else Settings()
    ring = Ring.of(read_ring_snapshot(ring_file, shards, ignore_msb))
    return start_from_ring(ring, session.clock.now_ms()), settings


def _find_home_folder(session: CliSession) -> Path | None:
    """Return the home's folder, or None without a home, which a ring from a file does not need."""
    from cdc_platform.home_location import home_exists

    return session.open_location().path if home_exists(session.home) else None


def _check_plot_path(picture: str, home: Path | None) -> Path:
    """Return the path of the picture, checked before the rehearsal starts.

    Raises:
        InputError: it does not end in .png, or cannot be a new file.
    """
    path = Path(picture)
    if path.suffix.lower() != ".png":
        raise InputError(f"{picture}: the picture is a PNG; give it a name that ends in .png")
    atomic.assert_path_free(path, home)
    return path


def _write_plot(target: Path, home: Path | None, effects: Sequence[StepEffect], max_bytes: int | None) -> None:
    from cdc_platform.plots import RehearsalBar, plot_rehearsal

    played = [
        RehearsalBar(
            effect.stored_bytes,
            effect.generation.num_streams if effect.generation else 0,
            effect.colocated.shard if effect.colocated else None,
            effect.excess_ranges > 0,
        )
        for effect in effects
    ]
    with atomic.new_file(target, home=home) as draft:
        draft.write_bytes(plot_rehearsal(played, max_bytes))


def _limit_document(effects: Sequence[StepEffect], table: str, effect: StepEffect) -> dict[str, object]:
    size = effect.stored_bytes[table]
    line, step = effects.index(effect), effect.number
    return {"table": table, "line": line, "step": step, "bytes_in_scylladb": size}


def _effect_document(effect: StepEffect) -> dict[str, object]:
    generation = effect.generation and {
        "id": effect.generation.id.uuid,
        "time": format_ms(effect.generation.id.time_ms),
        "format": effect.generation.id.format,
        "num_ranges": effect.generation.num_ranges,
        "num_streams": effect.generation.num_streams,
        "bytes_in_scylladb": effect.generation.bytes,
        "changed_share": effect.generation.changed_share,
    }
    return {
        "step": effect.number,
        "change": effect.kind,
        "subject": effect.subject,
        "at": format_ms(effect.at_ms),
        "nodes": effect.nodes,
        "tokens": effect.tokens,
        "generation": generation,
        "findings": [{"condition": finding.condition.value, "detail": finding.detail} for finding in effect.findings],
        "excess_ranges": effect.excess_ranges,
        "excess_streams": effect.excess_streams,
        "vnode_colocation": effect.colocated and effect.colocated.vnode,
        "shard_colocation": effect.colocated and effect.colocated.shard,
        "risk_seconds": seconds_from_ms(effect.risk_ms),
        "risk_share": effect.risk_share,
        "tables": effect.stored_bytes,
    }


# Names of columns for people: the two formats of descriptions, and the table that readers use.
_SHORT_NAMES = {
    "cdc_generation_descriptions_v2": "descriptions",
    "cdc_generation_descriptions": "descriptions (V1)",
    "cdc_streams_descriptions_v2": "published",
}


def _show_effects(effects: Sequence[StepEffect]) -> None:
    tables = [table for table in effects[0].stored_bytes if any(effect.stored_bytes[table] for effect in effects)]
    show_rows([_effect_row(index, effect, tables) for index, effect in enumerate(effects)], View(""))


def _effect_row(index: int, effect: StepEffect, tables: Sequence[str]) -> dict[str, object]:
    generation, colocated = effect.generation, effect.colocated
    change = f"{effect.kind} {effect.subject}".strip()
    if effect.kind == "repair" and generation is None:
        change += " (not needed)"
    return {
        "step": index,
        "change": change,
        "nodes": effect.nodes,
        "ranges": effect.tokens,
        "generation": generation and format_ms(generation.id.time_ms),
        "streams": generation and generation.num_streams,
        "changed": generation and format_percent(generation.changed_share),
        "excess": effect.excess_ranges,
        "same vnode": colocated and format_percent(colocated.vnode),
        "same shard": colocated and format_percent(colocated.shard),
        "at risk": f"{format_percent(effect.risk_share)}, {seconds_from_ms(effect.risk_ms):g} s"
        if effect.risk_ms
        else None,
    } | {_SHORT_NAMES[table.partition(".")[2]]: format_bytes(effect.stored_bytes[table]) for table in tables}
