"""Supervise several long-lived processes as one: they start together and end with all of their children.

Each process leads its own process group.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Protocol

from cdc_platform.errors import PlatformError
from cdc_platform.json_logs import await_service_log, open_service_log, to_text_line

GRACE_SECONDS = 10.0
"""How long a process group may take to end after TERM, before KILL."""
MAX_RESTARTS = 10
RESTART_WINDOW_SECONDS = 600.0
"""A server that ends more than `MAX_RESTARTS` times in this period has a problem that a restart does not fix."""
_MAX_LOG_LINE = 500
"""The most characters of a log's last line that messages quote."""
_POLL_SECONDS = 0.5
_PROC = Path("/proc")
_PR_SET_PDEATHSIG = 1
_END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ServiceDied(PlatformError):
    """A service ended unexpectedly, or did not answer in time."""

    code = "service-died"
    exit_code = 1


class StopRequested(BaseException):
    """A signal requests the end while a service starts and waits. Not an error: only `supervise` catches it."""


class SelfStartingServer(Protocol):
    """A process that starts, waits and ends by its own methods, like the Spark Connect server."""

    @property
    def pid(self) -> int | None:
        """Return the process ID, or None if it does not run."""
        ...

    def stop(self) -> None:
        """End the process and all of its children."""
        ...


@dataclass(frozen=True)
class Service:
    """One process: its name, command, environment, log, and a check whether it answers yet.

    `answers` is called repeatedly until it returns True; an `OSError` means not yet. `keeps_open` lists file
    descriptors that the process inherits, for example for a lock that lasts as long as any of the processes.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    answers: Callable[[], bool]
    keeps_open: Sequence[int] = ()


@dataclass
class _AdoptedServer:
    name: str
    log: Path
    server: SelfStartingServer
    start: Callable[[], object]
    on_message: Callable[[str], object] | None
    needed: Callable[[], bool]
    revived_at: list[float] = field(default_factory=list)
    asleep: bool = False


class Supervisor:
    """Starts services and ends them all. Create it by `supervise`, so that no process is left behind."""

    def __init__(self) -> None:
        self._running: list[tuple[Service, subprocess.Popen[bytes]]] = []
        self._adopted: list[_AdoptedServer] = []
        self._ending = threading.Event()
        self._may_interrupt = False

    @property
    def ending(self) -> bool:
        """Return True if a signal has requested the end."""
        return self._ending.is_set()

    @property
    def pids(self) -> list[int]:
        """Return the IDs of the started processes that have not been ended. Each leads the group of its children."""
        return [process.pid for _, process in self._running]

    def start(self, service: Service) -> None:
        """Start a service. It may take a while to answer."""
        service.log.parent.mkdir(parents=True, exist_ok=True)
        with open_service_log(service.log, service.name) as log:
            process = subprocess.Popen(
                list(service.command),
                env=dict(service.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=tuple(service.keeps_open),
                preexec_fn=get_death_signal_setter(),
            )
        self._running.append((service, process))

    def adopt(
        self,
        name: str,
        log: Path,
        server: SelfStartingServer,
        start: Callable[[], object],
        *,
        on_message: Callable[[str], object] | None = None,
        needed: Callable[[], bool] = lambda: True,
    ) -> None:
        """Start a server that waits for itself, and end it with the others. A signal interrupts the wait.

        With `on_message` the supervisor restarts the server after it has ended by itself, and passes messages about it
        to `on_message`. `needed` is called twice a second; the supervisor stops a server that is not
        needed, and starts it again when it is.

        Raises:
            StopRequested: a signal requested the end meanwhile.
        """
        self._adopted.append(_AdoptedServer(name, log, server, start, on_message, needed))
        self._start_adopted(start)

    def await_answers(self, seconds: float) -> None:
        """Wait until every service answers.

        Raises:
            StopRequested: a signal requested the end meanwhile.
            ServiceDied: a service has ended, or does not answer within `seconds`.
        """
        deadline = time.monotonic() + seconds
        silent = [service for service, _ in self._running]
        while silent:
            self._raise_for_the_dead()
            silent = [service for service in silent if not _is_ready(service)]
            if silent and time.monotonic() > deadline:
                raise ServiceDied(f"{silent[0].name} does not answer after {seconds:.0f} s; its log is {silent[0].log}")
            if silent and self._ending.wait(_POLL_SECONDS):
                raise StopRequested

    def await_end(self, may_go_on: Callable[[], object] = lambda: None) -> None:
        """Wait until a signal requests the end. Call `may_go_on` twice a second and propagate what it raises.

        Raises:
            ServiceDied: a service ended by itself.
        """
        while not self._ending.wait(_POLL_SECONDS):
            may_go_on()
            self._raise_for_the_dead()
            for adopted in self._adopted:
                if adopted.needed():
                    self._keep_running(adopted)
                elif not adopted.asleep:
                    adopted.server.stop()
                    adopted.asleep = True
                    self._report(adopted, f"{adopted.name} sleeps until it is needed")

    def stop(self) -> None:
        """End every service with all of its children: TERM first, then KILL after `GRACE_SECONDS`."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for _, process in self._running:
                _signal_group(process.pid, number)
            deadline = time.monotonic() + GRACE_SECONDS
            while any(_is_alive(process) for _, process in self._running) and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS / 10)
        self._running.clear()
        for adopted in self._adopted:
            adopted.server.stop()
        self._adopted.clear()

    def end(self, _number: int = 0, _frame: FrameType | None = None) -> None:
        """Request the end, as a signal handler does."""
        self._ending.set()
        if self._may_interrupt:
            self._may_interrupt = False
            raise StopRequested

    def _raise_for_the_dead(self) -> None:
        for service, process in self._running:
            code = process.poll()
            if code is not None:
                raise ServiceDied(describe_exit(service.name, code, service.log))
        for adopted in self._adopted:
            if adopted.server.pid is None and adopted.on_message is None and not adopted.asleep:
                raise ServiceDied(f"{adopted.name} has ended; its log is {adopted.log}")

    def _keep_running(self, adopted: _AdoptedServer) -> None:
        """Wake a sleeping server, and restart one that has ended by itself; repeat a failed restart at the next check.

        Raises:
            StopRequested: a signal requested the end meanwhile.
            ServiceDied: the server keeps ending.
        """
        if adopted.asleep:
            adopted.asleep = False
            self._report(adopted, f"{adopted.name} is needed again and starts")
        elif adopted.server.pid is None:
            now = time.monotonic()
            adopted.revived_at[:] = [then for then in adopted.revived_at if now - then < RESTART_WINDOW_SECONDS]
            if len(adopted.revived_at) >= MAX_RESTARTS:
                raise ServiceDied(f"{adopted.name} ends again and again; its log is {adopted.log}")
            adopted.revived_at.append(now)
            self._report(adopted, f"{adopted.name} has ended and is restarted; its log is {adopted.log}")
        else:
            return
        try:
            self._start_adopted(adopted.start)
        except PlatformError as error:
            self._report(adopted, str(error))

    @staticmethod
    def _report(adopted: _AdoptedServer, text: str) -> None:
        if adopted.on_message is not None:
            adopted.on_message(text)

    def _start_adopted(self, start: Callable[[], object]) -> None:
        self._may_interrupt = True
        try:
            if self.ending:
                raise StopRequested
            start()
        finally:
            self._may_interrupt = False


@contextmanager
def supervise() -> Iterator[Supervisor]:
    """Yield a supervisor that Ctrl-C, TERM and a closed terminal end; all of its services end when the block exits.

    `StopRequested` ends the block quietly.
    """
    supervisor = Supervisor()
    before = {number: signal.signal(number, supervisor.end) for number in _END_SIGNALS}
    try:
        yield supervisor
    except StopRequested:
        pass
    finally:
        # The handlers stay while the services end, so that a second Ctrl-C does not leave some of them running.
        supervisor.stop()
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def defer_interrupt() -> Iterator[None]:
    """Defer Ctrl-C until the block has ended. Other threads are never interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if received and callable(before):
            before(received[0], None)


def kill_process_tree(pid: int) -> None:
    """Kill a process and, on Linux, its descendants. Stop them first, so that they cannot start more."""
    stopped: list[int] = []
    while due := [process for process in _process_tree(pid) if process not in stopped]:
        for process in due:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGSTOP)
        stopped += due
    for process in stopped:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _process_tree(pid: int) -> list[int]:
    children, tree = _children_by_parent(), [pid]
    for process in tree:
        tree += children.get(process, ())
    return tree


def _children_by_parent() -> dict[int, list[int]]:
    """Return the IDs of each process's children, by its own ID."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.glob("[0-9]*/stat"):
        with suppress(OSError, ValueError):
            parent = entry.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1]
            children.setdefault(int(parent), []).append(int(entry.parent.name))
    return children


def get_death_signal_setter() -> Callable[[], None] | None:
    """Return a function that a child calls before exec, so that the system ends the child if its parent is killed.

    Return None except on Linux, because no other system does this. The signal is TERM, so that a program can end its
    children.
    """
    if sys.platform != "linux":
        return None
    return partial(_set_death_signal, ctypes.CDLL(None, use_errno=True), os.getpid(), signal.SIGTERM)


def kill_when_parent_dies() -> None:
    """Have the system kill this process, a fork of its parent, when the parent has ended; only on Linux."""
    if sys.platform == "linux":
        _set_death_signal(ctypes.CDLL(None, use_errno=True), os.getppid(), signal.SIGKILL)


def _set_death_signal(libc: ctypes.CDLL, parent: int, number: signal.Signals) -> None:
    """Request a signal for the parent's end from the system. Exit if the parent has already ended."""
    libc.prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def describe_exit(name: str, code: int, log: Path) -> str:
    """Describe the end of a process by its exit code, which is negative for a signal, and name its log."""
    if code < 0:
        return f"{name} was killed by {signal.Signals(-code).name}; its log is {log}"
    last_line = _last_log_line(log)
    return f"{name} ended with exit code {code}; its log is {log}{last_line and f' and ends with: {last_line}'}"


def _last_log_line(log: Path) -> str:
    """Return the last non-empty line of a log, truncated to `_MAX_LOG_LINE`, or an empty string."""
    await_service_log(log)
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 8 * _MAX_LOG_LINE))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    return to_text_line(next((line.strip() for line in reversed(lines) if line.strip()), ""))[:_MAX_LOG_LINE]


def _is_ready(service: Service) -> bool:
    try:
        return service.answers()
    except OSError:
        return False


def _signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        pass
    except PermissionError:
        if sys.platform != "darwin":  # macOS raises this for a group of zombies
            raise


def _is_alive(process: subprocess.Popen[bytes]) -> bool:
    """Return True if any process of the group still runs."""
    process.poll()  # reaps the leader if it is a zombie
    try:
        os.killpg(process.pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return not (_PROC / "self" / "stat").exists() or process.pid in _running_groups()


def _running_groups() -> set[int]:
    """Return the groups of all processes except zombies: in a container no process may reap the zombies of orphans."""
    groups = set()
    for entry in _PROC.glob("[0-9]*/stat"):
        try:
            # After the name, which may contain any characters: state, parent, group.
            state, _, group = entry.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue  # it has ended meanwhile
        if state != "Z":
            groups.add(int(group))
    return groups
