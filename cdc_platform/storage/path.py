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
    """A file that is there: its bytes, and a mark that another file in its place would not have.

    `at`: when it was written (s), by the clock of where it lies.
    """

    bytes: int
    mark: str
    at: float = field(default=0, compare=False)


class StoragePath(ABC):
    """A file or folder, there or not. Made by `place_of`; `str` of it is its path or its address."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The last part of its path."""

    @property
    @abstractmethod
    def folder(self) -> StoragePath:
        """The folder that it lies in."""

    @property
    @abstractmethod
    def here(self) -> Path | None:
        """Its path, where it lies on a file system of this machine."""

    @abstractmethod
    def __truediv__(self, path: str) -> StoragePath:
        """What has this path below it."""

    @abstractmethod
    def seen(self) -> FileStat | None:
        """The file as it is now; None where there is none."""

    def seen_in(self, name: str) -> FileStat | None:
        """The file of this name in a folder as it is now; None where there is none."""
        return (self / name).seen()

    @abstractmethod
    def read(self) -> bytes:
        """What is in the file.

        Raises:
            FileNotFoundError: there is none.
        """

    @abstractmethod
    def is_folder(self) -> bool:
        """Whether it is a folder; in a store, whether anything lies in it."""

    @abstractmethod
    def folders(self) -> list[StoragePath]:
        """The folders in it, by name; none where it is none.

        Where a store keeps what was removed it may name one in which nothing is any more, see `is_folder`.
        """

    @abstractmethod
    def names(self) -> list[str]:
        """The names of the files in it; none where it is no folder."""

    @abstractmethod
    def files(self, after: str = "") -> list[tuple[str, FileStat]]:
        """The files in it whose names come after one, by name; none where it is no folder."""

    @abstractmethod
    def receive(self, written: Path) -> None:
        """Bring a file of this machine here, whole or not at all; it need not stay where it was."""

    @abstractmethod
    def remove(self) -> None:
        """Remove the file; nothing is no error."""

    @abstractmethod
    def source(self) -> Any:
        """The file as pyarrow reads it, in parts as they are asked for: a path, or an open file.

        Raises:
            FileNotFoundError: there is none.
        """


@dataclass(frozen=True)
class LocalPath(StoragePath):
    """On a file system of this machine."""

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
    def here(self) -> Path | None:
        return self.path

    def __truediv__(self, path: str) -> StoragePath:
        return LocalPath(self.path / path)

    def seen(self) -> FileStat | None:
        try:
            return _file_stat(self.path.stat())
        except (FileNotFoundError, NotADirectoryError):
            return None

    def seen_in(self, name: str) -> FileStat | None:
        # Of a log it is asked so often that making the path would take as long as the look.
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
                return [LocalPath(self.path / name) for name in sorted(each.name for each in entries if each.is_dir())]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def names(self) -> list[str]:
        try:
            with os.scandir(self.path) as entries:
                return sorted(each.name for each in entries if each.is_file())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def files(self, after: str = "") -> list[tuple[str, FileStat]]:
        try:
            with os.scandir(self.path) as entries:
                found = [
                    (each.name, _file_stat(each.stat())) for each in entries if each.name > after and each.is_file()
                ]
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(found, key=lambda each: each[0])

    def receive(self, written: Path) -> None:
        self.path.parent.mkdir(exist_ok=True)
        try:
            written.rename(self.path)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            beside = self.path.with_name(f".{self.path.name}.{uuid.uuid4().hex}")
            shutil.copyfile(written, beside)
            beside.rename(self.path)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def source(self) -> Any:
        return str(self.path)


def _file_stat(status: os.stat_result) -> FileStat:
    return FileStat(status.st_size, f"{status.st_ino}-{status.st_mtime_ns}", status.st_mtime)
