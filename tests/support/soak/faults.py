"""Faults of a soak: a full disk, an unreachable Spark, and processes killed at a failpoint or a commit."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from support.soak.plan import Fault

from cdc_platform.delta import IN_PROCESS_VARIABLE, commits
from cdc_platform.failpoints import KILL_AT_VARIABLE

DISK_BYTES = 8 << 30


@contextmanager
def injected(fault: Fault | None, disk: Path) -> Iterator[None]:
    """Run the block under a fault of `Plan.fault`. `disk` is where the home's own file system is mounted."""
    if fault is None:
        yield
    elif fault.kind == "full-disk":
        with _filled(disk, fault.number):
            yield
    elif fault.kind == "no-spark":
        # No server listens on port 1, and no task may run in this process.
        with patch.dict(os.environ, {"SPARK_REMOTE": "sc://127.0.0.1:1", IN_PROCESS_VARIABLE: "0"}):
            yield
    elif fault.kind == "kill-at-point":
        with patch.dict(os.environ, {KILL_AT_VARIABLE: fault.point}):
            yield
    else:
        with _killed_at_commit(fault.number):
            yield


def enlarge_disk(disk: Path) -> None:
    """Give the home's file system its full size, which a process that was killed on a full disk did not."""
    _resize(disk, DISK_BYTES)


@contextmanager
def _filled(disk: Path, free_bytes: int) -> Iterator[None]:
    """Shrink the file system until only these bytes are free. A file that fills it would take as much memory."""
    space = os.statvfs(disk)
    _resize(disk, (space.f_blocks - space.f_bfree) * space.f_frsize + free_bytes)
    try:
        yield
    finally:
        enlarge_disk(disk)


def _resize(disk: Path, size_bytes: int) -> None:
    # A size of 0 would be no limit.
    options = f"remount,size={max(size_bytes, os.sysconf('SC_PAGE_SIZE'))}"
    subprocess.run(["mount", "-o", options, str(disk)], check=True, capture_output=True)


@contextmanager
def _killed_at_commit(number: int) -> Iterator[None]:
    """Kill this process before (even) or after (odd) the commit with this number."""
    make_commit, count = commits.make_commit, 0

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == number and number % 2 == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        committed = make_commit(*args, **options)
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return committed

    with patch.object(commits, "make_commit", counted):
        yield
