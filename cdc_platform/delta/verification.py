"""Verify tables against their commits: damaged files, unexpected rows, foreign commits. No JVM.

No declaration is needed, so every table of a lake is verified. Digests are known from the first commit with a
CommitInfo on; what is older is unknown and no complaint. Rows that serve as input for other rows are verified while
they are read (`VerifiedRows`). A table without partitions is one partition, so its added files are verified by the
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
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from cdc_platform.clock import format_ms
from cdc_platform.delta import files, row_hash, transaction_log
from cdc_platform.delta.errors import is_content_error, translate_errors
from cdc_platform.delta.files import LOG_FOLDER, BoundsCheck, DataFile, decode_path
from cdc_platform.delta.lake import Lake
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
from cdc_platform.tables import Table

# A check reads so much by itself, the smallest slices first: what a home of some thousand small generations has.
BYTES_READ, FILES_READ = 64 << 20, 2_000
LAST_CHECKPOINT_FILE = "_last_checkpoint"
"""The file in a log that names its newest checkpoint, from which readers start."""
_CHECKPOINT_NAME = re.compile(r"[0-9]{20}\.checkpoint.*\.parquet")
_MAX_NAMED_FILES = 3
"""Files that are named of those of a slice with other rows."""


@dataclass
class TableVerification:
    """What is wrong with one table, in words, and how much was looked at.

    `damage`: files; `strange`: slices that hold other rows than their commits say; `foreign`: commits that are not the
    platform's; `accepted`: those of them that somebody has accepted, which is no complaint; `unnamed`: files of which
    nobody can tell, which is none either. `files`, `slices`,
    `commits` were judged; `left` slices were not read, `unknown` ones have no digest. `broken`: the slices that cannot
    be read or hold other rows, with the digest that is due, where commits say one; `is_unreadable`: the log is damaged,
    so that none can be read.
    """

    name: str
    damage: list[str] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)
    files: int = 0
    slices: int = 0
    commits: int = 0
    left: int = 0
    unknown: int = 0
    broken: dict[str, int | None] = field(default_factory=dict)
    is_unreadable: bool = False


def verify_tables(lake: Lake, *, deep: bool = False, names: Collection[str] | None = None) -> list[TableVerification]:
    """Look at the tables that lie in a lake, all of them or those with these names, in the order of their names.

    Every file is looked for; without `deep` only so many bytes are read, see `BYTES_READ`.
    """
    looked = [
        _TableExamination(name, folder)
        for name, folder in (*iter_table_folders(lake.place), *iter_state_folders(lake.place))
        if names is None or name in names
    ]
    slices = sorted(
        ((sum(file.bytes for file in some), look, name) for look in looked for name, some in look.slices.items()),
        key=lambda each: each[0],
    )
    read_bytes = read_files = 0
    for size, look, name in slices:
        read_bytes, read_files = read_bytes + size, read_files + len(look.slices[name])
        if deep or (read_bytes <= BYTES_READ and read_files <= FILES_READ):
            look.read(name)
        else:
            look.look_for(name)
            look.found.left += 1
    tried = [] if names is not None else write_check.list_leftover_probes(lake.place)
    why = "left by a try of the store that was killed, or is under way"
    unnamed = [f"{write_check.PROBE_FOLDER}/{place.name} is {why}" for place in tried]
    return [
        *(look.found for look in looked),
        *([TableVerification(write_check.PROBE_FOLDER, unnamed=unnamed)] if unnamed else []),
    ]


@dataclass(frozen=True)
class ReadFailureCause:
    """Why reading a table fails: the table, what is wrong with it, and, as a string, the command that says more."""

    table: str
    complaint: str

    def __str__(self) -> str:
        return f"{self.complaint}; what brings it back is said by: cdc-platform check"


def find_first_cause(lake: Lake, names: Collection[str]) -> ReadFailureCause | None:
    """The first of these tables that is damaged, or that somebody else has changed; None if all are as they were left.

    What was accepted counts as well: rows that stay may still be none that the platform can work with.
    """
    found = verify_tables(lake, names=names)
    for complaints in ("damage", "strange", "foreign", "accepted"):
        for each in found:
            if lines := getattr(each, complaints):
                return ReadFailureCause(each.name, lines[0])
    return None


def assert_tables_as_committed(lake: Lake, names: Collection[str], what: str) -> None:
    """Hold that every slice of these tables has the rows that commits put there, before `what` is made of them.

    Raises:
        StateError: one has others, or a file of it is damaged.
    """
    wrong = [line for each in verify_tables(lake, deep=True, names=names) for line in (*each.damage, *each.strange)]
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if wrong[1:] else ""
        raise StateError(f"{wrong[0]}{more}: {what} is not made of it; cdc-platform check --deep names every file")


def verify_partitions(name: str, folder: str, opened: DeltaTable, partitions: Collection[str]) -> TableVerification:
    """Verify some partitions of a table in the version that is opened, by the newest commits that name them alone.

    Of the log it reads the entries back to those; `verify_tables` judges a whole log.
    """
    look = _PartitionExamination(name, folder, opened, partitions)
    for partition in partitions:
        look.read(partition)
    return look.found


def verify_table_log(lake: Lake, table: Table) -> TableVerification:
    """Judge the log of a table: whether it is whole, and whose commits are in it. No row is read."""
    return _TableExamination(table.full_name, lake.path(table)).found


def list_foreign_commits(history: Sequence[Commit]) -> list[Commit]:
    """The commits of a log (newest first) that changed a table and are not the platform's, since its first envelope."""
    return [commit for commit in _since_first_commit_info(history) if commit.envelope is None and commit.changes]


def list_stray_checkpoint_pointers(lake: Lake) -> list[StoragePath]:
    """The files that send readers of a table to a checkpoint which is not there: without them the log is read."""
    logs = [parse_path(folder) / LOG_FOLDER for _, folder in iter_table_folders(lake.place)]
    return [log / LAST_CHECKPOINT_FILE for log in logs if _describe_stray_pointer(log, log.names()) is not None]


def digest_partitions(name: str, folder: str, version: int, slices: Collection[str]) -> dict[str, int]:
    """The digests of slices of a table as its files are, in a version that has to be its newest.

    Raises:
        StateError: a file is damaged.
        CommitFailedError: there is a newer version.
    """
    look = _TableExamination(name, folder)
    if look.version not in (version, None):
        raise CommitFailedError(f"{name} has a version {look.version} by now")
    found = {slice_: [look.digest_of(file) for file in look.slices.get(slice_, [])] for slice_ in slices}
    if look.found.damage:
        raise StateError(f"{look.found.damage[0]}; a damaged table cannot be accepted: bring its files back first")
    return {slice_: sum(part or 0 for part in parts) % row_hash.DIGEST_MODULUS for slice_, parts in found.items()}


def _describe_stray_pointer(log: StoragePath, names: Collection[str]) -> str | None:
    """What is wrong with the file that names a log's newest checkpoint, in words; None where it names one."""
    if LAST_CHECKPOINT_FILE not in names:
        return None
    way = "repair --from-description removes it, the log needs none"
    try:
        version = json.loads((log / LAST_CHECKPOINT_FILE).read())["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        version = None
    if not isinstance(version, int):
        return f"{LOG_FOLDER}/{LAST_CHECKPOINT_FILE} is damaged; {way}"
    # It was written behind its checkpoint, and may be newer than the names.
    if any(fnmatch(name, f"{version:020d}.checkpoint*.parquet") for name in (*names, *log.names())):
        return None
    return f"{LOG_FOLDER}/{LAST_CHECKPOINT_FILE} names the checkpoint of version {version}, which is missing; {way}"


def _since_first_commit_info(history: Sequence[Commit]) -> Sequence[Commit]:
    """The commits since the first that has an envelope, with it."""
    known = [place for place, commit in enumerate(history) if commit.envelope is not None]
    return history[: known[-1] + 1] if known else []


def _format_commit_time(commit: Commit) -> str:
    return "at an unknown time" if commit.at_ms is None else f"at {format_ms(commit.at_ms)}"


class _TableExamination:
    """One table under examination: its log is read when it is made, its slices one by one."""

    def __init__(self, name: str, folder: str) -> None:
        self._begin(name, folder)
        try:
            history = self._history()
            if not self.found.damage:
                self._judge_commits(history)
                self._open(history)
        except Exception as error:  # noqa: BLE001 whatever a log holds, the other tables are examined
            self._note_damage(f"its log cannot be read ({_describe_error(error)})")
        self.found.is_unreadable = bool(self.found.damage)

    def _begin(self, name: str, folder: str) -> None:
        """Set what nothing is known of yet."""
        self.found = TableVerification(name)
        self.slices: dict[str, list[DataFile]] = {}
        self.version: int | None = None
        self._folder = folder
        # A state follows from its log, and is made again from it.
        self._remedy = f"; remove {folder}: the next script that is kept makes it anew" if is_state_table(name) else ""
        self._digests: dict[str, int] = {}
        self._born_known = False
        self._rule = row_hash.NEWEST_DIGEST_RULE
        self._said: dict[str, pa.Table] = {}
        self._unbound: list[str] = []

    def read(self, name: str) -> None:
        """Read a slice whole and compare it with its digest, and each of its files with what the log says of it."""
        self._unbound.clear()
        parts = [self._examined(file) for file in self.slices[name]]
        due = self._digests.get(name, 0 if self._born_known else None)
        if None in parts:
            self.found.broken[name] = due
            return
        held = sum(part or 0 for part in parts) % row_hash.DIGEST_MODULUS
        self.found.slices += 1
        self.found.unknown += due is None
        if due is not None and held != due:
            held_by = ", ".join([self._name(file) for file in self.slices[name]][:_MAX_NAMED_FILES]) or "no file"
            self._note_slice(name, due, "holds other rows than its commits put there", held_by)
        elif self._unbound:
            self._note_slice(name, due, "is not what its log says, by which readers leave files out", self._unbound[0])

    def _examined(self, file: DataFile) -> int | None:
        """As `digest_of`; None, and damage, as well where the file cannot be examined for any other reason."""
        try:
            return self.digest_of(file)
        except Exception as error:  # noqa: BLE001 whatever a file holds, the other files are examined
            self._note_file(file, f"cannot be examined ({_describe_error(error)})")
            return None

    def look_for(self, name: str) -> None:
        """See that the files of a slice are there, and as long as they were."""
        for file in self.slices[name]:
            self.found.files += 1
            self._is_there(file)

    def _history(self) -> list[Commit]:
        """The commits of the log, newest first; what is missing or unreadable among them is noted."""
        log = parse_path(self._folder) / LOG_FOLDER
        names = log.names()
        versions = sorted(version for name in names if (version := transaction_log.version_from_name(name)) is not None)
        starts = [int(name[:20]) for name in names if _CHECKPOINT_NAME.fullmatch(name)]
        in_the_way = [each.name for each in log.folders() if transaction_log.version_from_name(each.name) is not None]
        for name in in_the_way:
            self._note_damage(f"{LOG_FOLDER}/{name} is a directory where an entry of the log is due")
        if not versions and not starts:
            self._note_damage(f"its log is gone ({log})")
            return []
        # Delta removes old entries, from the first one on, where a checkpoint holds what they said.
        if versions and versions[0] > max(starts, default=-1) + 1:
            self._note_gap(versions[0] - 1, versions[0] - 1)
        for before, after in pairwise(versions):
            if after > before + 1:
                self._note_gap(before + 1, after - 1)
        pointer = _describe_stray_pointer(log, names)
        if pointer is not None:
            self._note_damage(pointer)
        found: list[Commit] = []
        for version in reversed(versions):
            file = transaction_log.get_entry_path(self._folder, version)
            try:
                found.append(transaction_log.read_commit(file, version))
            except (ValueError, OSError) as error:
                said = _format_error_line(error).removeprefix(f"{file.name} is damaged (").removesuffix(")")
                way = f"; check --undo {self.found.name}@{version} takes it out of the log" * (
                    version == versions[-1] > 0
                )
                self._note_damage(f"{LOG_FOLDER}/{file.name} is damaged ({said}){way}")
        self.found.files += len(versions)
        return found

    def _note_gap(self, first: int, last: int) -> None:
        """Report the versions of a range whose entries are not in the log."""
        which = f"{LOG_FOLDER}/{first:020d}.json"
        self._note_damage(f"{which} is missing" if first == last else f"{which} to {last:020d}.json are missing")

    def _open(self, history: Sequence[Commit]) -> None:
        try:
            with translate_errors("opening it"):
                opened = files.open_table(self._folder)
            self.version = opened.version()
            foreign = files.list_unsupported_features(opened)
            if foreign:
                self._note_damage(f"it has features that the platform never turns on: {', '.join(foreign)}")
                return
            files.list_paths(opened)
            with translate_errors("opening it"):
                self._list_slices(opened)
                self._list_unnamed(opened, history)
        except PlatformError as error:
            self._note_damage(f"its log cannot be read ({_format_error_line(error)})")
        except files.ForeignPath as error:
            at = "" if self.version is None else f" of version {self.version}"
            self._note_damage(f"its log{at} cannot be read ({_format_error_line(error)})")

    def _judge_commits(self, history: Sequence[Commit]) -> None:
        since = _since_first_commit_info(history)
        self.found.commits = len(since)
        self._born_known = bool(since) and since[-1].version == 0
        for commit in since:
            if commit.envelope is not None:
                self._digests = dict(commit.envelope.digests) | self._digests
        accepted = {
            version: f"accepted {_format_commit_time(commit)} by {commit.envelope.user}: {because}"
            for commit in since
            if commit.envelope is not None
            for version, because in commit.envelope.accepts.items()
        }
        for commit in list_foreign_commits(history):
            said = (
                f"{self.found.name} version {commit.version}: {commit.operation} by {commit.engine} "
                f"{_format_commit_time(commit)}"
            )
            if commit.version in accepted:
                self.found.accepted.append(f"{said}, {accepted[commit.version]}")
            else:
                self.found.foreign.append(said + self._remedy)

    def _list_slices(self, opened: DeltaTable) -> None:
        keyspace, _, name = self.found.name.partition(".")
        partition_by = tuple(opened.metadata().partition_columns)
        self._rule = transaction_log.get_digest_rule(opened)
        self._said = files.read_file_statistics(opened, self._folder)
        table = Table(keyspace, name, pa.schema(opened.schema()), (), "", partition_by)
        # A slice whose files are all gone from the log has no rows, which its commits may have said.
        self.slices = {name: [] for name in self._digests}
        for file in files.list_data_files(opened, table, self._folder):
            self.slices.setdefault(row_hash.format_partition_name(partition_by, file.partition), []).append(file)

    def _list_unnamed(self, opened: DeltaTable, history: Sequence[Commit]) -> None:
        """The data files that no commit names: the last commit of a log can be lost without a gap in it."""
        left = set(opened.vacuum(0, dry_run=True, enforce_retention_duration=False, full=True))
        left = left.difference(*(commit.files for commit in history))
        why = "its writer was killed or is at it, or the newest commit is lost"
        self.found.unnamed += [f"{self.found.name}: {path} is named by no commit: {why}" for path in sorted(left)]

    def digest_of(self, file: DataFile) -> int | None:
        """The sum of a file's rows; None where it is damaged, which is noted."""
        self.found.files += 1
        if not self._is_there(file):
            return None
        rows, held, bounds = 0, 0, BoundsCheck(self._said[file.path])
        try:
            with bypass_fetch_cache():
                for batch in read_file_batches(file.path):
                    rows += batch.num_rows
                    bounds.see(batch)
                    held += sum(row_hash.digest_rows(pa.Table.from_batches([batch]), (), self._rule).values())
        except (OSError, pa.ArrowException, ValueError, MemoryError) as error:
            self._note_file(file, f"is damaged ({_format_error_line(error)})")
        else:
            if rows == file.rows or not file.rows:  # a log need not say how many
                wrong = bounds.wrong()
                self._unbound += [] if wrong is None else [f"{self._name(file)}, where {wrong} that it gives"]
                return held
            self._note_file(file, f"is damaged (it has {rows} rows, and had {file.rows})")
        return None

    def _is_there(self, file: DataFile) -> bool:
        place = parse_path(file.path)
        size = self._sizes.get(place.path) if isinstance(place, ObjectStorePath) else None
        if size is None:
            try:
                seen = place.seen()
            except OSError:
                seen = None
            size = None if seen is None else seen.bytes
        if size != file.bytes:
            what = "missing" if size is None else f"damaged (it has {size} bytes, and had {file.bytes})"
            self._note_file(file, f"is {what}")
        return size == file.bytes

    @cached_property
    def _sizes(self) -> Mapping[str, int]:
        """The bytes of each file, where one list of a store tells of many."""
        place = parse_path(self._folder)
        is_many = sum(map(len, self.slices.values())) > 1
        return place.sizes() if isinstance(place, ObjectStorePath) and is_many else {}

    def _note_slice(self, name: str, due: int | None, what: str, where: str) -> None:
        """Say of a slice what it holds."""
        self.found.broken[name] = due
        self.found.strange.append(
            f"{self.found.name}{_describe_partition(name)} {what}, in version {self.version}: {where}{self._remedy}"
        )

    def _note_file(self, file: DataFile, what: str) -> None:
        """Say something of a data file."""
        self._note_damage(f"{self._name(file)}, a file of version {self.version}, {what}")

    def _name(self, file: DataFile) -> str:
        """The path of a file in the table's folder."""
        return file.path.removeprefix(self._folder).lstrip("/")

    def _note_damage(self, what: str) -> None:
        self.found.damage.append(f"{self.found.name}: {what}{self._remedy}")


class _PartitionExamination(_TableExamination):
    """Some partitions of a version that is open already; the rest of the table and of its log is left alone."""

    def __init__(self, name: str, folder: str, opened: DeltaTable, partitions: Collection[str]) -> None:
        self._begin(name, folder)
        self.version = opened.version()
        self._rule = transaction_log.get_digest_rule(opened)
        self._digests = transaction_log.get_known_digests(opened, partitions)
        self.slices = {partition: [] for partition in partitions}
        partition_by = tuple(opened.metadata().partition_columns)
        for file in files.list_partition_files(opened, partition_by, folder):
            partition = row_hash.format_partition_name(partition_by, file.partition)
            if partition in self.slices:
                self.slices[partition].append(file)
        self._said = files.read_file_statistics(opened, folder)


def _describe_partition(name: str) -> str:
    return f" where {name.replace('/', ' and ')}" if name else ""


def _format_error_line(error: Exception) -> str:
    return clean_message(str(error))[:160]


def _describe_error(error: Exception) -> str:
    """An error that nobody has foreseen, by its class as well."""
    return f"{type(error).__name__}: {_format_error_line(error)}"[:160]


_DIGEST_SCHEMA = pa.schema({"digest": pa.string()})
_BatchChange = Callable[[pa.RecordBatch], pa.RecordBatch]


@dataclass(frozen=True, eq=False)
class VerifiedRows:
    """The rows of a slice, in all columns but those that name it, and the digest that is `due` of them.

    `due` is None where commits say nothing of them: they are taken as they are. `rule` is that of their table,
    `refusal` what is said where they are others or a file of theirs is damaged. `change` makes other rows of them.
    """

    rows: TaskRows
    rule: row_hash.DigestRule
    due: int | None
    refusal: str
    change: _BatchChange | None = None

    def changed(self, change: _BatchChange) -> VerifiedRows:
        """The same rows, of which others are made."""
        return replace(self, change=change)

    def read(self, batches: Batches, seen: list[int]) -> Batches:
        """What is made of some of the rows as tasks read them; their digest is added to what was `seen`.

        Raises:
            StateError: a file is damaged.
        """
        try:
            for batch in batches:
                if self.due is not None:
                    found = row_hash.digest_rows(pa.Table.from_batches([batch]), (), self.rule)
                    seen.append(found.get("", 0))
                yield batch if self.change is None else self.change(batch)
        except (OSError, pa.ArrowException) as error:
            if self.due is None or not is_content_error(error):
                raise
            raise StateError(self.refusal) from None

    def accept(self, seen: Iterable[int]) -> None:
        """Hold that what was seen, in all parts together, is what is due.

        Raises:
            StateError: it is not.
        """
        if self.due is not None and sum(seen) % row_hash.DIGEST_MODULUS != self.due:
            raise StateError(self.refusal)

    def hold(self, workers: TaskRunner) -> None:
        """Read the rows for their digest alone.

        Raises:
            StateError: they are others, or a file of theirs is damaged.
        """
        if self.due is None:
            return
        said = workers.table(self.rows.through(partial(_digest_batches, replace(self, change=None))), _DIGEST_SCHEMA)
        lines = said["digest"].to_pylist()
        if None in lines:
            raise StateError(self.refusal)
        self.accept(int(digest, 16) for digest in lines)


def get_verified_rows(lake: Lake, table: Table, where: Mapping[str, Any]) -> VerifiedRows:
    """The rows of the slice in which each of the partition columns has its value in `where`."""
    with lake.open_tables.looked_at_once():
        version = lake.version(table)
        name = row_hash.partition_name_from_values(table.partition_by, where)
        said = (
            None if version is None else transaction_log.get_digests(lake.open_tables.newest(lake.path(table)), [name])
        )
        columns = [column for column in table.schema.names if column not in table.partition_by]
        files = lake.files(table, [(key, "=", value) for key, value in where.items()])
        rule = lake.digest_rule(table)
    of = f" where {name}" if name else ""
    refusal = (
        f"{table.full_name}{of} holds other rows than its commits put there, in version {version}: nothing is made of"
        " it; cdc-platform check --deep names the file, repair --from-description makes anew what can be"
    )
    return VerifiedRows(rows_from_files(files, columns), rule, None if said is None else said[name], refusal)


def _digest_batches(rows: VerifiedRows, batches: Batches) -> Batches:
    """Rows in; a line with their digest out, without one where a file is damaged."""
    seen: list[int] = []
    try:
        for _ in rows.read(batches, seen):
            pass
        digest = f"{sum(seen) % row_hash.DIGEST_MODULUS:032x}"
    except StateError:
        # As an error of Python in a task of Spark it would lose its class, and be run again for nothing.
        digest = None
    yield pa.RecordBatch.from_pydict({"digest": [digest]}, schema=_DIGEST_SCHEMA)


# Bounds of times are cut to it.
_STATISTICS_ROUNDING = timedelta(milliseconds=1)
_WHOLE_TABLE = row_hash.partition_name_from_values((), {})


@dataclass(frozen=True)
class _LogEntry:
    """A commit: the files that it adds and takes away, the digest of all rows after it; None where it does not say."""

    version: int
    added: frozenset[str]
    has_removed: bool
    digest: int | None
    is_ours: bool


def verify_added_files_between(lake: Lake, table: Table, column: str, low: datetime, high: datetime) -> None:
    """Hold as `_verify_added_files` the files that can have rows with a time of this column, from one to another.

    Raises:
        StoreFailure: as there.
    """
    low, high = low - _STATISTICS_ROUNDING, high + _STATISTICS_ROUNDING
    found = lake.bounded_files(table, column)
    wanted = [each.path for each in found if None in (each.low, each.high) or (each.low <= high and each.high >= low)]
    _verify_added_files(lake, table, wanted)


def _verify_added_files(lake: Lake, table: Table, paths: Collection[str]) -> None:
    """Hold that files of the table have the rows that were put there, before something is made of them.

    What cannot be told is taken as it is: of a stranger's commit, of one that Delta's log has forgotten, or of one that
    put files together of which some are gone since. A commit is judged once a process.

    Raises:
        StoreFailure: a file has other rows, or is damaged.
    """
    folder = lake.path(table)
    with lake.open_tables.looked_at_once(), translate_errors(f"reading {table.full_name}"):
        opened = lake.open_tables.newest(folder)
        judged: set[int] = vars(opened).setdefault("_judged", set())
        names = {path.removeprefix(f"{parse_path(folder)}/") for path in paths}
        for entry, before in _find_adding_commits(opened, folder, names):
            if entry.version in judged:
                continue
            added, due = _get_expected_digest(folder, entry, before)
            if due is not None and _digest_files(opened, folder, added) != due % row_hash.DIGEST_MODULUS:
                raise StoreFailure(
                    f"{table.full_name} holds other rows than its commits put there, in a file of version "
                    f"{entry.version}: nothing is made of it; cdc-platform check --deep names the file"
                )
            judged.add(entry.version)


def _find_adding_commits(opened: DeltaTable, folder: str, names: set[str]) -> Iterator[tuple[_LogEntry, int | None]]:
    """The commits that added these files, newest first, each with the digest before it, where that is known."""
    waiting: list[_LogEntry] = []
    left = set(names)
    for version in range(opened.version(), -1, -1):
        entry = _read_log_entry(opened, folder, version)
        if entry is None:
            break
        if waiting and entry.digest is not None:
            yield from ((each, entry.digest) for each in waiting)
            waiting = []
        if left & entry.added:
            left -= entry.added
            waiting.append(entry)
        if version == 0:
            yield from ((each, 0 if entry.is_ours else None) for each in waiting)
            waiting = []
        if not left and not waiting:
            return
    yield from ((each, None) for each in waiting)


def _get_expected_digest(folder: str, entry: _LogEntry, before: int | None) -> tuple[Collection[str], int | None]:
    """Files and the digest of their rows; None where that cannot be told."""
    if not entry.is_ours or before is None:
        return (), None
    if not entry.has_removed:
        return entry.added, (before if entry.digest is None else entry.digest) - before
    # All that there was then: what was put together has the rows of what it was made of.
    names = [
        path.removeprefix(f"{parse_path(folder)}/")
        for path in files.list_paths(files.open_table(folder, entry.version))
    ]
    whole = all((parse_path(folder) / name).seen() is not None for name in names)
    return names, (before if entry.digest is None else entry.digest) if whole else None


def _digest_files(opened: DeltaTable, folder: str, names: Collection[str]) -> int | None:
    """The digest of the rows of files; None where one is damaged."""
    rule, held = transaction_log.get_digest_rule(opened), 0
    try:
        for name in names:
            for batch in read_file_batches(str(parse_path(folder) / name)):
                held += sum(row_hash.digest_rows(pa.Table.from_batches([batch]), (), rule).values())
    except (OSError, pa.ArrowException) as error:
        if is_content_error(error):
            return None
        raise
    return held % row_hash.DIGEST_MODULUS


def _read_log_entry(opened: DeltaTable, folder: str, version: int) -> _LogEntry | None:
    """A commit of the log, which is read once; None where the log has forgotten it."""
    known: dict[int, _LogEntry] = vars(opened).setdefault("_entries", {})
    if version not in known:
        try:
            actions = transaction_log.read_actions(transaction_log.get_entry_path(folder, version))
        except FileNotFoundError:
            return None
        added = frozenset(decode_path(each["add"]["path"]) for each in actions if "add" in each)
        said = transaction_log.commit_from_actions(actions, version).envelope
        digest = None if said is None else said.digests.get(_WHOLE_TABLE)
        known[version] = _LogEntry(version, added, any("remove" in each for each in actions), digest, said is not None)
    return known[version]
