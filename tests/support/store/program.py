"""A program that listens on a port of loopback, as its own process; it may not be installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.ports import is_open
from support.standin.jars import fetched

from cdc_platform.processes import get_death_signal_setter
from cdc_platform.spark import get_cache_folder

_HAD_WITHIN_SECONDS = 600
_STARTS_WITHIN_SECONDS = 60


def found(name: str) -> str | None:
    """Return the path of a program: from PATH, or from the folder into which Go installs."""
    return shutil.which(name) or shutil.which(name, path=str(Path.home() / "go" / "bin"))


def have(name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    """Run the command that fetches or builds a program.

    Raises:
        RuntimeError: it failed; with the end of its output.
    """
    ran = subprocess.run(
        command,
        env=os.environ | dict(environment or {}),
        capture_output=True,
        text=True,
        timeout=_HAD_WITHIN_SECONDS,
        check=False,
    )
    if ran.returncode != 0:
        raise RuntimeError(f"{name} could not be had: {(ran.stdout + ran.stderr)[-2000:]}")


@dataclass(frozen=True)
class OfGo:
    """A program that Go builds: its source and version."""

    source: str
    version: str

    @property
    def name(self) -> str:
        """Return its name."""
        return self.source.rpartition("/")[2]

    @property
    def path(self) -> str | None:
        """Return its path if it is installed or `make emulators` has built it."""
        return found(self.name) or shutil.which(get_cache_folder() / self._folder / self.name)

    @property
    def how_to_have_it(self) -> str:
        """Return why its tests are skipped."""
        return f"NOT TRIED: there is no {self.name}; make emulators, or {self.install}"

    @property
    def install(self) -> str:
        """Return the command with which a person installs it."""
        return f"go install {self.source}@{self.version}"

    def build(self) -> None:
        """Build it into the cache folder, unless it is built."""
        fetched(self._folder, self._build)

    @property
    def _folder(self) -> str:
        return f"{self.name}-{self.version}"

    def _build(self, draft: Path) -> None:
        have(self.name, self.install.split(), {"GOBIN": str(draft / "jars")})


class Program:
    """A running program that listens on a port."""

    def __init__(self, command: Sequence[str | None], port: int, environment: Mapping[str, str] | None = None) -> None:
        words = [word for word in command if word is not None]
        self._process = subprocess.Popen(
            words,
            env=os.environ | dict(environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=get_death_signal_setter(),
        )
        name, until = Path(words[0]).name, time.monotonic() + _STARTS_WITHIN_SECONDS
        while not is_open(port):
            assert self._process.poll() is None, f"{name} has ended"
            assert time.monotonic() < until, f"{name} does not answer"
            time.sleep(0.1)

    def stop(self) -> None:
        """Stop the process."""
        self._process.terminate()
        self._process.wait(30)
