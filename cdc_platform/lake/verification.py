"""What a table's folder holds, held against its log: files that are damaged, rows and commits of strangers. No JVM.

It needs no declaration, so it judges every table that lies in a lake. What commits say that slices hold is only known
from the first commit with an envelope on: what is older is unknown, and no complaint.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cached_property
from itertools import pairwise

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from cdc_platform.clock import format_ms
from cdc_platform.errors import PlatformError, StateError
from cdc_platform.lake import commits, contract, digests, files
from cdc_platform.lake.bounds import Bounds
from cdc_platform.lake.commits import Commit
from cdc_platform.lake.files import LOG_FOLDER, DataFile
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import Table
from cdc_platform.lake.translate import translated
from cdc_platform.lake.versions import folders, is_state, state_folders
from cdc_platform.lake.volume import file_batches
from cdc_platform.places import Place, Stored, fetching_anew, place_of
from cdc_platform.places.answers import in_one_line

# A check reads so much by itself, the smallest slices first: what a home of some thousand small generations has.
BYTES_READ, FILES_READ = 64 << 20, 2_000
POINTER = "_last_checkpoint"
"""The file in a log that names its newest checkpoint, from which readers start."""
_CHECKPOINT = re.compile(r"[0-9]{20}\.checkpoint.*\.parquet")
_NAMED = 3
"""Files that are named of those of a slice with other rows."""


@dataclass
class Verified:
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


def verify(lake: Lake, *, deep: bool = False, names: Collection[str] | None = None) -> list[Verified]:
    """Look at the tables that lie in a lake, all of them or those with these names, in the order of their names.

    Every file is looked for; without `deep` only so many bytes are read, see `BYTES_READ`.
    """
    looked = [
        _Look(name, folder)
        for name, folder in (*folders(lake.place), *state_folders(lake.place))
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
    tried = [] if names is not None else contract.left_over(lake.place)
    why = "left by a try of the store that was killed, or is under way"
    unnamed = [f"{contract.TRIED}/{place.name} is {why}" for place in tried]
    return [*(look.found for look in looked), *([Verified(contract.TRIED, unnamed=unnamed)] if unnamed else [])]


@dataclass(frozen=True)
class Cause:
    """Why reading a table fails: the table, what is wrong with it, and, as a string, the command that says more."""

    table: str
    complaint: str

    def __str__(self) -> str:
        return f"{self.complaint}; what brings it back is said by: cdc-platform check"


def first_cause(lake: Lake, names: Collection[str]) -> Cause | None:
    """The first of these tables that is damaged, or that somebody else has changed; None if all are as they were left.

    What was accepted counts as well: rows that stay may still be none that the platform can work with.
    """
    found = verify(lake, names=names)
    for complaints in ("damage", "strange", "foreign", "accepted"):
        for each in found:
            if lines := getattr(each, complaints):
                return Cause(each.name, lines[0])
    return None


def assert_as_committed(lake: Lake, names: Collection[str], what: str) -> None:
    """Hold that every slice of these tables has the rows that commits put there, before `what` is made of them.

    Raises:
        StateError: one has others, or a file of it is damaged.
    """
    wrong = [line for each in verify(lake, deep=True, names=names) for line in (*each.damage, *each.strange)]
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if wrong[1:] else ""
        raise StateError(f"{wrong[0]}{more}: {what} is not made of it; cdc-platform check --deep names every file")


def verify_partitions(name: str, folder: str, opened: DeltaTable, partitions: Collection[str]) -> Verified:
    """Verify some partitions of a table in the version that is opened, by the newest commits that name them alone.

    Of the log it reads the entries back to those; `verify` judges a whole log.
    """
    look = _Partitions(name, folder, opened, partitions)
    for partition in partitions:
        look.read(partition)
    return look.found


def verify_log(lake: Lake, table: Table) -> Verified:
    """Judge the log of a table: whether it is whole, and whose commits are in it. No row is read."""
    return _Look(table.full_name, lake.path(table)).found


def foreign_commits(history: Sequence[Commit]) -> list[Commit]:
    """The commits of a log (newest first) that changed a table and are not the platform's, since its first envelope."""
    return [commit for commit in _known(history) if commit.envelope is None and commit.changes]


def stray_pointers(lake: Lake) -> list[Place]:
    """The files that send readers of a table to a checkpoint which is not there: without them the log is read."""
    logs = [place_of(folder) / LOG_FOLDER for _, folder in folders(lake.place)]
    return [log / POINTER for log in logs if _stray_pointer(log, log.names()) is not None]


def content(name: str, folder: str, version: int, slices: Collection[str]) -> dict[str, int]:
    """The digests of slices of a table as its files are, in a version that has to be its newest.

    Raises:
        StateError: a file is damaged.
        CommitFailedError: there is a newer version.
    """
    look = _Look(name, folder)
    if look.version not in (version, None):
        raise CommitFailedError(f"{name} has a version {look.version} by now")
    found = {slice_: [look.digest_of(file) for file in look.slices.get(slice_, [])] for slice_ in slices}
    if look.found.damage:
        raise StateError(f"{look.found.damage[0]}; a damaged table cannot be accepted: bring its files back first")
    return {slice_: sum(part or 0 for part in parts) % digests.MODULUS for slice_, parts in found.items()}


def _stray_pointer(log: Place, names: Collection[str]) -> str | None:
    """What is wrong with the file that names a log's newest checkpoint, in words; None where it names one."""
    if POINTER not in names:
        return None
    way = "repair --from-description removes it, the log needs none"
    try:
        version = json.loads((log / POINTER).read())["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        version = None
    if not isinstance(version, int):
        return f"{LOG_FOLDER}/{POINTER} is damaged; {way}"
    # It was written behind its checkpoint, and may be newer than the names.
    if any(fnmatch(name, f"{version:020d}.checkpoint*.parquet") for name in (*names, *log.names())):
        return None
    return f"{LOG_FOLDER}/{POINTER} names the checkpoint of version {version}, which is missing; {way}"


def _known(history: Sequence[Commit]) -> Sequence[Commit]:
    """The commits since the first that has an envelope, with it."""
    known = [place for place, commit in enumerate(history) if commit.envelope is not None]
    return history[: known[-1] + 1] if known else []


def _at(commit: Commit) -> str:
    return "at an unknown time" if commit.at_ms is None else f"at {format_ms(commit.at_ms)}"


class _Look:
    """One table under examination: its log is read when it is made, its slices one by one."""

    def __init__(self, name: str, folder: str) -> None:
        self._begin(name, folder)
        try:
            history = self._history()
            if not self.found.damage:
                self._judge_commits(history)
                self._open(history)
        except Exception as error:  # noqa: BLE001 whatever a log holds, the other tables are examined
            self._note_damage(f"its log cannot be read ({_described(error)})")
        self.found.is_unreadable = bool(self.found.damage)

    def _begin(self, name: str, folder: str) -> None:
        """Set what nothing is known of yet."""
        self.found = Verified(name)
        self.slices: dict[str, list[DataFile]] = {}
        self.version: int | None = None
        self._folder = folder
        # A state follows from its log, and is made again from it.
        self._remedy = f"; remove {folder}: the next script that is kept makes it anew" if is_state(name) else ""
        self._digests: dict[str, int] = {}
        self._born_known = False
        self._rule = digests.NEWEST
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
        held = sum(part or 0 for part in parts) % digests.MODULUS
        self.found.slices += 1
        self.found.unknown += due is None
        if due is not None and held != due:
            held_by = ", ".join([self._name(file) for file in self.slices[name]][:_NAMED]) or "no file"
            self._note_slice(name, due, "holds other rows than its commits put there", held_by)
        elif self._unbound:
            self._note_slice(name, due, "is not what its log says, by which readers leave files out", self._unbound[0])

    def _examined(self, file: DataFile) -> int | None:
        """As `digest_of`; None, and damage, as well where the file cannot be examined for any other reason."""
        try:
            return self.digest_of(file)
        except Exception as error:  # noqa: BLE001 whatever a file holds, the other files are examined
            self._note_file(file, f"cannot be examined ({_described(error)})")
            return None

    def look_for(self, name: str) -> None:
        """See that the files of a slice are there, and as long as they were."""
        for file in self.slices[name]:
            self.found.files += 1
            self._is_there(file)

    def _history(self) -> list[Commit]:
        """The commits of the log, newest first; what is missing or unreadable among them is noted."""
        log = place_of(self._folder) / LOG_FOLDER
        names = log.names()
        versions = sorted(version for name in names if (version := commits.version_of(name)) is not None)
        starts = [int(name[:20]) for name in names if _CHECKPOINT.fullmatch(name)]
        in_the_way = [each.name for each in log.folders() if commits.version_of(each.name) is not None]
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
        pointer = _stray_pointer(log, names)
        if pointer is not None:
            self._note_damage(pointer)
        found: list[Commit] = []
        for version in reversed(versions):
            file = commits.entry(self._folder, version)
            try:
                found.append(commits.read(file, version))
            except (ValueError, OSError) as error:
                said = _line(error).removeprefix(f"{file.name} is damaged (").removesuffix(")")
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
            with translated("opening it"):
                opened = files.opened(self._folder)
            self.version = opened.version()
            foreign = files.foreign_features(opened)
            if foreign:
                self._note_damage(f"it has features that the platform never turns on: {', '.join(foreign)}")
                return
            files.paths(opened)
            with translated("opening it"):
                self._list_slices(opened)
                self._list_unnamed(opened, history)
        except PlatformError as error:
            self._note_damage(f"its log cannot be read ({_line(error)})")
        except files.ForeignPath as error:
            at = "" if self.version is None else f" of version {self.version}"
            self._note_damage(f"its log{at} cannot be read ({_line(error)})")

    def _judge_commits(self, history: Sequence[Commit]) -> None:
        since = _known(history)
        self.found.commits = len(since)
        self._born_known = bool(since) and since[-1].version == 0
        for commit in since:
            if commit.envelope is not None:
                self._digests = dict(commit.envelope.digests) | self._digests
        accepted = {
            version: f"accepted {_at(commit)} by {commit.envelope.user}: {because}"
            for commit in since
            if commit.envelope is not None
            for version, because in commit.envelope.accepts.items()
        }
        for commit in foreign_commits(history):
            said = f"{self.found.name} version {commit.version}: {commit.operation} by {commit.engine} {_at(commit)}"
            if commit.version in accepted:
                self.found.accepted.append(f"{said}, {accepted[commit.version]}")
            else:
                self.found.foreign.append(said + self._remedy)

    def _list_slices(self, opened: DeltaTable) -> None:
        keyspace, _, name = self.found.name.partition(".")
        partition_by = tuple(opened.metadata().partition_columns)
        self._rule = commits.digest_rule(opened)
        self._said = files.said_of_files(opened, self._folder)
        table = Table(keyspace, name, pa.schema(opened.schema()), (), "", partition_by)
        # A slice whose files are all gone from the log has no rows, which its commits may have said.
        self.slices = {name: [] for name in self._digests}
        for file in files.data_files(opened, table, self._folder):
            self.slices.setdefault(digests.slice_name(partition_by, file.partition), []).append(file)

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
        rows, held, bounds = 0, 0, Bounds(self._said[file.path])
        try:
            with fetching_anew():
                for batch in file_batches(file.path):
                    rows += batch.num_rows
                    bounds.see(batch)
                    held += sum(digests.of_rows(pa.Table.from_batches([batch]), (), self._rule).values())
        except (OSError, pa.ArrowException, ValueError, MemoryError) as error:
            self._note_file(file, f"is damaged ({_line(error)})")
        else:
            if rows == file.rows or not file.rows:  # a log need not say how many
                wrong = bounds.wrong()
                self._unbound += [] if wrong is None else [f"{self._name(file)}, where {wrong} that it gives"]
                return held
            self._note_file(file, f"is damaged (it has {rows} rows, and had {file.rows})")
        return None

    def _is_there(self, file: DataFile) -> bool:
        place = place_of(file.path)
        size = self._sizes.get(place.path) if isinstance(place, Stored) else None
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
        place = place_of(self._folder)
        is_many = sum(map(len, self.slices.values())) > 1
        return place.sizes() if isinstance(place, Stored) and is_many else {}

    def _note_slice(self, name: str, due: int | None, what: str, where: str) -> None:
        """Say of a slice what it holds."""
        self.found.broken[name] = due
        self.found.strange.append(
            f"{self.found.name}{_of_slice(name)} {what}, in version {self.version}: {where}{self._remedy}"
        )

    def _note_file(self, file: DataFile, what: str) -> None:
        """Say something of a data file."""
        self._note_damage(f"{self._name(file)}, a file of version {self.version}, {what}")

    def _name(self, file: DataFile) -> str:
        """The path of a file in the table's folder."""
        return file.path.removeprefix(self._folder).lstrip("/")

    def _note_damage(self, what: str) -> None:
        self.found.damage.append(f"{self.found.name}: {what}{self._remedy}")


class _Partitions(_Look):
    """Some partitions of a version that is open already; the rest of the table and of its log is left alone."""

    def __init__(self, name: str, folder: str, opened: DeltaTable, partitions: Collection[str]) -> None:
        self._begin(name, folder)
        self.version = opened.version()
        self._rule = commits.digest_rule(opened)
        self._digests = commits.digests_known(opened, partitions)
        self.slices = {partition: [] for partition in partitions}
        partition_by = tuple(opened.metadata().partition_columns)
        for file in files.files_of_partitions(opened, partition_by, folder):
            partition = digests.slice_name(partition_by, file.partition)
            if partition in self.slices:
                self.slices[partition].append(file)
        self._said = files.said_of_files(opened, folder)


def _of_slice(name: str) -> str:
    return f" where {name.replace('/', ' and ')}" if name else ""


def _line(error: Exception) -> str:
    return in_one_line(str(error))[:160]


def _described(error: Exception) -> str:
    """An error that nobody has foreseen, by its class as well."""
    return f"{type(error).__name__}: {_line(error)}"[:160]
