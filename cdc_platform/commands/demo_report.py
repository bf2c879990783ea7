"""What the demo shows at its end: the joins, what was audited, where writes go around each switch, what to try next."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cdc_platform.clock import Clock, format_ms
from cdc_platform.commands.output import write_table
from cdc_platform.commands.program import NAME
from cdc_platform.errors import StateError

if TYPE_CHECKING:
    from cdc_platform.commands.demo import Join
    from cdc_platform.lake.lake import Lake
    from cdc_platform.lifecycle.explain import Explanation
    from cdc_platform.settings import Settings

KEYS = ("alice", "bob", "judy")
"""Partition keys whose owners change with the second join, with both, and with none."""
_SECOND_US = 1_000_000
_MOMENTS = (
    ("1 s before", -_SECOND_US, -_SECOND_US),
    ("at the switch", 0, 0),
    ("1 s after", _SECOND_US, _SECOND_US),
    ("2 s late", _SECOND_US, -_SECOND_US),
)
"""What is shown of a switch: the moment, the coordinator's clock and the write's timestamp, both from the switch on."""


def write(lake: Lake, settings: Settings, joins: Sequence[Join], home: str | None) -> None:
    """Print the report. `home` is the option as it was given, so that the commands to try are the right ones."""
    _joins(lake, joins)
    _audits(joins)
    _switches(lake, settings, joins)
    _next(home)


def time_ms_of(lake: Lake, join: Join) -> int:
    """The timestamp of a finished join's generation."""
    from cdc_platform.lifecycle import reading

    time_ms = reading.introduced_at_ms(lake, join.event.generation_id)
    if time_ms is None:
        raise StateError(f"the join of {join.event.node.address} is not finished; run the demo again")
    return time_ms


def _joins(lake: Lake, joins: Sequence[Join]) -> None:
    from cdc_platform.lifecycle import reading

    rows = []
    for join in joins:
        description = reading.read_description(lake, join.event.generation_id)
        rows.append(
            (
                join.event.node.address,
                join.event.generation_id,
                format_ms(time_ms_of(lake, join)),
                f"{len(description):,}",
                f"{len(description.streams):,}",
                f"{join.seconds:.1f}" if join.seconds is not None else "finished before",
            )
        )
    columns = ("node", "its generation", "operates from", ">ranges", ">streams", ">seconds")
    write_table("Three nodes joined; each join made a generation", columns, rows)


def _audits(joins: Sequence[Join]) -> None:
    """How much each invariant was checked on; they all hold, or the demo would not have come this far."""
    ran = [join for join in joins if join.checks]
    if not ran:
        click.echo(
            "Nothing had to be run. Judge the invariants now with: check; run every step again with: demo --again\n"
        )
        return
    names = list(dict.fromkeys(name for join in ran for name in join.checks))
    rows = [(name, *(f"{join.checks.get(name, 0):,}" for join in ran), 0) for name in names]
    columns = ("invariant", *(f">{join.event.node.address}" for join in ran), ">violations")
    write_table("Audited before anything was published: how much was checked, at which node's join", columns, rows)


def _switches(lake: Lake, settings: Settings, joins: Sequence[Join]) -> None:
    from cdc_platform.lifecycle.explain import explain
    from cdc_platform.ring import tokens_of_keys

    tokens = tokens_of_keys([key.encode() for key in KEYS]).tolist()
    addresses = {str(join.event.node.host_id): join.event.node.address for join in joins}
    for number, join in enumerate(joins, 1):
        switch_us = time_ms_of(lake, join) * 1000
        rows = []
        for moment, now, at in _MOMENTS:
            clock = Clock(switch_us + now)
            answers = [explain(lake, clock, settings, token, switch_us + at, "strict") for token in tokens]
            rows.append((moment, *(_place(answer, addresses) for answer in answers)))
        title = f"Where writes of some keys go around switch {number}, {format_ms(switch_us // 1000)}"
        write_table(title, ("a write", *(f"of {key}" for key in KEYS)), rows)
    click.echo(
        "Each switch gives every key another stream, also where its owner stays. Until its timestamp the generation\n"
        "before is used. A write stamped 1 s before it that arrives 1 s after it is refused: readers may be done with\n"
        "the streams that it belongs to.\n"
    )


def _place(answer: Explanation, addresses: dict[str, str]) -> str:
    if not answer.accepted:
        return f"refused: {answer.verdict}"
    place = answer.place
    if place is None or place.stream_id is None:
        return answer.reason
    owner = addresses.get(place.owner or "", place.owner)
    stream = place.stream_id.hex()
    return f"{owner} shard {place.shard}\n0x{stream[:8]}…{stream[-8:]}"


def _next(home: str | None) -> None:
    program = _as_typed(sys.argv[0]) + (f" --home {home}" if home else "")
    key = KEYS[0].encode().hex()
    click.echo(
        f"""What to try next:
  {program} explain --key 0x{key}          where a write of {KEYS[0]} goes now
  {program} generations                          the generations, newest first
  {program} check                                every invariant over every table
  {program} sql "SELECT time FROM system_distributed.cdc_generation_timestamps"
  {program} up                                   all of this in the Dagster UI
  {program} --help                               everything else"""
    )


def _as_typed(program: str) -> str:
    """The program as one would type it here."""
    path = Path(program)
    if path.name != NAME:
        return NAME
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
