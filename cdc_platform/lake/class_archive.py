"""An archive of the JVM's loaded classes (AppCDS) in the cache: it halves the time to a session's first commit.

The first session records it while it ends, later ones map it. It is an optimisation only: whatever goes wrong here, a
session starts without it.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import time
import uuid
from collections.abc import Iterable
from pathlib import Path

from cdc_platform.clock import HOUR_SECONDS
from cdc_platform.lake.java import Java

SWITCH = "CDC_PLATFORM_CLASS_ARCHIVE"
"""Set to 0, no archive is recorded or used."""

# HotSpot writes the header, which this number opens, after everything else: a file that has it is whole.
_MAGIC = struct.pack("=I", 0xF00BABA8)
_STALE_SECONDS = HOUR_SECONDS
_KEPT = 2
# The JVM says on stdout why it can't use or extend an archive; nothing that a person could do anything about.
_QUIET = ["-Xlog:disable", "-Xlog:all=error:stderr"]


def archive_options(folder: Path, java: Java, class_path: Iterable[Path], *, record: bool) -> list[str]:
    """Options for a JVM: use the archive of this Java and these class path entries, or `record` it, or none at all.

    An archive is bound to one build of Java and to every entry of the class path with its size and time.
    """
    if os.environ.get(SWITCH) == "0" or "Server VM" not in java.version:
        return []
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not _only_ours(folder):
            return []
        name = f"classes-{_key(java, class_path)}"
        _tidy(folder, name)
        for archive in folder.glob(f"{name}-*.jsa"):
            os.utime(archive)
            return [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", *_QUIET]
        return [f"-XX:ArchiveClassesAtExit={folder}/{name}.{uuid.uuid4().hex}.draft", *_QUIET] if record else []
    except OSError:
        return []


def _only_ours(folder: Path) -> bool:
    """Whether nobody else can put a file here: the JVM runs what is in an archive."""
    status = folder.stat()
    return (
        status.st_uid == os.geteuid()
        and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        and os.access(folder, os.W_OK)
    )


def _key(java: Java, class_path: Iterable[Path]) -> str:
    digest = hashlib.sha256(java.version.encode())
    for entry in sorted(class_path):
        status = entry.stat()
        digest.update(f"\n{entry} {status.st_size} {status.st_mtime_ns}".encode())
    return digest.hexdigest()[:32]


def _tidy(folder: Path, name: str) -> None:
    """Make the first whole draft of `name` its archive; drop other drafts, damaged archives and those long unused."""
    archives = [archive for archive in folder.glob("classes-*.jsa") if not _drop_if_damaged(archive)]
    known = any(archive.name.startswith(name) for archive in archives)
    for draft in folder.glob("classes-*.draft"):
        ours = draft.name.startswith(name) and _is_whole(draft)
        if ours and not known:
            # The JVM does not notice an archive that was cut off, and dies in it: the name holds the size.
            archives.append(draft.rename(folder / f"{name}-{draft.stat().st_size}.jsa"))
            known = True
        elif ours or time.time() - draft.stat().st_mtime > _STALE_SECONDS:
            draft.unlink(missing_ok=True)
    for old in sorted(archives, key=lambda path: path.stat().st_mtime)[:-_KEPT]:
        old.unlink(missing_ok=True)


def _drop_if_damaged(archive: Path) -> bool:
    if archive.stem.rpartition("-")[2] == str(archive.stat().st_size) and _is_whole(archive):
        return False
    archive.unlink(missing_ok=True)
    return True


def _is_whole(draft: Path) -> bool:
    with draft.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC
