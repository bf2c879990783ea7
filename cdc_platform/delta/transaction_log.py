"""The transaction log of a table: make commits, read them back, and look up the digests that they record.

Every write goes through `make_commit`. A commit is the version after the one that was read, or fails; retrying is up
to the caller.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction

from cdc_platform.clock import Milliseconds
from cdc_platform.delta import commit_info, log_mirror
from cdc_platform.delta.commit_info import CommitInfo
from cdc_platform.delta.files import LOG_FOLDER, ForeignPath, decode_path, folder_from_opened
from cdc_platform.delta.row_hash import DigestRule, digest_rule_from_properties
from cdc_platform.delta.table_usage import record_commit
from cdc_platform.storage import FileStat, StoragePath, parse_path

DeltaCommitProperties = CommitProperties
"""deltalake's properties of a commit."""
_ENTRY_NAME = re.compile(r"[0-9]{20}\.json")
_FILE_ACTIONS = ("add", "remove")
"""The actions that name a data file."""


@dataclass(frozen=True, eq=False)
class Commit:
    """One entry of Delta's log.

    `at_ms` is by its writer's clock. `envelope` is None if the platform did not make the commit, or made it before
    CommitInfo existed. `changes` is True if it changed rows, columns or rules of the table. `files` are the data files
    that it adds or removes, by their paths below the table.
    """

    version: int
    at_ms: Milliseconds | None
    operation: str
    engine: str
    envelope: CommitInfo | None
    changes: bool
    files: frozenset[str] = frozenset()


def make_commit(
    opened: DeltaTable,
    commit: Callable[[DeltaCommitProperties], object],
    *,
    digests: Mapping[str, int] | None = None,
    numbers: Mapping[str, int] | None = None,
    accepts: Mapping[int, str] | None = None,
) -> None:
    """Run `commit`, which makes one commit, with a CommitInfo, as the version after the opened one.

    `digests` are those of the partitions that it changes. `numbers` are transaction numbers by application, which Delta
    keeps as well. `accepts` are foreign commits. A failure is ignored if the commit is in the log all the same: a store
    may have done what it reported as failed. If a store refuses a file, a thread of deltalake may print a panic on
    standard error, next to the exception that it raises.
    """
    seal = commit_info.new_commit_info(digests, numbers, accepts)
    read_version, folder = opened.version(), folder_from_opened(opened)
    try:
        commit(properties_from_commit_info(seal))
        log_mirror.publish_commit(opened, read_version + 1)
    except Exception:
        if not _is_committed(folder, read_version, seal.id):
            raise
    record_commit(folder)
    if opened.version() == read_version:
        opened.update_incremental()
    _get_commit_info_cache(opened)[read_version + 1] = seal


def properties_from_commit_info(seal: CommitInfo) -> DeltaCommitProperties:
    """Return deltalake's properties for a commit with this CommitInfo.

    The commit is never retried, since its digests would be wrong on top of another commit.
    """
    marks = [Transaction(*number) for number in seal.numbers.items()] or None
    return CommitProperties(custom_metadata=dict(seal.metadata()), max_commit_retries=0, app_transactions=marks)


def get_post_commit_hooks(opened: DeltaTable) -> PostCommitHookProperties:
    """Return deltalake's work after the next commit: remove expired log entries only where a checkpoint is due.

    Delta removes entries no further than a checkpoint, and a search after every commit is as slow as a commit of one
    row.
    """
    configured = opened.metadata().configuration.get("delta.checkpointInterval", "100")
    interval = int(configured) if configured.isdigit() else 1
    is_due = (opened.version() + 2) % max(interval, 1) == 0
    return PostCommitHookProperties(cleanup_expired_logs=None if is_due else False)


def iter_commits(folder: str, newest: int) -> Iterator[Commit]:
    """Yield the commits that are still in Delta's log, backwards from a version until the first gap.

    Raises:
        ValueError: an entry cannot be read; the error names its file.
    """
    for version in range(newest, -1, -1):
        try:
            yield read_commit(get_entry_path(folder, version), version)
        except FileNotFoundError:
            return


def get_entry_path(folder: str, version: int) -> StoragePath:
    """Return the file of a commit in Delta's log."""
    return get_log_folder(folder) / _entry_name(version)


@lru_cache(maxsize=256)
def get_log_folder(folder: str) -> StoragePath:
    """Return the folder of a table's log. Cached: every access needs it."""
    return parse_path(folder) / LOG_FOLDER


def _entry_name(version: int) -> str:
    return f"{version:020d}.json"


@dataclass(frozen=True)
class LogProbe:
    """A look at Delta's log by names only: the marks of two commits (None if gone), and if the second is the newest."""

    mark: str | None
    newest_mark: str | None
    is_newest: bool


FileLister = Callable[[StoragePath, str], Iterable[tuple[str, FileStat]]]
"""A function that lists the files of a folder in a store whose names come after a given one."""


def probe_log(folder: str, version: int, newest: int, listed: FileLister) -> LogProbe:
    """Probe the entries of a version, of the newest known version and of the next one; in a store by one request."""
    log = get_log_folder(folder)
    at, last, after = (_entry_name(number) for number in (version, newest, newest + 1))
    if log.local_path is not None:
        stats = {name: stat for name in {at, last, after} if (stat := log.stat_in(name)) is not None}
    else:
        # List the names after the entry's own without its suffix, so that the entry itself is among them.
        stats = dict(listed(log, at.removesuffix(".json")))
    mark, newest_mark = (stats[name].mark if name in stats else None for name in (at, last))
    return LogProbe(mark, newest_mark, after not in stats)


def read_commit(file: StoragePath, version: int) -> Commit:
    """Read a commit from its file.

    Raises:
        ValueError: the file is no entry of a log; the error names it.
        FileNotFoundError: there is no such file.
    """
    return commit_from_actions(read_actions(file), version)


def read_actions(file: StoragePath) -> list[dict[str, Any]]:
    """Return the actions of a log entry, in its order; raises as `read_commit`."""
    try:
        actions = [json.loads(line) for line in file.read().decode().splitlines() if line.strip()]
        if not actions:
            raise ValueError("it is empty")
        if not all(isinstance(action, dict) for action in actions):
            raise ValueError("an action is none")
        if not all(isinstance(action.get("commitInfo", {}), dict) for action in actions):
            raise ValueError("its commitInfo is no object")
        of_files = [action[kind] for action in actions for kind in _FILE_ACTIONS if kind in action]
        if not all(isinstance(action, dict) and isinstance(action.get("path"), str) for action in of_files):
            raise ValueError("a file has no path")
    except RecursionError:
        raise ValueError(f"{file.name} is damaged (its JSON is nested too deep)") from None
    except ValueError as error:
        raise ValueError(f"{file.name} is damaged ({error})") from error
    return actions


def version_from_name(name: str) -> int | None:
    """Return the version of the log entry with this file name; None if the name is not that of an entry."""
    return int(name[:-5]) if _ENTRY_NAME.fullmatch(name) else None


def commit_from_actions(entry: Sequence[Mapping[str, Any]], version: int) -> Commit:
    """Return the commit of these actions, without files outside the table's folder, which the platform never reads."""
    info: Mapping[str, Any] = next((action["commitInfo"] for action in reversed(entry) if "commitInfo" in action), {})
    at, operation = info.get("timestamp"), info.get("operation")
    return Commit(
        version,
        Milliseconds(at) if isinstance(at, int) else None,
        str(operation or "an operation without a name"),
        str(info.get("engineInfo") or "an unknown engine"),
        commit_info.parse_commit_info(info),
        any(map(_is_change, entry)),
        frozenset(_paths_inside(action[kind]["path"] for action in entry for kind in _FILE_ACTIONS if kind in action)),
    )


def _paths_inside(written: Iterable[str]) -> Iterator[str]:
    """Yield the paths that lie in the table's folder."""
    for path in written:
        with suppress(ForeignPath):
            yield decode_path(path)


def _is_change(action: Mapping[str, Any]) -> bool:
    """Return True if an action changes rows, columns or rules; compacted files do not."""
    files = [action[kind] for kind in _FILE_ACTIONS if kind in action]
    return "metaData" in action or "protocol" in action or any(file.get("dataChange", True) for file in files)


def get_digest_rule(opened: DeltaTable) -> DigestRule:
    """Return the rule by which the commits of an opened table compute digests.

    Raises:
        StateError: this version does not know the rule.
    """
    metadata = opened.metadata()
    return digest_rule_from_properties(metadata.name or opened.table_uri, metadata.configuration)


def get_digests(opened: DeltaTable, wanted: Collection[str]) -> dict[str, int] | None:
    """Return the recorded digests of partitions in an opened version; None if one of them is unknown.

    A partition that no commit names is empty, if the log goes back to a creation with a CommitInfo.
    """
    known = get_known_digests(opened, wanted)
    return known if len(known) == len(set(wanted)) else None


def get_known_digests(opened: DeltaTable, wanted: Collection[str]) -> dict[str, int]:
    """Return the recorded digests of partitions in an opened version, without the unknown ones.

    A partition that no commit names is empty, if the log goes back to a creation with a CommitInfo.
    """
    digests: dict[str, int] = {}
    folder, known = folder_from_opened(opened), _get_commit_info_cache(opened)
    for version in range(opened.version(), -1, -1):
        if version not in known:
            try:
                known[version] = read_commit(_get_nearest_entry_path(opened, folder, version), version).envelope
            except FileNotFoundError:
                return digests
        info = known[version]
        if info is not None:
            digests = {name: digest for name, digest in info.digests.items() if name in wanted} | digests
            if len(digests) == len(set(wanted)):
                return digests
            if version == 0:
                return {name: digests.get(name, 0) for name in wanted}
    return digests


def _get_nearest_entry_path(opened: DeltaTable, folder: str, version: int) -> StoragePath:
    """Return the file of a commit of an opened table, from its mirror if that has it."""
    mirrored = log_mirror.get_mirror(opened)
    entry = None if mirrored is None else mirrored.entry(version)
    return get_entry_path(folder, version) if entry is None else parse_path(entry)


def _get_commit_info_cache(opened: DeltaTable) -> dict[int, CommitInfo | None]:
    """Return the CommitInfo of the commits that were read or made since the table was opened, by version.

    A commit never changes. A replaced table is opened again, with an empty cache.
    """
    return vars(opened).setdefault("_said", {})


def _is_committed(folder: str, after: int, identity: str) -> bool:
    """Return True if a commit with this CommitInfo's ID follows a version in the log."""
    version = after + 1
    while True:
        try:
            info = read_commit(get_entry_path(folder, version), version).envelope
        except (FileNotFoundError, ValueError):  # another writer is still writing it
            return False
        if info is not None and info.id == identity:
            return True
        version += 1
