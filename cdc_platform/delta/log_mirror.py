"""A local mirror of a table's Delta log in an object store, which deltalake opens instead of the store.

deltalake alone makes two requests for each log entry and six for a commit. The mirror fetches each entry and
checkpoint once. A commit is made in the mirror and then published: data files first, then its log entry by a
conditional put. A mirror belongs to one `OpenTable`; a failed publication discards it.
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

from deltalake.exceptions import CommitFailedError

from cdc_platform.clock import DAY_SECONDS
from cdc_platform.delta.paths import LOG_FOLDER, decode_path, get_draft_folder
from cdc_platform.storage import FileStat, ObjectStorePath, atomic, map_in_threads

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

    def __init__(self, address: ObjectStorePath) -> None:
        self.address = address
        self.folder = _make_mirror_folder(address)
        self._oldest = time.time()
        weakref.finalize(self, _discard_folder, self.folder, os.getpid())

    def fetch_newest(self, names: _LogFileNames) -> bool:
        """Fetch the files of the newest version; return False if a multi-part checkpoint makes that impossible."""
        checkpoints = [name for name in names if _CHECKPOINT_NAME.fullmatch(name)]
        last = max(checkpoints, default="")
        if last and not _SINGLE_CHECKPOINT_NAME.fullmatch(last):
            return False
        since = sorted(name for name in names if _COMMIT_NAME.fullmatch(name) and name[:20] >= last[:20])
        # A checkpoint has the whole state of its version, but deltalake needs an entry to write the next one.
        newer = since[1:] if last and len(since) > 1 and since[0][:20] == last[:20] else since
        self._oldest = min(stat.modified_at for stat in names.values())
        self._fetch({name: names[name] for name in [*newer, *filter(None, [last])]})
        return True

    def fetch_newer(self, version: int) -> None:
        """Fetch the commits after a version, unless the next one was made here."""
        if self.entry(version + 1) is None:
            stats = dict((self.address / LOG_FOLDER).files(after=f"{version:020d}.json"))
            self._fetch({name: stat for name, stat in stats.items() if _COMMIT_NAME.fullmatch(name)})

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
        if (self.address / LOG_FOLDER / entry.name).create(entry.read_bytes()) is None:
            raise CommitFailedError(f"version {version} of {self.address} is another writer's")
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
        (self.address / path).receive(self.folder / path)
        (self.folder / path).unlink()

    def _put_checkpoint(self, version: int) -> None:
        if self.has_checkpoint(version):
            for name in (f"{version:020d}.checkpoint.parquet", _LAST_CHECKPOINT_FILE):
                (self.address / LOG_FOLDER / name).receive(self.folder / LOG_FOLDER / name)

    def _fetch(self, names: _LogFileNames) -> None:
        log = self.folder / LOG_FOLDER
        log.mkdir(exist_ok=True)

        def fetch(name: str) -> None:
            (log / name).write_bytes((self.address / LOG_FOLDER / name).fetch(names[name].mark))

        map_in_threads(fetch, names, _THREADS) if len(names) > 1 else list(map(fetch, names))


_folder_numbers = count()
_mirror_roots: dict[tuple[int, Path], Path] = {}
"""The folder of mirrors by process, since a fork needs its own, and by this machine's local state of a home."""


def _make_mirror_folder(address: ObjectStorePath) -> Path:
    process, local_folder = os.getpid(), get_draft_folder(address)
    if (process, local_folder) not in _mirror_roots:
        root = _mirror_roots[process, local_folder] = atomic.make_draft_folder(local_folder, "logs", mode=0o700)
        atexit.register(_discard_folder, root, process)
    folder = _mirror_roots[process, local_folder] / str(next(_folder_numbers))
    folder.mkdir()
    return folder


def _discard_folder(folder: Path, process: int) -> None:
    """Remove a folder of this process; a fork does not."""
    if process == os.getpid():
        atomic.discard_draft(folder)
