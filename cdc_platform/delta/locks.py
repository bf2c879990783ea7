"""Exclusive and shared locks next to a lake, for decisions that depend on several tables.

Decisions that depend on one table use compare-and-set alone (`Lake.transact`, `Lake.merge_judged`). The system releases
a lock when its holder ends; in an object store a lock is a lease.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from cdc_platform.delta.lake import Lake
from cdc_platform.errors import ConflictError, EnvironmentProblem, PlatformError
from cdc_platform.storage import FileLock, Lock, ObjectStorePath, StoragePath, is_file_locked, leases

JOINS_LOCK = "joins"
"""Guards the order of joins: the inbox, the ring, and the ledger of generations."""
TABLES_LOCK = "tables"
"""Guards the CDC-enabled tables, the ledger of tablets, and the stream sets."""
JOIN_COMMANDS_LOCK = "making"
"""Held (shared) by commands that run joins; Dagster's sensor leaves queued joins to them, see `shared_lock`."""
IMPORTS_LOCK = "imports"
SCRIPTS_LOCK = "scripts"

_LONGEST_NAME = 200
"""Characters of a lock's name in that of its file; of a longer name the file has the beginning, and a hash."""
_LOCK_WAIT_SECONDS = 600.0
_WARN_AFTER_SECONDS = 5.0

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
    lock = _acquire(path, name)
    held_paths.add(str(path))
    try:
        lake.table_cache.revalidate()  # the previous holder may have written
        yield
    finally:
        held_paths.discard(str(path))
        lock.release()
    if lock.is_lost:
        raise ConflictError(
            f"another process has taken over the lock {name}, because this one was stopped or cut off from the store "
            f"for more than {leases.STALE_SECONDS:.0f} s; its commits stand, but it may have decided on outdated rows: "
            "run it again"
        )


@contextmanager
def shared_lock(lake: Lake, name: str) -> Iterator[None]:
    """Run a block under the shared lock of this name, in parallel with other holders; others can see that it is held.

    Raises:
        EnvironmentProblem: the lock cannot be made.
    """
    path = _get_lock_path(lake, name)
    if isinstance(path, ObjectStorePath):
        path = path / uuid.uuid4().hex  # a lease of its own, so it may be removed
    lock = _make_lock(path, shared=True)
    with _translate_lock_errors(path):
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
        if isinstance(path, ObjectStorePath):
            with suppress(PlatformError):  # the next check removes expired leases
                path.remove()


def is_shared_lock_held(lake: Lake, name: str) -> bool:
    """Return True if any process holds the shared lock; in a store a killed holder counts for some seconds.

    Raises:
        EnvironmentProblem: the lock cannot be read.
    """
    path = _get_lock_path(lake, name)
    if isinstance(path, ObjectStorePath):
        return leases.is_any_lease_renewed(path)
    assert path.local_path is not None
    with _translate_lock_errors(path):
        return is_file_locked(path.local_path)


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
    if len(name) > _LONGEST_NAME:
        name = f"{name[: _LONGEST_NAME - 65]}.{hashlib.sha256(name.encode()).hexdigest()}"
    return lake.location.folder / f".{lake.location.name}.turns/{name}"


def _make_lock(path: StoragePath, *, shared: bool = False) -> Lock:
    if isinstance(path, ObjectStorePath):
        return leases.StoreLock(path)
    assert path.local_path is not None
    return FileLock(path.local_path, shared=shared, optional=True)


def _acquire(path: StoragePath, name: str) -> Lock:
    """Acquire the exclusive lock, and write the holder's process ID into a file.

    Raises:
        ConflictError: another process has held the lock for ten minutes.
    """
    lock, warned = _make_lock(path), False

    def warn(waited: float) -> None:
        nonlocal warned
        if waited > _WARN_AFTER_SECONDS and not warned:
            warned = True
            _log.warning("Waiting for process %s, which holds the lock %s.", lock.read_holder(), name)

    with _translate_lock_errors(path):
        if not lock.acquire(_LOCK_WAIT_SECONDS, on_wait=warn):
            raise ConflictError(
                f"process {lock.read_holder()} has held the lock {name} for {_LOCK_WAIT_SECONDS:.0f} s, and this one "
                "needs what that one changes; run it again when it is done"
            )
        if isinstance(lock, FileLock):
            if lock.unsupported:
                _log.warning(
                    "%s cannot be locked (%s): start one process at a time (%s).", path, lock.unsupported, name
                )
            with suppress(OSError):  # the note is only for people
                lock.write_holder(f"{os.getpid():<20}\n")
    return lock


@contextmanager
def _translate_lock_errors(path: StoragePath) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EnvironmentProblem(f"{path} cannot be locked: {error.strerror}; check permissions and space") from None
