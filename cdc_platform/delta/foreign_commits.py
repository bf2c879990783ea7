"""Accept or undo a foreign commit of a table, with a reason.

Accepting is a commit that changes no row and records the current digests of the affected partitions. Undoing is a
commit that restores the version before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from deltalake.exceptions import CommitFailedError, DeltaError

from cdc_platform.cql import split_full_name
from cdc_platform.delta import commits, files, row_hash, transaction_log, verification
from cdc_platform.delta.commit_retry import retry_on_conflict
from cdc_platform.delta.errors import translate_errors
from cdc_platform.delta.lake import Lake
from cdc_platform.delta.lake_copy import put_file
from cdc_platform.delta.open_table import OpenTable, open_table
from cdc_platform.delta.transaction_log import Commit
from cdc_platform.delta.verification import LAST_CHECKPOINT_FILE
from cdc_platform.delta.versions import list_stored_tables
from cdc_platform.errors import InputError, NotFound, StateError, UnknownTable
from cdc_platform.storage import StoragePath, parse_path
from cdc_platform.tables import Table

MAX_REASON_LENGTH = 500
"""The maximum number of characters of a reason."""


@dataclass(frozen=True)
class AcceptedCommit:
    """An accepted foreign commit: the version that records the acceptance, and the partitions accepted as they are."""

    table: str
    version: int
    recorded_in: int
    partitions: tuple[str, ...]
    is_new: bool


def accept_commit(lake: Lake, name: str, version: int, reason: str) -> AcceptedCommit:
    """Accept a foreign commit of a table; an earlier acceptance stays unchanged.

    Partitions that another foreign commit without acceptance has changed as well are left to that commit.

    Raises:
        NotFound: there is no such table or commit.
        InputError: the commit is the platform's own, or older than CommitInfo, or changes nothing; or there is no
            reason, or it is too long.
        StateError: a file of the table is damaged.
        ConflictError: other writers kept winning.
    """
    table = _find_table(lake, name, reason)
    return retry_on_conflict(
        f"accepting version {version} of {name}", lambda: _accept_once(lake, table, version, reason)
    )


@dataclass(frozen=True)
class UndoneCommit:
    """A foreign commit that was undone with all later ones: the restored version, and the version that records it.

    `moved` are the unreadable entries that were moved out of the log, by their new paths.
    """

    table: str
    version: int
    restored: int
    recorded_in: int
    moved: tuple[str, ...]


def undo_commit(lake: Lake, name: str, version: int, reason: str) -> UndoneCommit:
    """Undo a foreign commit of a table, with all later commits: restore the version before it.

    Entries of the log that no reader understands, so that the table cannot be opened, are moved into the folder
    `damaged` of the home; their changes are lost.

    Raises:
        NotFound: there is no such table or commit.
        InputError: the commit is the platform's own, or the table's first; or there is no reason, or it is too long.
        StateError: the platform has written since, or files of the version before are gone.
        ConflictError: other writers kept winning.
    """
    table = _find_table(lake, name, reason)
    return retry_on_conflict(
        f"taking back version {version} of {name}", lambda: _undo_once(lake, table, version, reason)
    )


def _find_table(lake: Lake, name: str, reason: str) -> Table:
    """Return the table of this name; refuse a reason that cannot be recorded."""
    if not reason.strip() or len(reason) > MAX_REASON_LENGTH or not reason.isprintable():
        raise InputError(
            f"a reason is one line of 1 to {MAX_REASON_LENGTH} characters; say with --reason why {name} is as it is"
        )
    keyspace, short = split_full_name(name)
    if (keyspace, short) not in list_stored_tables(lake):
        raise UnknownTable(f"there is no table {name} in this home; check shows the tables that have foreign commits")
    return Table(keyspace, short, pa.schema([]), (), "")


def _undo_once(lake: Lake, table: Table, version: int, reason: str) -> UndoneCommit:
    folder, name = lake.path(table), table.full_name
    log = transaction_log.get_log_folder(folder)
    newest = max(
        (number for number in map(transaction_log.version_from_name, log.names()) if number is not None), default=-1
    )
    if 0 < version == newest + 1 and (moved := _list_moved_entries(lake, name, version)):
        # A process that died between the move and its record.
        return _record_undo(folder, name, version, reason, moved)
    if not 0 < version <= newest:
        raise NotFound(f"{name} has no commit {version} that could be taken back; its newest is {newest}")
    entries: dict[int, Commit | None] = {}
    for number in range(version, newest + 1):
        try:
            entries[number] = transaction_log.read_commit(transaction_log.get_entry_path(folder, number), number)
        except ValueError:
            entries[number] = None
        except OSError as error:
            raise StateError(f"version {number} of {name} cannot be read: {error}; restore it first") from None
    _refuse_own(name, version, entries)
    before = version - 1
    _assert_restorable(folder, name, before)
    changing = [number for number, commit in entries.items() if commit is None or commit.changes]
    with translate_errors(f"taking back version {version} of {name}"):
        if None not in entries.values() and _try_restore(folder, before, dict.fromkeys(changing, reason)):
            return UndoneCommit(name, version, before, newest + 1, ())
    return _record_undo(folder, name, version, reason, _move_entries(lake, name, log, version))


def _record_undo(folder: str, name: str, version: int, reason: str, moved: tuple[str, ...]) -> UndoneCommit:
    """Record in a commit that the entries from `version` on were moved out of the log."""
    with translate_errors(f"opening version {version - 1} of {name}"):
        opened = open_table(folder)
        commits.make_commit(
            opened, lambda properties: _make_empty_commit(opened, properties), digests={}, accepts={version: reason}
        )
    return UndoneCommit(name, version, version - 1, opened.version(), moved)


def _try_restore(folder: str, version: int, accepts: Mapping[int, str]) -> bool:
    """Restore a version of a table in a commit; return False, without a write, if Delta cannot.

    Raises:
        CommitFailedError: another writer was first.
    """
    try:
        opened = open_table(folder)
        files.list_paths(opened)  # Delta cannot remove a file outside the table's folder from the log
        if files.list_unsupported_features(opened):  # restoring a version does not turn a feature off
            return False
        commits.make_commit(
            opened,
            lambda properties: opened.delta.restore(version, commit_properties=properties),
            digests={},
            accepts=accepts,
        )
    except CommitFailedError:
        raise
    except (DeltaError, ValueError):
        return False
    return True


def _assert_restorable(folder: str, name: str, version: int) -> None:
    """Refuse to restore a version that cannot be read or lacks a file."""
    with translate_errors(f"opening version {version} of {name}"):
        paths = files.list_paths(open_table(folder, version))
    missing = next((path for path in paths if parse_path(path).stat() is None), None)
    if missing is not None:
        raise StateError(f"version {version} of {name} cannot be restored: {missing} is gone; restore it first")


def _refuse_own(name: str, version: int, entries: Mapping[int, Commit | None]) -> None:
    first = entries[version]
    if first is not None and first.info is not None:
        raise InputError(f"version {version} of {name} is the platform's own; only foreign commits are taken back")
    own = [number for number, commit in entries.items() if commit is not None and commit.info and commit.changes]
    if own:
        raise StateError(
            f"the platform has written version {own[0]} of {name} since, which would go as well; accept version "
            f"{version} with --accept, and put its rows right"
        )


def _move_entries(lake: Lake, name: str, log: StoragePath, version: int) -> tuple[str, ...]:
    """Move a log's entries and checkpoints of a version and later ones out of it, the newest first."""
    moved = []
    for file in sorted(log.names(), reverse=True):
        if file == LAST_CHECKPOINT_FILE or (file[:20].isdigit() and int(file[:20]) >= version):
            content = (log / file).read()
            target = lake.location.folder / f"damaged/{name}/{file}.{hashlib.sha256(content).hexdigest()[:16]}"
            put_file(target, content)
            (log / file).remove()
            moved.append(str(target))
    return tuple(moved)


def _list_moved_entries(lake: Lake, name: str, version: int) -> tuple[str, ...]:
    """List the entries of a version and later ones that were moved out of a log earlier, by their new paths."""
    folder = lake.location.folder / f"damaged/{name}"
    return tuple(
        str(folder / file) for file in sorted(folder.names()) if file[:20].isdigit() and int(file[:20]) >= version
    )


def _make_empty_commit(opened: OpenTable, properties: commits.DeltaCommitProperties) -> None:
    """Make a commit that changes nothing."""
    opened.delta.create_write_transaction(
        [], "append", opened.delta.schema(), opened.partition_columns(), commit_properties=properties
    )


def _accept_once(lake: Lake, table: Table, version: int, reason: str) -> AcceptedCommit:
    folder, name = lake.path(table), table.full_name
    opened = open_table(folder)
    history = list(transaction_log.iter_commits(folder, opened.version()))
    acceptances = {number: commit.version for commit in history if commit.info for number in commit.info.accepts}
    if version in acceptances:
        return AcceptedCommit(name, version, acceptances[version], (), is_new=False)
    foreign = verification.list_foreign_commits(history)
    _refuse_unless_foreign(name, version, history, foreign)
    open_versions = [commit.version for commit in foreign if commit.version not in {*acceptances, version}]
    partitions = _list_changed_partitions(
        folder, [number for number in (*acceptances, version) if number not in open_versions]
    )
    partitions -= _list_changed_partitions(folder, open_versions)
    digests = verification.digest_partitions(name, folder, opened.version(), partitions)
    recorded_in = opened.version() + 1
    commits.make_commit(
        opened, lambda properties: _make_empty_commit(opened, properties), digests=digests, accepts={version: reason}
    )
    return AcceptedCommit(name, version, recorded_in, tuple(sorted(digests)), is_new=True)


def _refuse_unless_foreign(name: str, version: int, history: Sequence[Commit], foreign: Sequence[Commit]) -> None:
    if any(commit.version == version for commit in foreign):
        return
    existing = next((commit for commit in history if commit.version == version), None)
    if existing is None:
        raise NotFound(f"{name} has no commit {version} in its log; its newest is {history[0].version}")
    why = "is the platform's own" if existing.info else "changes nothing, or is older than CommitInfo"
    raise InputError(f"version {version} of {name} {why}: there is nothing to accept; check names foreign commits")


def _list_changed_partitions(folder: str, versions: Sequence[int]) -> set[str]:
    """Return the partitions in which commits have added or removed a file."""
    partitions: set[str] = set()
    for version in versions:
        after, before = (_map_files_to_partitions(folder, number) for number in (version, version - 1))
        partitions |= {name for path, name in (after | before).items() if (path in after) != (path in before)}
    return partitions


def _map_files_to_partitions(folder: str, version: int) -> dict[str, str]:
    """Return the partition of each file of a version, by path."""
    try:
        opened = open_table(folder, version)
    except OSError as error:
        raise StateError(f"version {version} of {folder} cannot be read any more: {error}") from None
    names = tuple(opened.partition_columns())
    return {
        file.path: row_hash.format_partition_name(names, file.partition)
        for file in files.list_partition_files(opened, names)
    }
