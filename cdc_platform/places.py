"""Where things lie: in a folder of this machine, or under a prefix of an object store. One way to look at either.

It knows files and folders by name and no table. A folder of a store is there as soon as something lies in it.
Credentials are what the store's own environment variables and profiles say; none is kept, and none is in a name.
"""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from cdc_platform.errors import EnvironmentProblem, InputError, PlatformError, Unavailable

if TYPE_CHECKING:
    from obstore.store import ObjectStore

SCHEMES = ("s3", "gs", "abfss", "az")
"""The stores that are known, by how their addresses begin."""
# How often, and for how long, a request is tried again that a store did not answer or said it could not.
_RETRIES, _PATIENCE_SECONDS, _CONNECT_SECONDS = 8, 60, 5
_ENVIRONMENT = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "AWS_PROFILE")
# A file of so many bytes is fetched by one request: of a larger one its end tells which parts are of use.
_AT_ONCE_BYTES = 4 << 20
_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]*)://")


@dataclass(frozen=True)
class Seen:
    """A file that is there: its bytes, and a mark that another file in its place would not have."""

    bytes: int
    mark: str


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
        """The folders in it, by name; none where it is none."""

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


def is_address(name: str) -> bool:
    """Whether this names a place in a store."""
    return _ADDRESS.match(name) is not None


def place_of(name: str | Path) -> Place:
    """The place of a path, or of an address as `s3://bucket/prefix`.

    Raises:
        InputError: an address of a store that is not known, with a password in it, or without a bucket.
    """
    text = str(name)
    if not is_address(text):
        return _Here(Path(text))
    parts = urlsplit(text)
    if parts.scheme not in SCHEMES:
        raise InputError(f"{parts.scheme}:// is no store that is known; it is one of {', '.join(SCHEMES)}, or a folder")
    if not parts.netloc or ":" in parts.netloc or parts.query or parts.fragment:
        raise InputError(f"{parts.scheme}:// names a place as {parts.scheme}://bucket/prefix, and nothing beside that")
    return Stored(f"{parts.scheme}://{parts.netloc}", str(PurePosixPath(parts.path.strip("/") or ".")))


def address_of(name: str) -> str:
    """What a place is called everywhere: its address in a store, or its path as a `file:` one."""
    return name if is_address(name) else Path(name).as_uri()


def size_of(name: str) -> int:
    """The bytes of the file at a path or an address.

    Raises:
        FileNotFoundError: there is none.
    """
    seen = place_of(name).seen()
    if seen is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    return seen.bytes


@dataclass(frozen=True)
class _Here(Place):
    """On a file system of this machine."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def folder(self) -> Place:
        return _Here(self.path.parent)

    @property
    def here(self) -> Path | None:
        return self.path

    def __truediv__(self, path: str) -> Place:
        return _Here(self.path / path)

    def seen(self) -> Seen | None:
        try:
            return _seen(self.path.stat())
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read(self) -> bytes:
        return self.path.read_bytes()

    def is_folder(self) -> bool:
        return self.path.is_dir()

    def folders(self) -> list[Place]:
        try:
            with os.scandir(self.path) as entries:
                return [_Here(self.path / name) for name in sorted(each.name for each in entries if each.is_dir())]
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
    return Seen(status.st_size, f"{status.st_ino}-{status.st_mtime_ns}")


@dataclass(frozen=True)
class Stored(Place):
    """A place in a store: `root` is the address of the bucket, `path` the path in it, without a slash at either end."""

    root: str
    path: str

    def __str__(self) -> str:
        return f"{self.root}/{self.path}"

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name

    @property
    def folder(self) -> Place:
        return Stored(self.root, str(PurePosixPath(self.path).parent))

    @property
    def here(self) -> Path | None:
        return None

    def __truediv__(self, path: str) -> Place:
        return Stored(self.root, str(PurePosixPath(self.path, path)))

    def seen(self) -> Seen | None:
        with self._asked():
            try:
                return _of_meta(self._store.head(self.path))
            except FileNotFoundError:
                return None

    def read(self) -> bytes:
        with self._asked():
            return bytes(self._store.get(self.path).bytes())

    def is_folder(self) -> bool:
        with self._asked():
            return any(True for some in self._store.list(self.path, chunk_size=1) for _ in some)

    def folders(self) -> list[Place]:
        with self._asked():
            found = self._store.list_with_delimiter(self.path)["common_prefixes"]
        return [Stored(self.root, path.rstrip("/")) for path in sorted(found)]

    def names(self) -> list[str]:
        return [name for name, _ in self.files()]

    def files(self, after: str = "") -> list[tuple[str, Seen]]:
        with self._asked():
            found = self._store.list(self.path, offset=f"{self.path}/{after}" if after else None).collect()
        named = [(PurePosixPath(each["path"]), _of_meta(each)) for each in found]
        return sorted((path.name, seen) for path, seen in named if str(path.parent) == self.path)

    def create(self, content: bytes) -> str | None:
        """Make the file unless it is there; its mark if it was made. Of any number at once one makes it."""
        return self._put(content, "create")

    def replace(self, content: bytes, mark: str) -> str | None:
        """Put another file in place of the one with this mark; its mark, or None where that one is there no more."""
        return self._put(content, {"e_tag": mark})

    def receive(self, written: Path) -> None:
        with self._asked():
            self._store.put(self.path, written)

    def remove(self) -> None:
        with self._asked():
            try:
                self._store.delete(self.path)
            except FileNotFoundError:
                return

    def source(self) -> Any:
        from pyarrow import BufferReader, PythonFile

        with self._asked():
            found = self._store.get(self.path)
            size = found.meta["size"]
            if size <= _AT_ONCE_BYTES:
                return BufferReader(bytes(found.bytes()))
        return PythonFile(_Ranges(self, size), mode="r")

    def has_bucket(self) -> bool:
        """Whether the bucket is there."""
        try:
            with self._asked():
                self._store.list(chunk_size=1).collect()
        except FileNotFoundError:
            return False
        return True

    def read_range(self, start: int, end: int) -> bytes:
        """The bytes of the file from one place up to another."""
        with self._asked():
            return bytes(self._store.get_range(self.path, start=start, end=end))

    def _put(self, content: bytes, mode: Literal["create"] | dict[str, str]) -> str | None:
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with self._asked():
            try:
                return str(self._store.put(self.path, content, mode=mode, use_multipart=False)["e_tag"])  # pyright: ignore[reportArgumentType]
            except (AlreadyExistsError, PreconditionError, FileNotFoundError):
                return None

    @property
    def _store(self) -> ObjectStore:
        return _store(self.root, os.getpid(), tuple(os.environ.get(name) for name in _ENVIRONMENT))

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """What a store says of itself, in one line; that a file is not there is left to who asks."""
        from obstore.exceptions import BaseError

        try:
            yield
        except (FileNotFoundError, PlatformError):
            raise
        except (BaseError, OSError, ValueError) as error:
            raise _told(self, error) from None


class _Ranges(io.RawIOBase):
    """A file of a store, read where it is asked for; a request a read."""

    def __init__(self, place: Stored, size: int) -> None:
        self._place, self._size, self._at = place, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._at + size, self._size)
        if end <= self._at:
            return b""
        start, self._at = self._at, end
        return self._place.read_range(start, end)


def _of_meta(meta: Any) -> Seen:
    return Seen(meta["size"], str(meta["e_tag"] or meta["last_modified"]))


@lru_cache(maxsize=16)
def _store(root: str, _process: int, _environment: tuple[str | None, ...]) -> ObjectStore:
    """A bucket, as the environment leads there. A process that is forked from this one makes connections of its own."""
    from obstore.store import from_url

    endpoint = os.environ.get("AWS_ENDPOINT_URL")
    if root.startswith("s3://") and endpoint is not None and not urlsplit(endpoint).netloc:
        raise InputError(f"AWS_ENDPOINT_URL is {endpoint!r}; it is an address, as https://host:port, or not set")
    settings: dict[str, Any] = {
        "retry_config": {"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=_PATIENCE_SECONDS)},
        "client_options": {
            "connect_timeout": f"{_CONNECT_SECONDS}s",
            "timeout": f"{_PATIENCE_SECONDS}s",
            "allow_http": os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("true", "1"),
        },
    }
    if root.startswith("s3://") and os.environ.get("AWS_PROFILE") and not os.environ.get("AWS_ACCESS_KEY_ID"):
        settings["credential_provider"] = _of_profile()
    return from_url(root, **settings)


def _of_profile() -> Any:
    """The credentials of a profile, which are asked for anew as they expire."""
    try:
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        raise EnvironmentProblem(
            "AWS_PROFILE names a profile and boto3, which reads profiles, is not installed; install it with "
            "pip install 'cdc-platform[profiles]', or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ) from None
    return Boto3CredentialProvider(boto3.Session())


def options(name: str) -> dict[str, str] | None:
    """What deltalake is told of a table's store: to be as patient as the platform itself; nothing of a folder."""
    if not is_address(name):
        return None
    return {
        "max_retries": str(_RETRIES),
        "retry_timeout": f"{_PATIENCE_SECONDS}s",
        "connect_timeout": f"{_CONNECT_SECONDS}s",
        "timeout": f"{_PATIENCE_SECONDS}s",
    }


_STATUS = re.compile(r"status code: (\d{3} [A-Z][A-Za-z ]*)")


def _told(place: Stored, error: Exception) -> Unavailable:
    """A store's answer in one line: what it was asked is in it, what it was asked with is not."""
    text = str(error).split("Debug source")[0]
    status = _STATUS.search(text)
    said = status[1].strip() if status else " ".join(text.split())[:200]
    return Unavailable(
        f"{place.root} does not answer as a store does ({said}); check that the bucket is there, the endpoint and the "
        "credentials in the environment, and run it again"
    )
