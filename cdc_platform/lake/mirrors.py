"""A home that mirrors a live cluster: what is in it was seen there, and nothing of it is made up by a command.

Marks lie beside its lake. What readers and judges say of themselves (`Table.of_readers`) is written as in any home;
everything else by what looks at the cluster alone, which says so with `looking.mirroring`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from cdc_platform.errors import StateError
from cdc_platform.lake.looking import is_mirroring
from cdc_platform.places import Place

if TYPE_CHECKING:
    from cdc_platform.lake.lake import Lake
    from cdc_platform.lake.tables import Table

MARK = "mirror.json"
"""The file that says of which cluster a home is the mirror."""
FOLDER = "clusters"
"""The folder in a home in which those of clusters lie."""
IDENTITY, CONNECTION = "identity.json", "cluster.json"
"""Which cluster was seen, and how it is reached: either makes a home a mirror too, as those of before had no mark."""
MEND = "nodetool checkAndRepairCdcStreams"
"""What makes a generation anew in the cluster itself, run on one of its nodes."""
_seen: WeakKeyDictionary[Lake, str | None] = WeakKeyDictionary()


class OnlyMirrors(StateError):
    """The home mirrors a live cluster, and a step would have made up something of that; nothing was written."""

    code = "mirror"


def cluster_of(lake: Lake) -> str | None:
    """The cluster that a lake is the mirror of, by its name; None where it is of none. Looked up once a lake."""
    if lake not in _seen:
        _seen[lake] = mirror_at(lake.place.folder)
    return _seen[lake]


def mirror_at(home: Place) -> str | None:
    """The cluster of which a home is the mirror, by its name; None where it is none.

    In a store one lies where it was made, and no other is asked for its files.
    """
    if home.here is None and home.folder.name != FOLDER:
        return None
    names = home.names()
    if MARK in names:
        try:
            return str(json.loads((home / MARK).read())["cluster"])
        except (ValueError, KeyError, TypeError):
            return _by_folder(home)
    return _by_folder(home) if IDENTITY in names or CONNECTION in names else None


def home_around(place: Place) -> Place | None:
    """Return the home that holds the registration of the cluster mirrored at `place`; None where it is no mirror's."""
    return place.folder.folder if place.folder.name == FOLDER else None


def told(cluster: str) -> str:
    """What is so of such a home, in words."""
    return f"this home mirrors the live cluster {cluster}: what is in it was seen there, and nothing of it is made here"


def assert_seen(lake: Lake, table: Table | None, what: str) -> None:
    """Hold that a commit to a mirror makes nothing up; `what` is being done.

    Raises:
        OnlyMirrors: it would.
    """
    cluster = cluster_of(lake)
    if cluster is not None and not is_mirroring() and (table is None or not table.of_readers):
        raise refusal(cluster, what, lake.place.folder)


def mend(lake: Lake, here: str, there: str = "look at the cluster again: cdc-platform observe {cluster}") -> str:
    """What is said to do: `here`, or on a mirror, where that would be refused, what is done with the cluster."""
    cluster = cluster_of(lake)
    return here if cluster is None else there.format(cluster=cluster)


def refusal(cluster: str, what: str, home: Place) -> OnlyMirrors:
    """The refusal of what would make something up in the mirror of a cluster."""
    return OnlyMirrors(
        f"{what}: {told(cluster)}; change the cluster and run: cdc-platform observe {cluster}, or try it in a copy: "
        f"cdc-platform home copy {home} TO"
    )


def _by_folder(home: Place) -> str:
    """The name that the folder has of the cluster, which is moved aside under a longer one."""
    return home.name.partition(".")[0]
