"""Hash chain over a table's commits. A stored link later reveals a changed history.

A version's link is the SHA-256, in hex, of the line `PRIOR VERSION ENTRY` and a line feed: the previous link (64 zeros
before the first), the version number, and the SHA-256 of its log entry's file. An entry never changes, and contains the
CommitInfo with author and digests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256

from cdc_platform.delta import transaction_log
from cdc_platform.delta.errors import translate_errors
from cdc_platform.delta.lake import Lake
from cdc_platform.tables import Table

GENESIS_LINK = "0" * 64
"""The link before the first."""
_MAX_LINKS = 256


class ChainStatus(StrEnum):
    """Result of comparing the current state with a recorded one."""

    HOLDS = "holds"
    NEWER = "newer"
    """The recorded state is intact, and newer commits follow it."""
    UNKNOWN = "unknown"
    """The log no longer has the entries that the comparison needs."""
    DIFFERS = "differs"


@dataclass(frozen=True)
class HashChain:
    """The recorded chain of a log: versions `first` to `last`, and links of some of them, always including the last.

    `first` is above 0 where Delta had removed the earlier entries.
    """

    first: int
    last: int
    links: Mapping[int, str]


@dataclass(frozen=True)
class ChainComparison:
    """The result of a comparison, and its description."""

    answer: ChainStatus
    said: str


def read_hash_chain(lake: Lake, table: Table) -> HashChain | None:
    """Return the hash chain of a table's log, with at most 256 links; None if there is no table.

    Raises:
        StoreFailure: an entry cannot be read.
    """
    last = lake.version(table)
    if last is None:
        return None
    with translate_errors(f"reading the log of {table.full_name}"):
        first = last
        while first > 0 and transaction_log.get_entry_path(lake.path(table), first - 1).stat():
            first -= 1
        step = -(-(last - first + 1) // _MAX_LINKS)
        links = {
            version: link
            for version, link in _iter_links(lake.path(table), first, last, GENESIS_LINK)
            if (last - version) % step == 0
        }
    return HashChain(first, last, links)


def compare_hash_chain(lake: Lake, table: Table, kept: HashChain) -> ChainComparison:
    """Compare a table's log with a recorded hash chain.

    Raises:
        StoreFailure: an entry cannot be read.
    """
    newest = lake.version(table)
    if newest is None or newest < kept.last:
        ends = "is gone" if newest is None else f"ends with version {newest}"
        return ChainComparison(ChainStatus.DIFFERS, f"the log {ends}, it had version {kept.last}")
    folder = lake.path(table)
    with translate_errors(f"reading the log of {table.full_name}"):
        versions = [
            version
            for version in range(kept.first, kept.last + 1)
            if transaction_log.get_entry_path(folder, version).stat()
        ]
        if not versions:
            return ChainComparison(ChainStatus.UNKNOWN, f"versions {kept.first} to {kept.last} are in the log no more")
        if versions[-1] != kept.last or len(versions) != kept.last - versions[0] + 1:
            missing = min(set(range(versions[0], kept.last + 1)) - set(versions))
            return ChainComparison(ChainStatus.DIFFERS, f"version {missing} is missing between others")
        begins = _find_start(kept, versions[0])
        if begins is None:
            return ChainComparison(
                ChainStatus.UNKNOWN, f"of versions {kept.first} to {kept.last} too few are in the log to tell"
            )
        begin, prior = begins
        sound = begin - 1
        for version, link in _iter_links(folder, begin, kept.last, prior):
            if kept.links.get(version, link) != link:
                where = f"version {version}" if sound == version - 1 else f"a version from {sound + 1} to {version}"
                return ChainComparison(ChainStatus.DIFFERS, f"{where} is not the commit that it was")
            sound = version if version in kept.links else sound
    if begin > kept.first:
        message = (
            f"versions {begin} to {kept.last} are what they were; {kept.first} to {begin - 1} are in the log no more"
        )
        return ChainComparison(ChainStatus.UNKNOWN, message)
    if newest > kept.last:
        return ChainComparison(
            ChainStatus.NEWER, f"{_describe_versions(kept)} what they were; {newest - kept.last} came since"
        )
    return ChainComparison(ChainStatus.HOLDS, f"{_describe_versions(kept)} what they were")


def _describe_versions(kept: HashChain) -> str:
    return f"version {kept.last} is" if kept.first == kept.last else f"versions {kept.first} to {kept.last} are"


def _find_start(kept: HashChain, there: int) -> tuple[int, str] | None:
    """Return the first version that can be compared with a recorded chain, and the link before it.

    `there` is the first version still in the log. Return None if no recorded link can be used.
    """
    if there == kept.first:
        return there, GENESIS_LINK
    known = min((version for version in kept.links if there - 1 <= version < kept.last), default=None)
    return None if known is None else (known + 1, kept.links[known])


def _iter_links(folder: str, first: int, last: int, prior: str) -> Iterator[tuple[int, str]]:
    """Yield each version of a range with its link."""
    for version in range(first, last + 1):
        entry = sha256(transaction_log.get_entry_path(folder, version).read()).hexdigest()
        prior = sha256(f"{prior} {version} {entry}\n".encode()).hexdigest()
        yield version, prior
