"""Where tests write their files: in memory on a machine that has plenty, which spares a tenth of their time.

Elsewhere, and where `--basetemp` names another place, as pytest has it. What a run has left is removed when it has
passed, and stays, named, when it has failed.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

_IN_MEMORY = Path("/dev/shm")
_FREE_BYTES = 18 << 30
"""A run has programs of 12 GB at most, and files of 3."""


@cache
def root() -> str | None:
    """The folder in memory below which tests may write; None where there is none, or too little memory."""
    if sys.platform != "linux" or not os.access(_IN_MEMORY, os.W_OK | os.X_OK):
        return None
    of_files = os.statvfs(_IN_MEMORY)
    free = min(of_files.f_bavail * of_files.f_frsize, _available())
    return str(_IN_MEMORY) if free >= _FREE_BYTES else None


def _available() -> int:
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    told = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), "0")
    return int(told) * 1024


class InMemory:
    """The plugin: of the process that others work for, which say nothing of it themselves."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._stays = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Have pytest put its temporary folders there."""
        if config.option.basetemp is None and not config.option.collectonly and (memory := root()) is not None:
            self._folder = Path(tempfile.mkdtemp(prefix="cdc-tests-", dir=memory))
            config.option.basetemp = str(self._folder)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Note how it ends."""
        self._stays = exitstatus in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name what stays."""
        if self._folder is not None and self._stays:
            terminalreporter.write_line(f"what the tests wrote is in {self._folder}, in memory: remove it")

    def pytest_unconfigure(self) -> None:
        """Give the memory back."""
        if self._folder is not None and not self._stays:
            shutil.rmtree(self._folder, ignore_errors=True)
