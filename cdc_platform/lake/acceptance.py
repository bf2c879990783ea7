"""Accepting what a stranger has committed to a table: said in a commit of its own, with who, when and why.

The commit changes no row. It says what the slices hold that the foreign commit has changed, so that they are again what
their commits say; whoever looks at the table finds both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from cdc_platform.errors import InputError, NotFound, StateError, UnknownTable
from cdc_platform.lake import commits, digests, files, verification
from cdc_platform.lake.commits import Commit
from cdc_platform.lake.conflicts import until_first
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import Table
from cdc_platform.lake.versions import stored_names

MOST_SAID = 500
"""Characters of a reason."""


@dataclass(frozen=True)
class Accepted:
    """A foreign commit that is accepted: in which version that is said, and the slices that are taken as they are."""

    table: str
    version: int
    said_in: int
    slices: tuple[str, ...]
    is_new: bool


def accept(lake: Lake, name: str, version: int, because: str) -> Accepted:
    """Accept a foreign commit of a table; one that is accepted stays as it was said.

    Slices that another foreign commit has changed as well, which nobody has accepted, are left for that one.

    Raises:
        NotFound: there is no such table or commit.
        InputError: the commit is the platform's own, or from before there were envelopes, or changes nothing; or there
            is no reason, or it is too long.
        StateError: a file of the table is damaged.
        ConflictError: other writers kept winning.
    """
    if not because.strip() or len(because) > MOST_SAID or not because.isprintable():
        raise InputError(
            f"a reason is one line of 1 to {MOST_SAID} characters; say with --because why {name} is as it is"
        )
    keyspace, _, short = name.partition(".")
    table = Table(keyspace, short, pa.schema([]), (), "")
    if (keyspace, short) not in stored_names(lake):
        raise UnknownTable(f"there is no table {name} in this home; check shows the tables that have foreign commits")
    return until_first(f"accepting version {version} of {name}", lambda: _accept(lake, table, version, because))


def _accept(lake: Lake, table: Table, version: int, because: str) -> Accepted:
    folder, name = lake.path(table), table.full_name
    opened = files.opened(folder)
    history = list(commits.newest_first(folder, opened.version()))
    said = {number: each.version for each in history if each.envelope for number in each.envelope.accepts}
    if version in said:
        return Accepted(name, version, said[version], (), is_new=False)
    foreign = verification.foreign_commits(history)
    _refuse_others(name, version, history, foreign)
    left = [each.version for each in foreign if each.version not in {*said, version}]
    taken = _changed(folder, [number for number in (*said, version) if number not in left])
    taken -= _changed(folder, left)
    now = verification.content(name, folder, opened.version(), taken)
    said_in = opened.version() + 1
    commits.make(
        opened,
        lambda properties: opened.create_write_transaction(
            [], "append", opened.schema(), opened.metadata().partition_columns, commit_properties=properties
        ),
        digests=now,
        accepts={version: because},
    )
    return Accepted(name, version, said_in, tuple(sorted(now)), is_new=True)


def _refuse_others(name: str, version: int, history: Sequence[Commit], foreign: Sequence[Commit]) -> None:
    if any(each.version == version for each in foreign):
        return
    found = next((each for each in history if each.version == version), None)
    if found is None:
        raise NotFound(f"{name} has no commit {version} in its log; its newest is {history[0].version}")
    why = "is the platform's own" if found.envelope else "changes nothing, or is from before commits had envelopes"
    raise InputError(f"version {version} of {name} {why}: there is nothing to accept; check names foreign commits")


def _changed(folder: str, versions: Sequence[int]) -> set[str]:
    """The slices of which commits have put in or taken out a file."""
    found: set[str] = set()
    for version in versions:
        after, before = (_files(folder, number) for number in (version, version - 1))
        found |= {name for path, name in (after | before).items() if (path in after) != (path in before)}
    return found


def _files(folder: str, version: int) -> dict[str, str]:
    """The files of a version, each with its slice."""
    try:
        opened = files.opened(folder, version)
    except OSError as error:
        raise StateError(f"version {version} of {folder} cannot be read any more: {error}") from None
    names = tuple(opened.metadata().partition_columns)
    table = Table("", "", pa.schema(opened.schema()), (), "", names)
    return {file.path: digests.slice_name(names, file.partition) for file in files.data_files(opened, table, folder)}
