"""Drafts: folders and files that become something else by one rename, or go with the process that made them.

Each is held by a lock, which the system lets go of when its owner ends, however it ends. Whoever makes one sweeps those
beside it that nobody holds; one whose owner lives is never touched, however old it is.
"""

from __future__ import annotations

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

OWNER_ONLY = 0o600
"""The mode of a file that holds a secret."""
_SUFFIX = ".draft"
_NAME = re.compile(r"\..+\.[0-9a-f]{32}\.draft")
# What earlier releases made beside tables, and nobody could hold.
_UNHELD = re.compile(r"\.[^.]+\.[0-9a-f]{32}")

_held: dict[Path, int] = {}
_changing = threading.Lock()


def make_folder(parent: Path, name: str, *, mode: int = 0o777) -> Path:
    """A new folder in `parent`, hidden and named after what it is to become; `discard` it in the end."""
    while True:
        draft = _place(parent, name)
        parent.mkdir(parents=True, exist_ok=True)
        draft.mkdir(mode=mode)
        if _hold(draft):
            sweep(parent)
            return draft


def sweep(parent: Path) -> None:
    """Remove the drafts in a folder that nobody holds."""
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if _NAME.fullmatch(entry.name):
                _remove_unheld(Path(entry.path))


def sweep_unheld(parent: Path) -> None:
    """Remove what earlier releases left in a folder of tables, whose drafts nobody could hold: a day later."""
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if _UNHELD.fullmatch(entry.name):
                _remove_old(Path(entry.path), parent)


def write(target: Path, text: str, *, mode: int = 0o666) -> None:
    """Give a file this text at once: whoever reads it finds what it was before, or all of it.

    It has this mode from its first byte on, but for what the process's own mask takes away.
    """
    write_bytes(target, text.encode(), mode=mode)


def write_bytes(target: Path, content: bytes, *, mode: int = 0o666) -> None:
    """As `write`, of bytes."""
    while True:
        draft = _place(target.parent, target.name)
        draft.touch(mode=mode, exist_ok=False)
        if _hold(draft):
            break
    try:
        sweep(target.parent)
        draft.write_bytes(content)
        draft.replace(target)
    finally:
        discard(draft)


@contextmanager
def temporary_folder(name: str, parent: Path | None = None) -> Iterator[Path]:
    """A folder for the length of a block, its owner's alone, in `parent` or where temporary files are."""
    folder = make_folder(parent or Path(tempfile.gettempdir()), name, mode=0o700)
    try:
        yield folder
    finally:
        discard(folder)


def discard(draft: Path) -> None:
    """Remove a draft, or what is left of it; nothing is no error."""
    _remove(draft)
    with _changing:
        descriptor = _held.pop(draft, None)
    if descriptor is not None:
        os.close(descriptor)


def _place(parent: Path, name: str) -> Path:
    return parent / f".{name.removeprefix('.')}.{uuid.uuid4().hex}{_SUFFIX}"


def _hold(draft: Path) -> bool:
    """Lock a draft; whether it is there still: somebody may have swept it before it was locked."""
    try:
        descriptor = os.open(draft, os.O_RDONLY)
    except FileNotFoundError:
        return False
    with suppress(OSError):  # on a file system without locks nobody sweeps by them either
        # Shared, since a folder can only be read, and some file systems lock for writing what is open for it alone.
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    if not draft.exists():
        os.close(descriptor)
        return False
    with _changing:
        _held[draft] = descriptor
    return True


def _remove_unheld(draft: Path) -> None:
    with suppress(OSError):
        descriptor = os.open(draft, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(draft)
        finally:
            os.close(descriptor)


def _remove_old(draft: Path, beside: Path) -> None:
    """By the clock of the file system, on which somebody has just made a draft beside it."""
    with suppress(OSError):
        if beside.stat().st_mtime - draft.stat().st_mtime > DAY_SECONDS:
            _remove(draft)


def _remove(draft: Path) -> None:
    if draft.is_dir() and not draft.is_symlink():
        shutil.rmtree(draft, ignore_errors=True)
    else:
        draft.unlink(missing_ok=True)
