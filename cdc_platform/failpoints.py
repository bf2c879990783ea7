"""Named points at which tests kill the process, to prove that a second start ends where the first would have.

Set `CDC_PLATFORM_KILL_AT=<name>` and the process dies there by SIGKILL, with no clean-up, as in a power cut. Unset,
a point costs one dictionary look-up.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "CDC_PLATFORM_KILL_AT"

AFTER_DESCRIPTION = "after-description"
AFTER_V2_INSERT = "after-v2-insert"
AFTER_TIMESTAMP = "after-timestamp"
IN_STREAMS = "in-streams"
AFTER_STREAMS = "after-streams"
NAMES = (AFTER_DESCRIPTION, AFTER_V2_INSERT, AFTER_TIMESTAMP, IN_STREAMS, AFTER_STREAMS)


def reached(name: str, pid: int | None = None) -> None:
    """Kill process `pid` (by default this one) if the environment names this point."""
    if os.environ.get(VARIABLE) == name:
        os.kill(os.getpid() if pid is None else pid, signal.SIGKILL)
