"""`cdc-platform watch`: a live cluster as it changes, in the terminal or as a line of JSON a change."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from cdc_platform.clock import HOUR_SECONDS, SECOND_US, format_us
from cdc_platform.commands.arguments import Seconds
from cdc_platform.commands.output import escaped, warn
from cdc_platform.commands.session import Session, pass_session

if TYPE_CHECKING:
    from cdc_platform.cluster.hook import Alerts
    from cdc_platform.cluster.watching import Change, Look

    Seen = tuple[Look, list[Change]]

_MOST_SHOWN = 12
"""Changes that the screen has."""


@click.command()
@click.argument("name", metavar="NAME")
@click.option("--every", type=Seconds(0.1, HOUR_SECONDS), default=5.0, show_default=True, help="Seconds between looks.")
@click.option("--looks", type=click.IntRange(min=1), help="End after so many looks. [default: never]")
@click.option("--hook", metavar="PROGRAM", help="Run it for each change, with the change as JSON on standard input.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON document a line for each change.")
@pass_session
def watch(session: Session, name: str, every: float, looks: int | None, hook: str | None, as_json: bool) -> None:
    """Watch the cluster NAME: nodes, generations, stream sets, tables with a log, and how far each log was brought in.

    A look is a few small queries, over one session; what changed is taken in as `observe` does. End it with Ctrl-C.

    --hook PROGRAM is told of each change beside that: of all but what was there before the watch began. One that fails,
    or takes longer than the setting cluster_hook_ms, is a warning.

    \b
    Example:
      cdc-platform watch prod
      cdc-platform watch prod --every 30 --json
      cdc-platform watch prod --hook ./alert.sh
    """
    from cdc_platform.cluster import known
    from cdc_platform.cluster.hook import Alerts, Hook
    from cdc_platform.cluster.watching import watch as watching

    home = session.open_home()
    known.find(home, name)
    told = None if hook is None else Alerts(Hook.of(home, hook, home.settings.cluster_hook_ms), _warn_of_hook)
    seen = islice(watching(home, name, session.clock, every), looks)
    with told or nullcontext():
        (_print if as_json else partial(_show, name))(_alerted(seen, told))


def _warn_of_hook(line: str) -> None:
    warn(line, code="hook-failed")


def _alerted(seen: Iterable[Seen], told: Alerts | None) -> Iterator[Seen]:
    """The looks as they come, whose changes the hook is told of."""
    for look, changes in seen:
        if told is not None:
            told.tell([each.document() for each in changes if each.fresh])
        yield look, changes


def _print(seen: Iterable[Seen]) -> None:
    for _, changes in seen:
        for change in changes:
            click.echo(json.dumps(change.document()))


def _show(name: str, seen: Iterable[Seen]) -> None:
    from rich.live import Live

    shown: list[Change] = []
    with Live(auto_refresh=False) as screen:
        for look, changes in seen:
            shown = [*shown, *changes][-_MOST_SHOWN:]
            screen.update(_picture(name, look, shown), refresh=True)
    if not screen.console.is_terminal:
        screen.console.line()  # what goes elsewhere ends with the table's last line, and has no end of it


def _picture(name: str, look: Look, changes: list[Change]) -> Any:
    from rich.console import Group
    from rich.table import Table

    state = Table(title=escaped(f"{name} at {format_us(look.at_us)}"), show_header=False)
    for address, told in sorted(look.named("node").items()):
        state.add_row("node", escaped(address), escaped(told))
    times = look.named("generation")
    state.add_row("generations", str(len(times)), f"newest {max(times)}" if times else "none")
    for table, told in sorted(look.named("table").items()):
        position = look.positions.get(table)
        lag = "not brought in" if position is None else f"{(look.at_us - position) / SECOND_US:.0f} s behind"
        state.add_row("log", escaped(table), escaped(f"{told}, {lag}"))
    for (who, _), line in sorted(look.problems.items()):
        state.add_row("problem", escaped(who), escaped(line))
    latest = Table("at", "who", "what", title="Changes")
    for change in changes:
        latest.add_row(format_us(change.at_us), escaped(change.who), escaped(change.what))
    return Group(state, latest)
