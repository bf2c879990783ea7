"""When Python looks for garbage, in the platform's own processes: seldom.

By itself it looks whenever there are 700 objects more, and through ever more of them as they stay. What a process
imports all stays: looking at it again and again is a fifth of the time in which Dagster, or pandera, is imported.
"""

from __future__ import annotations

import gc

_OBJECTS = 20_000


def look_seldom() -> None:
    """Look once in so many new objects, in this process and in its forks; garbage that waits is a few megabytes."""
    gc.set_threshold(_OBJECTS)


def leave_alone() -> None:
    """Look no more at what is there by now: what a process that serves for long has imported, and needs to its end."""
    gc.freeze()
