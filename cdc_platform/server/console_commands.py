"""Dagster's console commands by their public names, so the platform's processes run the same code as a shell."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points

from cdc_platform.runtime import gc_paused_for_imports


def console_command(name: str) -> Callable[[], object]:
    """Import a console command. It reads its arguments from `sys.argv` when called."""
    (command,) = entry_points(group="console_scripts", name=name)
    with gc_paused_for_imports():
        return command.load()
