"""When Python looks for garbage, in the platform's own processes: seldom, and never while it imports.

By itself it looks whenever there are 700 objects more, and through ever more of them as they stay. What a process
imports all stays: looking at it again and again is a fifth of the time in which Dagster, or pandera, is imported.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_OBJECTS = 50_000


def look_seldom() -> None:
    """Look once in so many new objects, in a process that is soon gone: garbage that waits is ten megabytes."""
    gc.set_threshold(_OBJECTS)


@contextmanager
def importing() -> Iterator[None]:
    """Look for nothing in a block that imports what a process serves with, and never again at what is there then.

    A look also writes to all that it looks at: what forks share would be theirs alone. Garbage of imports is next to
    none: ten thousand objects behind Dagster's UI. Behind the block it looks as often as ever, at little.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
