"""Who may write into a lake that is only observed: blocks that take in what a cluster has, or say what was found of it.

`only_observed` has the mark and asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

OPTION = "--write-to-observed"
"""The option of the command line with which commands write all the same."""

_looking: ContextVar[bool] = ContextVar("looking", default=False)


@contextmanager
def looking_on() -> Iterator[None]:
    """Let a block write whatever the lake is, in its thread."""
    before = _looking.get()
    _looking.set(True)
    try:
        yield
    finally:
        _looking.set(before)


def is_looking() -> bool:
    """Whether such a block runs."""
    return _looking.get()
