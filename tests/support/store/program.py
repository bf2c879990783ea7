"""A program that answers on a port of loopback, as a process of its own; who uses one may not have it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.ports import is_open

from cdc_platform.supervisor import die_with_parent

_STARTS_WITHIN_SECONDS = 60


def found(name: str) -> str | None:
    """Where a program is: in a folder of the path, or where Go puts what it installs."""
    return shutil.which(name) or shutil.which(name, path=str(Path.home() / "go" / "bin"))


class Program:
    """A program that was started and answers on a port."""

    def __init__(self, command: Sequence[str | None], port: int, environment: Mapping[str, str] | None = None) -> None:
        given = [word for word in command if word is not None]
        self._process = subprocess.Popen(
            given,
            env=os.environ | dict(environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=die_with_parent(),
        )
        name, until = Path(given[0]).name, time.monotonic() + _STARTS_WITHIN_SECONDS
        while not is_open(port):
            assert self._process.poll() is None, f"{name} has ended"
            assert time.monotonic() < until, f"{name} does not answer"
            time.sleep(0.1)

    def stop(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait(30)
