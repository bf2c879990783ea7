"""Record which tables a block of code asks a lake for, so that an error in it can be traced to a damaged table.

It imports nothing heavy: the command line records every command.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from cdc_platform.blocks import during

_recorders: ContextVar[tuple[set[str], ...]] = ContextVar("recorders", default=())


@contextmanager
def recording_reads() -> Iterator[set[str]]:
    """Collect the full names of the tables that a block asks for, whether or not they exist. Blocks may be nested."""
    names: set[str] = set()
    with during(_recorders, (*_recorders.get(), names)):
        yield names


def record_read(name: str) -> None:
    """Record that a table is about to be read, for every block around."""
    for names in _recorders.get():
        names.add(name)
