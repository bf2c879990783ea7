"""How large a text from outside may be: what is read of it, and what is made of that, fits into this machine's memory.

It knows bytes alone; what is in the texts their readers say.
"""

from __future__ import annotations

import os
from pathlib import Path

from cdc_platform.user_files import MOST_BYTES

MOST_JSON = MOST_BYTES
"""Bytes of a JSON text: the tokens of three million vnodes."""
TIMES = 10
"""How many times the size of an export its rows take at most, while they are checked."""
_UNKNOWN_MEMORY = 8 * 1024**3


def memory_bytes() -> int | None:
    """The memory that processes here may use: the machine's, or its control group's where that is less."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
    limits = [Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")]
    for limit in limits:
        try:
            total = min(total, int(limit.read_text(encoding="ascii")))
        except (OSError, ValueError):
            continue
    return total


def most_export() -> int:
    """The bytes that the files of one import may have together."""
    return (memory_bytes() or _UNKNOWN_MEMORY) // TIMES
