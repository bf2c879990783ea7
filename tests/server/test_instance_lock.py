"""Who holds a home: real processes, that end in every way, and what is left then."""

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

# Who started the tests, or a test before this one, may have left signals ignored or blocked, which a child inherits.
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
    """A home of the test's own."""
    return open_home_location(tmp_path / "home")


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch):
    """Starts a process that waits for its standard input to end; all are ended after the test."""
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


def said(process: subprocess.Popen[str]) -> str:
    """The next line that a process prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_home_has_one_up(home: HomeLocation, start: Start) -> None:
    """A second one is refused and names the first."""
    said(start(_UP, str(home.path)))
    with pytest.raises(StateError, match=r"is already running \(processes .*\); stop it"), lock_home_exclusively(home):
        pytest.fail("it was let in")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_parts_end_with_their_up(home: HomeLocation, start: Start, number: signal.Signals) -> None:
    """At once, however it ends; the next one waits for them and sweeps."""
    up = start(_UP, str(home.path))
    alive = said(up)
    parts = [start(_PART, **{instance_lock.UP_VARIABLE: alive}) for _ in range(3)]
    assert [said(part) for part in parts] == ["bound"] * 3
    up.send_signal(number)
    assert [part.wait(30) for part in parts] == [-signal.SIGKILL] * 3
    assert (home.path / "up" / "left").exists()
    with lock_home_exclusively(home) as held:
        assert not (held.folder / "left").exists()
        assert not Path(alive).exists()
    assert [path.name for path in (home.path / "up").iterdir()] == ["parts.lock"]


def test_an_up_that_ends_is_waited_for(home: HomeLocation, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the system lets go of last of all that it held may be `up.lock`; who goes on to hold that alone is told."""
    (home.path / "up").mkdir(parents=True)
    ends = start(_HOLDS_THE_LOCK_ALONE, str(home.path / "up.lock"))
    assert said(ends) == "held"
    threading.Timer(0.3, ends.kill).start()
    with lock_home_exclusively(home):
        pass
    ends = start(_HOLDS_THE_LOCK_ALONE, str(home.path / "up.lock"))
    assert said(ends) == "held"
    by_hand = start(_BY_HAND, **{HOME_VARIABLE: str(home.path)})
    threading.Timer(1.5, ends.kill).start()
    assert said(by_hand) == "works"
    by_hand.kill()
    by_hand.wait()
    monkeypatch.setattr(instance_lock, "LOCK_WAIT_SECONDS", 0.3)
    assert said(start(_HOLDS_THE_LOCK_ALONE, str(home.path / "up.lock"))) == "held"
    with pytest.raises(StateError, match="is already running"), lock_home_exclusively(home):
        pytest.fail("it was let in")


def test_a_part_that_comes_too_late_ends(home: HomeLocation, start: Start) -> None:
    """One that was about to start when its `up` was killed does no work, whether another `up` is there or not."""
    up = start(_UP, str(home.path))
    alive = said(up)
    up.kill()
    up.wait()
    late = start(_PART, **{instance_lock.UP_VARIABLE: alive})
    assert late.wait(60) == 1
    said(start(_UP, str(home.path)))
    late = start(_PART, **{instance_lock.UP_VARIABLE: alive})
    assert late.wait(60) == 1
    assert late.stderr is not None
    assert late.stderr.read() == "error: the cdc-platform up that this process was started for has ended\n"


def test_the_next_one_waits_for_what_still_works(
    home: HomeLocation, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home is free when the last part has ended, not when its `up` has; that is not waited for without end."""
    monkeypatch.setattr(instance_lock, "PARTS_WAIT_SECONDS", 0.3)
    with lock_home_exclusively(home) as held:
        stays = subprocess.Popen(["sleep", "60"], pass_fds=[held.parts.fileno()])
    try:
        with pytest.raises(StateError, match="do not end; see which ones have"), lock_home_exclusively(home):
            pytest.fail("it was let in")
    finally:
        stays.kill()
        stays.wait()
    with lock_home_exclusively(home):
        pass


def test_a_dagster_beside_up_is_refused(home: HomeLocation, start: Start) -> None:
    """The code server of `dagster dev` does not load beside an `up`, with one line that says why."""
    up = start(_UP, str(home.path))
    said(up)
    by_hand = start(_BY_HAND, **{HOME_VARIABLE: str(home.path)})
    assert said(by_hand).startswith(f"refused: home {home.path} is already running (processes")
    up.kill()
    up.wait()
    assert said(start(_BY_HAND, **{HOME_VARIABLE: str(home.path)})) == "works"


def test_up_beside_a_dagster_is_refused(home: HomeLocation, start: Start) -> None:
    """And names its process; two code servers of Dagsters that were started by hand may be of one."""
    first = start(_BY_HAND, **{HOME_VARIABLE: str(home.path)})
    second = start(_BY_HAND, **{HOME_VARIABLE: str(home.path)})
    assert (said(first), said(second)) == ("works", "works")
    named = rf"another Dagster works .*\(processes {first.pid} {second.pid}\)"
    with pytest.raises(StateError, match=named), lock_home_exclusively(home):
        pytest.fail("it was let in")
    for process in (first, second):
        process.kill()
        process.wait()
    with lock_home_exclusively(home):
        pass


def test_other_programs_are_left_alone(home: HomeLocation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands, tests and scripts that load the code location hold nothing and are not refused."""
    monkeypatch.setenv(HOME_VARIABLE, str(home.path))
    with lock_home_exclusively(home):
        bind_to_up()
        lock_home_shared(home)


def test_what_is_made_is_the_owners_alone(tmp_path: Path) -> None:
    """A new home and what an `up` keeps in it; a home that is there already is left as its owner has it."""
    home = open_home_location(tmp_path / "new")
    with lock_home_exclusively(home) as held:
        assert [path.stat().st_mode & 0o777 for path in (home.path, held.folder)] == [0o700, 0o700]
    (tmp_path / "old").mkdir(mode=0o750)
    assert open_home_location(tmp_path / "old").path.stat().st_mode & 0o777 == 0o750
