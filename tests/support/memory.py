"""Let tests write their files to memory if the machine has enough, which saves a tenth of their CPU time.

With `--basetemp`, or with less memory, pytest's own rule applies. The folder of a run that passed is removed; that of
a failed run stays until the next run begins.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

_IN_MEMORY = Path("/dev/shm")
_PREFIX = "cdc-platform-tests-"
_PROGRAMS_BYTES = 11 << 30
"""The most that the programs of a run use at once."""
_FILES_BYTES = 3 << 30
"""The most that the files of a run use."""


@cache
def root() -> str | None:
    """Return the folder in memory below which tests may write, or None if there is none or too little memory."""
    return str(_IN_MEMORY) if _is_usable() and _missing_bytes() <= 0 else None


class InMemory:
    """The pytest plugin, for the process that starts the workers."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._lock: int | None = None
        self._stays = False
        self._header = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Create the folder, and let pytest put its temporary folders there."""
        if config.option.basetemp is not None or config.option.collectonly or not _is_usable():
            return
        _remove_ended_runs()
        if root() is None:
            missing = _missing_bytes() / (1 << 30)
            self._header = f"tests write to disk: to write to memory they need {missing:.1f} GiB more"
            return
        self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root()))
        self._lock = _lock(self._folder)
        config.option.basetemp = str(self._folder / "pytest")
        self._header = f"tests write to memory: {self._folder}"

    def pytest_report_header(self) -> str:
        """Return a line that names the folder of the files."""
        return self._header

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Record whether the files are needed after the run."""
        self._stays = exitstatus in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name the folder if it stays."""
        if self._folder is not None and self._stays:
            terminalreporter.write_line(f"the tests' files stay in memory until the next run: {self._folder}")

    def pytest_unconfigure(self) -> None:
        """Free the memory."""
        if self._folder is not None and not self._stays:
            shutil.rmtree(self._folder, ignore_errors=True)


def _is_usable() -> bool:
    return sys.platform == "linux" and os.access(_IN_MEMORY, os.W_OK | os.X_OK)


def _missing_bytes() -> int:
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    kibibytes = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), "0")
    free = min(int(kibibytes) * 1024 - _PROGRAMS_BYTES, shutil.disk_usage(_IN_MEMORY).free)
    return _FILES_BYTES - free


def _lock(folder: Path) -> int | None:
    """Lock a folder for as long as this process runs; return None if another process has locked it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _remove_ended_runs() -> None:
    for folder in _IN_MEMORY.glob(f"{_PREFIX}*"):
        if folder.stat().st_uid == os.getuid() and (lock := _lock(folder)) is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
