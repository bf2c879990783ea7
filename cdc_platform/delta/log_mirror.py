"""A local mirror of a table's Delta log in an object store, which deltalake opens instead of the store.

deltalake alone makes two requests for each log entry and six for a commit. The mirror fetches each entry and
checkpoint once. A commit is made in the mirror and then published: data files first, then its log entry by a
conditional put. A mirror belongs to one opened table; a failed publication discards it.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import time
import weakref
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.table import TableMerger, TableOptimizer

from cdc_platform.clock import DAY_SECONDS
from cdc_platform.delta.files import LOG_FOLDER, decode_path, get_draft_folder
from cdc_platform.storage import FileStat, ObjectStorePath, atomic, get_storage_options, map_in_threads
from cdc_platform.tables import CHECKPOINT_EVERY

if TYPE_CHECKING:
    from pyarrow import dataset

_COMMIT_NAME = re.compile(r"(\d{20})\.json")
_CHECKPOINT_NAME = re.compile(r"(\d{20})\.checkpoint\..*")
_SINGLE_CHECKPOINT_NAME = re.compile(r"\d{20}\.checkpoint\.parquet")
_LAST_CHECKPOINT_FILE = "_last_checkpoint"
_THREADS = 16
_LOG_RETENTION_DAYS = 30
"""How long Delta keeps log entries that it does not need, unless the table configures it."""

_LogFileNames = Mapping[str, FileStat]
"""The files of a log."""


def is_delta_log(names: _LogFileNames) -> bool:
    """Return True if files are the log of a table."""
    return any(_COMMIT_NAME.fullmatch(name) or _CHECKPOINT_NAME.fullmatch(name) for name in names)


class LogMirror:
    """The files of a log that a reader of its newest version needs, in a local folder."""

    def __init__(self, place: ObjectStorePath) -> None:
        self.place = place
        self.folder = _make_mirror_folder(place)
        self._oldest = time.time()
        weakref.finalize(self, _discard_folder, self.folder, os.getpid())

    def begin(self, names: _LogFileNames) -> bool:
        """Fetch the files of the newest version; return False if a multi-part checkpoint makes that impossible."""
        checkpoints = [name for name in names if _CHECKPOINT_NAME.fullmatch(name)]
        last = max(checkpoints, default="")
        if last and not _SINGLE_CHECKPOINT_NAME.fullmatch(last):
            return False
        since = sorted(name for name in names if _COMMIT_NAME.fullmatch(name) and name[:20] >= last[:20])
        # A checkpoint has the whole state of its version, but deltalake needs an entry to write the next one.
        newer = since[1:] if last and len(since) > 1 and since[0][:20] == last[:20] else since
        self._oldest = min(stat.modified_at for stat in names.values())
        self._bring({name: names[name] for name in [*newer, *filter(None, [last])]})
        return True

    def go_on(self, version: int) -> None:
        """Fetch the commits after a version, unless the next one was made here."""
        if self.entry(version + 1) is None:
            stats = dict((self.place / LOG_FOLDER).files(after=f"{version:020d}.json"))
            self._bring({name: stat for name, stat in stats.items() if _COMMIT_NAME.fullmatch(name)})

    def entry(self, version: int) -> Path | None:
        """Return the mirrored entry of a version; None if it is not here."""
        file = self.folder / LOG_FOLDER / f"{version:020d}.json"
        return file if file.exists() else None

    def put(self, version: int) -> None:
        """Publish a commit that was made here, if there is one; of any number of concurrent writers one succeeds.

        Raises:
            CommitFailedError: the store has a commit of this version.
        """
        entry = self.entry(version)
        if entry is None:
            return
        actions = [json.loads(line) for line in entry.read_text(encoding="utf-8").splitlines()]
        paths = [decode_path(action["add"]["path"]) for action in actions if "add" in action]
        written = [path for path in paths if (self.folder / path).exists()]
        map_in_threads(self._put_file, written, _THREADS) if len(written) > 1 else list(map(self._put_file, written))
        if (self.place / LOG_FOLDER / entry.name).create(entry.read_bytes()) is None:
            raise CommitFailedError(f"version {version} of {self.place} is another writer's")
        self._put_checkpoint(version)

    def has_expired(self, configuration: Mapping[str, str]) -> bool:
        """Return True if the log can have entries past their retention."""
        if "delta.logRetentionDuration" in configuration:
            return True
        return time.time() - self._oldest > _LOG_RETENTION_DAYS * DAY_SECONDS

    def has_checkpoint(self, version: int) -> bool:
        """Return True if a checkpoint of a version was made here."""
        return (self.folder / LOG_FOLDER / f"{version:020d}.checkpoint.parquet").exists()

    def _put_file(self, path: str) -> None:
        (self.place / path).receive(self.folder / path)
        (self.folder / path).unlink()

    def _put_checkpoint(self, version: int) -> None:
        if self.has_checkpoint(version):
            for name in (f"{version:020d}.checkpoint.parquet", _LAST_CHECKPOINT_FILE):
                (self.place / LOG_FOLDER / name).receive(self.folder / LOG_FOLDER / name)

    def _bring(self, names: _LogFileNames) -> None:
        log = self.folder / LOG_FOLDER
        log.mkdir(exist_ok=True)

        def bring(name: str) -> None:
            (log / name).write_bytes((self.place / LOG_FOLDER / name).fetch(names[name].mark))

        map_in_threads(bring, names, _THREADS) if len(names) > 1 else list(map(bring, names))


class MirroredDeltaTable(DeltaTable):
    """An open table, read by its own log or by a mirror of it."""

    def __init__(self, path: str, mirror: LogMirror | None = None) -> None:
        self.mirror = mirror
        self._path = path
        self._at_store: DeltaTable | None = None
        self.open_whole()

    @property
    def table_uri(self) -> str:
        """The table's address, also if a mirror was opened."""
        return super().table_uri if self.mirror is None else str(self.mirror.place)

    def update_incremental(self) -> None:
        """Read the commits that were made since."""
        if self.mirror is not None:
            self.mirror.go_on(self.version())
        super().update_incremental()

    def forget_commits(self) -> None:
        """Open the table again if it has moved past a checkpoint.

        At each update deltalake processes every commit since the table was opened: for a hundred commits that takes as
        long as three commits, and after a checkpoint no time.
        """
        if (self.version() + 1) // CHECKPOINT_EVERY > (self._since + 1) // CHECKPOINT_EVERY:
            self.open_whole()

    def open_whole(self) -> None:
        """Read the log as on first opening."""
        if self.mirror is not None:
            super().__init__(self.mirror.folder)
        else:
            super().__init__(self._path, storage_options=get_storage_options(self._path))
        self._since = self.version()

    @property
    def optimize(self) -> TableOptimizer:
        return TableOptimizer(self.with_files())

    def merge(self, *args: Any, **options: Any) -> TableMerger:
        return DeltaTable.merge(self.with_files(), *args, **options)

    def delete(self, *args: Any, **options: Any) -> dict[str, Any]:
        return DeltaTable.delete(self.with_files(), *args, **options)

    def vacuum(self, *args: Any, **options: Any) -> list[str]:
        return DeltaTable.vacuum(self.with_files(), *args, **options)

    def history(self, limit: int | None = None) -> list[dict[str, Any]]:
        return DeltaTable.history(self.with_files(), limit)

    def to_pyarrow_dataset(self, *args: Any, **options: Any) -> dataset.Dataset:
        return DeltaTable.to_pyarrow_dataset(self.with_files(), *args, **options)

    def create_checkpoint(self) -> None:
        DeltaTable.create_checkpoint(self.with_files())

    def with_files(self) -> DeltaTable:
        """Return the same version with data files that deltalake can read, and the whole log."""
        if self.mirror is None:
            return self
        if self._at_store is None or self._at_store.version() != self.version():
            address = str(self.mirror.place)
            self._at_store = DeltaTable(address, version=self.version(), storage_options=get_storage_options(address))
        return self._at_store


def with_data_files(opened: DeltaTable) -> DeltaTable:
    """Return a table at its version, with data files that deltalake can read and change."""
    return opened.with_files() if isinstance(opened, MirroredDeltaTable) else opened


def publish_commit(opened: DeltaTable, version: int) -> None:
    """Publish the commit of a version of an open table, if it was made in a mirror; raises as `LogMirror.put`.

    Expired entries are removed from the log if a checkpoint was made.
    """
    mirror = get_mirror(opened)
    if mirror is None:
        return
    mirror.put(version)
    if mirror.has_checkpoint(version) and mirror.has_expired(opened.metadata().configuration):
        address = str(mirror.place)
        DeltaTable(address, storage_options=get_storage_options(address)).cleanup_metadata()


def get_mirror(opened: DeltaTable) -> LogMirror | None:
    """Return the mirror of an opened table; None if it has none."""
    return opened.mirror if isinstance(opened, MirroredDeltaTable) else None


_folder_numbers = count()
_mirror_roots: dict[tuple[int, Path], Path] = {}
"""The folder of mirrors by process, since a fork needs its own, and by this machine's local state of a home."""


def _make_mirror_folder(place: ObjectStorePath) -> Path:
    own, beside = os.getpid(), get_draft_folder(place)
    if (own, beside) not in _mirror_roots:
        root = _mirror_roots[own, beside] = atomic.make_draft_folder(beside, "logs", mode=0o700)
        atexit.register(_discard_folder, root, own)
    folder = _mirror_roots[own, beside] / str(next(_folder_numbers))
    folder.mkdir()
    return folder


def _discard_folder(folder: Path, process: int) -> None:
    """Remove a folder of this process; a fork does not."""
    if process == os.getpid():
        atomic.discard_draft(folder)
