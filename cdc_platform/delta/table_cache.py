"""The cache of open tables: one `OpenTable` per table and thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from cdc_platform.delta import file_cache, transaction_log
from cdc_platform.delta.log_mirror import LogMirror, is_delta_log
from cdc_platform.delta.open_table import OpenTable
from cdc_platform.storage import FileStat, ListingCache, ObjectStorePath, SmallFileCache, StoragePath, cache_fetches


class TableCache:
    """The open tables of each thread, by folder. No other thread or process shares them.

    An entry is a table at one version, with everything derived from that version (`OpenTable`). The rule of
    invalidation:

    * `get_newest` revalidates the entry by the log's file names: one lookup of the next log entry, or one listing in a
      store, where opening the table takes 10 ms. An entry with newer commits moves forward to them. An entry whose
      last known commit is gone or differs, because another table is in its place, is opened again.
    * In a block of `pin_versions` each table is revalidated at its first use only. From then on the block's own
      commits move it forward, and `revalidate` makes the next use a first one again: the holder of a lock calls it, as
      the previous holder may have written.
    * A block of `open_for_write` has the entry to itself. A commit moves it forward. If the block fails, for example
      since another writer committed first, the entry is discarded and all tables are revalidated.
    """

    def __init__(self) -> None:
        self._process, self._of_thread = os.getpid(), _ThreadCache()
        self._fetched = SmallFileCache()

    def __reduce__(self) -> tuple[type[TableCache], tuple[()]]:
        return TableCache, ()

    def get_newest(self, folder: str) -> OpenTable:
        """Return the table at its newest version, for immediate use: the next caller may move it forward.

        Raises:
            TableNotFoundError: there is no table.
        """
        cache = self._get_own()
        exists = cache.pinned.get(folder)
        if exists is False:
            raise TableNotFoundError(f"no table at {folder}")
        if not exists:
            entry = cache.entries.pop(folder, None)
            try:
                cache.entries[folder] = _refresh(folder, None if folder in cache.writing else entry, cache.list_files)
            except TableNotFoundError:
                cache.pin(folder, False)
                raise
            cache.pin(folder, True)
        return cache.entries[folder].opened

    def exists(self, folder: str) -> bool:
        """Return True if the table exists, by file names only."""
        cache = self._get_own()
        if folder in cache.pinned:
            return cache.pinned[folder]
        log = transaction_log.get_log_folder(folder)
        exists = (
            is_delta_log(dict(cache.list_files(log))) if log.local_path is None else DeltaTable.is_deltatable(folder)
        )
        if not exists:
            cache.pin(folder, False)
        return exists

    @contextmanager
    def open_for_write(self, folder: str) -> Iterator[OpenTable]:
        """Yield the table at its newest version, for one commit. It stays at that version until the block commits.

        All other tables keep their versions during the block as well, see `pin_versions`.

        Raises:
            TableNotFoundError: there is no table.
        """
        cache = self._get_own()
        with self.pin_versions():
            is_nested = folder in cache.writing
            if not is_nested:
                self.get_newest(folder)
            # A nested write of the table commits first, so that the outer one conflicts: it read an older version.
            entry = _refresh(folder, None, cache.list_files) if is_nested else cache.entries[folder]
            cache.writing.add(folder)
            try:
                yield entry.opened
            except BaseException:
                cache.entries.pop(folder, None)
                self.revalidate()
                raise
            finally:
                if not is_nested:
                    cache.writing.discard(folder)
            other = cache.entries.get(folder)
            if other is None or other.opened.version() < entry.opened.version():
                cache.entries[folder] = entry

    @contextmanager
    def pin_versions(self) -> Iterator[None]:
        """Keep each table at one version in the block, except for the block's own commits.

        A nested block is part of the outer one. Small files that the block reads are fetched and decoded once.
        """
        cache = self._get_own()
        cache.depth += 1
        try:
            with cache_fetches(self._fetched), file_cache.cache_file_reads():
                yield
        finally:
            cache.depth -= 1
            if not cache.depth:
                self.revalidate()

    def revalidate(self, *folders: str) -> None:
        """Revalidate these tables on their next use; all tables if none is named."""
        cache = self._get_own()
        for folder in folders or tuple(cache.pinned):
            cache.pinned.pop(folder, None)
        logs = map(transaction_log.get_log_folder, folders)
        cache.listings.invalidate(*(log for log in logs if isinstance(log, ObjectStorePath)))

    def _get_own(self) -> _ThreadCache:
        """Return this thread's cache. A forked process starts with an empty one: a mirror belongs to one process."""
        if self._process != os.getpid():
            self._process, self._of_thread = os.getpid(), _ThreadCache()
        return self._of_thread


@dataclass(frozen=True, eq=False)
class _Entry:
    """An open table, with a version of its log and the mark of that commit's file.

    The mark differs if another table was put in its place.
    """

    opened: OpenTable
    version: int
    mark: str | None


class _ThreadCache(threading.local):
    """The entries of a thread, by folder.

    In a block of `pin_versions`, `pinned` are the folders that were looked up, and whether a table is there. `writing`
    are the tables in blocks of `open_for_write`. `listings` are a store's listings of whole lakes.
    """

    def __init__(self) -> None:
        self.entries: dict[str, _Entry] = {}
        self.pinned: dict[str, bool] = {}
        self.writing: set[str] = set()
        self.listings = ListingCache()
        self.depth = 0

    def pin(self, folder: str, exists: bool) -> None:
        """Record the result of a lookup, if a block of `pin_versions` is active."""
        if self.depth:
            self.pinned[folder] = exists

    def list_files(self, log: StoragePath, after: str = "") -> list[tuple[str, FileStat]]:
        """List the files of a log whose names come after `after`; within a block a lake's logs are listed together."""
        if not self.depth or not isinstance(log, ObjectStorePath):
            return log.files(after)
        return self.listings.files(log, log.folder.folder.folder, after)


def _refresh(folder: str, entry: _Entry | None, list_files: transaction_log.FileLister) -> _Entry:
    """Return a table at its newest version, starting from its entry if there is one."""
    if entry is not None and entry.mark is not None:
        opened = entry.opened
        probe = transaction_log.probe_log(folder, entry.version, opened.version(), list_files)
        if probe.mark == entry.mark and probe.newest_mark is not None:
            moved = _Entry(opened, opened.version(), probe.newest_mark)
            try:
                if not probe.is_newest:
                    opened.update()
                opened.reopen_past_checkpoint()
            except (DeltaError, OSError):
                pass  # opening the table reports the error
            else:
                return moved
    return _open_mirrored(folder, list_files) or _open_directly(folder, list_files)


def _open_mirrored(folder: str, list_files: transaction_log.FileLister) -> _Entry | None:
    """Open a store's table at its newest version through a mirror of its log; None if a mirror is impossible."""
    log = transaction_log.get_log_folder(folder)
    if not isinstance(log, ObjectStorePath):
        return None
    names = dict(list_files(log, ""))
    if not is_delta_log(names):
        raise TableNotFoundError(f"no table at {folder}")
    mirror = LogMirror(log.folder)
    try:
        if not mirror.fetch_newest(names):
            return None
        opened = OpenTable(folder, mirror)
    except (DeltaError, OSError):
        return None  # opening the table in the store reports the error
    newest = names.get(transaction_log.get_entry_path(folder, opened.version()).name)
    return _Entry(opened, opened.version(), None if newest is None else newest.mark)


def _open_directly(folder: str, list_files: transaction_log.FileLister) -> _Entry:
    # deltalake takes many times as long to find this, and steps look up tables that most homes do not have.
    if _is_missing(transaction_log.get_log_folder(folder)):
        raise TableNotFoundError(f"no table at {folder}")
    opened = OpenTable(folder)
    version = opened.version()
    return _Entry(opened, version, transaction_log.probe_log(folder, version, version, list_files).mark)


def _is_missing(log: StoragePath) -> bool:
    """Return True if there is no such folder on this machine; opening the table reports any other error."""
    if log.local_path is None:
        return False
    try:
        log.local_path.stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False
