"""Run a command in its own process and measure its memory."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_WATCHED = """import runpy, sys
from pathlib import Path
held = Path(sys.argv.pop(1))
try:
    runpy.run_module("cdc_platform", run_name="__main__", alter_sys=True)
finally:
    # Of this program alone: what the system tells of a process (ru_maxrss) begins with what its parent held.
    held.write_text(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
"""


@dataclass(frozen=True)
class Left:
    """The end of a process: its exit code, its output, and the most bytes that it used."""

    exit_code: int
    stdout: str
    stderr: str
    held: int


def watched(
    *command: str | Path, stream: IO[bytes] | None = None, environment: Mapping[str, str] | None = None
) -> Left:
    """Run a command as a user does, optionally with a stream as standard input and more environment variables."""
    with tempfile.TemporaryDirectory() as folder:
        peak_file = Path(folder) / "held"
        done = subprocess.run(
            [sys.executable, "-c", _WATCHED, str(peak_file), *map(str, command)],
            stdin=stream or subprocess.DEVNULL,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return Left(done.returncode, done.stdout, done.stderr, int(peak_file.read_text()) * 1024)
