"""Exclusive and shared locks next to a lake, for decisions that depend on several tables.

Decisions that depend on one table use compare-and-set alone (`Lake.transact`, `Lake.merge_judged`). The system releases
a lock when its holder ends; in an object store a lock is a lease.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Concatenate, ParamSpec, TextIO, TypeVar

from cdc_platform.delta.lake import Lake
from cdc_platform.errors import ConflictError, EnvironmentProblem, PlatformError
from cdc_platform.storage import ObjectStorePath, StoragePath, leases

JOINS_LOCK = "joins"
"""Guards the order of joins: the inbox, the ring, and the ledger of generations."""
TABLES_LOCK = "tables"
"""Guards the CDC-enabled tables, the ledger of tablets, and the stream sets."""
JOIN_COMMANDS_LOCK = "making"
"""Held (shared) by commands that run joins; Dagster's sensor leaves queued joins to them, see `shared_lock`."""
IMPORTS_LOCK = "imports"
SCRIPTS_LOCK = "scripts"

_LOCK_WAIT_SECONDS = 600.0
_WARN_AFTER_SECONDS = 5.0
_LONGEST_PAUSE_SECONDS = 0.1
_LOCKS_UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

_log = logging.getLogger(__name__)
_thread_state = threading.local()


@contextmanager
def lake_lock(lake: Lake, name: str) -> Iterator[None]:
    """Run a block under the exclusive lock of this name, across processes and threads; nested blocks share the lock.

    On a file system without locks the block runs all the same: decisions that depend on one table are right there too.
    So it does in a store if the process was stopped for so long that another took the lock over: each of its commits
    was made or refused on its own, and the block's end reports that its decisions may rest on data that the other has
    changed.

    Raises:
        ConflictError: another process has held the lock for ten minutes, or has taken it over during the block.
        EnvironmentProblem: the lock cannot be made.
    """
    path = _get_lock_path(lake, name)
    held_paths: set[str] = _thread_state.__dict__.setdefault("held", set())
    if str(path) in held_paths:
        yield
        return
    with _lock_by_lease(path, name) if isinstance(path, ObjectStorePath) else _lock_by_file(path, name):
        held_paths.add(str(path))
        lake.open_tables.look_anew()  # the previous holder may have written
        try:
            yield
        finally:
            held_paths.discard(str(path))


@contextmanager
def shared_lock(lake: Lake, name: str) -> Iterator[None]:
    """Run a block under the shared lock of this name, in parallel with other holders; others can see that it is held.

    Raises:
        EnvironmentProblem: the lock cannot be made.
    """
    path = _get_lock_path(lake, name)
    if isinstance(path, ObjectStorePath):
        lease_path = path / uuid.uuid4().hex  # unique, so it may be removed
        try:
            with leases.try_lease(lease_path):
                yield
        finally:
            with suppress(PlatformError):  # the next check removes expired leases
                lease_path.remove()
        return
    with _open_lock_file(path) as lock:
        with suppress(OSError):  # without locks nobody sees that it is held
            fcntl.flock(lock, fcntl.LOCK_SH)
        yield


def is_shared_lock_held(lake: Lake, name: str) -> bool:
    """Return True if any process holds the shared lock; in a store a killed holder counts for some seconds."""
    path = _get_lock_path(lake, name)
    if isinstance(path, ObjectStorePath):
        return leases.is_any_lease_renewed(path)
    if path.stat() is None:
        return False
    with _open_lock_file(path) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False


def exclusive(
    name: str,
) -> Callable[[Callable[Concatenate[Lake, _Arguments], _Result]], Callable[Concatenate[Lake, _Arguments], _Result]]:
    """Run a function, whose first argument is the lake, under the lock of this name; raises as `lake_lock`."""

    def taking(
        work: Callable[Concatenate[Lake, _Arguments], _Result],
    ) -> Callable[Concatenate[Lake, _Arguments], _Result]:
        @wraps(work)
        def in_it(lake: Lake, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            with lake_lock(lake, name):
                return work(lake, *args, **kwargs)

        return in_it

    return taking


def _get_lock_path(lake: Lake, name: str) -> StoragePath:
    """Return the lock file next to the lake; in a store the lease."""
    return lake.place.folder / f".{lake.place.name}.turns/{name}"


@contextmanager
def _lock_by_lease(place: ObjectStorePath, name: str) -> Iterator[None]:
    patience = _LockWait(name)
    while True:
        with leases.try_lease(place) as lease:
            if lease is not None:
                yield
        if lease is not None:
            if lease.is_lost:
                raise ConflictError(
                    f"another process has taken this one's turn ({name}) over, which was stopped or cut off from the "
                    f"store for more than {leases.STALE_SECONDS:.0f} s, and may have changed what this one judged by; "
                    "what is written stands, run it again"
                )
            return
        wait = leases.LeaseWait(place)
        while not wait.is_over():
            patience.pause(wait.holder)


@contextmanager
def _lock_by_file(place: StoragePath, name: str) -> Iterator[None]:
    with _open_lock_file(place) as lock:
        _wait_for_lock(lock, name)
        yield


def _open_lock_file(place: StoragePath) -> TextIO:
    path = place.local_path
    assert path is not None
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch()
        return path.open("r+", encoding="utf-8")
    except OSError as error:
        raise EnvironmentProblem(f"{place} cannot be made: {error.strerror}; check permissions and space") from None


def _wait_for_lock(lock: TextIO, name: str) -> None:
    """Wait for the lock, and write the holder's process ID into the file."""
    patience = _LockWait(name)
    while not _try_lock(lock, name):
        patience.pause(lambda: _read_holder(lock))
    # Overwrite with the same length: truncating the file first takes the disk some milliseconds.
    os.pwrite(lock.fileno(), f"{os.getpid():<20}\n".encode(), 0)


class _LockWait:
    """Growing waits with a limit; `holder` returns the process that holds the lock."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun, self._pause, self._told = time.monotonic(), 0.005, False

    def pause(self, holder: Callable[[], str]) -> None:
        waited = time.monotonic() - self._begun
        if waited > _LOCK_WAIT_SECONDS:
            raise ConflictError(
                f"process {holder()} has been at it ({self._name}) for {_LOCK_WAIT_SECONDS:.0f} s, and this one would "
                "judge by what that one changes; run it again when it is done"
            )
        if waited > _WARN_AFTER_SECONDS and not self._told:
            self._told = True
            _log.warning("Waiting for process %s, which is at it (%s).", holder(), self._name)
        time.sleep(self._pause)
        self._pause = min(self._pause * 1.5, _LONGEST_PAUSE_SECONDS)


def _try_lock(lock: TextIO, name: str) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _LOCKS_UNSUPPORTED:
            raise EnvironmentProblem(f"{lock.name} cannot be locked: {error.strerror}") from None
        _log.warning("%s cannot be locked (%s): start one process at a time (%s).", lock.name, error.strerror, name)
    return True


def _read_holder(lock: TextIO) -> str:
    lock.seek(0)
    return lock.read().strip() or "unknown"
