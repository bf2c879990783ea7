"""The mode of a home (own, observed, mirror), and the one rule for which tables may be written in which mode.

The lake asks the rule before each commit, commands before they do anything, and `next:` lines before they name a
command. The module imports nothing heavy, because every command imports it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from functools import cached_property
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from cdc_platform.clock import Microseconds, format_us
from cdc_platform.errors import StateError
from cdc_platform.storage import StoragePath, set_for_block

if TYPE_CHECKING:
    from cdc_platform.delta.lake import Lake
    from cdc_platform.tables import Table

WRITE_TO_OBSERVED_OPTION = "--write-to-observed"
"""The command-line option that lets commands write into an observed home."""
MIRROR_MARK_FILE = "mirror.json"
"""The file that names the cluster of which a home is the mirror."""
CLUSTERS_FOLDER = "clusters"
"""The folder in a home that contains the homes of mirrored clusters."""
CLUSTER_IDENTITY_FILE, CLUSTER_CONNECTION_FILE = "identity.json", "cluster.json"
"""The cluster's identity and connection: either file makes a home a mirror too, since older mirrors have no mark."""
REPAIR_STREAMS_COMMAND = "nodetool checkAndRepairCdcStreams"
"""The command that makes the cluster generate a new generation, to be run on one of its nodes."""
_RESULT_TABLES = frozenset({"platform.judgements", "platform.only_observed", "platform.table_checks"})
"""Tables about the home itself: results of checks, and the mark of an observed home."""


class HomeIsMirror(StateError):
    """The home mirrors a live cluster, and a step would have invented part of that cluster; nothing was written."""

    code = "mirror"


class HomeIsObserved(StateError):
    """The home is only observed, and a step would have derived data from it; nothing was written."""

    code = "only-observed"


class WriteSource(IntEnum):
    """Where the rows of a commit come from. Each source may write wherever the ones before it may."""

    DERIVED = 0
    """The platform derives them from the home."""
    STATED = 1
    """A person states them or vouches for them: exports, registered tables, `--write-to-observed`."""
    OBSERVED = 2
    """They were read from the live cluster that the home mirrors, or complete what can be read there."""


_source: ContextVar[WriteSource] = ContextVar("write_source", default=WriteSource.DERIVED)


def write_as(source: WriteSource) -> AbstractContextManager[None]:
    """Set the source of a block's commits, in its thread. Within a block of a later source nothing changes."""
    return set_for_block(_source, max(source, _source.get()))


class HomeKind(StrEnum):
    """What a home is."""

    OWN = "own"
    """The platform decides what is in it."""
    OBSERVED = "observed"
    """It was imported although it was incomplete, and nothing is derived from it until a check passes."""
    MIRROR = "mirror"
    """It holds what was observed in a live cluster, which alone decides what is in it."""


@dataclass(frozen=True)
class ObservedStatus:
    """The time (µs) since when a home is only observed, the number of its import issues, and the first of them."""

    since_us: Microseconds
    num_issues: int
    reason: str


@dataclass(frozen=True)
class HomeMode:
    """The mode of the home at `home` (its path or address). `cluster` is the live cluster that a mirror is of."""

    home: str
    cluster: str | None = None
    _read_observed: Callable[[], ObservedStatus | None] = field(default=lambda: None, repr=False, compare=False)

    @cached_property
    def observed(self) -> ObservedStatus | None:
        """Return why the home is only observed, None if it is not. It is read on first use."""
        return None if self.cluster is not None else self._read_observed()

    @property
    def kind(self) -> HomeKind:
        """Return what the home is."""
        if self.cluster is not None:
            return HomeKind.MIRROR
        return HomeKind.OWN if self.observed is None else HomeKind.OBSERVED

    def __str__(self) -> str:
        """Describe the mode, in words."""
        if self.cluster is not None:
            return f"this home mirrors the live cluster {self.cluster}, and only what is observed there changes it"
        if self.observed is None:
            return "this home is the platform's own"
        more = "" if self.observed.num_issues == 1 else f" and {self.observed.num_issues - 1} more"
        return (
            f"this home is only observed since {format_us(self.observed.since_us)}, when it was imported incomplete "
            f"({self.observed.reason}{more})"
        )

    def allows_write(self, table: Table | None, source: WriteSource | None = None) -> bool:
        """Return True if a table may be written with rows of a source, by default that of the block (`write_as`).

        Any table may be written in an own home. An observed home takes what is stated or observed, and the tables about
        the home itself. A mirror takes what is observed, and the tables about readers and checks. `table` None stands
        for any table that holds facts of the cluster.
        """
        source = _source.get() if source is None else source
        if self.cluster is not None:
            return source is WriteSource.OBSERVED or (table is not None and table.about_readers)
        is_about_home = table is not None and table.full_name in _RESULT_TABLES
        return source >= WriteSource.STATED or is_about_home or self.observed is None

    def check_write(self, table: Table | None, what: str, source: WriteSource | None = None) -> None:
        """Raise an error if `allows_write` is False; `what` names the step or the command.

        Raises:
            HomeIsObserved, HomeIsMirror: the home does not take the commit.
        """
        if self.allows_write(table, source):
            return
        if self.cluster is None:
            raise HomeIsObserved(
                f"{what}: {self}; import what is missing until cdc-platform check passes, or write to it anyway with: "
                f"cdc-platform {WRITE_TO_OBSERVED_OPTION} ..."
            )
        raise HomeIsMirror(
            f"{what}: {self}; change the cluster and run: cdc-platform observe {self.cluster}, or try it in a copy: "
            f"cdc-platform home copy {self.home} TO"
        )


_mirrored_clusters: WeakKeyDictionary[Lake, str | None] = WeakKeyDictionary()


def get_home_mode(lake: Lake) -> HomeMode:
    """Return the mode of the home of a lake. Whether it is only observed takes one lookup, if it never was."""
    home, cluster = lake.location.folder, get_mirrored_cluster(lake)
    if cluster is not None:
        return HomeMode(str(home), cluster)
    from cdc_platform.delta.observed_home import read_observed_status

    return HomeMode(str(home), None, lambda: read_observed_status(lake))


def read_home_mode(home: StoragePath) -> HomeMode:
    """Return the mode of a home that need not exist. Without a mark of an observed home no table is opened."""
    cluster = read_mirrored_cluster(home)
    lake = home / "lake"
    if cluster is not None or not (lake / "platform/only_observed").is_folder():
        return HomeMode(str(home), cluster)
    from cdc_platform.delta.lake import Lake

    return get_home_mode(Lake(str(lake)))


def get_mirrored_cluster(lake: Lake) -> str | None:
    """Return the name of the cluster that a lake mirrors; None if it is no mirror. Cached per lake."""
    if lake not in _mirrored_clusters:
        _mirrored_clusters[lake] = read_mirrored_cluster(lake.location.folder)
    return _mirrored_clusters[lake]


def read_mirrored_cluster(home: StoragePath) -> str | None:
    """Return the name of the cluster that a home mirrors; None if it is no mirror.

    In a store a mirror stays in its clusters folder, so the files of other homes are not read.
    """
    if home.local_path is None and home.folder.name != CLUSTERS_FOLDER:
        return None
    names = home.names()
    if MIRROR_MARK_FILE in names:
        try:
            return str(json.loads((home / MIRROR_MARK_FILE).read())["cluster"])
        except (ValueError, KeyError, TypeError):
            return _cluster_from_folder(home)
    return _cluster_from_folder(home) if CLUSTER_IDENTITY_FILE in names or CLUSTER_CONNECTION_FILE in names else None


def get_registering_home(place: StoragePath) -> StoragePath | None:
    """Return the home that holds the registration of the cluster mirrored at `place`; None if it is no mirror's."""
    return place.folder.folder if place.folder.name == CLUSTERS_FOLDER else None


def choose_remedy(
    lake: Lake, here: str, there: str = "look at the cluster again: cdc-platform observe {cluster}"
) -> str:
    """Return the remedy to suggest: `here`, or on a mirror, which would refuse that, `there`."""
    cluster = get_mirrored_cluster(lake)
    return here if cluster is None else there.format(cluster=cluster)


def assert_table_writable(lake: Lake, what: str, table: Table, size: int = 0) -> None:
    """Raise an error unless `size` bytes may be written into a table of a lake; `what` names the step.

    Raises:
        HomeIsObserved, HomeIsMirror: the mode of the home does not allow it.
        Unavailable: the disk is full.
        NoConditionalWrites: the store would let two concurrent writers both succeed.
    """
    from cdc_platform.storage import write_check

    get_home_mode(lake).check_write(table, what)
    write_check.assert_storage_writable(lake.location, size, what)


def _cluster_from_folder(home: StoragePath) -> str:
    """Return the cluster's name from the folder's; a folder that was moved aside has a suffix."""
    return home.name.partition(".")[0]
