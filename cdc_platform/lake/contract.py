"""What a store has to keep for tables to be written in it: of several who put the same object at once, one does.

Every commit rests on that. A store is tried out at the first write into a lake, which is noted beside it; in one that
fails nothing is written: what is there may be looked at.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache
from threading import Barrier, BrokenBarrierError

from cdc_platform import failpoints
from cdc_platform.errors import NoConditionalWrites, PlatformError
from cdc_platform.lake.room import assert_room
from cdc_platform.places import Place, Stored

TRIED = ".contract"
"""The folder beside a lake in which a store is tried out; each try takes its objects away, unless it is killed."""
KEYS, WRITERS = 30, 2
"""How many objects are put, and how many put each at once."""
_KEPT, _BROKEN = "kept", "broken"


def assert_fit(place: Place, size: int, what: str) -> None:
    """Hold that so many bytes can be written to a place: a disk has room, and a store keeps the contract.

    Raises:
        Unavailable: the disk has no room, or the store takes nothing.
        NoConditionalWrites: the store does not keep it.
    """
    assert_kept(place, what)
    if place.here is not None:
        assert_room(place.here, size, what)


def assert_kept(root: Place, what: str) -> None:
    """Hold that the store of a lake, if it lies in one, lets one of several writers win.

    Raises:
        NoConditionalWrites: it does not, or has not when it was tried out.
    """
    if isinstance(root, Stored) and not is_kept(root):
        raise _refusal(root, what)


def assert_not_known_broken(root: Stored, what: str) -> None:
    """Hold that the store of a lake has not failed when it was tried out; it is asked for the note of that alone.

    Raises:
        NoConditionalWrites: it has.
    """
    with suppress(FileNotFoundError):
        if _note(root).read() == _noted(_BROKEN):
            raise _refusal(root, what)


def _refusal(root: Stored, what: str) -> NoConditionalWrites:
    return NoConditionalWrites(
        f"{what}: {root.root} lets two writers both put an object that was not there, so this home can be looked "
        "at and not written to; turn conditional writes on in the store, remove "
        f"{_note(root)} and try again, or use another store"
    )


@lru_cache(maxsize=64)
def is_kept(root: Stored) -> bool:
    """Whether the store of a lake keeps the contract; a process asks once."""
    note = _note(root)
    said = _said(note)
    # It is put again, which a store that keeps the contract refuses: of one that takes nothing now, or lets this
    # process look alone, that is told before a table is touched. One that takes it has been changed since.
    if said is None or (said == _KEPT and note.create(_noted(_KEPT)) is not None):
        # That one has put it, and was told by a store that failed that it has not, is no breach.
        said = _KEPT if max(winners(root.folder)) <= 1 else _BROKEN
        note.create(_noted(said))
    return said == _KEPT


def _said(note: Stored) -> str | None:
    """What came of it when the store was tried out; None where nobody has."""
    try:
        said = json.loads(note.read())["put_if_absent"]
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, json.JSONDecodeError, UnicodeDecodeError):
        note.remove()
        return None
    return _KEPT if said == _KEPT else _BROKEN


def _noted(said: str) -> bytes:
    return json.dumps({"put_if_absent": said}).encode() + b"\n"


def winners(folder: Stored) -> list[int]:
    """Put objects into a folder of a store, each by several at once, and take them away; how many have put each.

    Raises:
        Unavailable: the store does not let them be put, or taken away.
    """
    tried = [folder / f"{TRIED}/{uuid.uuid4().hex}" for _ in range(KEYS)]
    try:
        found = _put_at_once(tried)
        failpoints.reached(failpoints.AFTER_STORE_TRIED)
    except BaseException:
        with suppress(PlatformError):  # of a store that has failed already, the first failure is told
            _remove(tried)
        raise
    _remove(tried)
    return found


def _put_at_once(tried: Sequence[Stored]) -> list[int]:
    from concurrent.futures import ThreadPoolExecutor

    together = Barrier(WRITERS)

    def put(writer: int) -> list[bool]:
        try:
            return [_has_put(place, writer, together) for place in tried]
        except BaseException:
            together.abort()  # nobody waits for one who comes no more
            raise

    with ThreadPoolExecutor(WRITERS) as writers:
        asked = [writers.submit(put, writer) for writer in range(WRITERS)]
    failures = [failure for each in asked if (failure := each.exception()) is not None]
    if failures:
        raise next((each for each in failures if not isinstance(each, BrokenBarrierError)), failures[0])
    return [sum(each) for each in zip(*(each.result() for each in asked), strict=True)]


def _has_put(place: Stored, writer: int, together: Barrier) -> bool:
    together.wait()
    return place.create(f"{writer}".encode()) is not None


def left_over(root: Place, age: timedelta = timedelta()) -> list[Place]:
    """What is there of tries of a lake's store, put so long ago at least by the store's clock: they last seconds."""
    if root.here is not None:
        return []
    tried, before = root.folder / TRIED, time.time() - age.total_seconds()
    return [tried / name for name, seen in tried.files() if not age or seen.at <= before]


def _remove(places: Iterable[Stored]) -> None:
    for place in places:
        place.remove()


def note_of(root: Place) -> Place:
    """Where it is noted what came of trying out the store of a lake."""
    return root.folder / f".{root.name}.contract.json"


def _note(root: Stored) -> Stored:
    note = note_of(root)
    assert isinstance(note, Stored)
    return note
