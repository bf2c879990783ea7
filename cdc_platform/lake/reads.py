"""Record which tables a block of code reads, to trace an error in it to a damaged one, and which ones it has changed.

It imports nothing heavy: the command line records every command.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from cdc_platform.blocks import during

_recorders: ContextVar[tuple[set[str], ...]] = ContextVar("recorders", default=())
_commits: ContextVar[list[str] | None] = ContextVar("commits", default=None)


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


@contextmanager
def recording_commits() -> Iterator[list[str]]:
    """Collect the folders of the tables to which a block commits, one entry a commit."""
    folders: list[str] = []
    with during(_commits, folders):
        yield folders


def record_commit(folder: str) -> None:
    """Record that a commit to the table in a folder was made."""
    folders = _commits.get()
    if folders is not None:
        folders.append(folder)
