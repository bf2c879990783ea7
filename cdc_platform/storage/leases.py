"""Leases in an object store, which has no locks and no notion of an owner.

A lease is an object that its holder rewrites every 5 s. A waiting process takes it over when it has not changed for 20
s by its own clock, so no two clocks are compared. A holder that was suspended for longer finds out at its next renewal
and may write until then, so every commit decides again, whatever a lease decided. Leases change hands by
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
from cdc_platform.storage.object_store import ObjectStorePath

RENEWAL_SECONDS, STALE_SECONDS = 5.0, 20.0
"""How often a holder renews its lease, and how long a lease must stay unchanged before another takes it over."""
_POLL_SECONDS = 0.5
_REMEMBERED_RELEASES = 16
"""The number of released holders that a lease records.

A holder can thus learn, up to that many changes of hands later, that its own release succeeded.
"""


class LeaseLost(PlatformError):
    """A process failed to renew an exclusive lease in time: another process took it over, or it was removed."""

    code = "lease-lost"
    exit_code = 1


@contextmanager
def try_lease(place: ObjectStorePath) -> Iterator[StoreLease | None]:
    """Yield a lease, or None if another process holds it; release it when the block exits."""
    lease = StoreLease(place)
    if not lease.take():
        yield None
        return
    lease.keep()
    try:
        yield lease
    finally:
        lease.give_back()


@contextmanager
def acquire_lease(place: ObjectStorePath, what: str) -> Iterator[StoreLease]:
    """Yield a lease for the block; wait for a stale lease, and raise if its holder renews it.

    Raises:
        StateError: another process holds the lease; `what` names what it protects.
    """
    while True:
        with try_lease(place) as lease:
            if lease is not None:
                yield lease
                return
        wait = LeaseWait(place)
        while not wait.is_over():
            if wait.is_kept:
                raise StateError(
                    f"{what} already on another machine or from another folder (process {wait.holder()}); end that "
                    "one, or choose another home"
                )
            time.sleep(_POLL_SECONDS)


def is_any_lease_renewed(folder: ObjectStorePath) -> bool:
    """Return True if any lease in a folder is still renewed; remove the leases that are not.

    The check lists the folder, and lists it again 7.5 s later if it has any lease.
    """
    before = dict(folder.files())
    if not before:
        return False
    time.sleep(RENEWAL_SECONDS * 1.5)
    after = dict(folder.files())
    for name, seen in after.items():
        if before.get(name) == seen:
            (folder / name).remove()
    return any(before.get(name) != seen for name, seen in after.items())


@dataclass(frozen=True)
class _LeaseRecord:
    """A lease as stored: its version mark, its holder's identity ("" if free), and who that is.

    `given_back` lists the identities of earlier holders that released it, newest last.
    """

    mark: str
    identity: str
    who: str = "unknown"
    given_back: tuple[str, ...] = ()

    @classmethod
    def at(cls, place: ObjectStorePath) -> _LeaseRecord | None:
        """Read the lease at a path; None if there is none. An unreadable lease counts as held."""
        try:
            content, mark = place.read_marked()
        except FileNotFoundError:
            return None
        try:
            fields = json.loads(content)
            return cls(mark, str(fields["id"]), str(fields["who"]), tuple(fields.get("given_back", ())))
        except (ValueError, KeyError, TypeError, AttributeError):
            return cls(mark, "unknown")


class LeaseWait:
    """The observations of a process that waits for a lease."""

    def __init__(self, place: ObjectStorePath) -> None:
        self._place = place
        self._marks: list[str] = []
        self._since = time.monotonic()

    @property
    def is_kept(self) -> bool:
        """Return True if the holder has renewed the lease since the wait began."""
        return len(self._marks) > 1

    def is_over(self) -> bool:
        """Return True if the lease is free; free it first if its holder is gone and it is still unchanged."""
        record = _LeaseRecord.at(self._place)
        if record is None or not record.identity:
            return True
        if record.mark not in self._marks[-1:]:
            self._marks.append(record.mark)
            self._since = time.monotonic()
            return False
        if time.monotonic() - self._since < STALE_SECONDS:
            return False
        self._place.replace(_encode_lease(record.given_back), record.mark)
        return True

    def holder(self) -> str:
        """Return the name of the holder."""
        try:
            record = _LeaseRecord.at(self._place)
        except PlatformError:
            record = None
        return "unknown" if record is None else record.who


class StoreLease:
    """A lease that this process holds until `is_lost`."""

    def __init__(self, place: ObjectStorePath) -> None:
        self._place = place
        self._id = uuid.uuid4().hex
        self._mark: str | None = None
        self._given_back: tuple[str, ...] = ()
        self._ended, self._lost = threading.Event(), threading.Event()
        self._keeper = threading.Thread(target=self._renew, name=f"lease of {place.name}", daemon=True)

    @property
    def is_lost(self) -> bool:
        """Return True if the lease was found missing or taken over; after `give_back` this is certain."""
        return self._lost.is_set()

    def assert_had(self, what: str) -> None:
        """Raise if the lease is lost.

        `what` is the start of the message.

        Raises:
            LeaseLost: the lease is lost; the message names the new holder.
        """
        if self.is_lost:
            raise LeaseLost(
                f"{what} elsewhere now (process {LeaseWait(self._place).holder()}): this process had not put "
                "its lease anew "
                f"for more than {STALE_SECONDS:.0f} s, or somebody took it away; all of this one has ended"
            )

    def take(self) -> bool:
        """Acquire the lease if it is free; return True if this process holds it now."""
        record = _LeaseRecord.at(self._place)
        if record is None:
            self._mark = self._place.create(self._written(0)) or self._mark_of_mine()
        elif not record.identity:
            self._given_back = record.given_back
            self._mark = self._place.replace(self._written(0), record.mark) or self._mark_of_mine()
        return self._mark is not None

    def keep(self) -> None:
        """Start to renew the lease in a thread."""
        self._keeper.start()

    def give_back(self) -> None:
        """Stop the renewals and release the lease."""
        self._ended.set()
        self._keeper.join()
        try:
            self._free()
        except PlatformError:
            return  # another process takes it over when it is stale

    def _free(self) -> None:
        """Mark the lease as free if this process holds it; check whether a put that failed took effect."""
        free = _encode_lease((*self._given_back, self._id)[-_REMEMBERED_RELEASES:])
        while self._mark is not None:
            if self._place.replace(free, self._mark) is not None:
                return
            record = _LeaseRecord.at(self._place)
            if record is not None and self._id in record.given_back:
                return
            self._mark = record.mark if record is not None and record.identity == self._id else None
        self._lost.set()

    def _renew(self) -> None:
        number = 0
        while self._mark is not None and not self._ended.wait(RENEWAL_SECONDS):
            number += 1
            try:
                self._mark = self._place.replace(self._written(number), self._mark) or self._mark_of_mine()
            except PlatformError:
                continue
        if self._mark is None:
            self._lost.set()

    def _mark_of_mine(self) -> str | None:
        """Return the lease's mark if this process holds it: a put that failed may have taken effect."""
        record = _LeaseRecord.at(self._place)
        return record.mark if record is not None and record.identity == self._id else None

    def _written(self, number: int) -> bytes:
        return _encode_lease(self._given_back, self._id, number, f"{os.getpid()} on {socket.gethostname()}")


def _encode_lease(given_back: tuple[str, ...], identity: str = "", number: int = 0, who: str = "nobody") -> bytes:
    fields = {"id": identity, "number": number, "who": who, "given_back": given_back}
    return json.dumps(fields).encode() + b"\n"
