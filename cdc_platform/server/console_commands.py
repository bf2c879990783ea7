"""Dagster's console commands, run by processes of the platform: the same code as in a shell, by its public name."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points

from cdc_platform.runtime import gc_paused_for_imports


def console_command(name: str) -> Callable[[], object]:
    """Import a console command; it reads its arguments from `sys.argv` when it is called."""
    (command,) = entry_points(group="console_scripts", name=name)
    with gc_paused_for_imports():
        return command.load()
