"""Verify tables against their commits: damaged files, unexpected rows, foreign commits. No JVM.

No declaration is needed, so every table of a lake is verified. Digests are known from the first commit with a
CommitInfo on; anything older is unknown, which is no complaint. `VerifiedRows` verify rows that serve as input for
other rows while they are read. A table without partitions is one partition, so its added files are verified by the
difference of two digests instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from fnmatch import fnmatch
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, Literal

import pyarrow as pa
from deltalake.exceptions import CommitFailedError

from cdc_platform.clock import format_ms
from cdc_platform.delta import commits, files, row_hash, transaction_log
from cdc_platform.delta.changed_parts import ALL_PARTS, ChangedRows, find_changed_rows
from cdc_platform.delta.errors import is_content_error, translate_errors
from cdc_platform.delta.files import BoundsCheck, DataFile
from cdc_platform.delta.lake import Lake
from cdc_platform.delta.open_table import OpenTable, open_table
from cdc_platform.delta.paths import LOG_FOLDER, ForeignPath
from cdc_platform.delta.tasks import Batches, TaskRows, TaskRunner, read_file_batches, rows_from_files
from cdc_platform.delta.transaction_log import Commit
from cdc_platform.delta.versions import is_state_table, iter_state_folders, iter_table_folders
from cdc_platform.errors import PlatformError, StateError, StoreFailure
from cdc_platform.storage import (
    ObjectStorePath,
    StoragePath,
    bypass_fetch_cache,
    clean_message,
    parse_path,
    write_check,
)
from cdc_platform.tables import TABLES, Table

# A check without `deep` reads this much, the smallest partitions first. Several thousand small generations fit.
BYTES_READ, FILES_READ = 64 << 20, 2_000
LAST_CHECKPOINT_FILE = "_last_checkpoint"
"""The file in a log that names its newest checkpoint, from which readers start."""
_CHECKPOINT_NAME = re.compile(r"[0-9]{20}\.checkpoint.*\.parquet")
_MAX_NAMED_FILES = 3
"""The number of files that a message names of a partition with unexpected rows."""


@dataclass(frozen=True)
class PartComplaint:
    """A complaint about one part of a table, or about `ALL_PARTS`: damage, unexpected rows or a foreign commit."""

    part: str
    kind: Literal["damage", "unexpected", "foreign"]
    message: str


@dataclass
class TableVerification:
    """The complaints about one table, in words, and how much of it was verified.

    Complaints are `damage` (damaged files), `unexpected` (partitions with other rows than their commits record) and
    `foreign` (commits that the platform did not make). `accepted` foreign commits and `unnamed` files, which no commit
    names, are no complaints. `files`, `partitions` and `commits` count what was verified; `unread` and `unknown` count
    the partitions that were not read and those without a digest. `broken` are the partitions that cannot be read or
    have unexpected rows, each with the expected digest, or None if no commit records it. `is_unreadable` means that the
    log is damaged, so that no partition can be read.

    `complaints` are those of `damage`, `unexpected` and `foreign` by the part that they concern (see `changed_parts`).
    `unread_parts` and `undigested_parts` are the partitions that `unread` and `unknown` count. `version` is the
    verified version, None if the log cannot be read.
    """

    name: str
    damage: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)
    files: int = 0
    partitions: int = 0
    commits: int = 0
    unread: int = 0
    unknown: int = 0
    broken: dict[str, int | None] = field(default_factory=dict)
    is_unreadable: bool = False
    version: int | None = None
    complaints: list[PartComplaint] = field(default_factory=list)
    unread_parts: list[str] = field(default_factory=list)
    undigested_parts: list[str] = field(default_factory=list)


def verify_tables(
    lake: Lake,
    *,
    deep: bool = False,
    names: Collection[str] | None = None,
    partitions: Collection[str] | None = None,
) -> list[TableVerification]:
    """Verify the tables in a lake, all of them or those with these names, ordered by name.

    The existence and size of every file are checked. Without `deep`, rows are read only up to `BYTES_READ` and
    `FILES_READ`. With `partitions`, only these Delta partitions are read.
    """
    examinations = [
        _TableExamination(name, folder)
        for name, folder in (*iter_table_folders(lake.location), *iter_state_folders(lake.location))
        if names is None or name in names
    ]
    _examine_partitions(examinations, partitions, deep=deep)
    probes = [] if names is not None else write_check.list_leftover_probes(lake.location)
    why = "left by a store probe that was killed or is still running"
    unnamed = [f"{write_check.PROBE_FOLDER}/{probe.name} is {why}" for probe in probes]
    return [
        *(examination.result for examination in examinations),
        *([TableVerification(write_check.PROBE_FOLDER, unnamed=unnamed)] if unnamed else []),
    ]


def verify_table_parts(
    lake: Lake, parts: Mapping[str, Collection[str] | None], *, deep: bool = False
) -> list[TableVerification]:
    """Verify the log of each table in `parts`, and its given Delta partitions; with None all, as `verify_tables`.

    Nothing is learned of other partitions, whose files are not looked at: do not record such a result as that of the
    table. `deep` is as for `verify_tables`.
    """
    examinations = [
        _TableExamination(name, folder, parts[name])
        for name, folder in iter_table_folders(lake.location)
        if name in parts
    ]
    _examine_partitions(examinations, None, deep=deep)
    return [examination.result for examination in examinations]


def _examine_partitions(
    examinations: Sequence[_TableExamination], partitions: Collection[str] | None, *, deep: bool
) -> None:
    """Read the partitions of tables, smallest first, within the limits unless `deep`; check the files of the others."""
    by_size = sorted(
        (
            (sum(file.bytes for file in partition_files), examination, name)
            for examination in examinations
            for name, partition_files in examination.partitions.items()
        ),
        key=lambda each: each[0],
    )
    read_bytes = read_files = 0
    for size, examination, name in by_size:
        wanted = partitions is None or name in partitions
        if wanted:
            read_bytes, read_files = read_bytes + size, read_files + len(examination.partitions[name])
        if wanted and (deep or (read_bytes <= BYTES_READ and read_files <= FILES_READ)):
            examination.read(name)
        else:
            examination.check_files(name)
            examination.result.unread += 1
            examination.result.unread_parts.append(name)


@dataclass(frozen=True)
class ReadFailureCause:
    """Why reading a table fails: the table and a complaint; as a string also the command that shows the remedy."""

    table: str
    complaint: str

    def __str__(self) -> str:
        return f"{self.complaint}; to see the remedy, run: cdc-platform check"


def find_first_cause(lake: Lake, names: Collection[str]) -> ReadFailureCause | None:
    """Return the first complaint about these tables: damage, unexpected rows or a foreign commit; None if all is well.

    Accepted commits count as well: the platform may still be unable to work with their rows.
    """
    results = verify_tables(lake, names=names)
    for complaints in ("damage", "unexpected", "foreign", "accepted"):
        for result in results:
            if lines := getattr(result, complaints):
                return ReadFailureCause(result.name, lines[0])
    return None


def assert_tables_as_committed(lake: Lake, names: Collection[str], what: str) -> None:
    """Raise StateError unless all partitions of these tables have their committed rows.

    Called before `what` is derived from these rows.

    Raises:
        StateError: a partition has other rows, or one of its files is damaged.
    """
    wrong = [
        line for result in verify_tables(lake, deep=True, names=names) for line in (*result.damage, *result.unexpected)
    ]
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if wrong[1:] else ""
        raise StateError(f"{wrong[0]}{more}: {what} is not derived from it; cdc-platform check --deep names every file")


def verify_partitions(name: str, folder: str, opened: OpenTable, partitions: Collection[str]) -> TableVerification:
    """Verify some partitions of a table in the opened version, against the newest commits that name them.

    Only the log entries back to those commits are read; `verify_tables` verifies a whole log.
    """
    examination = _PartitionExamination(name, folder, opened, partitions)
    for partition in partitions:
        examination.read(partition)
    return examination.result


def verify_table_log(lake: Lake, table: Table) -> TableVerification:
    """Verify the log of a table: its completeness and the authors of its commits. No row is read."""
    return _TableExamination(table.full_name, lake.path(table)).result


def list_foreign_commits(history: Sequence[Commit]) -> list[Commit]:
    """List the foreign commits of a log (newest first) that changed the table, since the first CommitInfo."""
    return [commit for commit in _since_first_commit_info(history) if commit.info is None and commit.changes]


def list_stray_checkpoint_pointers(lake: Lake) -> list[StoragePath]:
    """List the `_last_checkpoint` files that name a missing checkpoint.

    Without such a file, readers read the log itself.
    """
    logs = [parse_path(folder) / LOG_FOLDER for _, folder in iter_table_folders(lake.location)]
    return [log / LAST_CHECKPOINT_FILE for log in logs if _describe_stray_pointer(log, log.names()) is not None]


def digest_partitions(name: str, folder: str, version: int, partitions: Collection[str]) -> dict[str, int]:
    """Compute the digests of a table's partitions from its files, in a version that must be the newest.

    Raises:
        StateError: a file is damaged.
        CommitFailedError: there is a newer version.
    """
    examination = _TableExamination(name, folder)
    if examination.version not in (version, None):
        raise CommitFailedError(f"{name} has a version {examination.version} by now")
    digests = {
        name: [examination.digest_of(file) for file in examination.partitions.get(name, [])] for name in partitions
    }
    if examination.result.damage:
        raise StateError(f"{examination.result.damage[0]}; a damaged table cannot be accepted: restore its files first")
    return {name: sum(part or 0 for part in parts) % row_hash.DIGEST_MODULUS for name, parts in digests.items()}


def _describe_stray_pointer(log: StoragePath, names: Collection[str]) -> str | None:
    """Describe the defect of a log's `_last_checkpoint` file; None if it is sound or does not exist."""
    if LAST_CHECKPOINT_FILE not in names:
        return None
    way = "repair --from-description removes it, the log needs none"
    try:
        version = json.loads((log / LAST_CHECKPOINT_FILE).read())["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        version = None
    if not isinstance(version, int):
        return f"{LOG_FOLDER}/{LAST_CHECKPOINT_FILE} is damaged; {way}"
    # The pointer is written after its checkpoint, and may be newer than the names: list again.
    if any(fnmatch(name, f"{version:020d}.checkpoint*.parquet") for name in (*names, *log.names())):
        return None
    return f"{LOG_FOLDER}/{LAST_CHECKPOINT_FILE} names the checkpoint of version {version}, which is missing; {way}"


def _since_first_commit_info(history: Sequence[Commit]) -> Sequence[Commit]:
    """Return the commits since the first one with a CommitInfo, including that one."""
    known = [index for index, commit in enumerate(history) if commit.info is not None]
    return history[: known[-1] + 1] if known else []


def _format_commit_time(commit: Commit) -> str:
    return "at an unknown time" if commit.at_ms is None else f"at {format_ms(commit.at_ms)}"


class _TableExamination:
    """One table under examination: the constructor reads its log, `read` one partition.

    With `wanted`, only these Delta partitions are looked at.
    """

    def __init__(self, name: str, folder: str, wanted: Collection[str] | None = None) -> None:
        self._begin(name, folder)
        self._wanted = wanted
        try:
            history = self._history()
            if not self.result.damage:
                self._judge_commits(history)
                self._open(history)
        except Exception as error:  # noqa: BLE001 whatever a log holds, the other tables are examined
            self._note_damage(f"its log cannot be read ({_describe_error(error)})")
        self.result.is_unreadable = bool(self.result.damage)
        self.result.version = self.version

    def _begin(self, name: str, folder: str) -> None:
        """Initialize the attributes."""
        self.result = TableVerification(name)
        self.partitions: dict[str, list[DataFile]] = {}
        self.version: int | None = None
        self._folder = folder
        self._wanted: Collection[str] | None = None
        # A state table derives from its log, and can be rebuilt.
        self._remedy = f"; remove {folder}: the next script that is applied rebuilds it" if is_state_table(name) else ""
        self._digests: dict[str, int] = {}
        self._foreign: dict[int, str] = {}
        self._changed: dict[int, ChangedRows] = {}
        self._digest_version = -1
        self._partition_by: tuple[str, ...] = ()
        self._born_known = False
        self._rule = row_hash.NEWEST_DIGEST_RULE
        self._statistics: dict[str, pa.Table] = {}
        self._unbound: list[str] = []

    def read(self, name: str) -> None:
        """Read a whole partition; compare it with its digest, and each of its files with the statistics in the log."""
        self._unbound.clear()
        parts = [self._examined(file) for file in self.partitions[name]]
        expected = self._digests.get(name, 0 if self._born_known else None)
        if None in parts:
            self.result.broken[name] = expected
            return
        actual = sum(part or 0 for part in parts) % row_hash.DIGEST_MODULUS
        self.result.partitions += 1
        self.result.unknown += expected is None
        self.result.undigested_parts += [name] * (expected is None)
        if expected is not None and actual != expected:
            file_names = ", ".join([self._name(file) for file in self.partitions[name]][:_MAX_NAMED_FILES]) or "no file"
            parts = {name} if name else self._unexplained_parts(actual - expected)
            self._note_partition(name, expected, "has other rows than its commits recorded", file_names, parts)
        elif self._unbound:
            self._note_partition(
                name,
                expected,
                "does not match the statistics in its log, by which readers skip files",
                self._unbound[0],
                {name or ALL_PARTS},
            )

    def _examined(self, file: DataFile) -> int | None:
        """Return a file's digest as `digest_of`; note damage and return None on any other error as well."""
        try:
            return self.digest_of(file)
        except Exception as error:  # noqa: BLE001 whatever a file holds, the other files are examined
            self._note_file(file, f"cannot be examined ({_describe_error(error)})")
            return None

    def check_files(self, name: str) -> None:
        """Check that the files of a partition exist with their recorded sizes."""
        for file in self.partitions[name]:
            self.result.files += 1
            self._is_complete(file)

    def _history(self) -> list[Commit]:
        """Return the commits of the log, newest first, and note missing or unreadable entries."""
        log = parse_path(self._folder) / LOG_FOLDER
        names = log.names()
        versions = sorted(version for name in names if (version := transaction_log.version_from_name(name)) is not None)
        starts = [int(name[:20]) for name in names if _CHECKPOINT_NAME.fullmatch(name)]
        in_the_way = [
            child.name for child in log.folders() if transaction_log.version_from_name(child.name) is not None
        ]
        for name in in_the_way:
            self._note_damage(f"{LOG_FOLDER}/{name} is a directory where an entry of the log belongs")
        if not versions and not starts:
            self._note_damage(f"its log is gone ({log})")
            return []
        # Delta removes old entries, from the first one on, once a checkpoint holds their contents.
        if versions and versions[0] > max(starts, default=-1) + 1:
            self._note_gap(versions[0] - 1, versions[0] - 1)
        for before, after in pairwise(versions):
            if after > before + 1:
                self._note_gap(before + 1, after - 1)
        pointer = _describe_stray_pointer(log, names)
        if pointer is not None:
            self._note_damage(pointer)
        commits: list[Commit] = []
        for version in reversed(versions):
            file = transaction_log.get_entry_path(self._folder, version)
            try:
                commits.append(transaction_log.read_commit(file, version))
            except (ValueError, OSError) as error:
                message = _format_error_line(error).removeprefix(f"{file.name} is damaged (").removesuffix(")")
                way = f"; check --undo {self.result.name}@{version} removes it from the log" * (
                    version == versions[-1] > 0
                )
                self._note_damage(f"{LOG_FOLDER}/{file.name} is damaged ({message}){way}")
        self.result.files += len(versions)
        return commits

    def _note_gap(self, first: int, last: int) -> None:
        """Note the range of versions whose entries are not in the log."""
        which = f"{LOG_FOLDER}/{first:020d}.json"
        self._note_damage(f"{which} is missing" if first == last else f"{which} to {last:020d}.json are missing")

    def _open(self, history: Sequence[Commit]) -> None:
        try:
            with translate_errors("opening it"):
                opened = open_table(self._folder)
            self.version = opened.version()
            foreign = files.list_unsupported_features(opened)
            if foreign:
                self._note_damage(f"it has features that the platform never enables: {', '.join(foreign)}")
                return
            files.list_paths(opened)
            with translate_errors("opening it"):
                self._list_partitions(opened)
                self._attribute_foreign_commits()
                if self._wanted is None:
                    self._list_unnamed(opened, history)
        except PlatformError as error:
            self._note_damage(f"its log cannot be read ({_format_error_line(error)})")
        except ForeignPath as error:
            at = "" if self.version is None else f" of version {self.version}"
            self._note_damage(f"its log{at} cannot be read ({_format_error_line(error)})")

    def _judge_commits(self, history: Sequence[Commit]) -> None:
        since = _since_first_commit_info(history)
        self.result.commits = len(since)
        self._born_known = bool(since) and since[-1].version == 0
        for commit in since:
            if commit.info is not None:
                self._digests = dict(commit.info.digests) | self._digests
                if commit.info.digests:
                    self._digest_version = max(self._digest_version, commit.version)
        accepted = {
            version: f"accepted {_format_commit_time(commit)} by {commit.info.user}: {because}"
            for commit in since
            if commit.info is not None
            for version, because in commit.info.accepts.items()
        }
        for commit in list_foreign_commits(history):
            message = (
                f"{self.result.name} version {commit.version}: {commit.operation} by {commit.engine} "
                f"{_format_commit_time(commit)}"
            )
            if commit.version in accepted:
                self.result.accepted.append(f"{message}, {accepted[commit.version]}")
            else:
                self.result.foreign.append(message + self._remedy)
                self._foreign[commit.version] = self.result.foreign[-1]

    def _attribute_foreign_commits(self) -> None:
        """Note each foreign commit as a complaint about the parts whose rows it changed."""
        for version, message in self._foreign.items():
            parts = sorted(self._find_changed(version).parts) or [ALL_PARTS]
            self.result.complaints += [PartComplaint(part, "foreign", message) for part in parts]

    def _find_changed(self, version: int) -> ChangedRows:
        if version not in self._changed:
            table = TABLES.get(self.result.name)
            unknown = ChangedRows(frozenset({ALL_PARTS}), None)
            self._changed[version] = (
                unknown
                if table is None or not table.part_columns
                else find_changed_rows(self._folder, version, table, self._rule)
            )
        return self._changed[version]

    def _unexplained_parts(self, difference: int) -> Collection[str]:
        """Return the parts that foreign commits changed if these explain the difference of the digests, or all.

        Later commits of the platform add to the digest before the foreign commit, or have computed all of it.
        """
        for since in (-1, self._digest_version):
            changes = [self._find_changed(version) for version in self._foreign if version > since]
            digests = [change.digest for change in changes if change.digest is not None]
            explained = sum(digests) % row_hash.DIGEST_MODULUS == difference % row_hash.DIGEST_MODULUS
            if len(digests) == len(changes) and explained:
                return {part for change in changes for part in change.parts}
        return {ALL_PARTS}

    def _list_partitions(self, opened: OpenTable) -> None:
        self._partition_by = partition_by = tuple(opened.partition_columns())
        self._rule = commits.get_digest_rule(opened)
        # A partition without files has no rows, and its commits may have recorded that.
        self.partitions = {name: [] for name in (self._digests if self._wanted is None else self._wanted)}
        for file in files.list_partition_files(opened, partition_by):
            name = row_hash.format_partition_name(partition_by, file.partition)
            if self._wanted is None or name in self.partitions:
                self.partitions.setdefault(name, []).append(file)
        paths = {file.path for partition in self.partitions.values() for file in partition}
        self._statistics = files.read_file_statistics(opened, None if self._wanted is None else paths)

    def _list_unnamed(self, opened: OpenTable, history: Sequence[Commit]) -> None:
        """List the data files that no commit names: a log can lose its last commit without a gap."""
        unnamed = set(opened.delta.vacuum(0, dry_run=True, enforce_retention_duration=False, full=True))
        unnamed = unnamed.difference(*(commit.files for commit in history))
        why = "its writer was killed or is still writing, or the newest commit is lost"
        self.result.unnamed += [f"{self.result.name}: {path} is named by no commit: {why}" for path in sorted(unnamed)]

    def digest_of(self, file: DataFile) -> int | None:
        """Return the sum of the digests of a file's rows; None, with a note, if it is damaged."""
        self.result.files += 1
        if not self._is_complete(file):
            return None
        rows, digest, bounds = 0, 0, BoundsCheck(self._statistics[file.path])
        try:
            with bypass_fetch_cache():
                for batch in read_file_batches(file.path):
                    rows += batch.num_rows
                    bounds.add(batch)
                    digest += sum(row_hash.digest_rows(pa.Table.from_batches([batch]), (), self._rule).values())
        except (OSError, pa.ArrowException, ValueError, MemoryError) as error:
            self._note_file(file, f"is damaged ({_format_error_line(error)})")
        else:
            if rows == file.rows or not file.rows:  # a log need not have the count
                mismatch = bounds.describe_mismatch()
                self._unbound += (
                    [] if mismatch is None else [f"{self._name(file)}, where {mismatch} that the log gives"]
                )
                return digest
            self._note_file(file, f"is damaged (it has {rows} rows, and had {file.rows})")
        return None

    def _is_complete(self, file: DataFile) -> bool:
        path = parse_path(file.path)
        size = self._sizes.get(path.path) if isinstance(path, ObjectStorePath) else None
        if size is None:
            try:
                stat = path.stat()
            except OSError:
                stat = None
            size = None if stat is None else stat.bytes
        if size != file.bytes:
            what = "missing" if size is None else f"damaged (it has {size} bytes, and had {file.bytes})"
            self._note_file(file, f"is {what}")
        return size == file.bytes

    @cached_property
    def _sizes(self) -> Mapping[str, int]:
        """The bytes of each file by path, from one listing of a store if there are several files; else empty."""
        path = parse_path(self._folder)
        is_many = sum(map(len, self.partitions.values())) > 1
        return path.sizes() if isinstance(path, ObjectStorePath) and is_many else {}

    def _note_partition(self, name: str, expected: int | None, what: str, where: str, parts: Collection[str]) -> None:
        """Note a complaint about a partition's rows, which concerns these parts of the table."""
        self.result.broken[name] = expected
        self.result.unexpected.append(
            f"{self.result.name}{_describe_partition(name)} {what}, in version {self.version}: {where}{self._remedy}"
        )
        self.result.complaints += [
            PartComplaint(part, "unexpected", self.result.unexpected[-1]) for part in sorted(parts)
        ]

    def _note_file(self, file: DataFile, what: str) -> None:
        """Note a complaint about a data file."""
        part = row_hash.format_partition_name(self._partition_by, file.partition) or ALL_PARTS
        self._note_damage(f"{self._name(file)}, a file of version {self.version}, {what}", part)

    def _name(self, file: DataFile) -> str:
        """Return the path of a file in the table's folder."""
        return file.path.removeprefix(self._folder).lstrip("/")

    def _note_damage(self, what: str, part: str = ALL_PARTS) -> None:
        self.result.damage.append(f"{self.result.name}: {what}{self._remedy}")
        self.result.complaints.append(PartComplaint(part, "damage", self.result.damage[-1]))


class _PartitionExamination(_TableExamination):
    """Some partitions of an opened version; the rest of the table and of its log is not read."""

    def __init__(self, name: str, folder: str, opened: OpenTable, partitions: Collection[str]) -> None:
        self._begin(name, folder)
        self.version = opened.version()
        self._rule = commits.get_digest_rule(opened)
        self._digests = commits.get_known_digests(opened, partitions)
        self.partitions = {partition: [] for partition in partitions}
        self._partition_by = partition_by = tuple(opened.partition_columns())
        for file in files.list_partition_files(opened, partition_by):
            partition = row_hash.format_partition_name(partition_by, file.partition)
            if partition in self.partitions:
                self.partitions[partition].append(file)
        self._statistics = files.read_file_statistics(opened)


def _describe_partition(name: str) -> str:
    return f" where {name.replace('/', ' and ')}" if name else ""


def _format_error_line(error: Exception) -> str:
    return clean_message(str(error))[:160]


def _describe_error(error: Exception) -> str:
    """Format an unforeseen error, with its class."""
    return f"{type(error).__name__}: {_format_error_line(error)}"[:160]


_DIGEST_SCHEMA = pa.schema({"digest": pa.string()})
_BatchChange = Callable[[pa.RecordBatch], pa.RecordBatch]


@dataclass(frozen=True, eq=False)
class VerifiedRows:
    """The rows of a partition, in all columns except its partition columns, and their `expected` digest.

    `expected` is None if no commit records it; the rows are then not verified. `rule` is their table's digest rule.
    `refusal` is the message for unexpected rows or a damaged file. `change` derives other rows from them.
    """

    rows: TaskRows
    rule: row_hash.DigestRule
    expected: int | None
    refusal: str
    change: _BatchChange | None = None

    def changed(self, change: _BatchChange) -> VerifiedRows:
        """Return the same rows, to be replaced by derived ones as they are read."""
        return replace(self, change=change)

    def read(self, batches: Batches, seen: list[int]) -> Batches:
        """Yield a task's batches, changed by `change`, and append the digests of the original batches to `seen`.

        Raises:
            StateError: a file is damaged.
        """
        try:
            for batch in batches:
                if self.expected is not None:
                    digests = row_hash.digest_rows(pa.Table.from_batches([batch]), (), self.rule)
                    seen.append(digests.get("", 0))
                yield batch if self.change is None else self.change(batch)
        except (OSError, pa.ArrowException) as error:
            if self.expected is None or not is_content_error(error):
                raise
            raise StateError(self.refusal) from None

    def verify_digests(self, seen: Iterable[int]) -> None:
        """Raise StateError unless the digests of all parts together are the expected digest.

        Raises:
            StateError: they differ.
        """
        if self.expected is not None and sum(seen) % row_hash.DIGEST_MODULUS != self.expected:
            raise StateError(self.refusal)

    def verify(self, workers: TaskRunner) -> None:
        """Read the rows only to verify their digest.

        Raises:
            StateError: they are unexpected rows, or one of their files is damaged.
        """
        if self.expected is None:
            return
        answer = workers.table(self.rows.through(partial(_digest_batches, replace(self, change=None))), _DIGEST_SCHEMA)
        lines = answer["digest"].to_pylist()
        if None in lines:
            raise StateError(self.refusal)
        self.verify_digests(int(digest, 16) for digest in lines)


def get_verified_rows(lake: Lake, table: Table, where: Mapping[str, Any]) -> VerifiedRows:
    """Return the rows of the partition whose partition columns have their values in `where`."""
    with lake.table_cache.pin_versions():
        version = lake.version(table)
        name = row_hash.partition_name_from_values(table.partition_by, where)
        digests = (
            None if version is None else commits.get_digests(lake.table_cache.get_newest(lake.path(table)), [name])
        )
        columns = [column for column in table.schema.names if column not in table.partition_by]
        files = [file.path for file in lake.data_files(table, [(key, "=", value) for key, value in where.items()])]
        rule = lake.digest_rule(table)
    of = f" where {name}" if name else ""
    refusal = (
        f"{table.full_name}{of} has other rows than its commits recorded, in version {version}: nothing is derived"
        " from it; cdc-platform check --deep names the file, repair --from-description rebuilds what it can"
    )
    return VerifiedRows(rows_from_files(files, columns), rule, None if digests is None else digests[name], refusal)


def _digest_batches(rows: VerifiedRows, batches: Batches) -> Batches:
    """Read rows, and yield one line with their digest, or with null if a file is damaged."""
    digests: list[int] = []
    try:
        for _ in rows.read(batches, digests):
            pass
        digest = f"{sum(digests) % row_hash.DIGEST_MODULUS:032x}"
    except StateError:
        # A Python error in a Spark task would lose its class, and Spark would retry the task in vain.
        digest = None
    yield pa.RecordBatch.from_pydict({"digest": [digest]}, schema=_DIGEST_SCHEMA)


# Writers truncate the bounds of times to it.
_STATISTICS_ROUNDING = timedelta(milliseconds=1)
_WHOLE_TABLE = row_hash.partition_name_from_values((), {})


def verify_added_files_between(lake: Lake, table: Table, column: str, low: datetime, high: datetime) -> None:
    """Verify the files that can have rows with a time of this column between `low` and `high`.

    Raises:
        StoreFailure: as `verify_added_files`.
    """
    low, high = low - _STATISTICS_ROUNDING, high + _STATISTICS_ROUNDING
    bounded = lake.bounded_files(table, column)
    wanted = [
        bounds.path
        for bounds in bounded
        if None in (bounds.low, bounds.high) or (bounds.low <= high and bounds.high >= low)
    ]
    verify_added_files(lake, table, wanted)


def verify_added_files(lake: Lake, table: Table, paths: Collection[str]) -> None:
    """Verify that files of the table have their committed rows, before other rows are derived from them.

    Files without a known digest are not verified: those of a foreign commit, of a commit that the log no longer has, or
    of a compaction some of whose files are gone. A process verifies each commit once.

    Raises:
        StoreFailure: a file has other rows, or is damaged.
    """
    folder = lake.path(table)
    with lake.table_cache.pin_versions(), translate_errors(f"reading {table.full_name}"):
        opened = lake.table_cache.get_newest(folder)
        names = {path.removeprefix(f"{parse_path(folder)}/") for path in paths}
        for commit, before in _find_adding_commits(opened, names):
            if commit.version in opened.verified_versions:
                continue
            if commit.info is not None and commit.info.files:
                _verify_rewritten_files(opened, table, commit, names)
                continue
            added, expected = _get_expected_digest(folder, commit, before)
            if expected is not None and _digest_files(opened, folder, added) != expected % row_hash.DIGEST_MODULUS:
                raise _unexpected_rows_error(table, commit)
            opened.verified_versions.add(commit.version)


def _verify_rewritten_files(opened: OpenTable, table: Table, commit: Commit, names: Collection[str]) -> None:
    """Verify those of the files that a rewrite without changed rows added, each by its own digest.

    Raises:
        StoreFailure: a file has other rows, or is damaged.
    """
    digests = {} if commit.info is None else commit.info.files
    for name in sorted((commit.added & set(names)) - opened.verified_files):
        if name in digests and _digest_files(opened, opened.folder, [name]) != digests[name]:
            raise _unexpected_rows_error(table, commit)
        opened.verified_files.add(name)


def _unexpected_rows_error(table: Table, commit: Commit) -> StoreFailure:
    return StoreFailure(
        f"{table.full_name} has other rows than its commits recorded, in a file of version {commit.version}: nothing "
        "is derived from it; cdc-platform check --deep names the file"
    )


def _find_adding_commits(opened: OpenTable, names: set[str]) -> Iterator[tuple[Commit, int | None]]:
    """Yield the commits that added these files, newest first, each with the digest before it (None if unknown)."""
    waiting: list[Commit] = []
    remaining = set(names)
    for version in range(opened.version(), -1, -1):
        try:
            commit = opened.commit(version)
        except FileNotFoundError:
            break
        digest = _get_recorded_digest(commit)
        if waiting and digest is not None:
            yield from ((later, digest) for later in waiting)
            waiting = []
        if remaining & commit.added:
            remaining -= commit.added
            waiting.append(commit)
        if version == 0:
            yield from ((later, None if commit.info is None else 0) for later in waiting)
            waiting = []
        if not remaining and not waiting:
            return
    yield from ((later, None) for later in waiting)


def _get_recorded_digest(commit: Commit) -> int | None:
    """Return the digest of all rows of a table without partitions after a commit; None if it is not recorded."""
    return None if commit.info is None else commit.info.digests.get(_WHOLE_TABLE)


def _get_expected_digest(folder: str, commit: Commit, before: int | None) -> tuple[Collection[str], int | None]:
    """Return files with the expected digest of their rows; None if it is unknown."""
    if commit.info is None or before is None:
        return (), None
    recorded = _get_recorded_digest(commit)
    after = before if recorded is None else recorded
    if not commit.removed:
        return commit.added, after - before
    # Use all files of that version: compacted files have the rows of the files that they replaced.
    names = [
        path.removeprefix(f"{parse_path(folder)}/") for path in files.list_paths(open_table(folder, commit.version))
    ]
    whole = all((parse_path(folder) / name).stat() is not None for name in names)
    return names, after if whole else None


def _digest_files(opened: OpenTable, folder: str, names: Collection[str]) -> int | None:
    """Return the digest of the rows of files; None if one is damaged."""
    rule, digest = commits.get_digest_rule(opened), 0
    try:
        for name in names:
            for batch in read_file_batches(str(parse_path(folder) / name)):
                digest += sum(row_hash.digest_rows(pa.Table.from_batches([batch]), (), rule).values())
    except (OSError, pa.ArrowException) as error:
        if is_content_error(error):
            return None
        raise
    return digest % row_hash.DIGEST_MODULUS
