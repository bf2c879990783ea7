"""Read the transaction log of a table: its commits, and whether there are newer ones. `commits` makes new ones."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cdc_platform.clock import Milliseconds
from cdc_platform.delta import commit_info
from cdc_platform.delta.commit_info import CommitInfo
from cdc_platform.delta.paths import LOG_FOLDER, ForeignPath, decode_path
from cdc_platform.storage import FileStat, StoragePath, parse_path

_ENTRY_NAME = re.compile(r"[0-9]{20}\.json")
_FILE_ACTIONS = ("add", "remove")
"""The actions that name a data file."""


@dataclass(frozen=True, eq=False)
class Commit:
    """One entry of Delta's log.

    `at_ms` is by its writer's clock. `info` is None if the platform did not make the commit, or made it before
    CommitInfo existed. `changes` is True if it changed rows, columns or rules of the table. `added` and `removed` are
    the data files that it adds and removes, by their paths below the table.
    """

    version: int
    at_ms: Milliseconds | None
    operation: str
    engine: str
    info: CommitInfo | None
    changes: bool
    added: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()

    @property
    def files(self) -> frozenset[str]:
        """The data files that it adds or removes."""
        return self.added | self.removed


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
        *(
            frozenset(_paths_inside(action[kind]["path"] for action in entry if kind in action))
            for kind in _FILE_ACTIONS
        ),
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
