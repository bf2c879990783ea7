"""Turns: of the processes that judge by several tables at once, one at a time does so and writes.

What one table tells is decided by compare-and-set alone (`Lake.transact`, `Lake.merge_judged`). A turn is a lock beside
the lake, which the system lets go of when its holder ends, however it ends: whoever comes next finds what it left.
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

from cdc_platform.errors import ConflictError, EnvironmentProblem, PlatformError
from cdc_platform.lake import leases
from cdc_platform.lake.lake import Lake
from cdc_platform.places import Place, Stored

JOINS = "joins"
"""Who joins, and on which ring: the inbox, the ring, and the ledger of generations."""
TABLES = "tables"
"""Which tables have logs and tablets: what was said of them, the ledger of tablets, and the stream sets."""
MAKING = "making"
"""Who makes joins by a command; Dagster's sensor leaves what waits to them, see `busy`."""
IMPORTS = "imports"
SCRIPTS = "scripts"

PATIENCE_SECONDS = 600.0
_TOLD_AFTER_SECONDS = 5.0
_LONGEST_PAUSE_SECONDS = 0.1
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

log = logging.getLogger(__name__)
_mine = threading.local()


@contextmanager
def turn(lake: Lake, name: str) -> Iterator[None]:
    """Run a block while nobody else, in any process or thread, has the turn of this name; a turn inside it is the same.

    On a file system without locks the block runs all the same: what one table tells is decided rightly there too. So
    it is in a store where the process was stopped for so long that another took the turn over: each of its commits was
    made or refused for itself, and that it may have judged by what the other has changed is said at the block's end.

    Raises:
        ConflictError: somebody else has had it for ten minutes; or has taken it over meanwhile.
        EnvironmentProblem: the lock cannot be made.
    """
    place = _place(lake, name)
    held: set[str] = _mine.__dict__.setdefault("held", set())
    if str(place) in held:
        yield
        return
    with _leased(place, name) if isinstance(place, Stored) else _locked(place, name):
        held.add(str(place))
        lake.open_tables.look_anew()  # who had the turn before has written
        try:
            yield
        finally:
            held.discard(str(place))


@contextmanager
def busy(lake: Lake, name: str) -> Iterator[None]:
    """Run a block, beside any others that are busy with the same, while everybody can see that somebody is.

    Raises:
        EnvironmentProblem: the lock cannot be made.
    """
    place = _place(lake, name)
    if isinstance(place, Stored):
        mine = place / uuid.uuid4().hex  # nobody else's, ever: it may be removed
        try:
            with leases.held(mine):
                yield
        finally:
            with suppress(PlatformError):  # who looks next takes away what nobody keeps
                mine.remove()
        return
    with _opened(place) as lock:
        with suppress(OSError):  # without locks nobody can see it
            fcntl.flock(lock, fcntl.LOCK_SH)
        yield


def is_busy(lake: Lake, name: str) -> bool:
    """Whether somebody, in any process, is busy with this now; who was killed is not, in a store some seconds later."""
    place = _place(lake, name)
    if isinstance(place, Stored):
        return leases.is_any_kept(place)
    if place.seen() is None:
        return False
    with _opened(place) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False


def in_turn(
    name: str,
) -> Callable[[Callable[Concatenate[Lake, _Arguments], _Result]], Callable[Concatenate[Lake, _Arguments], _Result]]:
    """Let a function, whose first argument is the lake, run in the turn of this name; it raises what `turn` does."""

    def taking(
        work: Callable[Concatenate[Lake, _Arguments], _Result],
    ) -> Callable[Concatenate[Lake, _Arguments], _Result]:
        @wraps(work)
        def in_it(lake: Lake, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            with turn(lake, name):
                return work(lake, *args, **kwargs)

        return in_it

    return taking


def _place(lake: Lake, name: str) -> Place:
    """The file that is locked, beside the lake; in a store the lease."""
    return lake.place.folder / f".{lake.place.name}.turns/{name}"


@contextmanager
def _leased(place: Stored, name: str) -> Iterator[None]:
    patience = _Patience(name)
    while True:
        with leases.held(place) as lease:
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
        wait = leases.Wait(place)
        while not wait.is_over():
            patience.pause(wait.holder)


@contextmanager
def _locked(place: Place, name: str) -> Iterator[None]:
    with _opened(place) as lock:
        _take(lock, name)
        yield


def _opened(place: Place) -> TextIO:
    path = place.here
    assert path is not None
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch()
        return path.open("r+", encoding="utf-8")
    except OSError as error:
        raise EnvironmentProblem(f"{place} cannot be made: {error.strerror}; check permissions and space") from None


def _take(lock: TextIO, name: str) -> None:
    """Wait for the lock, and leave in the file who has it."""
    patience = _Patience(name)
    while not _taken(lock, name):
        patience.pause(lambda: _holder(lock))
    # Over what is there, as long: a file that is cut first takes the disk some milliseconds.
    os.pwrite(lock.fileno(), f"{os.getpid():<20}\n".encode(), 0)


class _Patience:
    """Waits that grow, and end; `holder` tells who is waited for."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun, self._pause, self._told = time.monotonic(), 0.005, False

    def pause(self, holder: Callable[[], str]) -> None:
        waited = time.monotonic() - self._begun
        if waited > PATIENCE_SECONDS:
            raise ConflictError(
                f"process {holder()} has been at it ({self._name}) for {PATIENCE_SECONDS:.0f} s, and this one would "
                "judge by what that one changes; run it again when it is done"
            )
        if waited > _TOLD_AFTER_SECONDS and not self._told:
            self._told = True
            log.warning("Waiting for process %s, which is at it (%s).", holder(), self._name)
        time.sleep(self._pause)
        self._pause = min(self._pause * 1.5, _LONGEST_PAUSE_SECONDS)


def _taken(lock: TextIO, name: str) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise EnvironmentProblem(f"{lock.name} cannot be locked: {error.strerror}") from None
        log.warning("%s cannot be locked (%s): start one process at a time (%s).", lock.name, error.strerror, name)
    return True


def _holder(lock: TextIO) -> str:
    lock.seek(0)
    return lock.read().strip() or "unknown"
