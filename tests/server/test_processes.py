"""Several processes as one: on the way out nothing is left, whoever ended first and however."""

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

# A process with a child that has a group in common with it; both say who they are, and the child ignores TERM.
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
    """A Python process that runs `code`."""
    return Service("the test's process", [sys.executable, "-c", code], os.environ, tmp_path / "log", answers)


def said(log: Path) -> int | None:
    """The process that has written its ID into the log."""
    words = log.read_text(encoding="utf-8").split() if log.exists() else []
    return int(words[1]) if len(words) == 2 else None


def runs(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    """A signal ends the processes and their children, those too that ignore TERM; the handlers are put back."""
    monkeypatch.setattr(supervising, "GRACE_SECONDS", 0.5)
    before = signal.getsignal(number)
    log = tmp_path / "log"
    with supervise() as supervisor:
        supervisor.start(service(tmp_path, _WITH_CHILD, lambda: said(log) is not None))
        supervisor.await_answers(60)
        child = said(log)
        assert child is not None
        assert runs(child)
        os.kill(os.getpid(), number)
        supervisor.await_end()
    assert not runs(child)
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
def test_one_that_dies_is_named(tmp_path: Path, code: str, told: str) -> None:
    """When one process dies the others end; the error says which it was, where its log is and its last line."""
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
    assert [pid for pid in pids if runs(pid)] == []


def test_one_that_never_answers_is_named(tmp_path: Path) -> None:
    """A process that runs but does not answer in time is a failure, and ends."""
    pids = []

    def start_one() -> None:
        with supervise() as supervisor:
            supervisor.start(service(tmp_path, _ALONE, lambda: False))
            pids.extend(supervisor.pids)
            supervisor.await_answers(0.1)

    with pytest.raises(ServiceDied, match="does not answer after"):
        start_one()
    assert [pid for pid in pids if runs(pid)] == []


class Slow:
    """A server whose start waits for something that does not come."""

    def __init__(self) -> None:
        self.pid: int | None = None
        self.stopped = False

    def start(self) -> None:
        """Ask for the end, as a person does who is tired of waiting, and wait on."""
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(60)

    def stop(self) -> None:
        """Note that it was asked to end."""
        self.stopped = True


def test_a_slow_start_can_be_broken_off(tmp_path: Path) -> None:
    """Ctrl-C while a server is waited for ends the wait and everything else, without an error."""
    server = Slow()
    with supervise() as supervisor:
        supervisor.start(service(tmp_path, _ALONE))
        pid = supervisor.pids[0]
        supervisor.adopt("the slow server", tmp_path / "slow.log", server, server.start)
        pytest.fail("the wait was not broken off")
    assert server.stopped
    assert not runs(pid)


def test_an_adopted_server_that_ends_is_named(tmp_path: Path) -> None:
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
    """A server that is a real process, and that ends by itself as often as it is told to."""

    def __init__(self, deaths: int) -> None:
        self.deaths = deaths
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """None once it has ended."""
        running = self._process is not None and self._process.poll() is None
        return self._process.pid if running and self._process is not None else None

    def start(self) -> None:
        """Start it; the one that is not to die asks for the end of the test."""
        self.starts += 1
        self._process = subprocess.Popen([sys.executable, "-c", _ALONE])
        if self.starts <= self.deaths:
            self._process.kill()
            self._process.wait()
        else:
            os.kill(os.getpid(), signal.SIGTERM)

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def test_a_server_that_dies_is_started_again(tmp_path: Path) -> None:
    """Where that is asked for: the others go on, and each time is told."""
    server, told = Mortal(2), []
    with supervise() as supervisor:
        supervisor.start(service(tmp_path, _ALONE))
        supervisor.adopt("the server", tmp_path / "its.log", server, server.start, on_message=told.append)
        supervisor.await_end()
    assert server.starts == 3
    assert told == [f"the server has ended and is restarted; its log is {tmp_path / 'its.log'}"] * 2
    assert server.pid is None


def test_a_server_that_dies_while_it_starts_again_is_started_again(tmp_path: Path) -> None:
    """Killed before it answers, it has ended once more: no reason to end what goes on without it."""
    server, told = Mortal(1), []

    def start() -> None:
        if server.starts == 1:
            server.starts += 1
            raise EnvironmentProblem("the server did not start")
        server.start()

    with supervise() as supervisor:
        supervisor.start(service(tmp_path, _ALONE))
        supervisor.adopt("the server", tmp_path / "its.log", server, start, on_message=told.append)
        supervisor.await_end()
    assert server.starts == 3
    again = f"the server has ended and is restarted; its log is {tmp_path / 'its.log'}"
    assert told == [again, "the server did not start", again]


def test_a_server_that_dies_again_and_again_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another start does not mend is a failure, and names the log."""
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
    """A server that goes on until it is ended; the second start asks for the end of the test."""

    def start(self) -> None:
        """Start it."""
        self.starts += 1
        self._process = subprocess.Popen([sys.executable, "-c", _ALONE])
        if self.starts == 2:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.long("a process that is ended and started again")
def test_a_server_that_is_not_needed_sleeps(tmp_path: Path) -> None:
    """It is ended, stays so while nobody needs it, and is started once when somebody does; that is no death."""
    server, told, seen = Lasting(0), [], []
    answers = iter([True, False, False, False, True])

    def needed() -> bool:
        seen.append(server.pid is not None)
        return next(answers)

    with supervise() as supervisor:
        supervisor.start(service(tmp_path, _ALONE))
        supervisor.adopt("the server", tmp_path / "log", server, server.start, on_message=told.append, needed=needed)
        supervisor.await_end()
    assert seen == [True, True, False, False, False]
    assert told == ["the server sleeps until it is needed", "the server is needed again and starts"]
    assert server.pid is None
