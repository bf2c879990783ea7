"""The parent of Dagster's parts, with parts of a test: each is as if it had been started by itself, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.waiting import await_true

from cdc_platform.serving.parent import FORKS, parent_of
from cdc_platform.supervisor import Service, how_it_ended

pytestmark = [
    pytest.mark.long("a process that imports all that Dagster's parts do"),
    pytest.mark.skipif(not FORKS, reason="only on Linux are parts forked"),
]
_TELLS = """
import json, os, random, signal, sys, threading
print(json.dumps({
    "arguments": sys.argv[1:],
    "main": [__name__, __spec__.name, sys.modules["__main__"].__spec__.name],
    "called": open("/proc/self/cmdline").read().strip("\\0").strip(),
    "environment": os.environ["OF_A_TEST"] in open("/proc/self/environ").read(),
    "open": [each for each in map(int, sys.argv[2:]) if os.path.exists(f"/proc/self/fd/{each}")],
    "input": os.path.realpath("/proc/self/fd/0"),
    "threads": threading.active_count(),
    "handler": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
    "drawn": random.random(),
    "dagster": "dagster" in sys.modules,
}), flush=True)
"""
_WAITS = f"{_TELLS}\nsignal.pause()\n"
_LEAVES = f"{_TELLS}\nsignal.signal(signal.SIGUSR1, lambda *_: sys.exit('no disk'))\nsignal.pause()\n"


class Parent:
    """The process with two parts, which run these programs; each has a file open that the other has not."""

    def __init__(self, folder: Path, first: str, second: str) -> None:
        self.files = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]
        self.parts = [
            self._part(folder, name, code, keeps)
            for name, code, keeps in (("first", first, self.files[:2]), ("second", second, self.files[1:]))
        ]
        self.service = parent_of(self.parts, folder / "parent.log")
        environment = dict(self.service.environment)
        with self.service.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.service.command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=self.service.keeps_open,
                start_new_session=True,
            )

    def _part(self, folder: Path, name: str, code: str, keeps: Sequence[int]) -> Service:
        (folder / f"part_{name}.py").write_text(code, encoding="utf-8")
        environment = os.environ | {"PYTHONPATH": str(folder), "OF_A_TEST": "a word of this test"}
        command = [sys.executable, "-m", f"part_{name}", "--word", *map(str, self.files)]
        return Service(f"the {name} part", command, environment, folder / f"{name}.log", lambda: True, keeps)

    def children(self) -> list[int]:
        """The parts' processes."""
        told = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return sorted(map(int, told.read_text(encoding="ascii").split()))

    def said(self) -> list[dict[str, object]]:
        """What the parts have told, once all of them have."""
        await_true(lambda: all(part.log.exists() and part.log.stat().st_size for part in self.parts), 60, "the parts")
        return [json.loads(part.log.read_text(encoding="utf-8").splitlines()[0]) for part in self.parts]

    def stop(self) -> None:
        """End what is left of all of them."""
        for descriptor in self.files:
            os.close(descriptor)
        if self.process.poll() is None or self.left():
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)

    def left(self) -> bool:
        """Whether anything of the common group runs."""
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return False
        return True


def test_a_part_is_as_if_it_had_been_started_by_itself(tmp_path: Path) -> None:
    """Its module, arguments, name, environment, log and files; what it imports is there. Asked to end, all end."""
    parent = Parent(tmp_path, _WAITS, _WAITS)
    try:
        said = parent.said()
        for place, (part, told) in enumerate(zip(parent.parts, said, strict=True)):
            assert told.pop("drawn") != said[1 - place].get("drawn")
            assert told == {
                "arguments": ["--word", *map(str, parent.files)],
                "main": ["__main__", f"part_{('first', 'second')[place]}", f"part_{('first', 'second')[place]}"],
                "called": " ".join(part.command),
                "environment": True,
                "open": list(part.keeps_open),
                "input": os.devnull,
                "threads": 1,
                "handler": True,
                "dagster": True,
            }
        held = [Path(f"/proc/{parent.process.pid}/fd/{each}").exists() for each in parent.files]
        assert held == [False, True, False]
        parent.process.terminate()
        assert parent.process.wait(60) == 0
        assert not parent.left()
    finally:
        parent.stop()
    assert parent.service.log.read_text(encoding="utf-8") == ""


def test_the_first_that_ends_is_told_of(tmp_path: Path) -> None:
    """As a supervisor tells of what it has started itself; what is left is in the parent's group."""
    parent = Parent(tmp_path, _WAITS, _LEAVES)
    try:
        parent.said()
        first, second = parent.children()
        os.kill(second, signal.SIGUSR1)
        assert parent.process.wait(60) == 1
        assert parent.left()
        assert os.getpgid(first) == parent.process.pid
    finally:
        parent.stop()
    told = parent.service.log.read_text(encoding="utf-8").strip()
    assert told == how_it_ended("the second part", 1, tmp_path / "second.log")
    assert told.endswith("and ends with: no disk")
