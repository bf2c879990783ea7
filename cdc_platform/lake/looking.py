"""Who may write into a lake that is only observed: blocks that take in what a cluster has, or say what was found of it.

`only_observed` has the mark and asks. Of a lake that mirrors a live cluster `mirrors` does: there only a block that
looks at that cluster may write what it saw.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

OPTION = "--write-to-observed"
"""The option of the command line with which commands write all the same."""

_looking: ContextVar[bool] = ContextVar("looking", default=False)
_mirroring: ContextVar[bool] = ContextVar("mirroring", default=False)


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


@contextmanager
def mirroring() -> Iterator[None]:
    """Let a block write what it saw in a live cluster into that cluster's mirror, in its thread."""
    before = _mirroring.get()
    _mirroring.set(True)
    try:
        yield
    finally:
        _mirroring.set(before)


def is_mirroring() -> bool:
    """Whether such a block runs."""
    return _mirroring.get()
