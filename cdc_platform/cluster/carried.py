"""The homes of live clusters as a copy of the home that they lie in has them: which there are, and the ways to them.

In a store a cluster that was renewed has its new home beside the one before, which names it; in a folder the one
before is moved aside. What names files or variables of one machine in the way to a cluster stays on that machine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from cdc_platform.cluster import known
from cdc_platform.cluster.connection import Connection
from cdc_platform.cluster.known import KnownCluster
from cdc_platform.errors import NotFound
from cdc_platform.home import Home, open_home
from cdc_platform.lake.mirrors import FOLDER
from cdc_platform.places import Place, Stored, place_of

OF_A_MACHINE = ("user_env", "password_env", "credentials_file", "tls_ca", "tls_cert", "tls_key")
"""What of a connection names a variable or a file."""
SETTINGS = "settings.toml"


def homes(home: Home, to: Place | None = None) -> dict[str, Place]:
    """The homes of clusters below a home, by their paths below it; or below its copy, where there is to be one."""
    known.clusters(home)  # ends a renewal whose process died
    clusters = place_of(home.name) / FOLDER
    found = {place.name: place for place in clusters.folders() if not place.name.startswith(".")}
    if isinstance(clusters, Stored) and to is not None and to.here is not None:
        found = _as_in_a_folder(found)
    for place in _of_this_machine(home):
        found.setdefault(place.name, place)
    return {f"{FOLDER}/{name}": place for name, place in sorted(found.items())}


def left(home: Home, carried: Collection[Place]) -> list[Place]:
    """Homes that stay where they are: on this machine, while those of their names lie in the store."""
    return [place for place in _of_this_machine(home) if place not in carried]


def files_beside(path: str, to: Place) -> tuple[str, ...]:
    """What goes along beside the tables of a home, which has this path below the copy.

    The copy of a cluster's own home lies below none, and mirrors nothing.
    """
    of_clusters = (*known.BESIDE, *([known.NEXT] if isinstance(to, Stored) else ())) if path else ()
    return (SETTINGS, *of_clusters)


def bring_ways(home: Home, to: str) -> list[KnownCluster]:
    """Tell the copy of a home of the ways to its clusters, but for those that are only this machine's: answers them.

    A cluster that the copy knows already is left as it is.
    """
    stay = []
    for cluster in known.clusters(home):
        if of_this_machine(cluster.connection):
            stay.append(cluster)
            continue
        copied = open_home(to)
        try:
            known.find(copied, cluster.name)
        except NotFound:
            known.add(copied, cluster.name, cluster.connection)
    return stay


def of_this_machine(connection: Connection) -> list[str]:
    """What of a way is this machine's alone, by its names."""
    return [name for name in OF_A_MACHINE if getattr(connection, name) is not None]


def words(connection: Connection) -> Iterator[str]:
    """The options of `cluster add` that tell of a way."""
    for contact in connection.contacts:
        yield from ("--contact", contact)
    for name, value in connection.model_dump(exclude_defaults=True, exclude={"contacts"}).items():
        option = f"--{name.replace('_', '-')}"
        if name == "tls_host_names":
            yield "--no-tls-host-names"
        else:
            yield from (option,) if value is True else (option, f"{value}")


def _of_this_machine(home: Home) -> list[Place]:
    """Homes of clusters that lie on this machine though the home is in a store, as those of all once did."""
    folders = [] if home.address is None else sorted((home.path / FOLDER).glob("*/lake"))
    return [place_of(folder.parent) for folder in folders if not folder.parent.name.startswith(".")]


def _as_in_a_folder(found: Mapping[str, Place]) -> dict[str, Place]:
    """Homes in a store by their names in a folder: the newest is its cluster's, others say until when they were."""
    names = {}
    for cluster in (name for name in found if "." not in name):
        at = cluster
        while (after := known.renewed_by(found[at])) is not None and after in found:
            names[at] = f"{cluster}.until-{after.rpartition('.since-')[2]}"
            at = after
        names[at] = cluster
    return {names.get(name, name): place for name, place in found.items()}
