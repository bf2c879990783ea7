"""Delta tables that are open already: what was committed since is read, and not the whole log again.

Versions follow one another, so a table whose next commit is not there is at its newest: one look at a file name, where
opening it takes ten milliseconds, and a join asks a hundred and fifty times. Who is given a table has its newest
version, whoever wrote that.
"""

from __future__ import annotations

import threading

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from cdc_platform.lake import commits

_Mark = tuple[int, int] | None


class OpenTables:
    """The tables that a thread has open, by path; none travels to another thread or process."""

    def __init__(self) -> None:
        self._of_thread = threading.local()

    def __reduce__(self) -> tuple[type[OpenTables], tuple[()]]:
        return OpenTables, ()

    def newest(self, path: str) -> DeltaTable:
        """The table at its newest version, to be read at once: the next who asks makes it newer.

        Raises:
            TableNotFoundError: there is none.
        """
        known: dict[str, tuple[DeltaTable, _Mark]] = self._of_thread.__dict__
        opened, mark = known.pop(path, (None, None))
        if opened is None or mark is None or mark != _mark(path, opened.version()):
            opened = DeltaTable(path)
        elif commits.entry(path, opened.version() + 1).exists():
            try:
                opened.update_incremental()
            except DeltaError:
                opened = DeltaTable(path)  # what is wrong is said by opening it
        known[path] = (opened, _mark(path, opened.version()))
        return opened

    def taken(self, path: str) -> DeltaTable:
        """The table at its newest version, for one who writes on it: it stays at that version whoever asks.

        Raises:
            TableNotFoundError: there is none.
        """
        opened = self.newest(path)
        del self._of_thread.__dict__[path]
        return opened

    def give_back(self, path: str, opened: DeltaTable) -> None:
        """Take a table back from one who has written on it, and does so no more."""
        self._of_thread.__dict__[path] = (opened, _mark(path, opened.version()))


def _mark(path: str, version: int) -> _Mark:
    """What tells the commit of a version from that of another table which was put into its place; None: it is gone."""
    try:
        stat = commits.entry(path, version).stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns
