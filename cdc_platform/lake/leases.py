"""Leases: who has something in a store, which knows no owner of anything and no lock.

A lease is an object that its holder puts anew every few seconds. Who waits takes one over that has not changed for
longer, by its own clock: no two clocks are compared. A holder that was stopped for so long learns that it has lost it
when it goes on, by the next time that it would put it anew; until then it may write, so a lease decides nothing that a
commit does not decide again.
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

from cdc_platform.errors import PlatformError, StateError
from cdc_platform.places import Stored

RENEWED_SECONDS, STALE_SECONDS = 5.0, 20.0
"""How often a lease is put anew, and for how long it has to be as it was before another takes it over."""
_LOOK_SECONDS = 0.5


class LeaseLost(PlatformError):
    """What a process had alone in a store has gone to another, or was taken away, while it did not keep it."""

    code = "lease-lost"
    exit_code = 1


@contextmanager
def held(place: Stored) -> Iterator[Held | None]:
    """Try to have a lease for a block; None where it is another's. It is given back at the block's end."""
    lease = Held(place)
    if not lease.take():
        yield None
        return
    lease.keep()
    try:
        yield lease
    finally:
        lease.give_back()


@contextmanager
def held_alone(place: Stored, what: str) -> Iterator[Held]:
    """Have a lease for a block or be refused: one that is put anew is another's, one that is not is waited for.

    Raises:
        StateError: somebody else keeps it; `what` is what they have.
    """
    wait, first = Wait(place), ""
    while True:
        with held(place) as lease:
            if lease is not None:
                yield lease
                return
        while not wait.is_over():
            seen = place.seen()
            first = first or (seen.mark if seen is not None else "")
            if seen is not None and seen.mark != first:
                raise StateError(
                    f"{what} already on another machine or from another folder (process {wait.holder()}); end that "
                    "one, or choose another home"
                )
            time.sleep(_LOOK_SECONDS)
        first = ""


def is_any_kept(folder: Stored) -> bool:
    """Whether any lease in a folder is put anew still: one look, then another where there is one, some seconds later.

    Those that nobody keeps any more are taken away.
    """
    before = dict(folder.files())
    if not before:
        return False
    time.sleep(RENEWED_SECONDS * 1.5)
    after = dict(folder.files())
    for name, seen in after.items():
        if before.get(name) == seen:
            (folder / name).remove()
    return any(before.get(name) != seen for name, seen in after.items())


class Wait:
    """What one who waits for a lease has seen of it."""

    def __init__(self, place: Stored) -> None:
        self._place = place
        self._mark, self._since = "", time.monotonic()

    def is_over(self) -> bool:
        """Whether the lease is free, or its holder is gone: then it is taken away, if it still is as it was."""
        seen = self._place.seen()
        if seen is None:
            return True
        if seen.mark != self._mark:
            self._mark, self._since = seen.mark, time.monotonic()
            return False
        if time.monotonic() - self._since < STALE_SECONDS:
            return False
        if self._place.replace(_written(uuid.uuid4().hex, 0), seen.mark) is not None:
            self._place.remove()
        return True

    def holder(self) -> str:
        """Who has it."""
        try:
            return str(json.loads(self._place.read())["who"])
        except (OSError, ValueError, KeyError, PlatformError):
            return "unknown"


class Held:
    """A lease that is had, as long as it `is_lost` not."""

    def __init__(self, place: Stored) -> None:
        self._place = place
        self._id = uuid.uuid4().hex
        self._mark: str | None = None
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
                f"{what} elsewhere now (process {Wait(self._place).holder()}): this process had not put its lease anew "
                f"for more than {STALE_SECONDS:.0f} s, or somebody took it away; all of this one has ended"
            )

    def take(self) -> bool:
        """Have it, if nobody has; whether it is had."""
        self._mark = self._place.create(_written(self._id, 0)) or self._mark_of_mine()
        return self._mark is not None

    def keep(self) -> None:
        """Put it anew from now on."""
        self._keeper.start()

    def give_back(self) -> None:
        """Let others have it."""
        self._ended.set()
        self._keeper.join()
        try:
            if self._mark_of_mine() is not None:
                self._place.remove()
            else:
                self._lost.set()
        except PlatformError:
            return  # it is taken over in a while

    def _renew(self) -> None:
        number = 0
        while self._mark is not None and not self._ended.wait(RENEWED_SECONDS):
            number += 1
            try:
                self._mark = self._place.replace(_written(self._id, number), self._mark) or self._mark_of_mine()
            except PlatformError:
                continue
        if self._mark is None:
            self._lost.set()

    def _mark_of_mine(self) -> str | None:
        """The mark of the lease as it is, if it is this one: a store may have done what it says it could not."""
        try:
            content, mark = self._place.read_marked()
            return mark if json.loads(content)["id"] == self._id else None
        except (FileNotFoundError, ValueError, KeyError):
            return None


def _written(identity: str, number: int) -> bytes:
    who = f"{os.getpid()} on {socket.gethostname()}"
    return json.dumps({"id": identity, "number": number, "who": who}).encode() + b"\n"
