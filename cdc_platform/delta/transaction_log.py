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
"""What deltalake takes with a commit."""
_ENTRY_NAME = re.compile(r"[0-9]{20}\.json")
_FILE_ACTIONS = ("add", "remove")
"""The actions that name a data file."""


@dataclass(frozen=True, eq=False)
class Commit:
    """One entry of Delta's log. `at_ms` is by its writer's clock; `envelope` None: the platform did not make it, or one
    from before there were envelopes; `changes`: whether it changed rows, columns or rules of the table; `files`: the
    data files that it adds or removes, by their paths below the table.
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
    """Run what makes one commit, in an envelope, as the version after the opened one.

    `digests` are those of the slices that it changes; `numbers` those of applications, which Delta keeps as well;
    `accepts` are foreign commits. A failure is ignored if the commit is in the log all the same: a store may have done
    what it reported as failed. If a store refuses a file, a thread of deltalake may print a panic on standard error,
    next to the exception that it raises.
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
    """An envelope as deltalake takes it, of a commit that is made once: with others behind it its digests are wrong."""
    marks = [Transaction(*number) for number in seal.numbers.items()] or None
    return CommitProperties(custom_metadata=dict(seal.metadata()), max_commit_retries=0, app_transactions=marks)


def get_post_commit_hooks(opened: DeltaTable) -> PostCommitHookProperties:
    """What deltalake does behind the next commit: what has expired goes from the log where a checkpoint is made.

    It goes no further than that, and to look for it each time is as slow as a commit of one row.
    """
    configured = opened.metadata().configuration.get("delta.checkpointInterval", "100")
    every = int(configured) if configured.isdigit() else 1
    is_due = (opened.version() + 2) % max(every, 1) == 0
    return PostCommitHookProperties(cleanup_expired_logs=None if is_due else False)


def iter_commits(folder: str, newest: int) -> Iterator[Commit]:
    """The commits that Delta's log still has, back from a version without a gap.

    Raises:
        ValueError: an entry cannot be read; the error names its file.
    """
    for version in range(newest, -1, -1):
        try:
            yield read_commit(get_entry_path(folder, version), version)
        except FileNotFoundError:
            return


def get_entry_path(folder: str, version: int) -> StoragePath:
    """The file of a commit in Delta's log."""
    return get_log_folder(folder) / _entry_name(version)


@lru_cache(maxsize=256)
def get_log_folder(folder: str) -> StoragePath:
    """Where a table's log is: it is asked for at each look."""
    return parse_path(folder) / LOG_FOLDER


def _entry_name(version: int) -> str:
    return f"{version:020d}.json"


@dataclass(frozen=True)
class LogProbe:
    """What Delta's log tells by names alone: the marks of two commits, None if one is gone; if others followed."""

    mark: str | None
    newest_mark: str | None
    is_newest: bool


FileLister = Callable[[StoragePath, str], Iterable[tuple[str, FileStat]]]
"""What tells the files of a folder of a store whose names come after one."""


def probe_log(folder: str, version: int, newest: int, listed: FileLister) -> LogProbe:
    """Look at the commits of a version and of the newest that is known, and for the next; of a store by one request."""
    log = get_log_folder(folder)
    at, last, after = (_entry_name(number) for number in (version, newest, newest + 1))
    if log.here is not None:
        seen = {name: there for name in {at, last, after} if (there := log.seen_in(name)) is not None}
    else:
        # What follows the name before the commit's own: in Delta's log that of a version without its last letters.
        seen = dict(listed(log, at.removesuffix(".json")))
    mark, newest_mark = (seen[name].mark if name in seen else None for name in (at, last))
    return LogProbe(mark, newest_mark, after not in seen)


def read_commit(file: StoragePath, version: int) -> Commit:
    """A commit as its file tells of it.

    Raises:
        ValueError: the file is no entry of a log; the error names it.
        FileNotFoundError: there is no such file.
    """
    return commit_from_actions(read_actions(file), version)


def read_actions(file: StoragePath) -> list[dict[str, Any]]:
    """The actions of an entry of a log, in its order; raises what `read` does."""
    try:
        found = [json.loads(line) for line in file.read().decode().splitlines() if line.strip()]
        if not found:
            raise ValueError("it is empty")
        if not all(isinstance(each, dict) for each in found):
            raise ValueError("an action is none")
        if not all(isinstance(each.get("commitInfo", {}), dict) for each in found):
            raise ValueError("its commitInfo is no object")
        of_files = [each[kind] for each in found for kind in _FILE_ACTIONS if kind in each]
        if not all(isinstance(each, dict) and isinstance(each.get("path"), str) for each in of_files):
            raise ValueError("a file has no path")
    except RecursionError:
        raise ValueError(f"{file.name} is damaged (its JSON is nested too deep)") from None
    except ValueError as error:
        raise ValueError(f"{file.name} is damaged ({error})") from error
    return found


def version_from_name(name: str) -> int | None:
    """The version of the commit whose file in Delta's log has this name; None where it is another file."""
    return int(name[:-5]) if _ENTRY_NAME.fullmatch(name) else None


def commit_from_actions(entry: Sequence[Mapping[str, Any]], version: int) -> Commit:
    """The commit of these actions; files outside the table's folder, which nothing reads, are not among its files."""
    info: Mapping[str, Any] = next((each["commitInfo"] for each in reversed(entry) if "commitInfo" in each), {})
    at, operation = info.get("timestamp"), info.get("operation")
    return Commit(
        version,
        Milliseconds(at) if isinstance(at, int) else None,
        str(operation or "an operation without a name"),
        str(info.get("engineInfo") or "an unknown engine"),
        commit_info.parse_commit_info(info),
        any(map(_is_change, entry)),
        frozenset(_paths_inside(each[kind]["path"] for each in entry for kind in _FILE_ACTIONS if kind in each)),
    )


def _paths_inside(written: Iterable[str]) -> Iterator[str]:
    """The paths that lie in the table's folder."""
    for each in written:
        with suppress(ForeignPath):
            yield decode_path(each)


def _is_change(action: Mapping[str, Any]) -> bool:
    """Whether an action is about rows, columns or rules: files that are put together anew are not."""
    files = [action[kind] for kind in _FILE_ACTIONS if kind in action]
    return "metaData" in action or "protocol" in action or any(file.get("dataChange", True) for file in files)


def get_digest_rule(opened: DeltaTable) -> DigestRule:
    """The rule by which the commits of an opened table say what its slices hold.

    Raises:
        StateError: this version does not know it.
    """
    metadata = opened.metadata()
    return digest_rule_from_properties(metadata.name or opened.table_uri, metadata.configuration)


def get_digests(opened: DeltaTable, wanted: Collection[str]) -> dict[str, int] | None:
    """What commits say that slices hold in an opened version; None where that of one of them cannot be told.

    A slice of which no commit says anything is empty, where the log goes back to a creation in an envelope.
    """
    found = get_known_digests(opened, wanted)
    return found if len(found) == len(set(wanted)) else None


def get_known_digests(opened: DeltaTable, wanted: Collection[str]) -> dict[str, int]:
    """What commits say that slices hold in an opened version, without those of which that cannot be told.

    A slice of which no commit says anything is empty, where the log goes back to a creation in an envelope.
    """
    found: dict[str, int] = {}
    folder, known = folder_from_opened(opened), _get_commit_info_cache(opened)
    for version in range(opened.version(), -1, -1):
        if version not in known:
            try:
                known[version] = read_commit(_get_nearest_entry_path(opened, folder, version), version).envelope
            except FileNotFoundError:
                return found
        said = known[version]
        if said is not None:
            found = {name: digest for name, digest in said.digests.items() if name in wanted} | found
            if len(found) == len(set(wanted)):
                return found
            if version == 0:
                return {name: found.get(name, 0) for name in wanted}
    return found


def _get_nearest_entry_path(opened: DeltaTable, folder: str, version: int) -> StoragePath:
    """The file of a commit of an opened table: out of its mirror, if it is there."""
    mirrored = log_mirror.get_mirror(opened)
    here = None if mirrored is None else mirrored.entry(version)
    return get_entry_path(folder, version) if here is None else parse_path(here)


def _get_commit_info_cache(opened: DeltaTable) -> dict[int, CommitInfo | None]:
    """The envelopes of an opened table's commits that were read, or made, since it was opened: a commit never changes.

    A table that is put into its place is opened anew.
    """
    return vars(opened).setdefault("_said", {})


def _is_committed(folder: str, after: int, identity: str) -> bool:
    """Whether a commit with this envelope is in the log behind a version."""
    version = after + 1
    while True:
        try:
            said = read_commit(get_entry_path(folder, version), version).envelope
        except (FileNotFoundError, ValueError):  # half written by whoever writes it now
            return False
        if said is not None and said.id == identity:
            return True
        version += 1
