"""Permission to write into an observed or mirror home, and the live cluster that a home mirrors.

A mirror's tables hold observations of the cluster, so only observation writes them (`allow_mirror_writes`). Tables of
readers and checks (`Table.of_readers`) are written as in any home. The module imports nothing heavy: every command
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
"""The command-line option that lets commands write into an observed home."""

_writes_allowed: ContextVar[bool] = ContextVar("looking", default=False)
_mirror_writes_allowed: ContextVar[bool] = ContextVar("mirroring", default=False)


def allow_writes() -> AbstractContextManager[None]:
    """Allow a block to write into an observed home, in its thread."""
    return set_for_block(_writes_allowed, True)


def are_writes_allowed() -> bool:
    """Return True within a block of `allow_writes`."""
    return _writes_allowed.get()


def allow_mirror_writes() -> AbstractContextManager[None]:
    """Allow a block to write observations of a live cluster into that cluster's mirror, in its thread."""
    return set_for_block(_mirror_writes_allowed, True)


def _are_mirror_writes_allowed() -> bool:
    """Return True within a block of `allow_mirror_writes`."""
    return _mirror_writes_allowed.get()


MIRROR_MARK_FILE = "mirror.json"
"""The file that names the cluster of which a home is the mirror."""
CLUSTERS_FOLDER = "clusters"
"""The folder in a home that contains the homes of mirrored clusters."""
CLUSTER_IDENTITY_FILE, CLUSTER_CONNECTION_FILE = "identity.json", "cluster.json"
"""The cluster's identity and connection: either file makes a home a mirror too, since older mirrors have no mark."""
REPAIR_STREAMS_COMMAND = "nodetool checkAndRepairCdcStreams"
"""The command that makes the cluster generate a new generation, to be run on one of its nodes."""
_mirrored_clusters: WeakKeyDictionary[Lake, str | None] = WeakKeyDictionary()


class HomeIsMirror(StateError):
    """The home mirrors a live cluster, and a step would have invented part of that cluster; nothing was written."""

    code = "mirror"


def get_mirrored_cluster(lake: Lake) -> str | None:
    """Return the name of the cluster that a lake mirrors; None if it is no mirror. Cached per lake."""
    if lake not in _mirrored_clusters:
        _mirrored_clusters[lake] = read_mirrored_cluster(lake.place.folder)
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


def describe_mirror(cluster: str) -> str:
    """Describe a mirror home, in words."""
    return f"this home mirrors the live cluster {cluster}: what is in it was seen there, and nothing of it is made here"


def assert_mirror_write_allowed(lake: Lake, table: Table | None, what: str) -> None:
    """Raise HomeIsMirror if a commit would invent part of a mirrored cluster; `what` names the step.

    Raises:
        HomeIsMirror: the lake is a mirror, the block is no observation, and the table is not one of readers.
    """
    cluster = get_mirrored_cluster(lake)
    if cluster is not None and not _are_mirror_writes_allowed() and (table is None or not table.about_readers):
        raise make_mirror_refusal(cluster, what, lake.place.folder)


def choose_remedy(
    lake: Lake, here: str, there: str = "look at the cluster again: cdc-platform observe {cluster}"
) -> str:
    """Return the remedy to suggest: `here`, or on a mirror, which would refuse that, `there`."""
    cluster = get_mirrored_cluster(lake)
    return here if cluster is None else there.format(cluster=cluster)


def make_mirror_refusal(cluster: str, what: str, home: StoragePath) -> HomeIsMirror:
    """Return the error for a step that would invent part of a mirrored cluster."""
    return HomeIsMirror(
        f"{what}: {describe_mirror(cluster)}; change the cluster and run: cdc-platform observe {cluster}, or "
        "try it in a copy: "
        f"cdc-platform home copy {home} TO"
    )


def _cluster_from_folder(home: StoragePath) -> str:
    """Return the cluster's name from the folder's; a folder that was moved aside has a suffix."""
    return home.name.partition(".")[0]
