"""Whether a disk has room for what is to be written: asked before, since a write that fills it ends in the middle."""

from __future__ import annotations

import os
from pathlib import Path

from cdc_platform.errors import no_space

LEAST = 1024 * 1024
"""Bytes that have to be free beside the rows: a commit, the files' footers, and what others write meanwhile."""


def assert_room(folder: Path, size: int, what: str) -> None:
    """Hold that `size` bytes fit beside a folder that is there or will be; a file system that does not say has room.

    Raises:
        Unavailable: they do not.
    """
    there = next(place for place in (folder, *folder.parents) if place.exists())
    try:
        room = os.statvfs(there)
    except OSError:
        return
    if room.f_blocks and room.f_bavail * room.f_frsize < size + LEAST:
        raise no_space(there, what)
