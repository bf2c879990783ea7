"""`cdc-platform status`: summarize the home and name the next step."""

from __future__ import annotations

import time
from typing import Any

import click

from cdc_platform.cli.command_hints import add_home_option_in_json
from cdc_platform.cli.next_steps import build_next_step
from cdc_platform.cli.output import escape_unprintable, json_option, write_facts
from cdc_platform.cli.params import SecondsRange
from cdc_platform.cli.render import format_bytes, format_field, format_seconds, write_result
from cdc_platform.cli.session import CliSession, pass_session
from cdc_platform.clock import HOUR_SECONDS
from cdc_platform.home_location import LAYOUT_VERSION

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
    help="Refresh every so many seconds until Ctrl-C. [default: 5]",
)
@json_option
@pass_session
@click.pass_context
def status(ctx: click.Context, session: CliSession, watch: float | None, as_json: bool) -> None:
    """Summarize the home: ring, generations, tables, consumers, joins and checks; then what to do next.

    The exit code is 1 if there are errors. It starts no JVM and writes nothing. It shows the stored results of the last
    `check` and the tables written since.

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
    """Print the status once. Return 1 if there are errors."""
    home = session.open_home()
    home_status = home.status()
    document: dict[str, Any] = {
        "home": home.name,
        "layout": home.location.layout,
        **add_home_option_in_json(home_status.facts(), session.home),
    }
    write_result(document, as_json=as_json, show=lambda: _show_overview(document))
    return int(document["errors"] > 0)


def _show_overview(document: dict[str, Any]) -> None:
    lines: list[tuple[str, object]] = [("home", f"{document['home']}  at {document['now']}")]
    if document["layout"] < LAYOUT_VERSION:
        command = build_next_step("home", "migrate").command
        lines.append(("", f"layout {document['layout']}; {command} brings it to {LAYOUT_VERSION}"))
    for name, show in _SECTION_LINES.items():
        section = document[name]
        texts = ["cannot be read"] if section is None and name != "repair" else show(section)
        lines += [(name if index == 0 else "", text) for index, text in enumerate(texts)]
    write_facts(lines)
    counts = [
        f"{count} {level}{'' if count == 1 else 's'}"
        for level in ("error", "warning", "notice")
        if (count := document[f"{level}s"])
    ]
    click.echo()
    click.secho(", ".join(counts) or "no errors, nothing to do", fg="red" if document["errors"] else None)
    for alert in document["alerts"]:
        mark = click.style("✗", fg="red") if alert["level"] == "error" else "-"
        click.echo(f"{mark} {alert['code']}: {escape_unprintable(alert['message'])}")
        remedy = alert["command"] or alert["advice"]
        if remedy:
            click.echo(f"    {'run' if alert['command'] else 'to do'}: {escape_unprintable(remedy)}")


def _truncate(lines: list[str]) -> list[str]:
    more = [f"and {len(lines) - _MAX_ENTRIES} more"] if len(lines) > _MAX_ENTRIES else []
    return [*lines[:_MAX_ENTRIES], *more]


def _ring_lines(ring: dict[str, Any]) -> list[str]:
    moving = [f"{node['host_id']} is {node['status']}" for node in ring["moving"]]
    without = f" ({ring['zero_token_nodes']} zero-token)" if ring["zero_token_nodes"] else ""
    return [f"{ring['nodes']} nodes{without}, {ring['tokens']:,} tokens, {ring['shards']} shards", *_truncate(moving)]


def _generation_lines(section: dict[str, Any]) -> list[str]:
    lines = [f"{section['known']} known, {section['removed']} removed"]
    operating, visible = section["operating"], section["visible_to_clients"]
    lines.append(f"operating: {_generation_line(operating)}" if operating else "none operates")
    if visible and visible != operating:
        lines.append(f"clients see: {_generation_line(visible)}")
    lines += [f"next: {_generation_line(generation)}" for generation in section["next"][:_MAX_ENTRIES]]
    if (nodes := section["nodes"]) is not None:
        counts = f"{nodes['informed']} informed, {len(nodes['behind'])} behind, {len(nodes['unknown'])} unknown"
        lines.append(f"nodes: {counts}")
    return lines


def _generation_line(generation: dict[str, Any]) -> str:
    return f"{generation['time']}  {generation['id'] or '-'}  {generation['state']}"


def _repair_lines(section: dict[str, Any] | None) -> list[str]:
    if section is None:
        return []
    return [section["undetermined"] or ("a new generation is due" if section["needed"] else "not needed")]


def _inbox_lines(joins: list[dict[str, Any]]) -> list[str]:
    return _truncate([f"{join['event_id']}  {join['kind']} of {join['host_id']}: {join['state']}" for join in joins])


def _switch_lines(switches: list[dict[str, Any]]) -> list[str]:
    return _truncate([_switch_line(switch) for switch in switches])


def _switch_line(switch: dict[str, Any]) -> str:
    answers = f"{switch['acknowledged']} of {switch['participants']} acknowledged"
    return f"{switch['generation_id']}  {switch['phase']}, {answers}"


def _table_lines(tables: list[dict[str, Any]]) -> list[str]:
    return _truncate([_table_line(table) for table in tables])


def _table_line(table: dict[str, Any]) -> str:
    ttl = format_field("ttl_seconds", table["ttl_seconds"])
    log = f"{table['log_rows']:,} log rows ({format_bytes(table['log_bytes_in_lake'])} in the lake)"
    off = "" if table["enabled"] else ", CDC is off"
    lag = ", lag unknown" if table["lag"] == "unknown" else ""
    return f"{table['table']}  TTL {ttl}, {log}, streams of {table['streams']}{off}{lag}{_copy_text(table['copy'])}"


def _copy_text(copy: dict[str, Any] | None) -> str:
    if copy is None:
        return ""
    age = format_seconds(copy["behind_seconds"])
    return f"; copy: {copy['rows']:,} rows, {copy['inexact_rows']:,} inexact, {age} old"


def _consumer_lines(consumers: list[dict[str, Any]]) -> list[str]:
    return _truncate(
        [
            f"{row['name']} of {row['table']}  {format_seconds(row['behind_seconds'])} behind{_lag_text(row)}"
            for row in consumers
        ]
    )


def _lag_text(consumer: dict[str, Any]) -> str:
    gaps = f", {consumer['open_gaps']} gaps" if consumer["open_gaps"] else ""
    if consumer["ttl_share"] is None:
        return f", TTL unknown{gaps}" if consumer["lag"] == "unknown" else gaps
    return f", {consumer['ttl_share']:.0%} of the TTL of {format_seconds(consumer['ttl_seconds'])}{gaps}"


def _expiry_lines(section: dict[str, Any]) -> list[str]:
    now = f"{section['to_mark']} to mark, {section['to_remove']} to remove now"
    following = section["next"]
    if following is None:
        return [now]
    return [now, f"next: {following['time']}, removable at {following['removable_at']}"]


def _check_lines(section: dict[str, Any]) -> list[str]:
    if not section["checks"]:
        return ["never run"]
    failed, changed = len(section["failed"]), section["changed_tables"]
    outcome = f"{failed} of {section['checks']} failed" if failed else f"all {section['checks']} passed"
    judges = section["judged_by"]
    if len(judges) == 1:
        summary = [f"{outcome}, at {section['newest']} by {section['entry_point']}"]
    else:
        lines = [
            f"{len(judge['checks'])} at {judge['newest']} by {judge['entry_point']}"
            + (f", {judge['failed']} failed" if judge["failed"] else "")
            for judge in judges
        ]
        summary = [outcome, *_truncate(lines)]
    return [*summary, *([f"written since: {', '.join(_truncate(changed))}"] if changed else [])]


def _maintenance_lines(tasks: list[dict[str, Any]]) -> list[str]:
    names: dict[str, list[str]] = {}
    for task in tasks:
        when = "unknown" if task["last"] is None else f"{task['last']}{', overdue' if task['overdue'] else ''}"
        names.setdefault(when, []).append(task["task"].replace("_", " "))
    return [f"{', '.join(same)}: {when}" for when, same in names.items()]


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
    "maintenance": _maintenance_lines,
}
