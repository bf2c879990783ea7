"""Locks that let one `up` run per home, and that end its processes with it.

The operating system releases the locks when a process dies. `up.lock` belongs to the one `up`, `up/parts.lock` to every
process that works in the home, and `up/alive-...` to `up` alone, so that each of its processes detects its end.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from cdc_platform.errors import StateError
from cdc_platform.home_location import HomeLocation, home_exists, make_private_folder, open_home_location
from cdc_platform.storage import FileLock, is_file_locked

UP_VARIABLE = "CDC_PLATFORM_UP"
"""The environment variable of an `up`'s processes: the path of the file that the `up` locks as long as it lives."""
PARTS_WAIT_SECONDS = 60.0
"""How long an `up` waits for the remaining processes of an earlier one to end."""
LOCK_WAIT_SECONDS = 5.0
"""How long another process may hold `up.lock` without an `up` being alive: it starts, ends or has just checked."""
_UP_LOCK, _PARTS_LOCK = "up.lock", "parts.lock"
_ALIVE_PREFIX = "alive-"


@dataclass(frozen=True)
class InstanceLock:
    """The lock of an `up` on its home. Its processes inherit `parts`, so the home is free when all of them have ended.

    `opened` is a file descriptor of the folder. On Linux it gives the folder a short name, because socket paths are
    limited in length.
    """

    folder: Path
    alive: Path
    opened: int
    parts: FileLock
    _lock: FileLock

    def note(self, pids: list[int]) -> None:
        """Write the IDs of the processes that hold the home, so that a person who finds it locked can end them."""
        self._lock.write_holder(" ".join(map(str, pids)))


@contextmanager
def lock_home_exclusively(home: HomeLocation) -> Iterator[InstanceLock]:
    """Lock a home as its one `up`. The content of `<home>/up` is temporary: after a kill the next `up` removes it.

    Raises:
        StateError: another `up` holds the home, or a manually started Dagster works in it.
    """
    folder = make_private_folder(home.path / "up")
    with ExitStack() as locks:
        lock = _lock_up(home, folder, shared=False)
        locks.callback(lock.release)
        parts = FileLock(folder / _PARTS_LOCK)
        _await_parts(home, parts)
        locks.callback(parts.release)
        _sweep(folder)
        parts.write_holder("")
        alive = FileLock(folder / f"{_ALIVE_PREFIX}{uuid.uuid4().hex}")
        alive.acquire()
        locks.callback(alive.release)
        parts.share()
        opened = os.open(folder, os.O_RDONLY)
        try:
            yield InstanceLock(folder, alive.path, opened, parts, lock)
        finally:
            os.close(opened)
            lock.write_holder("")
            _sweep(folder)


def bind_to_up() -> None:
    """Bind a server or run of Dagster to the `up` or home that it works for; do nothing in any other process.

    A process of an `up` ends immediately when that `up` ends, for whatever reason. A process of a manually started
    Dagster takes a shared lock on its home, if the home exists.

    Raises:
        StateError: the process does not belong to the `up` that holds the home.
    """
    alive = os.environ.get(UP_VARIABLE)
    if _binding_disabled_depth:
        return
    if alive:
        _bind_to_alive_file(Path(alive))
    elif _is_dagster_process() and home_exists():
        lock_home_shared(open_home_location())


@contextmanager
def binding_disabled() -> Iterator[None]:
    """Disable `bind_to_up` inside the block, because the processes forked from this one bind themselves."""
    _binding_disabled_depth.append(True)
    try:
        yield
    finally:
        _binding_disabled_depth.pop()


def lock_home_shared(home: HomeLocation) -> None:
    """Lock a home for a manually started Dagster; do nothing in processes of an `up` and in other programs.

    Raises:
        StateError: an `up` holds the home: two daemons would start every join twice.
    """
    if home.path in _locks or os.environ.get(UP_VARIABLE) or not _is_dagster_process():
        return
    folder = make_private_folder(home.path / "up")
    parts = FileLock(folder / _PARTS_LOCK, shared=True)
    if not parts.try_acquire():  # an `up` is starting, which waits for an exclusive lock
        raise _already_up_error(home)
    try:
        _lock_up(home, folder, shared=True).release()
        parts.append_holder(f"{os.getpid()}\n")
    except BaseException:
        parts.release()
        raise
    _locks[home.path] = parts


_binding_disabled_depth: list[bool] = []
_locks: dict[Path, FileLock] = {}
"""The locks that this process holds until it ends."""


def _bind_to_alive_file(alive: Path) -> None:
    if alive in _locks:
        return
    parts = FileLock(alive.parent / _PARTS_LOCK, shared=True)
    if not parts.try_acquire() or not is_file_locked(alive, shared=True):
        _exit("the cdc-platform up that this process was started for has ended")
    _locks[alive] = parts
    threading.Thread(target=_kill_when_released, args=[alive], name="ends with cdc-platform up", daemon=True).start()


def _kill_when_released(alive: Path) -> None:
    """Wait until no process holds the file, then kill this process, because it must not write to the home any more."""
    with suppress(FileNotFoundError), alive.open(encoding="utf-8") as mark:
        fcntl.flock(mark, fcntl.LOCK_SH)
    os.kill(os.getpid(), signal.SIGKILL)


def _exit(reason: str) -> NoReturn:
    with suppress(OSError):
        print(f"error: {reason}", file=sys.stderr, flush=True)
    os._exit(1)


def _is_dagster_process() -> bool:
    """Return True if this is a code server of Dagster, as `dagster dev` starts them, or one of its runs."""
    return "dagster" in Path(sys.argv[0]).parts[-2:] and bool({"grpc", "code-server"} & set(sys.argv[1:3]))


def _await_parts(home: HomeLocation, parts: FileLock) -> None:
    """Acquire the lock of the parts when no process of an earlier `up` works in the home.

    Raises:
        StateError: one does not end in time, or a manually started Dagster works there.
    """
    if parts.acquire(PARTS_WAIT_SECONDS, give_up=lambda: bool(_manual_processes(parts))):
        return
    if manual := _manual_processes(parts):
        raise StateError(
            f"another Dagster works in home {home.name} (processes {' '.join(manual)}), and two would start every "
            "join twice; end that one, or choose another home"
        )
    raise StateError(
        f"processes of an earlier cdc-platform up in home {home.name} do not end; see which ones have "
        f"{parts.path} open and end them"
    )


def _manual_processes(parts: FileLock) -> list[str]:
    """Return the running processes of manually started Dagsters, which have written their IDs into the file."""
    pids = sorted(int(word) for word in parts.read_holder().split() if word.isdecimal())
    return [str(pid) for pid in pids if _is_running(pid)]


def _already_up_error(home: HomeLocation) -> StateError:
    holder = FileLock(home.path / _UP_LOCK).read_holder()
    return StateError(f"home {home.name} is already running (processes {holder}); stop it, or choose another home")


def _lock_up(home: HomeLocation, folder: Path, *, shared: bool) -> FileLock:
    """Acquire `up.lock`, and wait for an `up` that is ending: the system releases its locks in no given order.

    Raises:
        StateError: an `up` holds it.
    """
    lock = FileLock(home.path / _UP_LOCK, shared=shared)
    if not lock.acquire(LOCK_WAIT_SECONDS, give_up=lambda: _is_up_alive(folder)):
        raise _already_up_error(home)
    return lock


def _is_up_alive(folder: Path) -> bool:
    """Return True if an `up` holds its file now."""
    return any(is_file_locked(path, shared=True) for path in folder.glob(f"{_ALIVE_PREFIX}*"))


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it exists and belongs to another user
    return True


def _sweep(folder: Path) -> None:
    """Remove the temporary files of an `up`. The lock file stays, because other processes may be about to open it."""
    for entry in folder.iterdir():
        if entry.name == _PARTS_LOCK:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
