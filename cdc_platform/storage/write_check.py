"""Check that a home's storage can be written: free disk space, and conditional writes in an object store.

Every commit relies on one winner among concurrent puts of the same object. The first write into a lake probes its
store and records the result beside the lake. A store that fails the probe is read-only for the platform.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from threading import Barrier, BrokenBarrierError

from cdc_platform import failpoints
from cdc_platform.errors import NoConditionalWrites, PlatformError, disk_full_error
from cdc_platform.storage.object_store import ObjectStorePath
from cdc_platform.storage.path import StoragePath

_MIN_FREE_BYTES = 1024 * 1024
"""Bytes that have to be free beside the rows: a commit, the files' footers, and what others write meanwhile."""


def _assert_disk_space(folder: Path, size: int, what: str) -> None:
    """Hold that `size` bytes fit beside a folder that is there or will be; a file system that does not say has room.

    Raises:
        Unavailable: they do not.
    """
    there = next(place for place in (folder, *folder.parents) if place.exists())
    try:
        room = os.statvfs(there)
    except OSError:
        return
    if room.f_blocks and room.f_bavail * room.f_frsize < size + _MIN_FREE_BYTES:
        raise disk_full_error(there, what)


PROBE_FOLDER = ".contract"
"""The folder beside a lake in which a store is tried out; each try takes its objects away, unless it is killed."""
PROBE_KEYS, PROBE_WRITERS = 30, 2
"""How many objects are put, and how many put each at once."""
_SUPPORTED, _BROKEN = "kept", "broken"


def assert_storage_writable(place: StoragePath, size: int, what: str) -> None:
    """Hold that so many bytes can be written to a place: a disk has room, and a store keeps the contract.

    Raises:
        Unavailable: the disk has no room, or the store takes nothing.
        NoConditionalWrites: the store does not keep it.
    """
    assert_conditional_writes(place, what)
    if place.here is not None:
        _assert_disk_space(place.here, size, what)


def assert_conditional_writes(root: StoragePath, what: str) -> None:
    """Hold that the store of a lake, if it lies in one, lets one of several writers win.

    Raises:
        NoConditionalWrites: it does not, or has not when it was tried out.
    """
    if isinstance(root, ObjectStorePath) and not has_conditional_writes(root):
        raise _no_conditional_writes_error(root, what)


def assert_not_known_unsafe(root: ObjectStorePath, what: str) -> None:
    """Hold that the store of a lake has not failed when it was tried out; it is asked for the note of that alone.

    Raises:
        NoConditionalWrites: it has.
    """
    with suppress(FileNotFoundError):
        if _get_stored_result_path(root).read() == _encode_probe_result(_BROKEN):
            raise _no_conditional_writes_error(root, what)


def _no_conditional_writes_error(root: ObjectStorePath, what: str) -> NoConditionalWrites:
    return NoConditionalWrites(
        f"{what}: {root.root} lets two writers both put an object that was not there, so this home can be looked "
        "at and not written to; turn conditional writes on in the store, remove "
        f"{_get_stored_result_path(root)} and try again, or use another store"
    )


@lru_cache(maxsize=64)
def has_conditional_writes(root: ObjectStorePath) -> bool:
    """Whether the store of a lake keeps the contract; a process asks once."""
    note = _get_stored_result_path(root)
    said = _read_probe_result(note)
    # It is put again, which a store that keeps the contract refuses: of one that takes nothing now, or lets this
    # process look alone, that is told before a table is touched. One that takes it has been changed since.
    if said is None or (said == _SUPPORTED and note.create(_encode_probe_result(_SUPPORTED)) is not None):
        # That one has put it, and was told by a store that failed that it has not, is no breach.
        said = _SUPPORTED if max(count_put_winners(root.folder)) <= 1 else _BROKEN
        note.create(_encode_probe_result(said))
    return said == _SUPPORTED


def _read_probe_result(note: ObjectStorePath) -> str | None:
    """What came of it when the store was tried out; None where nobody has."""
    try:
        said = json.loads(note.read())["put_if_absent"]
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, json.JSONDecodeError, UnicodeDecodeError):
        note.remove()
        return None
    return _SUPPORTED if said == _SUPPORTED else _BROKEN


def _encode_probe_result(said: str) -> bytes:
    return json.dumps({"put_if_absent": said}).encode() + b"\n"


def count_put_winners(folder: ObjectStorePath) -> list[int]:
    """Put objects into a folder of a store, each by several at once, and take them away; how many have put each.

    Raises:
        Unavailable: the store does not let them be put, or taken away.
    """
    tried = [folder / f"{PROBE_FOLDER}/{uuid.uuid4().hex}" for _ in range(PROBE_KEYS)]
    try:
        found = _put_concurrently(tried)
        failpoints.kill_if_selected(failpoints.AFTER_STORE_TRIED)
    except BaseException:
        with suppress(PlatformError):  # of a store that has failed already, the first failure is told
            _remove_probes(tried)
        raise
    _remove_probes(tried)
    return found


def _put_concurrently(tried: Sequence[ObjectStorePath]) -> list[int]:
    from concurrent.futures import ThreadPoolExecutor

    together = Barrier(PROBE_WRITERS)

    def put(writer: int) -> list[bool]:
        try:
            return [_try_put(place, writer, together) for place in tried]
        except BaseException:
            together.abort()  # nobody waits for one who comes no more
            raise

    with ThreadPoolExecutor(PROBE_WRITERS) as writers:
        asked = [writers.submit(put, writer) for writer in range(PROBE_WRITERS)]
    failures = [failure for each in asked if (failure := each.exception()) is not None]
    if failures:
        raise next((each for each in failures if not isinstance(each, BrokenBarrierError)), failures[0])
    return [sum(each) for each in zip(*(each.result() for each in asked), strict=True)]


def _try_put(place: ObjectStorePath, writer: int, together: Barrier) -> bool:
    together.wait()
    return place.create(f"{writer}".encode()) is not None


def list_leftover_probes(root: StoragePath, age: timedelta = timedelta()) -> list[StoragePath]:
    """What is there of tries of a lake's store, put so long ago at least by the store's clock: they last seconds."""
    if root.here is not None:
        return []
    tried, before = root.folder / PROBE_FOLDER, time.time() - age.total_seconds()
    return [tried / name for name, seen in tried.files() if not age or seen.at <= before]


def _remove_probes(places: Iterable[ObjectStorePath]) -> None:
    for place in places:
        place.remove()


def get_probe_result_path(root: StoragePath) -> StoragePath:
    """Where it is noted what came of trying out the store of a lake."""
    return root.folder / f".{root.name}.contract.json"


def _get_stored_result_path(root: ObjectStorePath) -> ObjectStorePath:
    note = get_probe_result_path(root)
    assert isinstance(note, ObjectStorePath)
    return note
