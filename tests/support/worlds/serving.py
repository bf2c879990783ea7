"""`cdc-platform up` as a real process, for tests that look at it from outside: its address, its processes, its end."""

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
"""For the JVMs of `up`, which in a test end before the second compiler has paid for itself: half of their CPU."""


class Serving:
    """One home that is brought up when a test first asks for it, and again when another has ended it.

    Its temporary files lie in a folder `beside` it, which a home in a store has not.
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
        """Bring it up unless it is up; answers with what the command prints."""
        if self._process is None or self._process.poll() is not None:
            self._process = self.command("up", "--port", "0", "--json")
            self._told = json.loads(self._document(self._process))
        return self._told

    @property
    def header(self) -> dict[str, str]:
        """What a program sends with every request to the UI."""
        return {"Authorization": f"Bearer {Path(self.start()['token_file']).read_text(encoding='utf-8')}"}

    @property
    def spark(self) -> dict[str, str]:
        """What a client of the Spark Connect server has in its environment."""
        lines = Path(self.start()["spark_file"]).read_text(encoding="utf-8").splitlines()
        return dict(line.split("=", 1) for line in lines)

    def command(self, *arguments: str) -> subprocess.Popen[str]:
        """A command of the platform on this home, started."""
        environment = {name: value for name, value in os.environ.items() if name not in {HOME_VARIABLE, "SPARK_REMOTE"}}
        # Whatever it leaves in the temporary folder is left where a test can see it.
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
        """The command itself."""
        assert self._process is not None
        return self._process.pid

    def ask_for_the_end(self) -> None:
        """What Ctrl-C does."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """End the command itself outright, and nothing that it has started."""
        assert self._process is not None
        self._process.kill()

    def end(self) -> tuple[int, str]:
        """Wait until it has ended; answers with the exit code and what it says on standard error."""
        assert self._process is not None
        _, said = self._process.communicate(timeout=240)
        return self._process.returncode, said

    def stop(self) -> None:
        """End it, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self.ask_for_the_end()
            self.end()

    def processes(self) -> dict[int, str]:
        """Everything that runs because of it, whoever its parent is by now: command lines by process ID."""
        if not Path("/proc/self/environ").exists():
            pytest.skip("the processes that something has started can be listed on Linux only")
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if self._mark.encode() in (folder / "environ").read_bytes():
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue  # it has ended meanwhile, or is somebody else's
        return found

    def processes_after(self, seconds: float) -> dict[int, str]:
        """What still runs when everything has ended, or after that time."""
        deadline = time.monotonic() + seconds
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return left

    @staticmethod
    def _document(process: subprocess.Popen[str]) -> str:
        """The JSON document that the command prints first; it goes on running."""
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("}"):
                return "".join(lines)
        raise AssertionError(f"it ended with {process.wait()}: {process.stderr.read() if process.stderr else ''}")
