"""Locks that let one `up` run per home, and that end its processes with it.

The operating system releases them when a process dies. `up.lock` belongs to the one `up`, `up/parts.lock` to every
process that works in the home, and `up/alive-...` to `up` alone, so each of its processes sees it end.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TextIO

from cdc_platform.errors import StateError
from cdc_platform.home import Home, home_exists, make_private_folder, open_home

UP_VARIABLE = "CDC_PLATFORM_UP"
"""In the environment of the parts of an `up`: the file that it holds as long as it lives."""
PARTS_WAIT_SECONDS = 60.0
"""How long an `up` waits for what an earlier one has left behind, which is about to end."""
LOCK_WAIT_SECONDS = 5.0
"""How long `up.lock` may be held by a process of which nothing else is seen: it starts, ends or has just looked."""
_PARTS_LOCK = "parts.lock"
_ALIVE_PREFIX = "alive-"
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class InstanceLock:
    """A home that an `up` holds. `parts` is inherited by whatever works for it: the home is free when all have ended.

    `opened` is a file descriptor of the folder, by which it has a short name on Linux: paths of sockets have a bound.
    """

    folder: Path
    alive: Path
    opened: int
    parts: TextIO
    _lock: TextIO

    def note(self, pids: list[int]) -> None:
        """Write down who holds the home: whoever finds it held can end them."""
        self._lock.truncate(0)
        self._lock.write(" ".join(map(str, pids)))
        self._lock.flush()


@contextmanager
def lock_home_exclusively(home: Home) -> Iterator[InstanceLock]:
    """Hold a home as its one `up`. Nothing of `<home>/up` outlasts it, not even after a kill: the next one sweeps.

    Raises:
        StateError: another `up` holds it, or a Dagster that was started by hand works in it.
    """
    folder = make_private_folder(home.path / "up")
    with (home.path / "up.lock").open("a+", encoding="utf-8") as lock:
        if not _try_lock_with_wait(lock, fcntl.LOCK_EX, folder):
            raise _already_up_error(home, lock)
        with (folder / _PARTS_LOCK).open("a+", encoding="utf-8") as parts:
            _await_parts(home, parts)
            _sweep(folder)
            parts.truncate(0)
            alive = folder / f"{_ALIVE_PREFIX}{uuid.uuid4().hex}"
            with alive.open("x", encoding="utf-8") as mark:
                fcntl.flock(mark, fcntl.LOCK_EX)
                fcntl.flock(parts, fcntl.LOCK_SH)
                opened = os.open(folder, os.O_RDONLY)
                try:
                    yield InstanceLock(folder, alive, opened, parts, lock)
                finally:
                    os.close(opened)
                    lock.truncate(0)
                    _sweep(folder)


def bind_to_up() -> None:
    """Bind this process to what it works for, when it is one of Dagster's servers or runs; any other is left alone.

    A part of an `up` ends at once when that `up` has ended, however. Another's holds its home, if there is one yet.

    Raises:
        StateError: the process is no part of the `up` that holds the home.
    """
    alive = os.environ.get(UP_VARIABLE)
    if _binding_disabled_depth:
        return
    if alive:
        _bind_to_alive_file(Path(alive))
    elif _is_dagster_process() and home_exists():
        lock_home_shared(open_home())


@contextmanager
def binding_disabled() -> Iterator[None]:
    """Bind this process to nothing meanwhile: others are forked from it, each of which binds itself."""
    _binding_disabled_depth.append(True)
    try:
        yield
    finally:
        _binding_disabled_depth.pop()


def lock_home_shared(home: Home) -> None:
    """Work in a home as a Dagster that somebody has started by hand; parts of an `up` and other programs just may.

    Raises:
        StateError: an `up` holds the home: two daemons would start every join twice.
    """
    if home.path in _locks or os.environ.get(UP_VARIABLE) or not _is_dagster_process():
        return
    folder = make_private_folder(home.path / "up")
    parts = _open_parts_lock(folder)
    with (home.path / "up.lock").open("a+", encoding="utf-8") as lock:
        if parts is None or not _try_lock_with_wait(lock, fcntl.LOCK_SH, folder):
            raise _already_up_error(home, lock)
    parts.write(f"{os.getpid()}\n")
    parts.flush()
    _locks[home.path] = parts


_binding_disabled_depth: list[bool] = []
_locks: dict[Path, TextIO] = {}
"""What this process holds until it ends."""


def _bind_to_alive_file(alive: Path) -> None:
    if alive in _locks:
        return
    parts = _open_parts_lock(alive.parent)
    try:
        mark = alive.open(encoding="utf-8")
    except FileNotFoundError:
        _exit("the cdc-platform up that this process was started for has ended")
    if parts is None or _try_lock(mark, fcntl.LOCK_SH):
        _exit("the cdc-platform up that this process was started for has ended")
    _locks[alive] = parts
    threading.Thread(target=_kill_when_released, args=[mark], name="ends with cdc-platform up", daemon=True).start()


def _kill_when_released(mark: TextIO) -> None:
    """Wait until nobody holds the file any more. A kill, because nothing that runs on may write into the home."""
    fcntl.flock(mark, fcntl.LOCK_SH)
    os.kill(os.getpid(), signal.SIGKILL)


def _exit(reason: str) -> NoReturn:
    with suppress(OSError):
        print(f"error: {reason}", file=sys.stderr, flush=True)
    os._exit(1)


def _is_dagster_process() -> bool:
    """Whether this is a code server of Dagster, as `dagster dev` starts them, or one of its runs."""
    return "dagster" in Path(sys.argv[0]).parts[-2:] and bool({"grpc", "code-server"} & set(sys.argv[1:3]))


def _open_parts_lock(folder: Path) -> TextIO | None:
    """The parts' lock, held together with other parts; None while an `up` starts, which waits until nobody has it."""
    parts = (folder / _PARTS_LOCK).open("a+", encoding="utf-8")
    if _try_lock(parts, fcntl.LOCK_SH):
        return parts
    parts.close()
    return None


def _await_parts(home: Home, parts: TextIO) -> None:
    """Wait until nothing of an earlier `up` works in the home.

    Raises:
        StateError: it goes on, or a Dagster that was started by hand works there.
    """
    deadline = time.monotonic() + PARTS_WAIT_SECONDS
    while not _try_lock(parts, fcntl.LOCK_EX):
        parts.seek(0)
        by_hand = [str(pid) for pid in sorted(map(int, parts.read().split())) if _is_running(pid)]
        if by_hand:
            raise StateError(
                f"a Dagster of its own works in home {home.name} (processes {' '.join(by_hand)}), and two would start "
                "every join twice; end that one, or choose another home"
            )
        if time.monotonic() > deadline:
            raise StateError(
                f"what an earlier cdc-platform up has left in home {home.name} does not end; see which processes have "
                f"{home.path / 'up' / _PARTS_LOCK} open and end them"
            )
        time.sleep(_POLL_SECONDS)


def _already_up_error(home: Home, lock: TextIO) -> StateError:
    lock.seek(0)
    return StateError(
        f"home {home.name} is up already (processes {lock.read().strip() or 'unknown'}); end that one, "
        "or choose another home"
    )


def _try_lock_with_wait(lock: TextIO, how: int, folder: Path) -> bool:
    """Take `up.lock`, also from an `up` that is about to have ended: the system lets its locks go in no given order."""
    deadline = time.monotonic() + LOCK_WAIT_SECONDS
    while not _try_lock(lock, how):
        if _is_up_alive(folder) or time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _is_up_alive(folder: Path) -> bool:
    """Whether an `up` holds its file now."""
    for path in folder.glob(f"{_ALIVE_PREFIX}*"):
        with suppress(FileNotFoundError), path.open(encoding="utf-8") as mark:
            if not _try_lock(mark, fcntl.LOCK_SH):
                return True
    return False


def _try_lock(file: TextIO, how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it is there, and somebody else's
    return True


def _sweep(folder: Path) -> None:
    """Remove what an `up` has made for its time; the lock stays, others may be about to open it."""
    for entry in folder.iterdir():
        if entry.name == _PARTS_LOCK:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
