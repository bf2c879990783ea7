"""Places in an object store, by obstore.

Credentials are what the store's own environment variables and profiles say; none is kept, and none is in a name.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

from cdc_platform.errors import PlatformError, Unavailable
from cdc_platform.places import answers, environment, fetched
from cdc_platform.places.place import Place, Seen

if TYPE_CHECKING:
    from obstore import UpdateVersion
    from obstore.store import ObjectStore

# How often, and for how long, a request is tried again that a store did not answer or said it could not.
_RETRIES, _PATIENCE_SECONDS, _CONNECT_SECONDS = 8, 60, 5
# So many files are named by one request.
_PAGE = 1000


def plain(path: PurePosixPath) -> str:
    """A path in a store as its objects are named: nothing stands for the bucket itself."""
    return "" if path == PurePosixPath() else str(path)


@dataclass(frozen=True)
class Stored(Place):
    """A place in a store: `root` is the address of the bucket, `path` the path in it, without a slash at either end.

    The bucket itself has an empty path.
    """

    root: str
    path: str

    def __str__(self) -> str:
        return f"{self.root}/{self.path}" if self.path else self.root

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name

    @property
    def folder(self) -> Stored:
        return Stored(self.root, plain(PurePosixPath(self.path).parent))

    @property
    def here(self) -> Path | None:
        return None

    def __truediv__(self, path: str) -> Stored:
        return Stored(self.root, plain(PurePosixPath(self.path, path)))

    def seen(self) -> Seen | None:
        with self._asked():
            try:
                return self._of_meta(self._store.head(self.path))
            except FileNotFoundError:
                return None

    def read(self) -> bytes:
        return self.read_marked()[0]

    def read_marked(self) -> tuple[bytes, str]:
        """What is in the file, and its mark, by one request.

        Raises:
            FileNotFoundError: there is none.
        """
        with self._asked():
            found = self._store.get(self.path)
            return bytes(found.bytes()), self._of_meta(found.meta).mark

    def is_folder(self) -> bool:
        with self._asked():
            return any(True for some in self._store.list(self.path or None, chunk_size=1) for _ in some)

    def folders(self) -> list[Place]:
        with self._asked():
            found = self._store.list_with_delimiter(self.path or None)["common_prefixes"]
        return [Stored(self.root, path.rstrip("/")) for path in sorted(found)]

    def names(self) -> list[str]:
        return [name for name, _ in self.files()]

    def files(self, after: str = "") -> list[tuple[str, Seen]]:
        with self._asked():
            if after:
                found = self._store.list(self.path, offset=f"{self.path}/{after}").collect()
            else:
                found = self._store.list_with_delimiter(self.path or None)["objects"]
        named = [(PurePosixPath(each["path"]), self._of_meta(each)) for each in found]
        return sorted((path.name, seen) for path, seen in named if plain(path.parent) == self.path)

    def page(self, after: str) -> tuple[list[tuple[str, Seen]], bool]:
        """The files below it, in whatever folder, whose paths in the store come after one, and whether these are all.

        They are as many as a store names by one request.
        """
        with self._asked():
            pages = self._store.list(self.path or None, offset=after or None, chunk_size=_PAGE)
            found = next(iter(pages), [])
        return [(each["path"], self._of_meta(each)) for each in found], len(found) < _PAGE

    def sizes(self) -> dict[str, int]:
        """The bytes of all files below it, in whatever folder, by their paths in the store."""
        with self._asked():
            return {each["path"]: each["size"] for each in self._store.list(self.path or None).collect()}

    def fetch(self, mark: str) -> bytes:
        """What is in the file, which was seen with this mark in a list; it is fetched if nobody here has.

        Raises:
            FileNotFoundError: there is none.
        """
        kept = fetched.marked(str(self), mark)
        if kept is not None:
            return kept
        with self._asked():
            found = self._store.get(self.path)
            content = bytes(found.bytes())
        fetched.keep(str(self), found.meta["e_tag"], content)
        return content

    def create(self, content: bytes) -> str | None:
        """Make the file unless it is there; its mark if it was made. Of any number at once one makes it."""
        return self._put(content, "create")

    def replace(self, content: bytes, mark: str) -> str | None:
        """Put another file in place of the one with this mark; its mark, or None where that one is there no more."""
        return self._put(content, {"version": mark} if self._goes_by_versions else {"e_tag": mark})

    def put(self, content: bytes) -> None:
        """Make the file, in place of any that is there."""
        with self._asked():
            self._store.put(self.path, content)

    def receive(self, written: Path) -> None:
        with self._asked():
            if written.stat().st_size > fetched.SMALL_BYTES:
                self._store.put(self.path, written)
                return
            content = written.read_bytes()
            fetched.keep(str(self), self._store.put(self.path, content)["e_tag"], content)

    def remove(self) -> None:
        with self._asked():
            try:
                self._store.delete(self.path)
            except FileNotFoundError:
                return

    def source(self) -> Any:
        from pyarrow import BufferReader, PythonFile

        kept = fetched.content(str(self))
        if kept is not None:
            return BufferReader(kept)
        with self._asked():
            found = self._store.get(self.path)
            size = found.meta["size"]
            # Of a larger one its end tells which parts are of use.
            if size <= fetched.SMALL_BYTES:
                content = bytes(found.bytes())
                fetched.keep(str(self), found.meta["e_tag"], content)
                return BufferReader(content)
        return PythonFile(_Ranges(self, size), mode="r")

    def has_bucket(self) -> bool:
        """Whether the bucket is there."""
        try:
            with self._asked():
                next(iter(self._store.list(chunk_size=1)), None)
        except FileNotFoundError:
            return False
        return True

    def read_range(self, start: int, end: int) -> bytes:
        """The bytes of the file from one place up to another."""
        with self._asked():
            return bytes(self._store.get_range(self.path, start=start, end=end))

    def _put(self, content: bytes, mode: Literal["create"] | UpdateVersion) -> str | None:
        environment.load_obstore()
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with self._asked():
            try:
                put = self._store.put(self.path, content, mode=mode, use_multipart=False)
                return str(put["version" if self._goes_by_versions else "e_tag"])
            except (AlreadyExistsError, PreconditionError, FileNotFoundError):
                return None

    @property
    def lists_from_anywhere(self) -> bool:
        """Whether the store itself begins a list behind a name; of another all before it would be fetched."""
        return self.root.startswith(("s3://", "gs://"))

    @property
    def _goes_by_versions(self) -> bool:
        """Whether the store tells an object from another in its place by its version alone, as Google's does."""
        return self.root.startswith("gs://")

    def _of_meta(self, meta: Any) -> Seen:
        # A list does not say versions: its marks are compared with those of lists.
        told = (meta["version"] if self._goes_by_versions else None) or meta["e_tag"] or meta["last_modified"]
        return Seen(meta["size"], str(told), meta["last_modified"].timestamp())

    @property
    def _store(self) -> ObjectStore:
        return _store(self.root, os.getpid(), environment.values())

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """What a store says of itself, in one line; that a file is not there is left to who asks."""
        environment.load_obstore()
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


@lru_cache(maxsize=16)
def _store(root: str, _process: int, _environment: tuple[str | None, ...]) -> ObjectStore:
    """A bucket, as the environment leads there. A process that is forked from this one makes connections of its own."""
    environment.load_obstore()
    from obstore.store import from_url

    environment.assert_endpoints()
    settings: dict[str, Any] = {
        "retry_config": {"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=_PATIENCE_SECONDS)},
        "client_options": {
            "connect_timeout": f"{_CONNECT_SECONDS}s",
            "timeout": f"{_PATIENCE_SECONDS}s",
            "allow_http": environment.allows_http(),
        },
    }
    if (profile := environment.profile(root)) is not None:
        settings["credential_provider"] = profile.credentials
        settings |= {
            name: value for name, value in (("region", profile.region), ("endpoint", profile.endpoint)) if value
        }
    return from_url(root, **settings)


def options(name: str) -> dict[str, str] | None:
    """What deltalake is told of a table's store: to be as patient as the platform itself; nothing of a folder.

    By a profile, also which credentials to look up, where they are to be used.
    """
    if "://" not in name:
        return None
    environment.assert_endpoints()
    told = {
        **({"allow_http": "true"} if environment.allows_http() else {}),
        "max_retries": str(_RETRIES),
        "retry_timeout": f"{_PATIENCE_SECONDS}s",
        "connect_timeout": f"{_CONNECT_SECONDS}s",
        "timeout": f"{_PATIENCE_SECONDS}s",
    }
    if (profile := environment.profile(name)) is not None:
        told["AWS_FORCE_CREDENTIAL_LOAD"] = "true"
        of_profile = (("AWS_REGION", profile.region), ("AWS_ENDPOINT_URL", profile.endpoint))
        told |= {name: value for name, value in of_profile if value}
    return told


def _told(place: Stored, error: Exception) -> Unavailable:
    """A store's answer in one line."""
    text = str(error).split("Debug source")[0]
    return answers.unavailable(text, place.root) or answers.unanswered(text, place.root)
