"""`cdc-platform status`: how the home stands, on one screen, and the next thing to do."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from cdc_platform.clock import HOUR_SECONDS
from cdc_platform.commands.advice import with_home, with_home_in
from cdc_platform.commands.arguments import Seconds
from cdc_platform.commands.output import escaped, json_option, write_facts, write_json
from cdc_platform.commands.session import Session, pass_session

if TYPE_CHECKING:
    from cdc_platform.status import Overview

_SHOWN = 4
"""Entries of a list that a screen has room for; the others are counted."""
_ROUND_SECONDS = 5.0


@click.command()
@click.option(
    "--watch",
    type=Seconds(0.1, HOUR_SECONDS),
    is_flag=False,
    flag_value=_ROUND_SECONDS,
    metavar="[SECONDS]",
    help="Look again every so many seconds, by default 5, until Ctrl-C.",
)
@json_option
@pass_session
@click.pass_context
def status(ctx: click.Context, session: Session, watch: float | None, as_json: bool) -> None:
    """Say how the home stands: ring, generations, tables, readers, joins, checks; and the next thing to do.

    The exit code is 1 where something is wrong. It starts no JVM and writes nothing; `check` reads more, and what that
    has judged last is told here, with the tables that were written since.

    \b
    Example:
      cdc-platform status
      cdc-platform status --json
      cdc-platform status --watch 10
    """
    if watch is None:
        ctx.exit(_look(session, as_json))
    try:
        while True:
            if not as_json:
                click.clear()
            _look(session, as_json)
            time.sleep(watch)
    except KeyboardInterrupt:
        return


def _look(session: Session, as_json: bool) -> int:
    """Look once, and say it; 1 where something is wrong."""
    from cdc_platform.lake.lake import Lake
    from cdc_platform.status import overview

    home = session.open_home()
    lake = Lake(home.lake)
    with lake.open_tables.looked_at_once():
        found = overview(lake, session.clock, home.settings)
    if as_json:
        write_json({"home": home.name, **with_home_in(found.facts(), session.home)})
    else:
        _show(home.name, found, session.home)
    return int(found.wrong)


def _show(home: str, found: Overview, option: str | None) -> None:
    lines: list[tuple[str, object]] = [("home", f"{home}  at {found.now}")]
    for name, show in _SHOW.items():
        section = found.sections[name]
        texts = ["cannot be read"] if section is None and name != "repair" else show(section)
        lines += [(name if place == 0 else "", text) for place, text in enumerate(texts)]
    write_facts(lines)
    wrong = sum(each.wrong for each in found.matters)
    click.echo()
    click.echo(f"{wrong} wrong, {len(found.matters) - wrong} to do or to know" if found.matters else "nothing to do")
    for each in found.matters:
        mark = click.style("✗", fg="red") if each.wrong else "-"
        click.echo(f"{mark} {each.code}: {escaped(each.said)}")
        if each.do:
            click.echo(f"    do: {escaped(with_home(each.do, option))}")


def _few(lines: list[str]) -> list[str]:
    more = [f"and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return [*lines[:_SHOWN], *more]


def _ring(ring: dict[str, Any]) -> list[str]:
    moving = [f"{each['host_id']} is {each['status']}" for each in ring["not_at_rest"]]
    without = f" ({ring['zero_token_nodes']} zero-token)" if ring["zero_token_nodes"] else ""
    return [f"{ring['nodes']} nodes{without}, {ring['tokens']} tokens, {ring['shards']} shards", *_few(moving)]


def _generations(told: dict[str, Any]) -> list[str]:
    lines = [f"{told['known']} known, {told['removed']} removed"]
    operating, seen = told["operating"], told["clients_see"]
    lines.append(f"operates: {_one(operating)}" if operating else "none operates")
    if seen and seen != operating:
        lines.append(f"clients see: {_one(seen)}")
    lines += [f"next: {_one(each)}" for each in told["next"][:_SHOWN]]
    if (nodes := told["nodes"]) is not None:
        lines.append(f"nodes: {nodes['know']} know it, {len(nodes['behind'])} behind, {len(nodes['unknown'])} unknown")
    return lines


def _one(told: dict[str, Any]) -> str:
    return f"{told['time']}  {told['id'] or '-'}  {told['state']}"


def _repair(told: dict[str, Any] | None) -> list[str]:
    if told is None:
        return []
    return [told["cannot_tell"] or ("a new generation is due" if told["needed"] else "not needed")]


def _inbox(told: list[dict[str, Any]]) -> list[str]:
    return _few([f"{each['event_id']}  {each['kind']} of {each['host_id']}: {each['state']}" for each in told])


def _switches(told: list[dict[str, Any]]) -> list[str]:
    return _few(
        [
            f"{each['generation_id']}  {each['phase']}, {each['acknowledged']} of {each['participants']} answered"
            for each in told
        ]
    )


def _tables(told: list[dict[str, Any]]) -> list[str]:
    return _few(
        [
            f"{each['table']}  ttl {each['ttl_seconds']} s, log of {each['log_rows']:,} rows "
            f"({each['log_bytes_in_lake']:,} bytes in the lake), streams of {each['streams']}"
            f"{'' if each['enabled'] else ', CDC is off'}{_kept(each['kept'])}"
            for each in told
        ]
    )


def _kept(told: dict[str, Any] | None) -> str:
    if told is None:
        return ""
    return f"; kept: {told['rows']:,} rows, {told['inexact_rows']:,} inexact, {told['behind_seconds']:,.0f} s old"


def _consumers(told: list[dict[str, Any]]) -> list[str]:
    return _few(
        [
            f"{each['name']} of {each['table']}  {each['behind_seconds']:,.0f} s behind the clock{_lag(each)}"
            for each in told
        ]
    )


def _lag(told: dict[str, Any]) -> str:
    gaps = f", {told['open_gaps']} gaps" if told["open_gaps"] else ""
    if told["ttl_share"] is None:
        return f", its lag against the TTL is unknown{gaps}" if told["lag"] == "unknown" else gaps
    return f", {told['ttl_share']:.0%} of the TTL of {told['ttl_seconds']:,.0f} s{gaps}"


def _expiry(told: dict[str, Any]) -> list[str]:
    now = f"{told['to_mark']} to mark, {told['to_remove']} to remove now"
    following = told["next"]
    if following is None:
        return [now]
    return [now, f"next: {following['time']} may go at {following['removable_at']}"]


def _checks(told: dict[str, Any]) -> list[str]:
    if not told["judged"]:
        return ["never"]
    failed = len(told["failed"])
    held = f"{told['judged'] - failed} hold, {failed} do not, at {told['newest']} by {told['door']}"
    newer = told["newer_tables"]
    return [held, *([f"written since: {', '.join(_few(newer))}"] if newer else [])]


_SHOW = {
    "ring": _ring,
    "generations": _generations,
    "repair": _repair,
    "inbox": _inbox,
    "switches": _switches,
    "tables": _tables,
    "consumers": _consumers,
    "expiry": _expiry,
    "checks": _checks,
}
