"""A place: a file or a folder, there or not, on a file system of this machine or in an object store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Seen:
    """A file that is there: its bytes, and a mark that another file in its place would not have.

    `at`: when it was written (s), by the clock of where it lies.
    """

    bytes: int
    mark: str
    at: float = field(default=0, compare=False)


class Place(ABC):
    """A file or folder, there or not. Made by `place_of`; `str` of it is its path or its address."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The last part of its path."""

    @property
    @abstractmethod
    def folder(self) -> Place:
        """The folder that it lies in."""

    @property
    @abstractmethod
    def here(self) -> Path | None:
        """Its path, where it lies on a file system of this machine."""

    @abstractmethod
    def __truediv__(self, path: str) -> Place:
        """What has this path below it."""

    @abstractmethod
    def seen(self) -> Seen | None:
        """The file as it is now; None where there is none."""

    def seen_in(self, name: str) -> Seen | None:
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
    def folders(self) -> list[Place]:
        """The folders in it, by name; none where it is none.

        Where a store keeps what was removed it may name one in which nothing is any more, see `is_folder`.
        """

    @abstractmethod
    def names(self) -> list[str]:
        """The names of the files in it; none where it is no folder."""

    @abstractmethod
    def files(self, after: str = "") -> list[tuple[str, Seen]]:
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
