"""The `StoragePath` interface to a file or folder, and `LocalPath`, its implementation on a local file system."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class FileStat:
    """The state of an existing file: its size in bytes, and a mark that changes when the file is replaced.

    `modified_at` is the time of its last write (s) by the clock of its storage.
    """

    bytes: int
    mark: str
    modified_at: float = field(default=0, compare=False)


class StoragePath(ABC):
    """A file or folder, existing or not. `resolve.parse_path` makes one; `str` of it is its path or its address."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The last part of its path."""

    @property
    @abstractmethod
    def folder(self) -> StoragePath:
        """Its parent folder."""

    @property
    @abstractmethod
    def local_path(self) -> Path | None:
        """Its path on a file system of this machine; None in a store."""

    @abstractmethod
    def __truediv__(self, path: str) -> StoragePath:
        """Return the path below this one."""

    @abstractmethod
    def stat(self) -> FileStat | None:
        """Return the current state of the file; None if it does not exist."""

    def stat_in(self, name: str) -> FileStat | None:
        """Return the current state of a file in this folder; None if it does not exist."""
        return (self / name).stat()

    @abstractmethod
    def read(self) -> bytes:
        """Return the content of the file.

        Raises:
            FileNotFoundError: the file does not exist.
        """

    @abstractmethod
    def is_folder(self) -> bool:
        """Return True if it is a folder; in a store, if any object lies in it."""

    @abstractmethod
    def folders(self) -> list[StoragePath]:
        """Return the folders in it, by name; an empty list if it is no folder.

        A store that retains removed objects may list a folder that is now empty, see `is_folder`.
        """

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of the files in it; an empty list if it is no folder."""

    @abstractmethod
    def files(self, after: str = "") -> list[tuple[str, FileStat]]:
        """Return the files in it whose names come after `after`, by name; an empty list if it is no folder."""

    @abstractmethod
    def receive(self, written: Path) -> None:
        """Move or copy a local file here, whole or not at all; the source file may disappear."""

    @abstractmethod
    def remove(self) -> None:
        """Remove the file; do nothing if it does not exist."""

    @abstractmethod
    def source(self) -> Any:
        """Return the file as a source that pyarrow reads in parts: a path, or an open file.

        Raises:
            FileNotFoundError: the file does not exist.
        """


@dataclass(frozen=True)
class LocalPath(StoragePath):
    """A file or folder on a file system of this machine."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def folder(self) -> StoragePath:
        return LocalPath(self.path.parent)

    @property
    def local_path(self) -> Path | None:
        return self.path

    def __truediv__(self, path: str) -> StoragePath:
        return LocalPath(self.path / path)

    def stat(self) -> FileStat | None:
        try:
            return _file_stat(self.path.stat())
        except (FileNotFoundError, NotADirectoryError):
            return None

    def stat_in(self, name: str) -> FileStat | None:
        # Delta logs call this so often that making a `Path` would take as long as the stat.
        try:
            return _file_stat(os.stat(f"{self.path}/{name}"))  # noqa: PTH116 see above
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read(self) -> bytes:
        return self.path.read_bytes()

    def is_folder(self) -> bool:
        return self.path.is_dir()

    def folders(self) -> list[StoragePath]:
        try:
            with os.scandir(self.path) as entries:
                return [
                    LocalPath(self.path / name) for name in sorted(entry.name for entry in entries if entry.is_dir())
                ]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def names(self) -> list[str]:
        try:
            with os.scandir(self.path) as entries:
                return sorted(entry.name for entry in entries if entry.is_file())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def files(self, after: str = "") -> list[tuple[str, FileStat]]:
        try:
            with os.scandir(self.path) as entries:
                files = [
                    (entry.name, _file_stat(entry.stat()))
                    for entry in entries
                    if entry.name > after and entry.is_file()
                ]
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(files, key=lambda each: each[0])

    def receive(self, written: Path) -> None:
        self.path.parent.mkdir(exist_ok=True)
        try:
            written.rename(self.path)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            draft = self.path.with_name(f".{self.path.name}.{uuid.uuid4().hex}")
            shutil.copyfile(written, draft)
            draft.rename(self.path)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def source(self) -> Any:
        return str(self.path)


def _file_stat(status: os.stat_result) -> FileStat:
    return FileStat(status.st_size, f"{status.st_ino}-{status.st_mtime_ns}", status.st_mtime)
