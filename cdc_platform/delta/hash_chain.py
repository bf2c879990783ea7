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
    message: str


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


def compare_hash_chain(lake: Lake, table: Table, recorded: HashChain) -> ChainComparison:
    """Compare a table's log with a recorded hash chain.

    Raises:
        StoreFailure: an entry cannot be read.
    """
    newest = lake.version(table)
    if newest is None or newest < recorded.last:
        ends = "is gone" if newest is None else f"ends with version {newest}"
        return ChainComparison(ChainStatus.DIFFERS, f"the log {ends}, it had version {recorded.last}")
    folder = lake.path(table)
    with translate_errors(f"reading the log of {table.full_name}"):
        versions = [
            version
            for version in range(recorded.first, recorded.last + 1)
            if transaction_log.get_entry_path(folder, version).stat()
        ]
        if not versions:
            return ChainComparison(
                ChainStatus.UNKNOWN, f"versions {recorded.first} to {recorded.last} are no longer in the log"
            )
        if versions[-1] != recorded.last or len(versions) != recorded.last - versions[0] + 1:
            missing = min(set(range(versions[0], recorded.last + 1)) - set(versions))
            return ChainComparison(ChainStatus.DIFFERS, f"version {missing} is missing between others")
        begins = _find_start(recorded, versions[0])
        if begins is None:
            return ChainComparison(
                ChainStatus.UNKNOWN,
                f"of versions {recorded.first} to {recorded.last} too few are in the log to compare",
            )
        begin, prior = begins
        sound = begin - 1
        for version, link in _iter_links(folder, begin, recorded.last, prior):
            if recorded.links.get(version, link) != link:
                where = f"version {version}" if sound == version - 1 else f"a version from {sound + 1} to {version}"
                return ChainComparison(ChainStatus.DIFFERS, f"{where} is not the commit that it was")
            sound = version if version in recorded.links else sound
    if begin > recorded.first:
        message = (
            f"versions {begin} to {recorded.last} are unchanged; "
            f"{recorded.first} to {begin - 1} are no longer in the log"
        )
        return ChainComparison(ChainStatus.UNKNOWN, message)
    if newest > recorded.last:
        return ChainComparison(
            ChainStatus.NEWER, f"{_describe_versions(recorded)} unchanged; {newest - recorded.last} newer ones follow"
        )
    return ChainComparison(ChainStatus.HOLDS, f"{_describe_versions(recorded)} unchanged")


def _describe_versions(recorded: HashChain) -> str:
    return (
        f"version {recorded.last} is"
        if recorded.first == recorded.last
        else f"versions {recorded.first} to {recorded.last} are"
    )


def _find_start(recorded: HashChain, start: int) -> tuple[int, str] | None:
    """Return the first version that can be compared with a recorded chain, and the link before it.

    `start` is the first version that is still in the log. Return None if no recorded link can be used.
    """
    if start == recorded.first:
        return start, GENESIS_LINK
    known = min((version for version in recorded.links if start - 1 <= version < recorded.last), default=None)
    return None if known is None else (known + 1, recorded.links[known])


def _iter_links(folder: str, first: int, last: int, prior: str) -> Iterator[tuple[int, str]]:
    """Yield each version of a range with its link."""
    for version in range(first, last + 1):
        entry = sha256(transaction_log.get_entry_path(folder, version).read()).hexdigest()
        prior = sha256(f"{prior} {version} {entry}\n".encode()).hexdigest()
        yield version, prior
