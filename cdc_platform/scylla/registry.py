"""Clusters registered by name: connections, identity when last observed, and their homes in copies of a home.

Each has a home in `<home>/clusters/NAME`. Beside its tables lie `identity.json`, which recognises a restored or
rebuilt cluster, and `mirror.json`, which marks a mirror. `cluster.json` holds the connection; for a home in a store
it lies on this machine. A copy of a home leaves out connections that name files or variables of one machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict, ValidationError

from cdc_platform.clock import Clock, Milliseconds, format_ms
from cdc_platform.delta import (
    CLUSTER_CONNECTION_FILE,
    CLUSTER_IDENTITY_FILE,
    CLUSTERS_FOLDER,
    MIRROR_MARK_FILE,
    Lake,
    get_registering_home,
    lake_lock,
    put_file,
    read_mirrored_cluster,
    read_newest_versions,
)
from cdc_platform.errors import EnvironmentProblem, InputError, NotFound, StateError
from cdc_platform.home import Home, local_state_folder, open_home
from cdc_platform.metastore import STATUS_NORMAL, read_nodes
from cdc_platform.scylla.connection import Connection, validate_connection
from cdc_platform.storage import ObjectStorePath, StoragePath, atomic, parse_path

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,47}")
RENEWED_FILE = "renewed.json"
"""The file by which the home of a cluster in a store says which took its place."""
_FUTURE_LOGS_FILE = "logs-ahead.json"
SHARED_FILES = (MIRROR_MARK_FILE, CLUSTER_IDENTITY_FILE, _FUTURE_LOGS_FILE)
"""What lies beside the tables of a home and is every machine's."""
_Model = TypeVar("_Model", bound=BaseModel)


class ClusterIdentity(BaseModel):
    """Which cluster it is: its name for itself, its hosts, and the newest generation's time (ms) that was seen."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cluster_name: str
    host_ids: tuple[UUID, ...]
    newest_ms: Milliseconds | None = None


class _Successor(BaseModel):
    """Which folder beside a home in a store has the cluster that goes by its name now."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    folder: str


class _MirrorMarker(BaseModel):
    """Of which cluster a home is the mirror, by its name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cluster: str


class _FutureLogs(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    made_ms: dict[str, Milliseconds]


@dataclass(frozen=True)
class ScyllaCluster:
    """A cluster by its name. `home` is the folder of its own home; of one in a store (`address`) this machine's part.

    `identity` is None until it was looked at.
    """

    name: str
    home: Path
    connection: Connection
    identity: ClusterIdentity | None
    address: str | None = None

    @property
    def at(self) -> str:
        """What its home is called by: a path or an address."""
        return self.address or str(self.home)

    def open_home(self) -> Home:
        """Its home, made where it is not there yet."""
        return open_home(self.at)

    def node_addresses(self) -> list[str]:
        """Return the addresses of the nodes that were in the ring when the cluster was observed last."""
        nodes = read_nodes(Lake(self.open_home().lake))
        return [node.address for node in nodes if node.status == STATUS_NORMAL and node.address]


def add_cluster(home: Home, name: str, connection: Connection) -> ScyllaCluster:
    """Keep the way to a cluster under a name. The same again changes nothing; `remove_cluster` it to give it another
    way.

    Raises:
        InputError: the name or the connection breaks a rule, or the name is taken by another way.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name!r} is no name of a cluster: 1 to 48 lower-case letters, digits, - and _, no sign first"
        )
    validate_connection(connection)
    with _clusters_lock(home):
        folder = home.path / CLUSTERS_FOLDER / name
        _complete_renewal(home, name)
        if (folder / CLUSTER_CONNECTION_FILE).exists():
            known = find_cluster(home, name)
            if known.connection != connection:
                raise InputError(
                    f"a cluster {name} is known already, reached otherwise; take it out first with: "
                    f"cdc-platform cluster remove {name}"
                )
            return known
        _make_mirror(str(folder), name)
        address = _store_address(home, name)
        if address is not None:
            _make_mirror(address, name)
        _write_model(parse_path(folder / CLUSTER_CONNECTION_FILE), connection)
        return find_cluster(home, name)


def find_cluster(home: Home, name: str) -> ScyllaCluster:
    """The cluster of this name.

    Raises:
        NotFound: there is none.
        EnvironmentProblem: a file of it is damaged.
    """
    if _NAME.fullmatch(name):
        _complete_renewal(home, name)
    folder = home.path / CLUSTERS_FOLDER / name
    connection = (
        _read_model(parse_path(folder / CLUSTER_CONNECTION_FILE), Connection) if _NAME.fullmatch(name) else None
    )
    if connection is None:
        raise _unknown_cluster_error(home, name)
    address = _store_address(home, name)
    place = parse_path(address or folder)
    return ScyllaCluster(
        name,
        local_state_folder(place),
        connection,
        _read_model(place / CLUSTER_IDENTITY_FILE, ClusterIdentity),
        address,
    )


def _unknown_cluster_error(home: Home, name: str) -> NotFound:
    place = parse_path(home.name)
    around = get_registering_home(place)
    if around is not None and read_mirrored_cluster(place) == name:
        return NotFound(
            f"this is the home of {name} itself, and ways to clusters are known in the one that it lies in; run it"
            f" with: --home {around}"
        )
    names = ", ".join(each.name for each in list_clusters(home)) or "none is"
    return NotFound(
        f"no cluster {name or repr(name)} is known ({names}); tell of it with: cdc-platform cluster add NAME"
        " --contact HOST:PORT"
    )


def list_clusters(home: Home) -> list[ScyllaCluster]:
    """All of them, by name."""
    for ready in (home.path / CLUSTERS_FOLDER).glob(".*.renewed"):
        _complete_renewal(home, ready.name.removeprefix(".").removesuffix(".renewed"))
    places = sorted((home.path / CLUSTERS_FOLDER).glob(f"*/{CLUSTER_CONNECTION_FILE}"))
    return [find_cluster(home, place.parent.name) for place in places if _NAME.fullmatch(place.parent.name)]


def remove_cluster(home: Home, name: str) -> ScyllaCluster:
    """Forget how a cluster is reached. What was observed of it stays in its home.

    Raises:
        NotFound: there is none of this name.
    """
    with _clusters_lock(home):
        known = find_cluster(home, name)
        (home.path / CLUSTERS_FOLDER / name / CLUSTER_CONNECTION_FILE).unlink()
        return known


def renew_cluster(home: Home, name: str, clock: Clock) -> str | None:
    """Say that another cluster goes by this name now: what was observed of the one before is moved aside.

    In a store it stays, and another place is for the new one. Answers where the one before is, None where nothing was
    observed.

    Raises:
        NotFound: there is none of this name.
    """
    with _clusters_lock(home):
        known = find_cluster(home, name)
        if known.identity is None and not read_newest_versions(Lake(known.open_home().lake)):
            return None
        stamp = format_ms(clock.now_ms()).translate(str.maketrans("", "", ":-."))
        if known.address is not None:
            fresh = f"{name}.since-{stamp}"
            _make_mirror(f"{home.address}/{CLUSTERS_FOLDER}/{fresh}", name)
            _write_model(parse_path(known.address) / RENEWED_FILE, _Successor(folder=fresh))
            return known.address
        aside = known.home.with_name(f"{name}.until-{stamp}")
        # The new home is ready before the old one goes: a process that dies in between leaves what
        # `_complete_renewal` ends.
        _write_model(
            parse_path(_make_mirror(str(_renewed_folder(home, name)), name).path / CLUSTER_CONNECTION_FILE),
            known.connection,
        )
        known.home.rename(aside)
        _complete_renewal(home, name)
        # What lies aside is a home still, and no longer a cluster that is known by name.
        (aside / CLUSTER_CONNECTION_FILE).unlink()
        return str(aside)


def get_own_hosts(home: Home) -> tuple[UUID, ...]:
    """The hosts of the cluster that this home itself is of; none where it is no observed cluster's home."""
    seen = _read_model(parse_path(home.name) / CLUSTER_IDENTITY_FILE, ClusterIdentity)
    return () if seen is None else seen.host_ids


def list_observed_hosts(home: Home) -> dict[UUID, str]:
    """The hosts of every cluster that was observed from this home, or beside it, with the name that it had then.

    Those count too of which the home was moved aside, or which are known by name no more.
    """
    mine = parse_path(home.name)
    around = [mine / CLUSTERS_FOLDER, parse_path(home.path / CLUSTERS_FOLDER)]
    if mine.folder.name == CLUSTERS_FOLDER:
        around.append(mine.folder)
    found: dict[UUID, str] = {}
    for each in (place for folder in around for place in folder.folders()):
        seen = _read_model(each / CLUSTER_IDENTITY_FILE, ClusterIdentity)
        found |= dict.fromkeys(seen.host_ids if seen else (), each.name)
    return found


def _store_address(home: Home, name: str) -> str | None:
    """Where a cluster's home in a store is; None where it is a folder, as it was of all homes once."""
    if home.address is None or (home.path / CLUSTERS_FOLDER / name / "lake").exists():
        return None
    folder = name
    while (after := find_successor(parse_path(f"{home.address}/{CLUSTERS_FOLDER}/{folder}"))) is not None:
        folder = after
    return f"{home.address}/{CLUSTERS_FOLDER}/{folder}"


def find_successor(place: StoragePath) -> str | None:
    """The name of the folder beside a home in a store that took its place; None where it is the newest."""
    after = _read_model(place / RENEWED_FILE, _Successor)
    return None if after is None else after.folder


def _make_mirror(at: str, name: str) -> Home:
    """The home of what will be seen of a cluster, marked so that nothing else ever gets in."""
    made = open_home(at)
    _write_model(parse_path(made.name) / MIRROR_MARK_FILE, _MirrorMarker(cluster=name))
    return made


def _renewed_folder(home: Home, name: str) -> Path:
    return home.path / CLUSTERS_FOLDER / f".{name}.renewed"


def _complete_renewal(home: Home, name: str) -> None:
    """Give a cluster its new home, if that is ready and the old one has gone."""
    place = home.path / CLUSTERS_FOLDER / name
    if (_renewed_folder(home, name) / CLUSTER_CONNECTION_FILE).exists() and not place.exists():
        _renewed_folder(home, name).rename(place)


def _clusters_lock(home: Home) -> AbstractContextManager[None]:
    return lake_lock(Lake(home.lake), "clusters")


def assert_same_cluster(
    known: ScyllaCluster, seen: ClusterIdentity, times_ms: Sequence[Milliseconds] | None = None
) -> None:
    """Hold that what was seen now is the cluster that was seen before.

    `times_ms` are its published generations; None where they were not read.

    Raises:
        StateError: it is another one: what was read before says nothing about it.
    """
    before = known.identity
    if before is None:
        return
    mend = (
        f"if it was restored or rebuilt, say so with: cdc-platform cluster renew {known.name}; what was read before is "
        "kept aside"
    )
    if seen.cluster_name != before.cluster_name:
        raise StateError(
            f"{known.name} is another cluster now: it calls itself {seen.cluster_name}, and {before.cluster_name} "
            f"before; {mend}"
        )
    if not set(seen.host_ids) & set(before.host_ids):
        raise StateError(
            f"{known.name} is another cluster now: none of its {len(before.host_ids)} hosts of before is in it, "
            f"{before.host_ids[0]} was the first; {mend}"
        )
    if before.newest_ms is not None and times_ms is not None and before.newest_ms not in times_ms:
        raise StateError(
            f"{known.name} is another cluster now: generation {format_ms(before.newest_ms)}, its newest before, is no "
            f"longer published; {mend}"
        )


def store_identity(known: ScyllaCluster, seen: ClusterIdentity) -> None:
    """Keep which cluster it is. Times never go back."""
    before = None if known.identity is None else known.identity.newest_ms
    newest = max((ms for ms in (before, seen.newest_ms) if ms is not None), default=None)
    _write_model(parse_path(known.at) / CLUSTER_IDENTITY_FILE, seen.model_copy(update={"newest_ms": newest}))


def read_future_logs(known: ScyllaCluster) -> dict[str, Milliseconds]:
    """The logs (`keyspace.table`) that were newer than this machine's clock said as they were seen: when made (ms)."""
    kept = _read_model(parse_path(known.at) / _FUTURE_LOGS_FILE, _FutureLogs)
    return {} if kept is None else dict(kept.made_ms)


def store_future_log(known: ScyllaCluster, table: str, made_ms: Milliseconds) -> None:
    """Keep when a log was made by the cluster's clock, which is later than this machine's: it is the same one later."""
    _write_model(
        parse_path(known.at) / _FUTURE_LOGS_FILE, _FutureLogs(made_ms={**read_future_logs(known), table: made_ms})
    )


def _write_model(place: StoragePath, value: BaseModel) -> None:
    text = json.dumps(value.model_dump(mode="json"), indent=2) + "\n"
    if place.here is not None:
        atomic.write_text_atomically(place.here, text)
    else:
        put_file(place, text.encode())


def _read_model(path: StoragePath, kind: type[_Model]) -> _Model | None:
    try:
        return kind.model_validate_json(path.read())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise EnvironmentProblem(f"{path} cannot be read: {error.strerror}") from None
    except (ValidationError, UnicodeDecodeError):
        raise EnvironmentProblem(f"{path} is damaged; remove it and add the cluster again") from None


MACHINE_LOCAL_FIELDS = ("user_env", "password_env", "credentials_file", "tls_ca", "tls_cert", "tls_key")
"""What of a connection names a variable or a file."""
SETTINGS_FILE = "settings.toml"


def list_cluster_homes(home: Home, to: StoragePath | None = None) -> dict[str, StoragePath]:
    """The homes of clusters below a home, by their paths below it; or below its copy, where there is to be one."""
    list_clusters(home)  # ends a renewal whose process died
    clusters = parse_path(home.name) / CLUSTERS_FOLDER
    found = {place.name: place for place in clusters.folders() if not place.name.startswith(".")}
    if isinstance(clusters, ObjectStorePath) and to is not None and to.here is not None:
        found = _rename_for_folder(found)
    for place in _machine_local_homes(home):
        found.setdefault(place.name, place)
    return {f"{CLUSTERS_FOLDER}/{name}": place for name, place in sorted(found.items())}


def list_homes_left_behind(home: Home, carried: Collection[StoragePath]) -> list[StoragePath]:
    """Homes that stay where they are: on this machine, while those of their names lie in the store."""
    return [place for place in _machine_local_homes(home) if place not in carried]


def list_extra_files(path: str, to: StoragePath) -> tuple[str, ...]:
    """What goes along beside the tables of a home, which has this path below the copy.

    The copy of a cluster's own home lies below none, and mirrors nothing.
    """
    of_clusters = (*SHARED_FILES, *([RENEWED_FILE] if isinstance(to, ObjectStorePath) else ())) if path else ()
    return (SETTINGS_FILE, *of_clusters)


def copy_connections(home: Home, to: str) -> list[ScyllaCluster]:
    """Tell the copy of a home of the ways to its clusters, but for those that are only this machine's: answers them.

    A cluster that the copy knows already is left as it is.
    """
    stay = []
    for cluster in list_clusters(home):
        if get_machine_local_options(cluster.connection):
            stay.append(cluster)
            continue
        copied = open_home(to)
        try:
            find_cluster(copied, cluster.name)
        except NotFound:
            add_cluster(copied, cluster.name, cluster.connection)
    return stay


def get_machine_local_options(connection: Connection) -> list[str]:
    """What of a way is this machine's alone, by its names."""
    return [name for name in MACHINE_LOCAL_FIELDS if getattr(connection, name) is not None]


def connection_options(connection: Connection) -> Iterator[str]:
    """The options of `cluster add` that tell of a way."""
    for contact in connection.contacts:
        yield from ("--contact", contact)
    for name, value in connection.model_dump(exclude_defaults=True, exclude={"contacts"}).items():
        option = f"--{name.replace('_', '-')}"
        if name == "tls_host_names":
            yield "--no-tls-host-names"
        else:
            yield from (option,) if value is True else (option, f"{value}")


def _machine_local_homes(home: Home) -> list[StoragePath]:
    """Homes of clusters that lie on this machine though the home is in a store, as those of all once did."""
    folders = [] if home.address is None else sorted((home.path / CLUSTERS_FOLDER).glob("*/lake"))
    return [parse_path(folder.parent) for folder in folders if not folder.parent.name.startswith(".")]


def _rename_for_folder(found: Mapping[str, StoragePath]) -> dict[str, StoragePath]:
    """Homes in a store by their names in a folder: the newest is its cluster's, others say until when they were."""
    names = {}
    for cluster in (name for name in found if "." not in name):
        at = cluster
        while (after := find_successor(found[at])) is not None and after in found:
            names[at] = f"{cluster}.until-{after.rpartition('.since-')[2]}"
            at = after
        names[at] = cluster
    return {names.get(name, name): place for name, place in found.items()}
