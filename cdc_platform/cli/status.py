"""`cdc-platform status`: summarize the home and name the next step."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from cdc_platform.cli.command_hints import add_home_option, add_home_option_in_json
from cdc_platform.cli.output import escape_unprintable, json_option, write_facts, write_json
from cdc_platform.cli.params import SecondsRange
from cdc_platform.cli.session import CliSession, pass_session
from cdc_platform.clock import HOUR_SECONDS

if TYPE_CHECKING:
    from cdc_platform.reporting import HomeStatus

_MAX_ENTRIES = 4
"""Entries of a list that are shown; the others are counted."""
_WATCH_SECONDS = 5.0


@click.command()
@click.option(
    "--watch",
    type=SecondsRange(0.1, HOUR_SECONDS),
    is_flag=False,
    flag_value=_WATCH_SECONDS,
    metavar="[SECONDS]",
    help="Look again every so many seconds, by default 5, until Ctrl-C.",
)
@json_option
@pass_session
@click.pass_context
def status(ctx: click.Context, session: CliSession, watch: float | None, as_json: bool) -> None:
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
        ctx.exit(_write_status(session, as_json))
    try:
        while True:
            if not as_json:
                click.clear()
            _write_status(session, as_json)
            time.sleep(watch)
    except KeyboardInterrupt:
        return


def _write_status(session: CliSession, as_json: bool) -> int:
    """Print the status once. Return 1 if something is wrong."""
    from cdc_platform.delta import Lake
    from cdc_platform.reporting import read_home_status

    home = session.open_home()
    lake = Lake(home.lake)
    with lake.table_cache.pin_versions():
        home_status = read_home_status(lake, session.clock, home.settings)
    if as_json:
        write_json({"home": home.name, **add_home_option_in_json(home_status.facts(), session.home)})
    else:
        _show_overview(home.name, home_status, session.home)
    return int(home_status.wrong)


def _show_overview(home: str, found: HomeStatus, option: str | None) -> None:
    lines: list[tuple[str, object]] = [("home", f"{home}  at {found.now}")]
    for name, show in _SECTION_LINES.items():
        section = found.sections[name]
        texts = ["cannot be read"] if section is None and name != "repair" else show(section)
        lines += [(name if index == 0 else "", text) for index, text in enumerate(texts)]
    write_facts(lines)
    wrong = sum(alert.wrong for alert in found.matters)
    click.echo()
    click.echo(f"{wrong} wrong, {len(found.matters) - wrong} to do or to know" if found.matters else "nothing to do")
    for alert in found.matters:
        mark = click.style("✗", fg="red") if alert.wrong else "-"
        click.echo(f"{mark} {alert.code}: {escape_unprintable(alert.said)}")
        if alert.do:
            click.echo(f"    do: {escape_unprintable(add_home_option(alert.do, option))}")


def _truncate(lines: list[str]) -> list[str]:
    more = [f"and {len(lines) - _MAX_ENTRIES} more"] if len(lines) > _MAX_ENTRIES else []
    return [*lines[:_MAX_ENTRIES], *more]


def _ring_lines(ring: dict[str, Any]) -> list[str]:
    moving = [f"{node['host_id']} is {node['status']}" for node in ring["not_at_rest"]]
    without = f" ({ring['zero_token_nodes']} zero-token)" if ring["zero_token_nodes"] else ""
    return [f"{ring['nodes']} nodes{without}, {ring['tokens']} tokens, {ring['shards']} shards", *_truncate(moving)]


def _generation_lines(told: dict[str, Any]) -> list[str]:
    lines = [f"{told['known']} known, {told['removed']} removed"]
    operating, seen = told["operating"], told["clients_see"]
    lines.append(f"operates: {_generation_line(operating)}" if operating else "none operates")
    if seen and seen != operating:
        lines.append(f"clients see: {_generation_line(seen)}")
    lines += [f"next: {_generation_line(generation)}" for generation in told["next"][:_MAX_ENTRIES]]
    if (nodes := told["nodes"]) is not None:
        lines.append(f"nodes: {nodes['know']} know it, {len(nodes['behind'])} behind, {len(nodes['unknown'])} unknown")
    return lines


def _generation_line(told: dict[str, Any]) -> str:
    return f"{told['time']}  {told['id'] or '-'}  {told['state']}"


def _repair_lines(told: dict[str, Any] | None) -> list[str]:
    if told is None:
        return []
    return [told["cannot_tell"] or ("a new generation is due" if told["needed"] else "not needed")]


def _inbox_lines(told: list[dict[str, Any]]) -> list[str]:
    return _truncate([f"{join['event_id']}  {join['kind']} of {join['host_id']}: {join['state']}" for join in told])


def _switch_lines(told: list[dict[str, Any]]) -> list[str]:
    return _truncate(
        [
            f"{entry['generation_id']}  {entry['phase']}, {entry['acknowledged']} of {entry['participants']} answered"
            for entry in told
        ]
    )


def _table_lines(told: list[dict[str, Any]]) -> list[str]:
    return _truncate(
        [
            f"{table['table']}  ttl {table['ttl_seconds']} s, log of {table['log_rows']:,} rows "
            f"({table['log_bytes_in_lake']:,} bytes in the lake), streams of {table['streams']}"
            f"{'' if table['enabled'] else ', CDC is off'}{_current_table_text(table['kept'])}"
            for table in told
        ]
    )


def _current_table_text(told: dict[str, Any] | None) -> str:
    if told is None:
        return ""
    return f"; kept: {told['rows']:,} rows, {told['inexact_rows']:,} inexact, {told['behind_seconds']:,.0f} s old"


def _consumer_lines(told: list[dict[str, Any]]) -> list[str]:
    return _truncate(
        [
            f"{row['name']} of {row['table']}  {row['behind_seconds']:,.0f} s behind the clock{_lag_text(row)}"
            for row in told
        ]
    )


def _lag_text(told: dict[str, Any]) -> str:
    gaps = f", {told['open_gaps']} gaps" if told["open_gaps"] else ""
    if told["ttl_share"] is None:
        return f", its lag against the TTL is unknown{gaps}" if told["lag"] == "unknown" else gaps
    return f", {told['ttl_share']:.0%} of the TTL of {told['ttl_seconds']:,.0f} s{gaps}"


def _expiry_lines(told: dict[str, Any]) -> list[str]:
    now = f"{told['to_mark']} to mark, {told['to_remove']} to remove now"
    following = told["next"]
    if following is None:
        return [now]
    return [now, f"next: {following['time']} may go at {following['removable_at']}"]


def _check_lines(told: dict[str, Any]) -> list[str]:
    if not told["judged"]:
        return ["never"]
    failed = len(told["failed"])
    summary = f"{told['judged'] - failed} hold, {failed} do not, at {told['newest']} by {told['door']}"
    newer = told["newer_tables"]
    return [summary, *([f"written since: {', '.join(_truncate(newer))}"] if newer else [])]


_SECTION_LINES = {
    "ring": _ring_lines,
    "generations": _generation_lines,
    "repair": _repair_lines,
    "inbox": _inbox_lines,
    "switches": _switch_lines,
    "tables": _table_lines,
    "consumers": _consumer_lines,
    "expiry": _expiry_lines,
    "checks": _check_lines,
}
