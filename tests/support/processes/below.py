"""Who is below whom: the processes that this one started, and what those started; the parent of any."""

from __future__ import annotations

import os
from pathlib import Path


def below(top: int | None = None) -> dict[int, list[str]]:
    """Those that have not ended, each with what `/proc/PID/stat` has behind its name; of another one below `top`."""
    found: dict[int, list[str]] = {}
    for process in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = process.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        found[int(process.parent.name)] = fields
    top = top or os.getpid()
    mine = {top}
    while more := {pid for pid, fields in found.items() if int(fields[1]) in mine} - mine:
        mine |= more
    return {pid: found[pid] for pid in mine - {top}}


def parent(pid: int) -> int | None:
    """The parent of a process; None of one that has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    except OSError:
        return None
