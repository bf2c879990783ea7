"""A program of the user's that is told of changes in a cluster: a JSON line each, one after the other, in bounded time.

What it prints, how it ends and that it hangs is no failure of who watches: it is one line.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from cdc_platform.clock import Milliseconds, seconds_of_ms
from cdc_platform.cluster import known
from cdc_platform.errors import InputError
from cdc_platform.home import Home
from cdc_platform.supervisor import die_with_parent

MOST_WAITING = 1000
"""Changes that wait while the program runs; those beyond are not told."""


@dataclass(frozen=True)
class Failure:
    """What went wrong with one run of the program; `hung`: it was ended because its time was over."""

    line: str
    hung: bool = False


@dataclass(frozen=True)
class Hook:
    """A program by its path, how long (s) it may take for one change, and the environment that it gets.

    The environment is this process's without the variables that hold users and passwords of clusters.
    """

    program: str
    seconds: float
    environment: Mapping[str, str]

    @classmethod
    def of(cls, home: Home, program: str, within_ms: Milliseconds) -> Hook:
        """The program of this path, or of this name on the PATH.

        Raises:
            InputError: there is none, or it cannot be executed.
        """
        found = shutil.which(program) if program.isprintable() else None
        if found is None:
            there = os.path.lexists(program)
            mend = "it is no file that can be executed; run chmod +x on it" if there else "there is no such program"
            raise InputError(f"hook {program!r}: {mend}, or name another")
        secret = {
            name
            for each in known.clusters(home)
            for name in (each.connection.user_env, each.connection.password_env)
            if name is not None
        }
        environment = {name: value for name, value in os.environ.items() if name not in secret}
        return cls(str(Path(found).absolute()), seconds_of_ms(within_ms), environment)

    def tell(self, change: Mapping[str, str]) -> Failure | None:
        """Run the program with a change on its standard input; what went wrong, None where it ended well."""
        of = f"hook {self.program}, of {change['who']}"
        try:
            running = subprocess.Popen(
                [self.program],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=dict(self.environment),
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )
        except OSError as error:
            return Failure(f"{of}: it cannot be run: {error.strerror}")
        with running:
            try:
                running.communicate(f"{json.dumps(change)}\n".encode(), timeout=self.seconds)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(running.pid, signal.SIGKILL)
                return Failure(f"{of}: it did not end within {self.seconds:g} s and was ended", hung=True)
        if running.returncode < 0:
            return Failure(f"{of}: it was ended by signal {-running.returncode}")
        return Failure(f"{of}: it ended with exit code {running.returncode}") if running.returncode else None


class Alerts:
    """Tells a hook of changes in their order, beside whoever finds them; `warn` is given a line for what went wrong.

    As a context it waits at its end for what is left, until one run hangs; after an error for the one that runs alone.
    """

    def __init__(self, hook: Hook, warn: Callable[[str], None]) -> None:
        self._hook, self._warn = hook, warn
        self._waiting: queue.Queue[Mapping[str, str] | None] = queue.Queue(MOST_WAITING)
        self._ending, self._given_up = threading.Event(), threading.Event()
        self._untold = 0
        self._thread = threading.Thread(target=self._run, daemon=True, name="hook")

    def tell(self, several: Sequence[Mapping[str, str]]) -> None:
        """Put changes behind those that wait; what finds no room is not told, and that is said."""
        for number, change in enumerate(several):
            try:
                self._waiting.put_nowait(change)
            except queue.Full:
                self._warn(f"hook {self._hook.program}: {len(several) - number} changes are not told, too many wait")
                return

    def __enter__(self) -> Alerts:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        if kind is not None:
            self._given_up.set()
        self._waiting.put(None)
        self._thread.join()
        if self._untold:
            self._warn(f"hook {self._hook.program}: {self._untold} changes were not told any more")

    def _run(self) -> None:
        for change in iter(self._waiting.get, None):
            if self._given_up.is_set():
                self._untold += 1
                continue
            failure = self._hook.tell(change)
            if failure is not None:
                self._warn(failure.line)
                # Nobody is kept waiting at the end for a program that hangs.
                if failure.hung and self._ending.is_set():
                    self._given_up.set()
