"""The log of a table in a store as this process has fetched it, in a folder of this machine: deltalake opens that.

By itself deltalake asks a store twice for each entry, and six times for a commit. Here an entry is fetched once, a
checkpoint as well, and a commit is made in the folder and then put: its files first, its entry where none is. What has
to read data files in deltalake is done by the table as it is opened at the store. A mirror is of one opened table, and
goes with it; one whose commit was not put is not used again.
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

from cdc_platform import drafts
from cdc_platform.clock import DAY_SECONDS
from cdc_platform.lake.files import LOG_FOLDER, draft_folder, plain_path
from cdc_platform.lake.tables import CHECKPOINT_EVERY
from cdc_platform.lake.threads import side_by_side
from cdc_platform.places import Seen, Stored, options

if TYPE_CHECKING:
    from pyarrow import dataset

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\..*")
_WHOLE_CHECKPOINT = re.compile(r"\d{20}\.checkpoint\.parquet")
_POINTER = "_last_checkpoint"
_AT_ONCE = 16
_KEPT_DAYS = 30
"""How long Delta keeps entries of a log that it does not need, where a table does not say."""

Names = Mapping[str, Seen]
"""The files of a log."""


def is_log(names: Names) -> bool:
    """Whether files are the log of a table."""
    return any(_COMMIT.fullmatch(name) or _CHECKPOINT.fullmatch(name) for name in names)


class Mirror:
    """The files of a log that a reader of its newest version needs, in a folder of their own."""

    def __init__(self, place: Stored) -> None:
        self.place = place
        self.folder = _new_folder(place)
        self._oldest = time.time()
        weakref.finalize(self, _discard, self.folder, os.getpid())

    def begin(self, names: Names) -> bool:
        """Fetch what tells the newest version; whether that was possible: of a checkpoint in parts it is not."""
        checkpoints = [name for name in names if _CHECKPOINT.fullmatch(name)]
        last = max(checkpoints, default="")
        if last and not _WHOLE_CHECKPOINT.fullmatch(last):
            return False
        since = sorted(name for name in names if _COMMIT.fullmatch(name) and name[:20] >= last[:20])
        # A checkpoint tells all of its version, but deltalake writes behind an entry alone.
        newer = since[1:] if last and len(since) > 1 and since[0][:20] == last[:20] else since
        self._oldest = min(seen.at for seen in names.values())
        self._bring({name: names[name] for name in [*newer, *filter(None, [last])]})
        return True

    def go_on(self, version: int) -> None:
        """Fetch the commits behind a version, unless the next was made here."""
        if self.entry(version + 1) is None:
            there = dict((self.place / LOG_FOLDER).files(after=f"{version:020d}.json"))
            self._bring({name: seen for name, seen in there.items() if _COMMIT.fullmatch(name)})

    def entry(self, version: int) -> Path | None:
        """The entry of a version here; None where it is not."""
        file = self.folder / LOG_FOLDER / f"{version:020d}.json"
        return file if file.exists() else None

    def put(self, version: int) -> None:
        """Put a commit that was made here, if one was: of any number of writers at once one does.

        Raises:
            CommitFailedError: there is one of this version.
        """
        entry = self.entry(version)
        if entry is None:
            return
        actions = [json.loads(line) for line in entry.read_text(encoding="utf-8").splitlines()]
        paths = [plain_path(action["add"]["path"]) for action in actions if "add" in action]
        written = [path for path in paths if (self.folder / path).exists()]
        side_by_side(self._put_file, written, _AT_ONCE) if len(written) > 1 else list(map(self._put_file, written))
        if (self.place / LOG_FOLDER / entry.name).create(entry.read_bytes()) is None:
            raise CommitFailedError(f"version {version} of {self.place} is another writer's")
        self._put_checkpoint(version)

    def has_expired(self, configuration: Mapping[str, str]) -> bool:
        """Whether the log can have entries that are kept no longer."""
        if "delta.logRetentionDuration" in configuration:
            return True
        return time.time() - self._oldest > _KEPT_DAYS * DAY_SECONDS

    def has_checkpoint(self, version: int) -> bool:
        """Whether a checkpoint of a version was made here."""
        return (self.folder / LOG_FOLDER / f"{version:020d}.checkpoint.parquet").exists()

    def _put_file(self, path: str) -> None:
        (self.place / path).receive(self.folder / path)
        (self.folder / path).unlink()

    def _put_checkpoint(self, version: int) -> None:
        if self.has_checkpoint(version):
            for name in (f"{version:020d}.checkpoint.parquet", _POINTER):
                (self.place / LOG_FOLDER / name).receive(self.folder / LOG_FOLDER / name)

    def _bring(self, names: Names) -> None:
        log = self.folder / LOG_FOLDER
        log.mkdir(exist_ok=True)

        def bring(name: str) -> None:
            (log / name).write_bytes((self.place / LOG_FOLDER / name).fetch(names[name].mark))

        side_by_side(bring, names, _AT_ONCE) if len(names) > 1 else list(map(bring, names))


class OpenedLog(DeltaTable):
    """An open table: by its own log, or by a mirror of it."""

    def __init__(self, path: str, mirror: Mirror | None = None) -> None:
        self.mirror = mirror
        self._path = path
        self._at_store: DeltaTable | None = None
        self.open_whole()

    @property
    def table_uri(self) -> str:
        """Where the table is, whatever it was opened by."""
        return super().table_uri if self.mirror is None else str(self.mirror.place)

    def update_incremental(self) -> None:
        """Read the commits that were made since."""
        if self.mirror is not None:
            self.mirror.go_on(self.version())
        super().update_incremental()

    def forget_commits(self) -> None:
        """Open the table anew where it was moved over a checkpoint.

        deltalake goes through every commit since it was opened at each next one: of a hundred that takes as long as
        three commits, and from a checkpoint on as if there were none.
        """
        if (self.version() + 1) // CHECKPOINT_EVERY > (self._since + 1) // CHECKPOINT_EVERY:
            self.open_whole()

    def open_whole(self) -> None:
        """Read the log as who opens the table for the first time does."""
        if self.mirror is not None:
            super().__init__(self.mirror.folder)
        else:
            super().__init__(self._path, storage_options=options(self._path))
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
        """The same version, with data files that deltalake can read, and the whole log."""
        if self.mirror is None:
            return self
        if self._at_store is None or self._at_store.version() != self.version():
            place = str(self.mirror.place)
            self._at_store = DeltaTable(place, version=self.version(), storage_options=options(place))
        return self._at_store


def with_files(opened: DeltaTable) -> DeltaTable:
    """A table at the version that it is at, to read its data files by deltalake, and to change what is in them."""
    return opened.with_files() if isinstance(opened, OpenedLog) else opened


def put(opened: DeltaTable, version: int) -> None:
    """Put the commit of a version that was made on an open table, if it was made in a mirror; raises as `Mirror.put`.

    What has expired goes from the log where a checkpoint was made.
    """
    mirror = mirror_of(opened)
    if mirror is None:
        return
    mirror.put(version)
    if mirror.has_checkpoint(version) and mirror.has_expired(opened.metadata().configuration):
        place = str(mirror.place)
        DeltaTable(place, storage_options=options(place)).cleanup_metadata()


def mirror_of(opened: DeltaTable) -> Mirror | None:
    """The mirror by which a table is opened, if it is."""
    return opened.mirror if isinstance(opened, OpenedLog) else None


_numbers = count()
_roots: dict[tuple[int, Path], Path] = {}
"""The folder of mirrors by process, since one that is forked has its own, and by this machine's part of a home."""


def _new_folder(place: Stored) -> Path:
    own, beside = os.getpid(), draft_folder(place)
    if (own, beside) not in _roots:
        root = _roots[own, beside] = drafts.make_folder(beside, "logs", mode=0o700)
        atexit.register(_discard, root, own)
    folder = _roots[own, beside] / str(next(_numbers))
    folder.mkdir()
    return folder


def _discard(folder: Path, process: int) -> None:
    """Remove a folder of this process; a fork of it leaves it alone."""
    if process == os.getpid():
        drafts.discard(folder)
