"""The commits of a table: made in an envelope, found again in Delta's log, and what they say that slices hold.

Every write goes through `make`. A commit is the version after the one that was read, or none; who tries again is the
caller.
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
from cdc_platform.lake import envelope, mirrored_logs
from cdc_platform.lake.digests import Rule, rule_of
from cdc_platform.lake.envelope import Envelope
from cdc_platform.lake.files import LOG_FOLDER, ForeignPath, folder_of, plain_path
from cdc_platform.lake.reads import record_commit
from cdc_platform.places import Place, Seen, place_of

Properties = CommitProperties
"""What deltalake takes with a commit."""
_ENTRY = re.compile(r"[0-9]{20}\.json")
_OF_FILES = ("add", "remove")
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
    envelope: Envelope | None
    changes: bool
    files: frozenset[str] = frozenset()


def make(
    opened: DeltaTable,
    commit: Callable[[Properties], object],
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
    seal = envelope.sealed(digests, numbers, accepts)
    read_version, folder = opened.version(), folder_of(opened)
    try:
        commit(properties_of(seal))
        mirrored_logs.put(opened, read_version + 1)
    except Exception:
        if not _stands(folder, read_version, seal.id):
            raise
    record_commit(folder)
    if opened.version() == read_version:
        opened.update_incremental()
    _said_by(opened)[read_version + 1] = seal


def properties_of(seal: Envelope) -> Properties:
    """An envelope as deltalake takes it, of a commit that is made once: with others behind it its digests are wrong."""
    marks = [Transaction(*number) for number in seal.numbers.items()] or None
    return CommitProperties(custom_metadata=dict(seal.metadata()), max_commit_retries=0, app_transactions=marks)


def hooks_of(opened: DeltaTable) -> PostCommitHookProperties:
    """What deltalake does behind the next commit: what has expired goes from the log where a checkpoint is made.

    It goes no further than that, and to look for it each time is as slow as a commit of one row.
    """
    configured = opened.metadata().configuration.get("delta.checkpointInterval", "100")
    every = int(configured) if configured.isdigit() else 1
    is_due = (opened.version() + 2) % max(every, 1) == 0
    return PostCommitHookProperties(cleanup_expired_logs=None if is_due else False)


def newest_first(folder: str, newest: int) -> Iterator[Commit]:
    """The commits that Delta's log still has, back from a version without a gap.

    Raises:
        ValueError: an entry cannot be read; the error names its file.
    """
    for version in range(newest, -1, -1):
        try:
            yield read(entry(folder, version), version)
        except FileNotFoundError:
            return


def entry(folder: str, version: int) -> Place:
    """The file of a commit in Delta's log."""
    return log_of(folder) / _name(version)


@lru_cache(maxsize=256)
def log_of(folder: str) -> Place:
    """Where a table's log is: it is asked for at each look."""
    return place_of(folder) / LOG_FOLDER


def _name(version: int) -> str:
    return f"{version:020d}.json"


@dataclass(frozen=True)
class Look:
    """What Delta's log tells by names alone: the marks of two commits, None if one is gone; if others followed."""

    mark: str | None
    newest_mark: str | None
    is_newest: bool


Lister = Callable[[Place, str], Iterable[tuple[str, Seen]]]
"""What tells the files of a folder of a store whose names come after one."""


def look(folder: str, version: int, newest: int, listed: Lister) -> Look:
    """Look at the commits of a version and of the newest that is known, and for the next; of a store by one request."""
    log = log_of(folder)
    at, last, after = (_name(number) for number in (version, newest, newest + 1))
    if log.here is not None:
        seen = {name: there for name in {at, last, after} if (there := log.seen_in(name)) is not None}
    else:
        # What follows the name before the commit's own: in Delta's log that of a version without its last letters.
        seen = dict(listed(log, at.removesuffix(".json")))
    mark, newest_mark = (seen[name].mark if name in seen else None for name in (at, last))
    return Look(mark, newest_mark, after not in seen)


def read(file: Place, version: int) -> Commit:
    """A commit as its file tells of it.

    Raises:
        ValueError: the file is no entry of a log; the error names it.
        FileNotFoundError: there is no such file.
    """
    return of_actions(actions(file), version)


def actions(file: Place) -> list[dict[str, Any]]:
    """The actions of an entry of a log, in its order; raises what `read` does."""
    try:
        found = [json.loads(line) for line in file.read().decode().splitlines() if line.strip()]
        if not found:
            raise ValueError("it is empty")
        if not all(isinstance(each, dict) for each in found):
            raise ValueError("an action is none")
        if not all(isinstance(each.get("commitInfo", {}), dict) for each in found):
            raise ValueError("its commitInfo is no object")
        of_files = [each[kind] for each in found for kind in _OF_FILES if kind in each]
        if not all(isinstance(each, dict) and isinstance(each.get("path"), str) for each in of_files):
            raise ValueError("a file has no path")
    except RecursionError:
        raise ValueError(f"{file.name} is damaged (its JSON is nested too deep)") from None
    except ValueError as error:
        raise ValueError(f"{file.name} is damaged ({error})") from error
    return found


def version_of(name: str) -> int | None:
    """The version of the commit whose file in Delta's log has this name; None where it is another file."""
    return int(name[:-5]) if _ENTRY.fullmatch(name) else None


def of_actions(entry: Sequence[Mapping[str, Any]], version: int) -> Commit:
    """The commit of these actions; files outside the table's folder, which nothing reads, are not among its files."""
    info: Mapping[str, Any] = next((each["commitInfo"] for each in reversed(entry) if "commitInfo" in each), {})
    at, operation = info.get("timestamp"), info.get("operation")
    return Commit(
        version,
        Milliseconds(at) if isinstance(at, int) else None,
        str(operation or "an operation without a name"),
        str(info.get("engineInfo") or "an unknown engine"),
        envelope.opened(info),
        any(map(_is_change, entry)),
        frozenset(_inside(each[kind]["path"] for each in entry for kind in _OF_FILES if kind in each)),
    )


def _inside(written: Iterable[str]) -> Iterator[str]:
    """The paths that lie in the table's folder."""
    for each in written:
        with suppress(ForeignPath):
            yield plain_path(each)


def _is_change(action: Mapping[str, Any]) -> bool:
    """Whether an action is about rows, columns or rules: files that are put together anew are not."""
    files = [action[kind] for kind in _OF_FILES if kind in action]
    return "metaData" in action or "protocol" in action or any(file.get("dataChange", True) for file in files)


def digest_rule(opened: DeltaTable) -> Rule:
    """The rule by which the commits of an opened table say what its slices hold.

    Raises:
        StateError: this version does not know it.
    """
    metadata = opened.metadata()
    return rule_of(metadata.name or opened.table_uri, metadata.configuration)


def digests_at(opened: DeltaTable, wanted: Collection[str]) -> dict[str, int] | None:
    """What commits say that slices hold in an opened version; None where that of one of them cannot be told.

    A slice of which no commit says anything is empty, where the log goes back to a creation in an envelope.
    """
    found = digests_known(opened, wanted)
    return found if len(found) == len(set(wanted)) else None


def digests_known(opened: DeltaTable, wanted: Collection[str]) -> dict[str, int]:
    """What commits say that slices hold in an opened version, without those of which that cannot be told.

    A slice of which no commit says anything is empty, where the log goes back to a creation in an envelope.
    """
    found: dict[str, int] = {}
    folder, known = folder_of(opened), _said_by(opened)
    for version in range(opened.version(), -1, -1):
        if version not in known:
            try:
                known[version] = read(_entry_of(opened, folder, version), version).envelope
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


def _entry_of(opened: DeltaTable, folder: str, version: int) -> Place:
    """The file of a commit of an opened table: out of its mirror, if it is there."""
    mirrored = mirrored_logs.mirror_of(opened)
    here = None if mirrored is None else mirrored.entry(version)
    return entry(folder, version) if here is None else place_of(here)


def _said_by(opened: DeltaTable) -> dict[int, Envelope | None]:
    """The envelopes of an opened table's commits that were read, or made, since it was opened: a commit never changes.

    A table that is put into its place is opened anew.
    """
    return vars(opened).setdefault("_said", {})


def _stands(folder: str, after: int, identity: str) -> bool:
    """Whether a commit with this envelope is in the log behind a version."""
    version = after + 1
    while True:
        try:
            said = read(entry(folder, version), version).envelope
        except (FileNotFoundError, ValueError):  # half written by whoever writes it now
            return False
        if said is not None and said.id == identity:
            return True
        version += 1
