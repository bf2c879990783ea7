"""Leases in an object store, which has no locks and no notion of an owner.

A lease is an object that its holder rewrites every 5 s. A waiting process takes it over when it has not changed for
20 s by its own clock, so no two clocks are compared. A holder that was suspended for longer finds out at its next
renewal and may write until then, so a commit decides again whatever a lease decided. Leases change hands by
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
"""How often a lease is put anew, and for how long it has to be as it was before another takes it over."""
_POLL_SECONDS = 0.5
_REMEMBERED_RELEASES = 16
"""How many who gave it back a lease tells of: of so many turns one may learn late that its own had ended well."""


class LeaseLost(PlatformError):
    """What a process had alone in a store has gone to another, or was taken away, while it did not keep it."""

    code = "lease-lost"
    exit_code = 1


@contextmanager
def try_lease(place: ObjectStorePath) -> Iterator[StoreLease | None]:
    """Try to have a lease for a block; None where it is another's. It is given back at the block's end."""
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
    """Have a lease for a block or be refused: one that is put anew is another's, one that is not is waited for.

    Raises:
        StateError: somebody else keeps it; `what` is what they have.
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
    """Whether any lease in a folder is put anew still: one look, then another where there is one, some seconds later.

    Those that nobody keeps any more are taken away.
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
    """A lease as it is in the store: whose it is, "" of a free one; and who gave it back last, the newest behind."""

    mark: str
    identity: str
    who: str = "unknown"
    given_back: tuple[str, ...] = ()

    @classmethod
    def at(cls, place: ObjectStorePath) -> _LeaseRecord | None:
        """The lease in a place, if there is one; one that cannot be read is somebody's."""
        try:
            content, mark = place.read_marked()
        except FileNotFoundError:
            return None
        try:
            told = json.loads(content)
            return cls(mark, str(told["id"]), str(told["who"]), tuple(told.get("given_back", ())))
        except (ValueError, KeyError, TypeError, AttributeError):
            return cls(mark, "unknown")


class LeaseWait:
    """What one who waits for a lease has seen of it."""

    def __init__(self, place: ObjectStorePath) -> None:
        self._place = place
        self._marks: list[str] = []
        self._since = time.monotonic()

    @property
    def is_kept(self) -> bool:
        """Whether somebody has put it anew meanwhile."""
        return len(self._marks) > 1

    def is_over(self) -> bool:
        """Whether the lease is free, or its holder is gone: then it is freed, if it still is as it was."""
        found = _LeaseRecord.at(self._place)
        if found is None or not found.identity:
            return True
        if found.mark not in self._marks[-1:]:
            self._marks.append(found.mark)
            self._since = time.monotonic()
            return False
        if time.monotonic() - self._since < STALE_SECONDS:
            return False
        self._place.replace(_encode_lease(found.given_back), found.mark)
        return True

    def holder(self) -> str:
        """Who has it."""
        try:
            found = _LeaseRecord.at(self._place)
        except PlatformError:
            found = None
        return "unknown" if found is None else found.who


class StoreLease:
    """A lease that is had, as long as it `is_lost` not."""

    def __init__(self, place: ObjectStorePath) -> None:
        self._place = place
        self._id = uuid.uuid4().hex
        self._mark: str | None = None
        self._given_back: tuple[str, ...] = ()
        self._ended, self._lost = threading.Event(), threading.Event()
        self._keeper = threading.Thread(target=self._renew, name=f"lease of {place.name}", daemon=True)

    @property
    def is_lost(self) -> bool:
        """Whether it was found gone, or another's. Who has given it back knows for certain."""
        return self._lost.is_set()

    def assert_had(self, what: str) -> None:
        """Hold that it is not lost; `what` ends where it is.

        Raises:
            LeaseLost: it is, with who has it.
        """
        if self.is_lost:
            raise LeaseLost(
                f"{what} elsewhere now (process {LeaseWait(self._place).holder()}): this process had not put "
                "its lease anew "
                f"for more than {STALE_SECONDS:.0f} s, or somebody took it away; all of this one has ended"
            )

    def take(self) -> bool:
        """Have it, if nobody has; whether it is had."""
        found = _LeaseRecord.at(self._place)
        if found is None:
            self._mark = self._place.create(self._written(0)) or self._mark_of_mine()
        elif not found.identity:
            self._given_back = found.given_back
            self._mark = self._place.replace(self._written(0), found.mark) or self._mark_of_mine()
        return self._mark is not None

    def keep(self) -> None:
        """Put it anew from now on."""
        self._keeper.start()

    def give_back(self) -> None:
        """Let others have it."""
        self._ended.set()
        self._keeper.join()
        try:
            self._free()
        except PlatformError:
            return  # it is taken over in a while

    def _free(self) -> None:
        """Say that it is free, if it is this one's; a store may have done so when it says it could not."""
        free = _encode_lease((*self._given_back, self._id)[-_REMEMBERED_RELEASES:])
        while self._mark is not None:
            if self._place.replace(free, self._mark) is not None:
                return
            found = _LeaseRecord.at(self._place)
            if found is not None and self._id in found.given_back:
                return
            self._mark = found.mark if found is not None and found.identity == self._id else None
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
        """The mark of the lease as it is, if it is this one: a store may have done what it says it could not."""
        found = _LeaseRecord.at(self._place)
        return found.mark if found is not None and found.identity == self._id else None

    def _written(self, number: int) -> bytes:
        return _encode_lease(self._given_back, self._id, number, f"{os.getpid()} on {socket.gethostname()}")


def _encode_lease(given_back: tuple[str, ...], identity: str = "", number: int = 0, who: str = "nobody") -> bytes:
    told = {"id": identity, "number": number, "who": who, "given_back": given_back}
    return json.dumps(told).encode() + b"\n"
