"""Run `cdc-platform up` as a real process, for tests that examine its address, processes and end from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from cdc_platform.delta import Lake
from cdc_platform.home_location import HOME_VARIABLE

_MARK = "CDC_PLATFORM_TEST_MARK"
_SOON_WARM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For the JVMs of `up`, which end in a test before the second compiler pays off: it halves their CPU."""


class Serving:
    """One home whose `up` starts when a test first needs it, and again after another test has ended it.

    Its temporary files are in a folder `beside` it, since a home in a store has no such folder.
    """

    def __init__(self, home: Path | str, beside: Path | None = None) -> None:
        self.home = Path(home)
        self._name = str(home)
        self.lake = Lake(f"{home}/lake")
        self.temporary = (beside or self.home.parent) / "tmp"
        self.temporary.mkdir(parents=True, exist_ok=True)
        self._mark = str(uuid.uuid4())
        self._process: subprocess.Popen[str] | None = None
        self._told: dict[str, Any] = {}

    def start(self) -> dict[str, Any]:
        """Start `up` unless it runs; return what the command prints."""
        if self._process is None or self._process.poll() is not None:
            self._process = self.command("up", "--port", "0", "--json")
            self._told = json.loads(self._document(self._process))
        return self._told

    @property
    def header(self) -> dict[str, str]:
        """Return the headers of every request to the UI."""
        return {"Authorization": f"Bearer {Path(self.start()['token_file']).read_text(encoding='utf-8')}"}

    @property
    def spark(self) -> dict[str, str]:
        """Return the environment of a client of the Spark Connect server."""
        lines = Path(self.start()["spark_file"]).read_text(encoding="utf-8").splitlines()
        return dict(line.split("=", 1) for line in lines)

    def command(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command of the platform on this home."""
        environment = {name: value for name, value in os.environ.items() if name not in {HOME_VARIABLE, "SPARK_REMOTE"}}
        # Files that it leaves in the temporary folder remain where a test can see them.
        environment["TMPDIR"] = str(self.temporary)
        return subprocess.Popen(
            [sys.executable, "-m", "cdc_platform", "--home", self._name, *arguments],
            env=environment
            | {_MARK: self._mark, "PYTHONUNBUFFERED": "1"}
            | dict.fromkeys(("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"), _SOON_WARM),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        """Return the process ID of the command itself."""
        assert self._process is not None
        return self._process.pid

    def ask_for_the_end(self) -> None:
        """Send the signal of Ctrl-C."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """Kill the command itself, without the processes that it has started."""
        assert self._process is not None
        self._process.kill()

    def end(self) -> tuple[int, str]:
        """Wait until it has ended; return the exit code and its standard error."""
        assert self._process is not None
        _, errors = self._process.communicate(timeout=240)
        return self._process.returncode, errors

    def stop(self) -> None:
        """Stop it if it runs."""
        if self._process is not None and self._process.poll() is None:
            self.ask_for_the_end()
            self.end()

    def processes(self) -> dict[int, str]:
        """Return all processes that run because of it, whatever their parent is now: command lines by process ID."""
        if not Path("/proc/self/environ").exists():
            pytest.skip("the processes that something has started can be listed on Linux only")
        commands = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if self._mark.encode() in (folder / "environ").read_bytes():
                    commands[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue  # it has ended in between or belongs to another user
        return commands

    def processes_after(self, seconds: float) -> dict[int, str]:
        """Return what still runs after everything has ended, or after that time."""
        deadline = time.monotonic() + seconds
        while (remaining := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return remaining

    @staticmethod
    def _document(process: subprocess.Popen[str]) -> str:
        """Return the JSON document that the command prints first; the command continues to run."""
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("}"):
                return "".join(lines)
        raise AssertionError(f"it ended with {process.wait()}: {process.stderr.read() if process.stderr else ''}")
