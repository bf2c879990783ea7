"""Write files and folders atomically: each is a draft until one rename gives it its name.

The owner of a draft holds a file lock on it, which the system releases when the process ends. The next writer in the
same folder sweeps drafts that no process has locked; it never touches a locked one, however old.

`new_file` and `new_folder` write to a path that a user named: the name gets all of it or nothing, and one of several
concurrent writers wins.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cdc_platform.clock import DAY_SECONDS
from cdc_platform.errors import InputError

OWNER_ONLY_MODE = 0o600
"""The mode of a file that holds a secret."""
_SUFFIX = ".draft"
_DRAFT_NAME = re.compile(r"\..+\.[0-9a-f]{32}\.draft", re.DOTALL)
_LONGEST_NAME = 120
"""Bytes of a name that a draft repeats: a file system allows 255, and the draft adds 40."""
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
"""The errors of file systems without hard links."""
_NAME_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR)
# Drafts of earlier releases beside tables, which have no locks.
_LEGACY_DRAFT_NAME = re.compile(r"\.[^.]+\.[0-9a-f]{32}")

_locked_drafts: dict[Path, int] = {}
_locked_drafts_guard = threading.Lock()


def make_draft_folder(parent: Path, name: str, *, mode: int = 0o777) -> Path:
    """Make and lock a new hidden folder in `parent`, named after `name`; the caller must `discard_draft` it."""
    while True:
        draft = _draft_path(parent, name)
        parent.mkdir(parents=True, exist_ok=True)
        draft.mkdir(mode=mode)
        if _lock_draft(draft):
            sweep_drafts(parent)
            return draft


def sweep_drafts(parent: Path) -> None:
    """Remove the drafts in a folder that no process has locked."""
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if _DRAFT_NAME.fullmatch(entry.name):
                _remove_unlocked(Path(entry.path))


def sweep_legacy_drafts(parent: Path) -> None:
    """Remove drafts of earlier releases, which have no locks, from a folder of tables after a day."""
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if _LEGACY_DRAFT_NAME.fullmatch(entry.name):
                _remove_old(Path(entry.path), parent)


def write_text_atomically(target: Path, text: str, *, mode: int = 0o666) -> None:
    """Replace a file's content at once: a reader sees the old content or all of the new.

    The file has this mode, less the process's umask, from its first byte on.
    """
    write_bytes_atomically(target, text.encode(), mode=mode)


def write_bytes_atomically(target: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Write bytes like `write_text_atomically`."""
    draft = _make_draft_file(_draft_path(target.parent, target.name), mode)
    try:
        draft.write_bytes(content)
        draft.replace(target)
    finally:
        discard_draft(draft)


def assert_path_free(target: Path, home: Path | None = None, *, folder: bool = False) -> Path:
    """Return the absolute path of a new file of the user's; `~` is expanded.

    The parent folder must exist. With `folder` the path is that of a new folder, whose parents may be missing.

    Raises:
        InputError: the name is taken, there is no folder for it, or it lies in the home.
    """
    try:
        path = target.expanduser().absolute()
    except RuntimeError:
        raise InputError(f"{target}: there is no such user; write the path in full") from None
    if home is not None and path.resolve().is_relative_to(home.resolve()):
        raise InputError(f"{target} lies in the home {home}, which only the platform writes to; name another")
    if os.path.lexists(path):
        raise InputError(f"{target} already exists; choose another name, or move it away")
    parent_folder = next(parent for parent in path.parents if os.path.lexists(parent)) if folder else path.parent
    if not parent_folder.is_dir():
        raise InputError(f"{target}: {parent_folder} is no folder; make it, or name another")
    return path


@contextmanager
def new_file(target: Path, *, home: Path | None = None, mode: int = 0o666) -> Iterator[Path]:
    """Yield a draft that becomes `target` when the block exits; an error in the block leaves nothing.

    If the process is killed at any point, the name has all of the file or is free. One of several concurrent writers
    wins if the file system has hard links. The file must not lie in `home`.

    Raises:
        InputError: as `assert_path_free`, also if another process was faster.
    """
    path = assert_path_free(target, home)
    draft = _draft_path(path.parent, path.name)
    try:
        draft = _make_draft_file(draft, mode)
        yield draft
        _link_name(draft, path, target)
    except OSError as error:
        raise _error_for_target(error, draft, path) from None
    finally:
        discard_draft(draft)


@contextmanager
def new_folder(target: Path, *, home: Path | None = None) -> Iterator[Path]:
    """Yield a draft folder like `new_file`; missing parents of `target` are made.

    Raises:
        InputError: as `assert_path_free`, also if another process was faster.
    """
    path = assert_path_free(target, home, folder=True)
    existing_parent = next(parent for parent in path.parents if parent.is_dir())
    draft = make_draft_folder(existing_parent, path.name)
    try:
        yield draft
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            draft.rename(path)
        except OSError as error:
            if error.errno in _NAME_TAKEN:
                raise _name_taken_error(target) from None
            raise
    except OSError as error:
        raise _error_for_target(error, draft, path) from None
    finally:
        discard_draft(draft)


@contextmanager
def temporary_folder(name: str, parent: Path | None = None) -> Iterator[Path]:
    """Yield a folder for the block that only its owner can enter, in `parent` or with the temporary files."""
    folder = make_draft_folder(parent or Path(tempfile.gettempdir()), name, mode=0o700)
    try:
        yield folder
    finally:
        discard_draft(folder)


def discard_draft(draft: Path) -> None:
    """Remove and unlock a draft, or what is left of it; do nothing if it does not exist."""
    _remove(draft)
    with _locked_drafts_guard:
        descriptor = _locked_drafts.pop(draft, None)
    if descriptor is not None:
        os.close(descriptor)


def _make_draft_file(draft: Path, mode: int) -> Path:
    """Make an empty draft and lock it."""
    while True:
        draft.touch(mode=mode, exist_ok=False)
        if _lock_draft(draft):
            sweep_drafts(draft.parent)
            return draft


def _link_name(draft: Path, path: Path, target: Path) -> None:
    """Give a draft its name unless the name is taken, which a rename would not detect."""
    try:
        os.link(draft, path, follow_symlinks=False)
    except FileExistsError:
        raise _name_taken_error(target) from None
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(path):
            raise _name_taken_error(target) from None
        draft.rename(path)


def _name_taken_error(target: Path) -> InputError:
    return InputError(f"{target} was created by another process in the meantime; choose another name, or move it away")


def _error_for_target(error: OSError, draft: Path, path: Path) -> OSError:
    """Return the error with the user's path instead of the draft's."""
    named = str(error.filename or "")
    if not named.startswith(str(draft)):
        return error
    return OSError(error.errno, error.strerror, f"{path}{named.removeprefix(str(draft))}")


def _draft_path(parent: Path, name: str) -> Path:
    begin = os.fsencode(name.removeprefix("."))[:_LONGEST_NAME].decode(errors="ignore")
    return parent / f".{begin or 'file'}.{uuid.uuid4().hex}{_SUFFIX}"


def _lock_draft(draft: Path) -> bool:
    """Lock a draft; return False if another process has swept it before it was locked."""
    try:
        descriptor = os.open(draft, os.O_RDONLY)
    except FileNotFoundError:
        return False
    with suppress(OSError):  # without locks on this file system, no process sweeps either
        # A shared lock: a folder opens for reading only, and some file systems need write access to lock exclusively.
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    if not draft.exists():
        os.close(descriptor)
        return False
    with _locked_drafts_guard:
        _locked_drafts[draft] = descriptor
    return True


def _remove_unlocked(draft: Path) -> None:
    with suppress(OSError):
        descriptor = os.open(draft, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(draft)
        finally:
            os.close(descriptor)


def _remove_old(draft: Path, folder: Path) -> None:
    """Remove a draft if it is a day older than its folder, whose time a new draft in it has just updated."""
    with suppress(OSError):
        if folder.stat().st_mtime - draft.stat().st_mtime > DAY_SECONDS:
            _remove(draft)


def _remove(draft: Path) -> None:
    if draft.is_dir() and not draft.is_symlink():
        shutil.rmtree(draft, ignore_errors=True)
    else:
        draft.unlink(missing_ok=True)
