"""Files of a table without partitions, held against what the commits that added them say of the rows.

Such a table is one slice, and to read all of a log for one hour of it would be out of proportion: a commit's own rows
are the difference between its digest and the one before it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import pyarrow as pa
from deltalake import DeltaTable

from cdc_platform.errors import StoreFailure
from cdc_platform.lake import commits, digests, files
from cdc_platform.lake.files import plain_path
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import Table
from cdc_platform.lake.translate import is_of_content, translated
from cdc_platform.lake.volume import file_batches
from cdc_platform.places import place_of

# Bounds of times are cut to it.
_EXACT = timedelta(milliseconds=1)
_WHOLE = digests.slice_of((), {})


@dataclass(frozen=True)
class _Entry:
    """A commit: the files that it adds and takes away, the digest of all rows after it; None where it does not say."""

    version: int
    added: frozenset[str]
    has_removed: bool
    digest: int | None
    is_ours: bool


def assert_as_added_between(lake: Lake, table: Table, column: str, low: datetime, high: datetime) -> None:
    """Hold as `assert_as_added` the files that can have rows with a time of this column, from one to another.

    Raises:
        StoreFailure: as there.
    """
    low, high = low - _EXACT, high + _EXACT
    found = lake.bounded_files(table, column)
    wanted = [each.path for each in found if None in (each.low, each.high) or (each.low <= high and each.high >= low)]
    assert_as_added(lake, table, wanted)


def assert_as_added(lake: Lake, table: Table, paths: Collection[str]) -> None:
    """Hold that files of the table have the rows that were put there, before something is made of them.

    What cannot be told is taken as it is: of a stranger's commit, of one that Delta's log has forgotten, or of one that
    put files together of which some are gone since. A commit is judged once a process.

    Raises:
        StoreFailure: a file has other rows, or is damaged.
    """
    folder = lake.path(table)
    with lake.open_tables.looked_at_once(), translated(f"reading {table.full_name}"):
        opened = lake.open_tables.newest(folder)
        judged: set[int] = vars(opened).setdefault("_judged", set())
        names = {path.removeprefix(f"{place_of(folder)}/") for path in paths}
        for entry, before in _adding(opened, folder, names):
            if entry.version in judged:
                continue
            added, due = _due(folder, entry, before)
            if due is not None and _held(opened, folder, added) != due % digests.MODULUS:
                raise StoreFailure(
                    f"{table.full_name} holds other rows than its commits put there, in a file of version "
                    f"{entry.version}: nothing is made of it; cdc-platform check --deep names the file"
                )
            judged.add(entry.version)


def _adding(opened: DeltaTable, folder: str, names: set[str]) -> Iterator[tuple[_Entry, int | None]]:
    """The commits that added these files, newest first, each with the digest before it, where that is known."""
    waiting: list[_Entry] = []
    left = set(names)
    for version in range(opened.version(), -1, -1):
        entry = _entry(opened, folder, version)
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


def _due(folder: str, entry: _Entry, before: int | None) -> tuple[Collection[str], int | None]:
    """Files and the digest of their rows; None where that cannot be told."""
    if not entry.is_ours or before is None:
        return (), None
    if not entry.has_removed:
        return entry.added, (before if entry.digest is None else entry.digest) - before
    # All that there was then: what was put together has the rows of what it was made of.
    names = [path.removeprefix(f"{place_of(folder)}/") for path in files.paths(files.opened(folder, entry.version))]
    whole = all((place_of(folder) / name).seen() is not None for name in names)
    return names, (before if entry.digest is None else entry.digest) if whole else None


def _held(opened: DeltaTable, folder: str, names: Collection[str]) -> int | None:
    """The digest of the rows of files; None where one is damaged."""
    rule, held = commits.digest_rule(opened), 0
    try:
        for name in names:
            for batch in file_batches(str(place_of(folder) / name)):
                held += sum(digests.of_rows(pa.Table.from_batches([batch]), (), rule).values())
    except (OSError, pa.ArrowException) as error:
        if is_of_content(error):
            return None
        raise
    return held % digests.MODULUS


def _entry(opened: DeltaTable, folder: str, version: int) -> _Entry | None:
    """A commit of the log, which is read once; None where the log has forgotten it."""
    known: dict[int, _Entry] = vars(opened).setdefault("_entries", {})
    if version not in known:
        try:
            actions = commits.actions(commits.entry(folder, version))
        except FileNotFoundError:
            return None
        added = frozenset(plain_path(each["add"]["path"]) for each in actions if "add" in each)
        said = commits.of_actions(actions, version).envelope
        digest = None if said is None else said.digests.get(_WHOLE)
        known[version] = _Entry(version, added, any("remove" in each for each in actions), digest, said is not None)
    return known[version]
