"""Places on a file system of this machine."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdc_platform.places.place import Place, Seen


@dataclass(frozen=True)
class Here(Place):
    """On a file system of this machine."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def folder(self) -> Place:
        return Here(self.path.parent)

    @property
    def here(self) -> Path | None:
        return self.path

    def __truediv__(self, path: str) -> Place:
        return Here(self.path / path)

    def seen(self) -> Seen | None:
        try:
            return _seen(self.path.stat())
        except (FileNotFoundError, NotADirectoryError):
            return None

    def seen_in(self, name: str) -> Seen | None:
        # Of a log it is asked so often that making the path would take as long as the look.
        try:
            return _seen(os.stat(f"{self.path}/{name}"))  # noqa: PTH116 see above
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read(self) -> bytes:
        return self.path.read_bytes()

    def is_folder(self) -> bool:
        return self.path.is_dir()

    def folders(self) -> list[Place]:
        try:
            with os.scandir(self.path) as entries:
                return [Here(self.path / name) for name in sorted(each.name for each in entries if each.is_dir())]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def names(self) -> list[str]:
        try:
            with os.scandir(self.path) as entries:
                return sorted(each.name for each in entries if each.is_file())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def files(self, after: str = "") -> list[tuple[str, Seen]]:
        try:
            with os.scandir(self.path) as entries:
                found = [(each.name, _seen(each.stat())) for each in entries if each.name > after and each.is_file()]
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


def _seen(status: os.stat_result) -> Seen:
    return Seen(status.st_size, f"{status.st_ino}-{status.st_mtime_ns}", status.st_mtime)
