"""Whether the running block may write into an observed home, and which live cluster a home mirrors.

A mirror's tables hold what was seen in the cluster, so only observation writes them (`allow_mirror_writes`). Tables
of readers and checks (`Table.of_readers`) are written as in any home. The module imports nothing heavy: every command
imports it.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from cdc_platform.errors import StateError
from cdc_platform.storage import StoragePath, set_for_block

if TYPE_CHECKING:
    from cdc_platform.delta.lake import Lake
    from cdc_platform.tables import Table

WRITE_TO_OBSERVED_OPTION = "--write-to-observed"
"""The option of the command line with which commands write all the same."""

_writes_allowed: ContextVar[bool] = ContextVar("looking", default=False)
_mirror_writes_allowed: ContextVar[bool] = ContextVar("mirroring", default=False)


def allow_writes() -> AbstractContextManager[None]:
    """Let a block write whatever the lake is, in its thread."""
    return set_for_block(_writes_allowed, True)


def are_writes_allowed() -> bool:
    """Whether such a block runs."""
    return _writes_allowed.get()


def allow_mirror_writes() -> AbstractContextManager[None]:
    """Let a block write what it saw in a live cluster into that cluster's mirror, in its thread."""
    return set_for_block(_mirror_writes_allowed, True)


def _are_mirror_writes_allowed() -> bool:
    """Whether such a block runs."""
    return _mirror_writes_allowed.get()


MIRROR_MARK_FILE = "mirror.json"
"""The file that says of which cluster a home is the mirror."""
CLUSTERS_FOLDER = "clusters"
"""The folder in a home in which those of clusters lie."""
CLUSTER_IDENTITY_FILE, CLUSTER_CONNECTION_FILE = "identity.json", "cluster.json"
"""Which cluster was seen, and how it is reached: either makes a home a mirror too, as those of before had no mark."""
REPAIR_STREAMS_COMMAND = "nodetool checkAndRepairCdcStreams"
"""What makes a generation anew in the cluster itself, run on one of its nodes."""
_mirrored_clusters: WeakKeyDictionary[Lake, str | None] = WeakKeyDictionary()


class HomeIsMirror(StateError):
    """The home mirrors a live cluster, and a step would have made up something of that; nothing was written."""

    code = "mirror"


def get_mirrored_cluster(lake: Lake) -> str | None:
    """The cluster that a lake is the mirror of, by its name; None where it is of none. Looked up once a lake."""
    if lake not in _mirrored_clusters:
        _mirrored_clusters[lake] = read_mirrored_cluster(lake.place.folder)
    return _mirrored_clusters[lake]


def read_mirrored_cluster(home: StoragePath) -> str | None:
    """The cluster of which a home is the mirror, by its name; None where it is none.

    In a store one lies where it was made, and no other is asked for its files.
    """
    if home.here is None and home.folder.name != CLUSTERS_FOLDER:
        return None
    names = home.names()
    if MIRROR_MARK_FILE in names:
        try:
            return str(json.loads((home / MIRROR_MARK_FILE).read())["cluster"])
        except (ValueError, KeyError, TypeError):
            return _cluster_from_folder(home)
    return _cluster_from_folder(home) if CLUSTER_IDENTITY_FILE in names or CLUSTER_CONNECTION_FILE in names else None


def get_registering_home(place: StoragePath) -> StoragePath | None:
    """Return the home that holds the registration of the cluster mirrored at `place`; None where it is no mirror's."""
    return place.folder.folder if place.folder.name == CLUSTERS_FOLDER else None


def describe_mirror(cluster: str) -> str:
    """What is so of such a home, in words."""
    return f"this home mirrors the live cluster {cluster}: what is in it was seen there, and nothing of it is made here"


def assert_mirror_write_allowed(lake: Lake, table: Table | None, what: str) -> None:
    """Hold that a commit to a mirror makes nothing up; `what` is being done.

    Raises:
        OnlyMirrors: it would.
    """
    cluster = get_mirrored_cluster(lake)
    if cluster is not None and not _are_mirror_writes_allowed() and (table is None or not table.of_readers):
        raise make_mirror_refusal(cluster, what, lake.place.folder)


def choose_remedy(
    lake: Lake, here: str, there: str = "look at the cluster again: cdc-platform observe {cluster}"
) -> str:
    """What is said to do: `here`, or on a mirror, where that would be refused, what is done with the cluster."""
    cluster = get_mirrored_cluster(lake)
    return here if cluster is None else there.format(cluster=cluster)


def make_mirror_refusal(cluster: str, what: str, home: StoragePath) -> HomeIsMirror:
    """The refusal of what would make something up in the mirror of a cluster."""
    return HomeIsMirror(
        f"{what}: {describe_mirror(cluster)}; change the cluster and run: cdc-platform observe {cluster}, or "
        "try it in a copy: "
        f"cdc-platform home copy {home} TO"
    )


def _cluster_from_folder(home: StoragePath) -> str:
    """The name that the folder has of the cluster, which is moved aside under a longer one."""
    return home.name.partition(".")[0]
