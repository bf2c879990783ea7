"""Locks in an object store, which has no locks and no notion of an owner.

A lock is a lease, an object that its holder rewrites every 5 s. A waiting process takes it over when it has not changed
for 20 s by its own clock, so no two clocks are compared. A holder that was suspended for longer finds out at its next
renewal and may write until then, so every commit decides again, whatever a lease decided. Leases change hands by
compare-and-set alone. A release marks the lease as free instead of deleting it: a delete is unconditional, and a late
retry of one would remove the lease of the next holder.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cdc_platform.errors import PlatformError, StateError
from cdc_platform.storage.locks import Lock, LockLost
from cdc_platform.storage.object_store import ObjectStorePath

RENEWAL_SECONDS, STALE_SECONDS = 5.0, 20.0
"""How often a holder renews its lease, and how long a lease must stay unchanged before another takes it over."""
_REMEMBERED_RELEASES = 16
"""The number of released holders that a lease records.

A holder can thus learn, up to that many changes of hands later, that its own release succeeded.
"""


@contextmanager
def hold_store_lock(path: ObjectStorePath, what: str) -> Iterator[StoreLock]:
    """Hold a lock for the block; wait for a stale one, and raise if its holder renews it.

    Raises:
        StateError: another process holds the lock; `what` names what it protects.
    """
    lock = StoreLock(path)
    if not lock.acquire(give_up=lambda: lock.is_renewed_by_other):
        raise StateError(
            f"{what} already on another machine or from another folder (process {lock.read_holder()}); stop it, "
            "or choose another home"
        )
    try:
        yield lock
    finally:
        lock.release()


def is_any_lease_renewed(folder: ObjectStorePath) -> bool:
    """Return True if any lease in a folder is still renewed; remove the leases that are not.

    The check lists the folder, and lists it again 7.5 s later if it has any lease.
    """
    before = dict(folder.files())
    if not before:
        return False
    time.sleep(RENEWAL_SECONDS * 1.5)
    after = dict(folder.files())
    for name, stat in after.items():
        if before.get(name) == stat:
            (folder / name).remove()
    return any(before.get(name) != stat for name, stat in after.items())


@dataclass(frozen=True)
class _LeaseRecord:
    """A lease as stored: its version mark, its holder's identity ("" if free), and the holder's name.

    `released` has the identities of earlier holders that released it, newest last.
    """

    mark: str
    identity: str
    holder: str = "unknown"
    released: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: ObjectStorePath) -> _LeaseRecord | None:
        """Read the lease at a path; None if there is none. An unreadable lease counts as held."""
        try:
            content, mark = path.read_marked()
        except FileNotFoundError:
            return None
        try:
            fields = json.loads(content)
            return cls(mark, str(fields["id"]), str(fields["who"]), tuple(fields.get("given_back", ())))
        except (ValueError, KeyError, TypeError, AttributeError):
            return cls(mark, "unknown")


class StoreLock(Lock):
    """A lease in an object store. A thread renews it from the acquisition until the release."""

    def __init__(self, path: ObjectStorePath) -> None:
        self._path = path
        self._id = uuid.uuid4().hex
        self._mark: str | None = None
        self._released: tuple[str, ...] = ()
        self._renewals = 0
        self._other_marks: list[str] = []
        self._other_since = 0.0
        self._ended, self._lost = threading.Event(), threading.Event()
        self._renewer = threading.Thread(target=self._renew_periodically, name=f"lease of {path.name}", daemon=True)

    def try_acquire(self) -> bool:
        """Acquire the lease if it is free, or if it stayed unchanged for `STALE_SECONDS` of repeated calls.

        Raises:
            PlatformError: the store cannot be reached, or refuses the write.
        """
        record = _LeaseRecord.read(self._path)
        if record is None:
            mark = self._path.create(self._encode())
        elif not record.identity or self._is_stale(record):
            self._released = record.released
            mark = self._path.replace(self._encode(), record.mark)
        else:
            return False
        self._mark = mark or self._find_own_mark()
        if self._mark is None:
            return False
        self._renewer.start()
        return True

    def renew(self) -> None:
        """Rewrite the lease once; it is lost if another process has taken it over or removed it.

        Raises:
            PlatformError: the store cannot be reached, or refuses the write; the lease may be renewed again.
        """
        if self._mark is None:
            return
        self._renewals += 1
        self._mark = self._path.replace(self._encode(), self._mark) or self._find_own_mark()
        if self._mark is None:
            self._lost.set()

    def release(self) -> None:
        if not self._renewer.ident or self._ended.is_set():
            return
        self._ended.set()
        self._renewer.join()
        try:
            self._free()
        except PlatformError:
            return  # another process takes it over when it is stale

    @property
    def is_lost(self) -> bool:
        return self._lost.is_set()

    @property
    def is_renewed_by_other(self) -> bool:
        """Return True if another holder has renewed the lease since the first attempt to acquire it."""
        return len(self._other_marks) > 1

    def assert_held(self, what: str) -> None:
        """Raise if the lease is lost.

        `what` is the start of the message.

        Raises:
            LockLost: the lease is lost; the message names the new holder.
        """
        if self.is_lost:
            raise LockLost(
                f"{what} elsewhere now (process {self.read_holder()}): this process did not renew its lease for more "
                f"than {STALE_SECONDS:.0f} s, or the lease was removed; everything that this process started has ended"
            )

    def read_holder(self) -> str:
        try:
            record = _LeaseRecord.read(self._path)
        except PlatformError:
            record = None
        return "unknown" if record is None else record.holder

    def _is_stale(self, record: _LeaseRecord) -> bool:
        """Note the mark of another holder's lease; return True if it has not changed for too long."""
        if record.mark not in self._other_marks[-1:]:
            self._other_marks.append(record.mark)
            self._other_since = time.monotonic()
        return time.monotonic() - self._other_since >= STALE_SECONDS

    def _free(self) -> None:
        """Mark the lease as free if this process holds it; check whether a put that failed took effect."""
        free = _encode_lease((*self._released, self._id)[-_REMEMBERED_RELEASES:])
        while self._mark is not None:
            if self._path.replace(free, self._mark) is not None:
                return
            record = _LeaseRecord.read(self._path)
            if record is not None and self._id in record.released:
                return
            self._mark = record.mark if record is not None and record.identity == self._id else None
        self._lost.set()

    def _renew_periodically(self) -> None:
        while not self.is_lost and not self._ended.wait(RENEWAL_SECONDS):
            try:
                self.renew()
            except PlatformError:
                continue

    def _find_own_mark(self) -> str | None:
        """Return the lease's mark if this process holds it: a put that failed may have taken effect."""
        record = _LeaseRecord.read(self._path)
        return record.mark if record is not None and record.identity == self._id else None

    def _encode(self) -> bytes:
        return _encode_lease(self._released, self._id, self._renewals, f"{os.getpid()} on {socket.gethostname()}")


def _encode_lease(released: tuple[str, ...], identity: str = "", number: int = 0, holder: str = "nobody") -> bytes:
    """Return the stored form, whose names other machines with an earlier program read as well."""
    fields = {"id": identity, "number": number, "who": holder, "given_back": released}
    return json.dumps(fields).encode() + b"\n"
