"""Complete the commands inside messages with `--home`, so that they can be pasted into a shell.

Library code names a command without a home, because only the command line knows which one the user gave.
"""

from __future__ import annotations

import re
import shlex
from functools import cache
from typing import Any

import click

from cdc_platform.cli.commands import COMMANDS, PROGRAM_NAME
from cdc_platform.cli.session import CliSession

_CLUSTER_COMMANDS = frozenset({"cluster", "observe", "ingest", "watch"})
"""Commands that work on a registered cluster: they run in the home that holds the registration, never in a mirror."""


def add_home_option(text: str, home: str | None) -> str:
    """Return `text` with `--home` in each command of the platform that names no home.

    `home` is the option as the user gave it; None keeps the environment's or the default home. In a mirror of a
    cluster, commands on registered clusters get the home that contains the mirror.
    """
    if PROGRAM_NAME not in text:
        return text
    clusters = _registering_home(home)

    def completed(match: re.Match[str]) -> str:
        target = clusters if match[1] in _CLUSTER_COMMANDS and clusters is not None else home
        return match[0] if target is None else f"{PROGRAM_NAME} --home {shlex.quote(target)} {match[1]}"

    return _command_pattern().sub(completed, text)


def add_home_option_in_json(document: Any, home: str | None) -> Any:
    """Return a JSON document with `add_home_option` applied to its commands and advice. Other text is data."""
    if isinstance(document, list):
        return [add_home_option_in_json(entry, home) for entry in document]
    if not isinstance(document, dict):
        return document
    return {
        name: add_home_option(value, home)
        if name in ("command", "advice") and isinstance(value, str)
        else add_home_option_in_json(value, home)
        for name, value in document.items()
    }


def get_home_option() -> str | None:
    """Return the `--home` option of the running command; None without the option, or outside any command."""
    context = click.get_current_context(silent=True)
    session = None if context is None else context.find_object(CliSession)
    return None if session is None else session.home


@cache
def _command_pattern() -> re.Pattern[str]:
    return re.compile(rf"(?<![\w./-]){PROGRAM_NAME} ({'|'.join(map(re.escape, COMMANDS))})(?![\w-])")


def _registering_home(home: str | None) -> str | None:
    """Return the home that contains the given one if that mirrors a cluster, else None."""
    from cdc_platform.delta import get_registering_home
    from cdc_platform.errors import InputError
    from cdc_platform.home_location import locate_home

    try:
        registering = get_registering_home(locate_home(home))
    except InputError:
        return None
    return None if registering is None else str(registering)
