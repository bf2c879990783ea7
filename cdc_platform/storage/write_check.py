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
"""Bytes that must be free besides the rows: for a commit, the files' footers, and other writers."""


def _assert_disk_space(folder: Path, size: int, what: str) -> None:
    """Raise unless `size` bytes fit on the disk of a folder that exists or will exist.

    A file system that reports no size passes.

    Raises:
        Unavailable: the bytes do not fit.
    """
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    try:
        disk = os.statvfs(existing)
    except OSError:
        return
    if disk.f_blocks and disk.f_bavail * disk.f_frsize < size + _MIN_FREE_BYTES:
        raise disk_full_error(existing, what)


PROBE_FOLDER = ".contract"
"""The folder beside a lake for probes of its store; a probe removes its objects unless it is killed."""
PROBE_KEYS, PROBE_WRITERS = 30, 2
"""The number of objects that a probe puts, and the number of concurrent writers of each."""
_SUPPORTED, _BROKEN = "kept", "broken"


def assert_storage_writable(path: StoragePath, size: int, what: str) -> None:
    """Raise unless so many bytes can be written to a path: enough disk space, or a store with conditional writes.

    Raises:
        Unavailable: the disk has too little space, or the store refuses writes.
        NoConditionalWrites: the store does not support conditional writes.
    """
    assert_conditional_writes(path, what)
    if path.local_path is not None:
        _assert_disk_space(path.local_path, size, what)


def assert_conditional_writes(root: StoragePath, what: str) -> None:
    """Raise unless the store of a lake, if it lies in one, lets exactly one of several writers win.

    Raises:
        NoConditionalWrites: the store does not, now or in an earlier probe.
    """
    if isinstance(root, ObjectStorePath) and not has_conditional_writes(root):
        raise _no_conditional_writes_error(root, what)


def assert_not_known_unsafe(root: ObjectStorePath, what: str) -> None:
    """Raise if the store of a lake has failed a probe; read only the recorded result.

    Raises:
        NoConditionalWrites: the store has failed a probe.
    """
    with suppress(FileNotFoundError):
        if _get_stored_result_path(root).read() == _encode_probe_result(_BROKEN):
            raise _no_conditional_writes_error(root, what)


def _no_conditional_writes_error(root: ObjectStorePath, what: str) -> NoConditionalWrites:
    return NoConditionalWrites(
        f"{what}: {root.root} lets two writers create the same object, so this home can be read but not written to; "
        f"enable conditional writes in the store, remove "
        f"{_get_stored_result_path(root)} and try again, or use another store"
    )


@lru_cache(maxsize=64)
def has_conditional_writes(root: ObjectStorePath) -> bool:
    """Return True if the store of a lake supports conditional writes; a process checks once."""
    note = _get_stored_result_path(root)
    result = _read_probe_result(note)
    # Put the recorded result again. A store with conditional writes refuses the put. A store that accepts no writes
    # now, or denies them to this process, raises before a table is touched. Probe one that accepts the put again.
    if result is None or (result == _SUPPORTED and note.create(_encode_probe_result(_SUPPORTED)) is not None):
        # Zero winners are no violation: a put may succeed although the store reports a failure.
        result = _SUPPORTED if max(count_put_winners(root.folder)) <= 1 else _BROKEN
        note.create(_encode_probe_result(result))
    return result == _SUPPORTED


def _read_probe_result(note: ObjectStorePath) -> str | None:
    """Return the recorded result of the store's probe; None if there is none."""
    try:
        result = json.loads(note.read())["put_if_absent"]
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, json.JSONDecodeError, UnicodeDecodeError):
        note.remove()
        return None
    return _SUPPORTED if result == _SUPPORTED else _BROKEN


def _encode_probe_result(result: str) -> bytes:
    return json.dumps({"put_if_absent": result}).encode() + b"\n"


def count_put_winners(folder: ObjectStorePath) -> list[int]:
    """Put objects into a folder of a store, each by several writers at once; return the number of winners per object.

    The objects are removed afterwards.

    Raises:
        Unavailable: the store refuses a put or a removal.
    """
    probes = [folder / f"{PROBE_FOLDER}/{uuid.uuid4().hex}" for _ in range(PROBE_KEYS)]
    try:
        winners = _put_concurrently(probes)
        failpoints.kill_if_selected(failpoints.AFTER_STORE_TRIED)
    except BaseException:
        with suppress(PlatformError):  # report the store's first failure
            _remove_probes(probes)
        raise
    _remove_probes(probes)
    return winners


def _put_concurrently(paths: Sequence[ObjectStorePath]) -> list[int]:
    from concurrent.futures import ThreadPoolExecutor

    together = Barrier(PROBE_WRITERS)

    def put(writer: int) -> list[bool]:
        try:
            return [_try_put(path, writer, together) for path in paths]
        except BaseException:
            together.abort()  # release the other writer, which waits for this one
            raise

    with ThreadPoolExecutor(PROBE_WRITERS) as writers:
        futures = [writers.submit(put, writer) for writer in range(PROBE_WRITERS)]
    failures = [failure for future in futures if (failure := future.exception()) is not None]
    if failures:
        raise next((failure for failure in failures if not isinstance(failure, BrokenBarrierError)), failures[0])
    return [sum(wins) for wins in zip(*(future.result() for future in futures), strict=True)]


def _try_put(path: ObjectStorePath, writer: int, barrier: Barrier) -> bool:
    barrier.wait()
    return path.create(f"{writer}".encode()) is not None


def list_leftover_probes(root: StoragePath, age: timedelta = timedelta()) -> list[StoragePath]:
    """Return probe objects of a lake's store that are at least `age` old by the store's clock (probes last seconds)."""
    if root.local_path is not None:
        return []
    folder, before = root.folder / PROBE_FOLDER, time.time() - age.total_seconds()
    return [folder / name for name, seen in folder.files() if not age or seen.modified_at <= before]


def _remove_probes(paths: Iterable[ObjectStorePath]) -> None:
    for path in paths:
        path.remove()


def get_probe_result_path(root: StoragePath) -> StoragePath:
    """Return the path of the recorded probe result of a lake's store."""
    return root.folder / f".{root.name}.contract.json"


def _get_stored_result_path(root: ObjectStorePath) -> ObjectStorePath:
    note = get_probe_result_path(root)
    assert isinstance(note, ObjectStorePath)
    return note
