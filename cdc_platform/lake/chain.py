"""The commits of a table as a chain of hashes: whoever has kept a link of it sees that what came before was changed.

The link of a version is the SHA-256, in hex, of the line `PRIOR VERSION ENTRY` and a line feed: the link before it (64
zeros before the first), the number, and the SHA-256 of the file of its entry in Delta's log. An entry never changes;
its envelope is in it, and with that who wrote, and the digests of the rows. A chain says nothing of who kept it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256

from cdc_platform.lake import commits
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import Table
from cdc_platform.lake.translate import translated

NOTHING = "0" * 64
"""The link before the first."""
_MOST_LINKS = 256


class Answer(StrEnum):
    """What a look at something that was written down once can find."""

    HOLDS = "holds"
    NEWER = "newer"
    """It was so, and the home has gone on since."""
    UNKNOWN = "unknown"
    """What it takes to tell is not there any more."""
    DIFFERS = "differs"


@dataclass(frozen=True)
class Chain:
    """What is kept of a chain: the versions of a log from `first` to `last`, and the links of some, the last's always.

    `first` is above 0 where Delta had removed the entries before it.
    """

    first: int
    last: int
    links: Mapping[int, str]


@dataclass(frozen=True)
class Compared:
    """What a look has found, and that in words."""

    answer: Answer
    said: str


def chain(lake: Lake, table: Table) -> Chain | None:
    """The chain of a table's log as it is there; None where there is no table. Of many links it keeps some.

    Raises:
        StoreFailure: an entry cannot be read.
    """
    last = lake.version(table)
    if last is None:
        return None
    with translated(f"reading the log of {table.full_name}"):
        first = last
        while first > 0 and commits.entry(lake.path(table), first - 1).seen():
            first -= 1
        every = -(-(last - first + 1) // _MOST_LINKS)
        links = {
            version: link
            for version, link in _links(lake.path(table), first, last, NOTHING)
            if (last - version) % every == 0
        }
    return Chain(first, last, links)


def compared(lake: Lake, table: Table, kept: Chain) -> Compared:
    """Whether a table's log still begins with the commits of a chain that was kept.

    Raises:
        StoreFailure: an entry cannot be read.
    """
    newest = lake.version(table)
    if newest is None or newest < kept.last:
        ends = "is gone" if newest is None else f"ends with version {newest}"
        return Compared(Answer.DIFFERS, f"the log {ends}, it had version {kept.last}")
    folder = lake.path(table)
    with translated(f"reading the log of {table.full_name}"):
        there = [version for version in range(kept.first, kept.last + 1) if commits.entry(folder, version).seen()]
        if not there:
            return Compared(Answer.UNKNOWN, f"versions {kept.first} to {kept.last} are in the log no more")
        if there[-1] != kept.last or len(there) != kept.last - there[0] + 1:
            gone = min(set(range(there[0], kept.last + 1)) - set(there))
            return Compared(Answer.DIFFERS, f"version {gone} is missing between others")
        begins = _beginning(kept, there[0])
        if begins is None:
            return Compared(Answer.UNKNOWN, f"of versions {kept.first} to {kept.last} too few are in the log to tell")
        begin, prior = begins
        sound = begin - 1
        for version, link in _links(folder, begin, kept.last, prior):
            if kept.links.get(version, link) != link:
                where = f"version {version}" if sound == version - 1 else f"a version from {sound + 1} to {version}"
                return Compared(Answer.DIFFERS, f"{where} is not the commit that it was")
            sound = version if version in kept.links else sound
    if begin > kept.first:
        said = f"versions {begin} to {kept.last} are what they were; {kept.first} to {begin - 1} are in the log no more"
        return Compared(Answer.UNKNOWN, said)
    if newest > kept.last:
        return Compared(Answer.NEWER, f"{_versions(kept)} what they were; {newest - kept.last} came since")
    return Compared(Answer.HOLDS, f"{_versions(kept)} what they were")


def _versions(kept: Chain) -> str:
    return f"version {kept.last} is" if kept.first == kept.last else f"versions {kept.first} to {kept.last} are"


def _beginning(kept: Chain, there: int) -> tuple[int, str] | None:
    """From which version on, and behind which link, entries that begin with `there` can be held against a chain."""
    if there == kept.first:
        return there, NOTHING
    known = min((version for version in kept.links if there - 1 <= version < kept.last), default=None)
    return None if known is None else (known + 1, kept.links[known])


def _links(folder: str, first: int, last: int, prior: str) -> Iterator[tuple[int, str]]:
    """The links of versions, one after the other."""
    for version in range(first, last + 1):
        entry = sha256(commits.entry(folder, version).read()).hexdigest()
        prior = sha256(f"{prior} {version} {entry}\n".encode()).hexdigest()
        yield version, prior
