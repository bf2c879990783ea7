"""Who may write into a lake that is only observed: blocks that take in what a cluster has, or say what was found of it.

`only_observed` has the mark and asks. Of a lake that mirrors a live cluster `mirrors` does: there only a block that
looks at that cluster may write what it saw.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

OPTION = "--write-to-observed"
"""The option of the command line with which commands write all the same."""

_looking: ContextVar[bool] = ContextVar("looking", default=False)
_mirroring: ContextVar[bool] = ContextVar("mirroring", default=False)


def looking_on() -> AbstractContextManager[None]:
    """Let a block write whatever the lake is, in its thread."""
    return _during(_looking)


def is_looking() -> bool:
    """Whether such a block runs."""
    return _looking.get()


def mirroring() -> AbstractContextManager[None]:
    """Let a block write what it saw in a live cluster into that cluster's mirror, in its thread."""
    return _during(_mirroring)


def is_mirroring() -> bool:
    """Whether such a block runs."""
    return _mirroring.get()


@contextmanager
def _during(block: ContextVar[bool]) -> Iterator[None]:
    before = block.get()
    block.set(True)
    try:
        yield
    finally:
        block.set(before)
