"""Commands inside messages, completed so that they can be pasted into a shell as they stand.

Library code names a command without a home (`run: cdc-platform check`), since only the command line knows which home it
was given. `with_home` adds the option at the edge, where a message is printed.
"""

from __future__ import annotations

import re
import shlex
from functools import cache
from typing import Any

import click

from cdc_platform.commands.session import Session

PROGRAM = "cdc-platform"
_IN_HOME_OF_CLUSTERS = frozenset({"cluster", "observe", "ingest", "watch"})
"""Commands that work on a registered cluster: they run in the home that holds the registration, never in a mirror."""


def with_home(text: str, home: str | None) -> str:
    """Return `text` with `--home` in each command of the platform that names no home.

    `home` is the option as the user gave it; None keeps the environment's or the default home. In the home that mirrors
    a cluster, commands on registered clusters get the home that the mirror lies in.
    """
    if PROGRAM not in text:
        return text
    clusters = _home_of_clusters(home)

    def completed(match: re.Match[str]) -> str:
        target = clusters if match[1] in _IN_HOME_OF_CLUSTERS and clusters is not None else home
        return match[0] if target is None else f"{PROGRAM} --home {shlex.quote(target)} {match[1]}"

    return _commands().sub(completed, text)


def with_home_in(document: Any, home: str | None) -> Any:
    """Return a JSON document whose advice, the values of `do`, went through `with_home`. Other text is data."""
    if isinstance(document, list):
        return [with_home_in(each, home) for each in document]
    if not isinstance(document, dict):
        return document
    return {
        name: with_home(value, home) if name == "do" and isinstance(value, str) else with_home_in(value, home)
        for name, value in document.items()
    }


def home_option() -> str | None:
    """Return `--home` as the running command was given it; None without the option, or outside any command."""
    context = click.get_current_context(silent=True)
    session = None if context is None else context.find_object(Session)
    return None if session is None else session.home


@cache
def _commands() -> re.Pattern[str]:
    from cdc_platform.commands.program import COMMANDS

    return re.compile(rf"(?<![\w./-]){PROGRAM} ({'|'.join(map(re.escape, COMMANDS))})(?![\w-])")


def _home_of_clusters(home: str | None) -> str | None:
    """Return the home around the given one where that is the mirror of a cluster, else None."""
    from cdc_platform.errors import InputError
    from cdc_platform.home import location
    from cdc_platform.lake.mirrors import home_around

    try:
        around = home_around(location(home))
    except InputError:
        return None
    return None if around is None else str(around)
