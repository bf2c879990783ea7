"""Who may write into a lake that is only observed: blocks that take in what a cluster has, or say what was found of it.

`only_observed` has the mark and asks. Of a lake that mirrors a live cluster `mirrors` does: there only a block that
looks at that cluster may write what it saw.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar

from cdc_platform.blocks import during

OPTION = "--write-to-observed"
"""The option of the command line with which commands write all the same."""

_looking: ContextVar[bool] = ContextVar("looking", default=False)
_mirroring: ContextVar[bool] = ContextVar("mirroring", default=False)


def looking_on() -> AbstractContextManager[None]:
    """Let a block write whatever the lake is, in its thread."""
    return during(_looking, True)


def is_looking() -> bool:
    """Whether such a block runs."""
    return _looking.get()


def mirroring() -> AbstractContextManager[None]:
    """Let a block write what it saw in a live cluster into that cluster's mirror, in its thread."""
    return during(_mirroring, True)


def is_mirroring() -> bool:
    """Whether such a block runs."""
    return _mirroring.get()
