"""The processes below this one: those that it started, and what those started."""

from __future__ import annotations

import os
from pathlib import Path


def below() -> dict[int, list[str]]:
    """Those that have not ended, each with what `/proc/PID/stat` has behind its name."""
    found: dict[int, list[str]] = {}
    for process in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = process.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        found[int(process.parent.name)] = fields
    mine = {os.getpid()}
    while more := {pid for pid, fields in found.items() if int(fields[1]) in mine} - mine:
        mine |= more
    return {pid: found[pid] for pid in mine - {os.getpid()}}
