"""What a store has to keep for tables to be written in it: of several who put the same object at once, one does.

Every commit rests on that. A store is tried out at the first write into a lake, which is noted beside it; in one that
fails nothing is written: what is there may be looked at.
"""

from __future__ import annotations

import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from threading import Barrier

from cdc_platform.errors import NoConditionalWrites
from cdc_platform.lake.room import assert_room
from cdc_platform.places import Place, Stored

KEYS, WRITERS = 30, 2
"""How many objects are put, and how many put each at once."""
_KEPT, _BROKEN = "kept", "broken"


def assert_fit(place: Place, size: int, what: str) -> None:
    """Hold that so many bytes can be written to a place: a disk has room, and a store keeps the contract.

    Raises:
        Unavailable: the disk has no room.
        NoConditionalWrites: the store does not keep it.
    """
    if isinstance(place, Stored):
        assert_kept(place, what)
    elif place.here is not None:
        assert_room(place.here, size, what)


def assert_kept(root: Stored, what: str) -> None:
    """Hold that the store of a lake lets one of several writers win.

    Raises:
        NoConditionalWrites: it does not, or has not when it was tried out.
    """
    if not _is_kept(root):
        raise NoConditionalWrites(
            f"{what}: {root.root} lets two writers both put an object that was not there, so this home can be looked "
            "at and not written to; turn conditional writes on in the store, remove "
            f"{_note(root)} and try again, or use another store"
        )


@lru_cache(maxsize=64)
def _is_kept(root: Stored) -> bool:
    note = _note(root)
    try:
        return json.loads(note.read()).get("put_if_absent") == _KEPT
    except FileNotFoundError:
        pass  # nobody has written here yet
    # That one has put it, and was told by a store that failed that it has not, is no breach.
    kept = max(winners(root.folder)) <= 1
    note.create(json.dumps({"put_if_absent": _KEPT if kept else _BROKEN}).encode() + b"\n")
    return kept


def winners(folder: Stored) -> list[int]:
    """Put objects into a folder of a store, each by several at once, and take them away; how many have put each."""
    tried = [folder / f".contract/{uuid.uuid4().hex}" for _ in range(KEYS)]
    together = Barrier(WRITERS)

    def put(writer: int) -> list[bool]:
        done = []
        for place in tried:
            together.wait()
            done.append(place.create(f"{writer}".encode()) is not None)
        return done

    with ThreadPoolExecutor(WRITERS) as writers:
        found = list(writers.map(put, range(WRITERS)))
    for place in tried:
        place.remove()
    return [sum(each) for each in zip(*found, strict=True)]


def _note(root: Stored) -> Stored:
    return root.folder / f".{root.name}.contract.json"
