"""The parent of Dagster's parts, as `python -m cdc_platform.serving.parent PARTS`, by whom `up` starts all of them.

Each is a fork of this process, which has imported what all of them import: by itself each would take two seconds and a
hundred megabytes more. It has one thread, which is when a fork is safe, and that on Linux alone. Of the first part that
ends it says how, in the words of who supervises it, and ends: what is left of the group that all of them are in is that
one's to end. Asked to end it hands that on and waits.
"""

from __future__ import annotations

import json
import os
import runpy
import shlex
import signal
import sys
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from cdc_platform.interpreter import importing
from cdc_platform.supervisor import Service, how_it_ended

FORKS = sys.platform == "linux"
PRELOADED = "cdc_platform.serving.preloaded"
_MODULE = "cdc_platform.serving.parent"
_KEEPS_ENVIRONMENT = "SPT_NOENV"
"""Has `setproctitle` write over the command line alone: what a process was started with can still be looked at."""


def parent_of(parts: Sequence[Service], log: Path) -> Service:
    """All of these as one service: each runs a module of Python, in an environment that they have in common."""
    said = json.dumps([asdict(_Part.of(part)) for part in parts])
    keeps = sorted({descriptor for part in parts for descriptor in part.keeps_open})
    command = [sys.executable, "-m", _MODULE, said]
    return Service("the parent of Dagster's parts", command, parts[0].environment, log, lambda: True, keeps, parts)


def preload() -> bool:
    """Import what parts and runs have in common; whether it could be. Code that does not load Dagster meets again."""
    try:
        with importing():
            __import__(PRELOADED)
    except Exception:  # noqa: BLE001 whatever it is, Dagster tells
        return False
    return True


@dataclass(frozen=True)
class _Part:
    """A part as its parent is told of it: the module that it runs, and with which arguments."""

    name: str
    module: str
    arguments: list[str]
    log: str
    keeps_open: list[int]

    @classmethod
    def of(cls, service: Service) -> _Part:
        _, flag, module, *arguments = service.command
        assert flag == "-m", "a part is a module"
        return cls(service.name, module, arguments, str(service.log), list(service.keeps_open))

    def be(self, inherited: Collection[int]) -> None:
        """Go on as this part, as if it had been started by itself."""
        for descriptor in inherited:
            if descriptor not in self.keeps_open:
                os.close(descriptor)
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        for standard in (1, 2):
            os.dup2(log, standard)
        os.close(log)
        _be_called(self.module, *self.arguments)
        sys.argv = [self.module, *self.arguments]
        runpy.run_module(self.module, run_name="__main__", alter_sys=True)


def main() -> None:
    """Fork the parts and wait for them; and in each of them, be it."""
    parts = [_Part(**said) for said in json.loads(sys.argv[1])]
    _be_called(_MODULE)
    preload()
    inherited = {descriptor for part in parts for descriptor in part.keeps_open}
    running: dict[int, _Part] = {}
    for part in parts:
        pid = os.fork()
        if pid == 0:
            part.be(inherited)
            return
        running[pid] = part
    for descriptor in inherited:
        if any(descriptor not in part.keeps_open for part in parts):
            os.close(descriptor)
    _watch(running)


def _watch(running: dict[int, _Part]) -> NoReturn:
    ending = False

    def end(_number: int, _frame: FrameType | None) -> None:
        nonlocal ending
        ending = True
        for pid in running:
            os.kill(pid, signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)
    while running:
        pid, status = os.wait()
        part = running.pop(pid)
        if not ending:
            print(how_it_ended(part.name, os.waitstatus_to_exitcode(status), Path(part.log)), flush=True)
            os._exit(1)
    os._exit(0)


def _be_called(*words: str) -> None:
    """Be seen in lists of processes as who was started by these words."""
    os.environ[_KEEPS_ENVIRONMENT] = "1"
    from setproctitle import setproctitle

    setproctitle(shlex.join([sys.executable, "-m", *words]))
    del os.environ[_KEEPS_ENVIRONMENT]


if __name__ == "__main__":
    main()
