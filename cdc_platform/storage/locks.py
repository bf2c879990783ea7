"""Locks between processes: one interface, `FileLock` for folders, and `leases.StoreLock` for object stores.

The operating system releases a file's lock when its holder ends, however it ends. A store has no such locks, so a lock
there is a lease: its holder renews it, and loses it to another process if it cannot.
"""

from __future__ import annotations

import errno
import fcntl
import math
import operator
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from cdc_platform.errors import PlatformError

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS, _PAUSE_GROWTH = 0.005, 0.1, 1.5
_LOCKS_UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_UNKNOWN_HOLDER = "unknown"


class LockLost(PlatformError):
    """A process failed to renew an exclusive lock in time: another process took it over, or it was removed."""

    code = "lease-lost"
    recovery = "outage"
    exit_code = 1


class Lock(ABC):
    """A lock that one process acquires at a time, or several if they share it; use each object once."""

    @abstractmethod
    def try_acquire(self) -> bool:
        """Acquire the lock if it is free; return True if this object holds it now."""

    def acquire(
        self,
        timeout: float = math.inf,
        *,
        give_up: Callable[[], bool] = lambda: False,
        on_wait: Callable[[float], None] = lambda _: None,
    ) -> bool:
        """Acquire the lock, and wait for at most `timeout` seconds; return False if it was not acquired.

        While waiting, `give_up` returns True to end the wait early, and `on_wait` receives the seconds waited so far.
        """
        if self.try_acquire():
            return True
        # Imported late: it imports asyncio and SSL, which take as long as a dozen writes.
        from tenacity import Retrying, retry_if_result, wait_exponential

        waiting = Retrying(
            retry=retry_if_result(operator.not_),
            stop=lambda state: (state.seconds_since_start or 0.0) >= timeout or give_up(),
            wait=wait_exponential(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS, _PAUSE_GROWTH),
            before_sleep=lambda state: on_wait(state.seconds_since_start or 0.0),
            retry_error_callback=lambda _: False,
        )
        return waiting(self.try_acquire)

    @abstractmethod
    def renew(self) -> None:
        """Extend the lock if it expires. A held lock is renewed by itself."""

    @abstractmethod
    def release(self) -> None:
        """Release the lock; do nothing if this object does not hold it."""

    @property
    @abstractmethod
    def is_lost(self) -> bool:
        """Return True if the lock was found missing or taken over; after `release` this is certain."""

    @abstractmethod
    def read_holder(self) -> str:
        """Return the process that holds the lock, as it named itself."""


class FileLock(Lock):
    """A `flock` on a file of this machine, exclusive or `shared`. The file stays when the lock is released.

    Child processes may inherit the lock, which then lasts until all of them have ended. With `optional`, a file system
    without locks counts as unlocked, and `unsupported` has the reason.
    """

    def __init__(self, path: Path, *, shared: bool = False, optional: bool = False) -> None:
        self.path = path
        self.unsupported: str | None = None
        self._mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        self._optional = optional
        self._descriptor: int | None = None

    def try_acquire(self) -> bool:
        """Acquire the lock if it is free; create the file, and its folder for this user alone, if they do not exist.

        Raises:
            OSError: the file cannot be made or locked.
        """
        if self._descriptor is not None:
            return True
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        if not self._lock(descriptor):
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def renew(self) -> None:
        pass

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    @property
    def is_lost(self) -> bool:
        return False

    def share(self) -> None:
        """Turn the held exclusive lock into a shared one."""
        fcntl.flock(self.fileno(), fcntl.LOCK_SH)

    def fileno(self) -> int:
        """Return the descriptor of the held lock, for child processes that inherit it."""
        assert self._descriptor is not None, "the lock is held"
        return self._descriptor

    def read_holder(self) -> str:
        """Return the processes that the last holder wrote into the file, "unknown" without any."""
        try:
            return self.path.read_text(encoding="utf-8").strip() or _UNKNOWN_HOLDER
        except OSError:
            return _UNKNOWN_HOLDER

    def write_holder(self, text: str) -> None:
        """Write the holding processes into the file, so that a person who finds it locked can end them."""
        content = text.encode()
        # Truncating takes the disk some milliseconds, so a content of the same length is overwritten.
        if os.fstat(self.fileno()).st_size > len(content):
            os.ftruncate(self.fileno(), 0)
        os.pwrite(self.fileno(), content, 0)

    def append_holder(self, text: str) -> None:
        """Append to the processes in the file, for a shared lock with several holders."""
        os.pwrite(self.fileno(), text.encode(), os.fstat(self.fileno()).st_size)

    def _lock(self, descriptor: int) -> bool:
        try:
            return _try_flock(descriptor, self._mode)
        except OSError as error:
            if not self._optional or error.errno not in _LOCKS_UNSUPPORTED:
                os.close(descriptor)
                raise
            self.unsupported = error.strerror
            return True


def is_file_locked(path: Path, *, shared: bool = False) -> bool:
    """Return True if a process holds a lock on a file that excludes an exclusive one, or with `shared` a shared one.

    Raises:
        OSError: the file cannot be opened or locked.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _try_flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in _LOCKS_UNSUPPORTED:
            raise
        return False
    finally:
        os.close(descriptor)


def _try_flock(descriptor: int, mode: int) -> bool:
    try:
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
