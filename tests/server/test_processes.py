"""Several processes supervised as one: none is left at the end, whichever ends first and in whatever way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cdc_platform import processes as supervising
from cdc_platform.errors import EnvironmentProblem
from cdc_platform.processes import Service, ServiceDied, supervise

# A process with a child in the same group; both print their IDs, and the child ignores TERM.
_WITH_CHILD = """
import os, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", '''
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("child", os.getpid(), flush=True)
signal.pause()
'''])
signal.pause()
"""
_ALONE = "import signal; signal.pause()"


def service(tmp_path: Path, code: str, answers: Callable[[], bool] = lambda: True) -> Service:
    """Return a Python process that runs `code`."""
    return Service("the test's process", [sys.executable, "-c", code], os.environ, tmp_path / "log", answers)


def read_pid(log: Path) -> int | None:
    """Return the ID that a process has written into the log."""
    words = log.read_text(encoding="utf-8").split() if log.exists() else []
    return int(words[1]) if len(words) == 2 else None


def is_running(pid: int) -> bool:
    """Return True if the process exists and is no zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    """It ends processes and children, even if they ignore TERM, and the handlers are restored."""
    monkeypatch.setattr(supervising, "GRACE_SECONDS", 0.5)
    before = signal.getsignal(number)
    log = tmp_path / "log"
    with supervise() as supervisor:
        supervisor.start(service(tmp_path, _WITH_CHILD, lambda: read_pid(log) is not None))
        supervisor.await_answers(60)
        child = read_pid(log)
        assert child is not None
        assert is_running(child)
        os.kill(os.getpid(), number)
        supervisor.await_end()
    assert not is_running(child)
    assert signal.getsignal(number) is before


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import sys; sys.exit(3)", "ended with exit code 3; its log is {log}"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "was killed by SIGKILL; its log is {log}"),
        ("print('first')\nexit('no disk')", "ended with exit code 1; its log is {log} and ends with: no disk"),
        ("exit('x' * 10000 + '\\n\\n')", "ended with exit code 1; its log is {log} and ends with: " + "x" * 500),
    ],
)
def test_dead_process_is_named(tmp_path: Path, code: str, told: str) -> None:
    """If one process dies the others end; the error has its name, its log and its last line."""
    pids = []

    def start_two() -> None:
        with supervise() as supervisor:
            supervisor.start(service(tmp_path / "other", _ALONE))
            supervisor.start(service(tmp_path, code))
            pids.extend(supervisor.pids)
            supervisor.await_end()

    with pytest.raises(ServiceDied) as died:
        start_two()
    assert str(died.value) == f"the test's process {told.format(log=tmp_path / 'log')}"
    assert [pid for pid in pids if is_running(pid)] == []


def test_unresponsive_process_is_named(tmp_path: Path) -> None:
    """A running process that does not answer in time is a failure, and ends."""
    pids = []

    def start_one() -> None:
        with supervise() as supervisor:
            supervisor.start(service(tmp_path, _ALONE, lambda: False))
            pids.extend(supervisor.pids)
            supervisor.await_answers(0.1)

    with pytest.raises(ServiceDied, match="does not answer after"):
        start_one()
    assert [pid for pid in pids if is_running(pid)] == []


class Slow:
    """A server whose start waits for an event that never comes."""

    def __init__(self) -> None:
        self.pid: int | None = None
        self.stopped = False

    def start(self) -> None:
        """Request the end, like an impatient user, and continue to wait."""
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(60)

    def stop(self) -> None:
        """Record the request to end."""
        self.stopped = True


def test_slow_start_can_be_interrupted(tmp_path: Path) -> None:
    """Ctrl-C during the wait for a server ends the wait and all processes, without an error."""
    server = Slow()
    with supervise() as supervisor:
        supervisor.start(service(tmp_path, _ALONE))
        pid = supervisor.pids[0]
        supervisor.adopt("the slow server", tmp_path / "slow.log", server, server.start)
        pytest.fail("the wait was not broken off")
    assert server.stopped
    assert not is_running(pid)


def test_ended_adopted_server_is_named(tmp_path: Path) -> None:
    """A server that starts and waits by itself is watched like the others."""
    server = Slow()

    def adopt() -> None:
        with supervise() as supervisor:
            supervisor.adopt("the slow server", tmp_path / "slow.log", server, lambda: None)
            supervisor.await_end()

    with pytest.raises(ServiceDied, match="the slow server has ended; its log is"):
        adopt()
    assert server.stopped


class Mortal:
    """A server with a real process that dies a given number of times."""

    def __init__(self, deaths: int) -> None:
        self.deaths = deaths
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Return the process's ID, or None once it has ended."""
        running = self._process is not None and self._process.poll() is None
        return self._process.pid if running and self._process is not None else None

    def start(self) -> None:
        """Start the process; after the last death, request the end of the test."""
        self.starts += 1
        self._process = subprocess.Popen([sys.executable, "-c", _ALONE])
        if self.starts <= self.deaths:
            self._process.kill()
            self._process.wait()
        else:
            os.kill(os.getpid(), signal.SIGTERM)

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def test_dead_server_is_restarted(tmp_path: Path) -> None:
    """On request it is restarted: the others continue, and each restart is a message."""
    server, messages = Mortal(2), []
    with supervise() as supervisor:
        supervisor.start(service(tmp_path, _ALONE))
        supervisor.adopt("the server", tmp_path / "its.log", server, server.start, on_message=messages.append)
        supervisor.await_end()
    assert server.starts == 3
    assert messages == [f"the server has ended and is restarted; its log is {tmp_path / 'its.log'}"] * 2
    assert server.pid is None


def test_server_that_dies_during_a_restart_is_restarted(tmp_path: Path) -> None:
    """A death before it answers counts as one more death, and the other processes continue."""
    server, messages = Mortal(1), []

    def start() -> None:
        if server.starts == 1:
            server.starts += 1
            raise EnvironmentProblem("the server did not start")
        server.start()

    with supervise() as supervisor:
        supervisor.start(service(tmp_path, _ALONE))
        supervisor.adopt("the server", tmp_path / "its.log", server, start, on_message=messages.append)
        supervisor.await_end()
    assert server.starts == 3
    restart_message = f"the server has ended and is restarted; its log is {tmp_path / 'its.log'}"
    assert messages == [restart_message, "the server did not start", restart_message]


def test_repeatedly_dying_server_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the maximum of restarts the failure names the log."""
    monkeypatch.setattr(supervising, "MAX_RESTARTS", 2)
    server = Mortal(100)

    def adopt() -> None:
        with supervise() as supervisor:
            supervisor.adopt("the server", tmp_path / "its.log", server, server.start, on_message=lambda _: None)
            supervisor.await_end()

    with pytest.raises(ServiceDied, match="the server ends again and again; its log is"):
        adopt()
    assert server.starts == 3


class Lasting(Mortal):
    """A server that runs until it is ended; its second start requests the end of the test."""

    def start(self) -> None:
        """Start the process."""
        self.starts += 1
        self._process = subprocess.Popen([sys.executable, "-c", _ALONE])
        if self.starts == 2:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.long("a process that is ended and started again")
def test_unneeded_server_sleeps(tmp_path: Path) -> None:
    """It is stopped while it is not needed and started once when it is; this is no death."""
    server, messages, running = Lasting(0), [], []
    answers = iter([True, False, False, False, True])

    def needed() -> bool:
        running.append(server.pid is not None)
        return next(answers)

    with supervise() as supervisor:
        supervisor.start(service(tmp_path, _ALONE))
        supervisor.adopt(
            "the server", tmp_path / "log", server, server.start, on_message=messages.append, needed=needed
        )
        supervisor.await_end()
    assert running == [True, True, False, False, False]
    assert messages == ["the server sleeps until it is needed", "the server is needed again and starts"]
    assert server.pid is None
