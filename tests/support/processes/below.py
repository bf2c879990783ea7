"""The descendants of a process, and the parent of any process."""

from __future__ import annotations

import os
from pathlib import Path


def below(top: int | None = None) -> dict[int, list[str]]:
    """Return the live processes below `top` (default: this one), with the fields of `/proc/PID/stat`."""
    processes: dict[int, list[str]] = {}
    for process in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = process.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        except OSError:  # the process has ended
            continue
        processes[int(process.parent.name)] = fields
    top = top or os.getpid()
    family = {top}
    while more := {pid for pid, fields in processes.items() if int(fields[1]) in family} - family:
        family |= more
    return {pid: processes[pid] for pid in family - {top}}


def parent(pid: int) -> int | None:
    """Return the parent of a process; None if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    except OSError:
        return None
