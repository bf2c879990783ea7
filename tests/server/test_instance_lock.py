"""The lock of a home with real processes that end in every way, and the remaining state."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cdc_platform import instance_lock
from cdc_platform.errors import StateError
from cdc_platform.home_location import HOME_VARIABLE, HomeLocation, open_home_location
from cdc_platform.instance_lock import bind_to_up, lock_home_exclusively, lock_home_shared

# The parent of the tests, or an earlier test, may have ignored or blocked signals, which a child inherits.
_UP = """
import signal
import sys
signal.signal(signal.SIGTERM, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
from cdc_platform.home_location import open_home_location
from cdc_platform.instance_lock import lock_home_exclusively
with lock_home_exclusively(open_home_location(sys.argv[1])) as held:
    (held.folder / "left").mkdir()
    print(held.alive, flush=True)
    sys.stdin.read()
"""
_PART = """
import signal
from cdc_platform.instance_lock import bind_to_up
bind_to_up()
print("bound", flush=True)
signal.pause()
"""
# As the code server of `dagster dev` is started, and as it loads the code location.
_BY_HAND = """
import sys
sys.argv = ["/somewhere/dagster/__main__.py", "api", "grpc", "--port", "1"]
from cdc_platform.errors import StateError
from cdc_platform.instance_lock import bind_to_up
try:
    bind_to_up()
except StateError as refusal:
    print(f"refused: {refusal}", flush=True)
else:
    print("works", flush=True)
    sys.stdin.read()
"""
_HOLDS_THE_LOCK_ALONE = """
import fcntl
import sys
lock = open(sys.argv[1], "a+")
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def home(tmp_path: Path) -> HomeLocation:
    """An empty home."""
    return open_home_location(tmp_path / "home")


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch):
    """Start a process that waits for its standard input to end; all processes end after the test."""
    monkeypatch.delenv(instance_lock.UP_VARIABLE, raising=False)
    running = []

    def begin(code: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def read_line(process: subprocess.Popen[str]) -> str:
    """Return the next line that a process prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_home_has_one_up(home: HomeLocation, start: Start) -> None:
    """A second `up` is refused with the process IDs of the first."""
    read_line(start(_UP, str(home.path)))
    with pytest.raises(StateError, match=r"is already running \(processes .*\); stop it"), lock_home_exclusively(home):
        pytest.fail("it was let in")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_parts_end_with_their_up(home: HomeLocation, start: Start, number: signal.Signals) -> None:
    """They end at once, however it ends; the next `up` waits for them and cleans up."""
    up = start(_UP, str(home.path))
    alive = read_line(up)
    parts = [start(_PART, **{instance_lock.UP_VARIABLE: alive}) for _ in range(3)]
    assert [read_line(part) for part in parts] == ["bound"] * 3
    up.send_signal(number)
    assert [part.wait(30) for part in parts] == [-signal.SIGKILL] * 3
    assert (home.path / "up" / "left").exists()
    with lock_home_exclusively(home) as lock:
        assert not (lock.folder / "left").exists()
        assert not Path(alive).exists()
    assert [path.name for path in (home.path / "up").iterdir()] == ["parts.lock"]


def test_ending_up_is_awaited(home: HomeLocation, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may release `up.lock` last; a process that continues to hold only this lock causes a refusal."""
    (home.path / "up").mkdir(parents=True)
    holder = start(_HOLDS_THE_LOCK_ALONE, str(home.path / "up.lock"))
    assert read_line(holder) == "held"
    threading.Timer(0.3, holder.kill).start()
    with lock_home_exclusively(home):
        pass
    holder = start(_HOLDS_THE_LOCK_ALONE, str(home.path / "up.lock"))
    assert read_line(holder) == "held"
    by_hand = start(_BY_HAND, **{HOME_VARIABLE: str(home.path)})
    threading.Timer(1.5, holder.kill).start()
    assert read_line(by_hand) == "works"
    by_hand.kill()
    by_hand.wait()
    monkeypatch.setattr(instance_lock, "LOCK_WAIT_SECONDS", 0.3)
    assert read_line(start(_HOLDS_THE_LOCK_ALONE, str(home.path / "up.lock"))) == "held"
    with pytest.raises(StateError, match="is already running"), lock_home_exclusively(home):
        pytest.fail("it was let in")


def test_late_part_ends(home: HomeLocation, start: Start) -> None:
    """A part whose `up` was killed before its start does no work, even if another `up` runs."""
    up = start(_UP, str(home.path))
    alive = read_line(up)
    up.kill()
    up.wait()
    late = start(_PART, **{instance_lock.UP_VARIABLE: alive})
    assert late.wait(60) == 1
    read_line(start(_UP, str(home.path)))
    late = start(_PART, **{instance_lock.UP_VARIABLE: alive})
    assert late.wait(60) == 1
    assert late.stderr is not None
    assert late.stderr.read() == "error: the cdc-platform up that this process was started for has ended\n"


def test_next_up_waits_for_running_parts(home: HomeLocation, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home is free once the last part has ended, not just its `up`; the wait has a limit."""
    monkeypatch.setattr(instance_lock, "PARTS_WAIT_SECONDS", 0.3)
    with lock_home_exclusively(home) as lock:
        part = subprocess.Popen(["sleep", "60"], pass_fds=[lock.parts.fileno()])
    try:
        with pytest.raises(StateError, match="do not end; see which ones have"), lock_home_exclusively(home):
            pytest.fail("it was let in")
    finally:
        part.kill()
        part.wait()
    with lock_home_exclusively(home):
        pass


def test_dagster_with_a_running_up_is_refused(home: HomeLocation, start: Start) -> None:
    """The code server of `dagster dev` fails to load while an `up` runs, with one line."""
    up = start(_UP, str(home.path))
    read_line(up)
    by_hand = start(_BY_HAND, **{HOME_VARIABLE: str(home.path)})
    assert read_line(by_hand).startswith(f"refused: home {home.path} is already running (processes")
    up.kill()
    up.wait()
    assert read_line(start(_BY_HAND, **{HOME_VARIABLE: str(home.path)})) == "works"


def test_up_with_a_running_dagster_is_refused(home: HomeLocation, start: Start) -> None:
    """The refusal names its processes; two code servers may belong to Dagsters started by hand."""
    first = start(_BY_HAND, **{HOME_VARIABLE: str(home.path)})
    second = start(_BY_HAND, **{HOME_VARIABLE: str(home.path)})
    assert (read_line(first), read_line(second)) == ("works", "works")
    message = rf"another Dagster works .*\(processes {first.pid} {second.pid}\)"
    with pytest.raises(StateError, match=message), lock_home_exclusively(home):
        pytest.fail("it was let in")
    for process in (first, second):
        process.kill()
        process.wait()
    with lock_home_exclusively(home):
        pass


def test_other_programs_need_no_lock(home: HomeLocation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands, tests and scripts that load the code location hold no lock and are not refused."""
    monkeypatch.setenv(HOME_VARIABLE, str(home.path))
    with lock_home_exclusively(home):
        bind_to_up()
        lock_home_shared(home)


def test_new_home_is_private(tmp_path: Path) -> None:
    """A new home and the files of `up` are private; an existing home keeps its mode."""
    home = open_home_location(tmp_path / "new")
    with lock_home_exclusively(home) as lock:
        assert [path.stat().st_mode & 0o777 for path in (home.path, lock.folder)] == [0o700, 0o700]
    (tmp_path / "old").mkdir(mode=0o750)
    assert open_home_location(tmp_path / "old").path.stat().st_mode & 0o777 == 0o750
