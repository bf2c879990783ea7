"""A small file system for one test."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted_disk(folder: Path, size_bytes: int) -> Iterator[bool]:
    """Mount a file system of this size in a new folder; yield False if this machine does not permit it."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        yield False
        return
    try:
        yield True
    finally:
        # Lazily: the caller may have been interrupted while a process has the disk open.
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    """Mount a file system of this size in a new folder, or skip the test if none can be mounted."""
    with mounted_disk(folder, size_bytes) as mounted:
        if not mounted:
            pytest.skip("no file system can be mounted here")
        yield folder
