"""Record which tables a block of code reads and commits to.

An error can thus be traced to a damaged table. The command line records every command, so the module imports nothing
heavy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from cdc_platform.storage import set_for_block

_read_recorders: ContextVar[tuple[set[str], ...]] = ContextVar("recorders", default=())
_commit_recorder: ContextVar[list[str] | None] = ContextVar("commits", default=None)


@contextmanager
def track_reads() -> Iterator[set[str]]:
    """Collect the full names of the tables that a block asks for, whether or not they exist. Blocks may be nested."""
    names: set[str] = set()
    with set_for_block(_read_recorders, (*_read_recorders.get(), names)):
        yield names


def record_read(name: str) -> None:
    """Record that a table is about to be read, for every block around."""
    for names in _read_recorders.get():
        names.add(name)


@contextmanager
def track_commits() -> Iterator[list[str]]:
    """Collect the folders of the tables to which a block commits, one entry a commit."""
    folders: list[str] = []
    with set_for_block(_commit_recorder, folders):
        yield folders


def record_commit(folder: str) -> None:
    """Record that a commit to the table in a folder was made."""
    folders = _commit_recorder.get()
    if folders is not None:
        folders.append(folder)
