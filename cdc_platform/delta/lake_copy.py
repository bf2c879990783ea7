"""Copy the tables of a lake, with their history, to another place at one set of versions.

Delta's own files are copied byte by byte, including commits, authors and digests.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cdc_platform.cql import split_full_name
from cdc_platform.delta.errors import translate_errors, translate_read_errors
from cdc_platform.delta.lake import Lake
from cdc_platform.delta.open_table import open_table
from cdc_platform.delta.paths import LOG_FOLDER, decode_path
from cdc_platform.delta.verification import verify_tables
from cdc_platform.delta.versions import read_newest_versions
from cdc_platform.errors import ConflictError, StateError
from cdc_platform.home_location import local_state_folder
from cdc_platform.storage import ObjectStorePath, StoragePath, atomic, map_in_threads, parse_path, write_check

_ATTEMPTS = 5
_THREADS = 8
_CHUNK_BYTES = 8 << 20
"""The bytes of a file in memory at once."""


@dataclass(frozen=True)
class LakeCopyResult:
    """The tables and files at the target, and the number of files that were there already."""

    tables: int = 0
    files: int = 0
    found: int = 0

    def __add__(self, other: LakeCopyResult) -> LakeCopyResult:
        return LakeCopyResult(self.tables + other.tables, self.files + other.files, self.found + other.found)


def read_settled_versions(*lakes: Lake) -> list[dict[str, int]]:
    """Return the newest version of each table of each lake, from a moment when none changed.

    Raises:
        ConflictError: a writer commits all the time.
    """
    previous = [read_newest_versions(lake) for lake in lakes]
    for _ in range(_ATTEMPTS):
        current = [read_newest_versions(lake) for lake in lakes]
        if current == previous:
            return previous
        previous = current
    raise ConflictError(f"{lakes[0].location} is changed continuously; copy it at a quieter time")


def assert_can_copy_to(target: Lake) -> None:
    """Raise an error unless a lake may be copied to the target.

    Raises:
        Unavailable, NoConditionalWrites: the disk is full, or the store does not support the platform's writes.
    """
    write_check.assert_storage_writable(target.location, 0, f"copying to {target.location.folder}")


def copy_tables(source: Lake, target: Lake, at: Mapping[str, int], on_table: Callable[[str], None]) -> LakeCopyResult:
    """Copy the tables at these versions, and verify the copy.

    Every copied file is read again at the target and compared with the bytes read at the source; an identical file is
    not copied again. The rows of these versions are compared with the digests of their commits as well. `on_table` is
    called with the name of each table.

    Raises:
        StateError: the copy differs from its commits, or the target has another table.
    """
    assert_can_copy_to(target)
    done = LakeCopyResult()
    # In a folder, drafts are renamed to their final paths.
    with atomic.temporary_folder("copy", local_state_folder(target.location.folder)) as folder:
        for name, version in at.items():
            on_table(name)
            keyspace, short = split_full_name(name)
            source_path, target_path = (lake.location / f"{keyspace}/{short}" for lake in (source, target))
            done += LakeCopyResult(tables=1)
            # Copy the log last and in order, so that a table appears at once, or grows version by version.
            with translate_read_errors(f"the log of {name}"):
                data, log = _list_table_files(source_path, version)
            done += _copy_all(source_path, target_path, data, folder, at_once=_THREADS)
            done += _copy_all(source_path, target_path, log, folder, at_once=1)
    wrong = [
        line for result in verify_tables(target, deep=True, names=at) for line in (*result.damage, *result.unexpected)
    ]
    if wrong:
        source_path, target_path = source.location.folder, target.location.folder
        raise StateError(
            f"the copy at {target.location} is not what was copied: {wrong[0]}; where cdc-platform check --deep finds "
            f"that in {source_path} as well, repair it there, remove {target_path}, and copy again"
        )
    newest = read_newest_versions(target)
    other = next((name for name, version in at.items() if newest.get(name) != version), None)
    if other is not None:
        raise StateError(
            f"{other} at {target.location} is at version {newest.get(other)}, not {at[other]}: it is another"
        )
    return done


def _list_table_files(table: StoragePath, version: int) -> tuple[list[str], list[str]]:
    """Return the data files and the log files (checkpoints before commits) of a table up to a version."""
    log = table / LOG_FOLDER
    names = [name for name in log.names() if name[:20].isdigit() and int(name[:20]) <= version]
    commits = [name for name in names if name.endswith(".json")]
    with translate_errors(f"opening {table}"):
        opened = open_table(str(table), version)
        data_paths = {decode_path(path) for path in opened.delta.get_add_actions().column("path").to_pylist()}
    for name in commits:
        for line in (log / name).read().decode().splitlines():
            added = json.loads(line).get("add")
            if added is not None:
                data_paths.add(decode_path(added["path"]))
    ordered = [*sorted(set(names) - set(commits)), *sorted(commits)]
    return sorted(data_paths), [f"{LOG_FOLDER}/{name}" for name in ordered]


def _copy_all(
    source: StoragePath, target: StoragePath, paths: Sequence[str], folder: Path, *, at_once: int
) -> LakeCopyResult:
    results = map_in_threads(lambda path: _copy_file(source / path, target / path, folder), paths, at_once)
    return LakeCopyResult(
        files=sum(result is not None for result in results), found=sum(result is True for result in results)
    )


def _copy_file(source: StoragePath, target: StoragePath, folder: Path) -> bool | None:
    """Copy a file whole; return True if the target had it already, None if the source no longer exists.

    Maintenance removes files of earlier versions. The final verification reports a missing file of the copied version.
    """
    try:
        source_stat = source.stat()
        if source_stat is None:
            return None
        target_stat = target.stat()
        if (
            target_stat is not None
            and target_stat.bytes == source_stat.bytes
            and _hash_file(target) == _hash_file(source)
        ):
            return True
        draft = folder / uuid.uuid4().hex
        due = _write_draft(source, draft)
    except FileNotFoundError:
        return None
    if target.local_path is not None:
        target.local_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    target.receive(draft)
    draft.unlink(missing_ok=True)
    if _hash_file(target) != due:
        raise StateError(f"{target} differs from {source}, from which it was copied; run it again")
    return False


def _write_draft(source: StoragePath, draft: Path) -> bytes:
    """Copy a file to this machine; return the digest of its bytes."""
    digest = hashlib.sha256()
    with draft.open("wb") as file:
        for part in _iter_chunks(source):
            digest.update(part)
            file.write(part)
    return digest.digest()


def _hash_file(file: StoragePath) -> bytes:
    digest = hashlib.sha256()
    for part in _iter_chunks(file):
        digest.update(part)
    return digest.digest()


def _iter_chunks(file: StoragePath) -> Iterator[bytes]:
    """Yield the bytes of a file in chunks.

    Raises:
        FileNotFoundError: the file does not exist.
    """
    if isinstance(file, ObjectStorePath):
        stat = file.stat()
        if stat is None:
            raise FileNotFoundError(str(file))
        for start in range(0, stat.bytes, _CHUNK_BYTES):
            yield file.read_range(start, min(start + _CHUNK_BYTES, stat.bytes))
        return
    assert file.local_path is not None
    with file.local_path.open("rb") as opened:
        yield from iter(partial(opened.read, _CHUNK_BYTES), b"")


def get_copy_note_path(home: str) -> StoragePath:
    """Return the path of the note that marks a home as an incomplete copy."""
    return parse_path(home) / ".copying.json"


def put_file(path: StoragePath, content: bytes) -> None:
    """Write a file atomically, at the source or the target."""
    if isinstance(path, ObjectStorePath):
        path.put(content)
        return
    assert path.local_path is not None
    path.local_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    atomic.write_bytes_atomically(path.local_path, content)


def copy_named_files(source: StoragePath, target: StoragePath, names: Sequence[str]) -> None:
    """Copy the files of these names, if they exist, from a home into its copy."""
    for name in names:
        try:
            content = (source / name).read()
        except FileNotFoundError:
            continue
        put_file(target / name, content)
