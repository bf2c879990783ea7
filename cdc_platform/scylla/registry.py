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
from cdc_platform.home_location import HomeLocation, local_state_folder, open_home_location
from cdc_platform.metastore import STATUS_NORMAL, read_nodes
from cdc_platform.scylla.column_rules import compute_key_check, read_hash_key
from cdc_platform.scylla.connection import Connection, validate_connection
from cdc_platform.storage import ObjectStorePath, StoragePath, atomic, parse_path, read_user_bytes

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,47}")
RENEWED_FILE = "renewed.json"
"""The file by which a cluster's home in a store names its successor."""
_FUTURE_LOGS_FILE = "logs-ahead.json"
COLUMN_RULES_FILE = "columns.json"
"""The file with the columns that a cluster's home leaves out or hashes."""
SELECTION_FILE = "tables.toml"
"""The file in which people select the tables of a cluster to ingest on a schedule."""
SHARED_FILES = (MIRROR_MARK_FILE, CLUSTER_IDENTITY_FILE, _FUTURE_LOGS_FILE, COLUMN_RULES_FILE)
"""Files beside a home's tables that belong to the home, not to one machine."""
_Model = TypeVar("_Model", bound=BaseModel)


class ClusterIdentity(BaseModel):
    """A cluster's identity: the name it gives itself, its hosts, and the time (ms) of the newest generation seen."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cluster_name: str
    host_ids: tuple[UUID, ...]
    newest_ms: Milliseconds | None = None


class _Successor(BaseModel):
    """The folder, beside a home in a store, of the cluster that has its name now."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    folder: str


class _MirrorMarker(BaseModel):
    """The name of the cluster that a home mirrors."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cluster: str


class _FutureLogs(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    made_ms: dict[str, Milliseconds]


@dataclass(frozen=True)
class ScyllaCluster:
    """A cluster by its name. `home` is the folder of its own home; for a home in a store (`address`), its local part.

    `identity` is None until the cluster was observed.
    """

    name: str
    home: Path
    connection: Connection
    identity: ClusterIdentity | None
    address: str | None = None

    @property
    def at(self) -> str:
        """Return the path or address of its home."""
        return self.address or str(self.home)

    def open_home(self) -> HomeLocation:
        """Open its home, creating it if necessary."""
        return open_home_location(self.at)

    def node_addresses(self) -> list[str]:
        """Return the addresses of the nodes that were in the ring when the cluster was observed last."""
        nodes = read_nodes(Lake(self.open_home().lake))
        return [node.address for node in nodes if node.status == STATUS_NORMAL and node.address]


def add_cluster(home: HomeLocation, name: str, connection: Connection) -> ScyllaCluster:
    """Register a connection to a cluster under a name; registering the same connection again changes nothing.

    To change a cluster's connection, call `remove_cluster` first.

    Raises:
        InputError: the name or the connection is invalid, or the name is registered with another connection.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name!r} is no cluster name: use 1 to 48 lower-case letters, digits, - and _, and start with a letter or "
            "digit"
        )
    validate_connection(connection)
    if connection.hash_key_file is not None:
        check = compute_key_check(read_hash_key(connection.hash_key_file))
        connection = connection.model_copy(update={"hash_key_check": check})
    with _clusters_lock(home):
        folder = home.path / CLUSTERS_FOLDER / name
        _complete_renewal(home, name)
        if (folder / CLUSTER_CONNECTION_FILE).exists():
            known = find_cluster(home, name)
            connection = connection.model_copy(update={"decode_attributes": known.connection.decode_attributes})
            if known.connection != connection:
                raise InputError(
                    f"cluster {name} is already registered with another connection; remove it first with: "
                    f"cdc-platform cluster remove {name}"
                )
            return known
        _make_mirror(str(folder), name)
        address = _store_address(home, name)
        if address is not None:
            _make_mirror(address, name)
        rules = _store_column_rules(parse_path(address or folder), name, connection)
        connection = connection.model_copy(update={"decode_attributes": rules.decode_attributes})
        _write_model(parse_path(folder / CLUSTER_CONNECTION_FILE), connection)
        return find_cluster(home, name)


class _StoredColumnRules(BaseModel):
    """Which columns the home of a cluster leaves out or hashes, from its first row on.

    `decode_attributes`: the attributes of Alternator tables are JSON. Homes of earlier releases have them as blobs.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    left_out: tuple[str, ...] = ()
    hashed: tuple[str, ...] = ()
    hash_key_check: str | None = None
    decode_attributes: bool = False


def _store_column_rules(
    home: StoragePath, name: str, connection: Connection, *, is_new: bool = True
) -> _StoredColumnRules:
    """Store and return the rules of a cluster's home, which no later registration may change after an observation.

    A home that is not observed yet decodes attributes if the cluster `is_new`, and otherwise as the connection says.

    Raises:
        InputError: the home was observed under other rules.
    """
    stored = _read_model(home / COLUMN_RULES_FILE, _StoredColumnRules) or _StoredColumnRules()
    is_observed = _read_model(home / CLUSTER_IDENTITY_FILE, ClusterIdentity) is not None
    rules = _StoredColumnRules(
        left_out=tuple(sorted(connection.left_out)),
        hashed=tuple(sorted(connection.hashed)),
        hash_key_check=connection.hash_key_check,
        decode_attributes=stored.decode_attributes or (not is_observed and (is_new or connection.decode_attributes)),
    )
    if rules == stored:
        return rules
    if is_observed:
        raise InputError(
            f"the home of {name} was observed with other columns left out or hashed, or another key, and its rows stay "
            f"as they are; register the cluster under another name to start a new copy"
        )
    _write_model(home / COLUMN_RULES_FILE, rules)
    return rules


def find_cluster(home: HomeLocation, name: str) -> ScyllaCluster:
    """Return the cluster of this name.

    Raises:
        NotFound: no cluster of this name is registered.
        EnvironmentProblem: one of its files is damaged.
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
    home_path = parse_path(address or folder)
    return ScyllaCluster(
        name,
        local_state_folder(home_path),
        connection,
        _read_model(home_path / CLUSTER_IDENTITY_FILE, ClusterIdentity),
        address,
    )


def _unknown_cluster_error(home: HomeLocation, name: str) -> NotFound:
    home_path = parse_path(home.name)
    around = get_registering_home(home_path)
    if around is not None and read_mirrored_cluster(home_path) == name:
        return NotFound(
            f"this is the home of {name} itself, and clusters are registered in its parent home; run the command"
            f" with: --home {around}"
        )
    names = ", ".join(cluster.name for cluster in list_clusters(home)) or "none is"
    return NotFound(
        f"no cluster {name or repr(name)} is known ({names}); register it with: cdc-platform cluster add NAME"
        " --contact HOST:PORT"
    )


def list_clusters(home: HomeLocation) -> list[ScyllaCluster]:
    """Return all registered clusters, by name."""
    for ready in (home.path / CLUSTERS_FOLDER).glob(".*.renewed"):
        _complete_renewal(home, ready.name.removeprefix(".").removesuffix(".renewed"))
    paths = sorted((home.path / CLUSTERS_FOLDER).glob(f"*/{CLUSTER_CONNECTION_FILE}"))
    return [find_cluster(home, path.parent.name) for path in paths if _NAME.fullmatch(path.parent.name)]


def get_selection_path(home: HomeLocation, name: str) -> Path:
    """Return the path of the file, on this machine, that selects the tables of a cluster to ingest on a schedule."""
    return home.path / CLUSTERS_FOLDER / name / SELECTION_FILE


def remove_cluster(home: HomeLocation, name: str) -> ScyllaCluster:
    """Forget a cluster's connection; its home keeps what was observed.

    Raises:
        NotFound: no cluster of this name is registered.
    """
    with _clusters_lock(home):
        known = find_cluster(home, name)
        (home.path / CLUSTERS_FOLDER / name / CLUSTER_CONNECTION_FILE).unlink()
        return known


def renew_cluster(home: HomeLocation, name: str, clock: Clock) -> str | None:
    """Declare that another cluster has this name now, and move the home of the previous cluster aside.

    A home in a store stays where it is, and the new cluster gets another folder. Return where the previous home is, or
    None if nothing was observed.

    Raises:
        NotFound: no cluster of this name is registered.
    """
    with _clusters_lock(home):
        known = find_cluster(home, name)
        if known.identity is None and not read_newest_versions(Lake(known.open_home().lake)):
            return None
        stamp = format_ms(clock.now_ms()).translate(str.maketrans("", "", ":-."))
        if known.address is not None:
            fresh = f"{name}.since-{stamp}"
            mirror = _make_mirror(f"{home.address}/{CLUSTERS_FOLDER}/{fresh}", name)
            _store_column_rules(parse_path(mirror.name), name, known.connection, is_new=False)
            _write_model(parse_path(known.address) / RENEWED_FILE, _Successor(folder=fresh))
            return known.address
        moved_to = known.home.with_name(f"{name}.until-{stamp}")
        # Create the new home before moving the old one: `_complete_renewal` completes a renewal whose process died in
        # between.
        mirror = _make_mirror(str(_renewed_folder(home, name)), name)
        _store_column_rules(parse_path(mirror.path), name, known.connection, is_new=False)
        _write_model(parse_path(mirror.path / CLUSTER_CONNECTION_FILE), known.connection)
        known.home.rename(moved_to)
        _complete_renewal(home, name)
        # The folder moved aside is still a home, but no longer a registered cluster.
        (moved_to / CLUSTER_CONNECTION_FILE).unlink()
        return str(moved_to)


def get_own_hosts(home: HomeLocation) -> tuple[UUID, ...]:
    """Return the hosts of the cluster that this home mirrors; empty if it mirrors none."""
    seen = _read_model(parse_path(home.name) / CLUSTER_IDENTITY_FILE, ClusterIdentity)
    return () if seen is None else seen.host_ids


def list_observed_hosts(home: HomeLocation) -> dict[UUID, str]:
    """Return the hosts of every cluster observed from this home or beside it, with the cluster's name then.

    This includes clusters whose home was moved aside, and those that are no longer registered.
    """
    mine = parse_path(home.name)
    around = [mine / CLUSTERS_FOLDER, parse_path(home.path / CLUSTERS_FOLDER)]
    if mine.folder.name == CLUSTERS_FOLDER:
        around.append(mine.folder)
    names_by_host: dict[UUID, str] = {}
    for path in (subfolder for folder in around for subfolder in folder.folders()):
        seen = _read_model(path / CLUSTER_IDENTITY_FILE, ClusterIdentity)
        names_by_host |= dict.fromkeys(seen.host_ids if seen else (), path.name)
    return names_by_host


def _store_address(home: HomeLocation, name: str) -> str | None:
    """Return where a cluster's home in a store is; None if its home is a local folder, as in early releases."""
    if home.address is None or (home.path / CLUSTERS_FOLDER / name / "lake").exists():
        return None
    folder = name
    while (after := find_successor(parse_path(f"{home.address}/{CLUSTERS_FOLDER}/{folder}"))) is not None:
        folder = after
    return f"{home.address}/{CLUSTERS_FOLDER}/{folder}"


def find_successor(path: StoragePath) -> str | None:
    """Return the name of the folder that succeeds a home in a store; None if the home is the newest."""
    after = _read_model(path / RENEWED_FILE, _Successor)
    return None if after is None else after.folder


def _make_mirror(at: str, name: str) -> HomeLocation:
    """Create the home for observations of a cluster, marked as a mirror so that other writes are refused."""
    mirror = open_home_location(at)
    _write_model(parse_path(mirror.name) / MIRROR_MARK_FILE, _MirrorMarker(cluster=name))
    return mirror


def _renewed_folder(home: HomeLocation, name: str) -> Path:
    return home.path / CLUSTERS_FOLDER / f".{name}.renewed"


def _complete_renewal(home: HomeLocation, name: str) -> None:
    """Move a cluster's new home into place if it is ready and the old one is gone."""
    target = home.path / CLUSTERS_FOLDER / name
    if (_renewed_folder(home, name) / CLUSTER_CONNECTION_FILE).exists() and not target.exists():
        _renewed_folder(home, name).rename(target)


def _clusters_lock(home: HomeLocation) -> AbstractContextManager[None]:
    return lake_lock(Lake(home.lake), "clusters")


def assert_same_cluster(
    known: ScyllaCluster, seen: ClusterIdentity, times_ms: Sequence[Milliseconds] | None = None
) -> None:
    """Raise StateError if this is not the cluster that was observed before.

    `times_ms` are its published generations; None if they were not read.

    Raises:
        StateError: it is another cluster, so what was read before does not apply to it.
    """
    before = known.identity
    if before is None:
        return
    remedy = (
        f"if it was restored or rebuilt, run: cdc-platform cluster replace {known.name}, which moves the old home aside"
    )
    if seen.cluster_name != before.cluster_name:
        raise StateError(
            f"{known.name} is another cluster now: it calls itself {seen.cluster_name}, and {before.cluster_name} "
            f"before; {remedy}"
        )
    if not set(seen.host_ids) & set(before.host_ids):
        raise StateError(
            f"{known.name} is another cluster now: none of its {len(before.host_ids)} hosts of before is in it, "
            f"{before.host_ids[0]} was the first; {remedy}"
        )
    if before.newest_ms is not None and times_ms is not None and before.newest_ms not in times_ms:
        raise StateError(
            f"{known.name} is another cluster now: generation {format_ms(before.newest_ms)}, its newest before, is no "
            f"longer published; {remedy}"
        )


def store_identity(known: ScyllaCluster, seen: ClusterIdentity) -> None:
    """Store a cluster's identity. The time of its newest generation never decreases."""
    before = None if known.identity is None else known.identity.newest_ms
    newest = max((ms for ms in (before, seen.newest_ms) if ms is not None), default=None)
    _write_model(parse_path(known.at) / CLUSTER_IDENTITY_FILE, seen.model_copy(update={"newest_ms": newest}))


def read_future_logs(known: ScyllaCluster) -> dict[str, Milliseconds]:
    """Return the logs (`keyspace.table`) created (ms) later than this machine's clock when they were seen."""
    stored = _read_model(parse_path(known.at) / _FUTURE_LOGS_FILE, _FutureLogs)
    return {} if stored is None else dict(stored.made_ms)


def store_future_log(known: ScyllaCluster, table: str, made_ms: Milliseconds) -> None:
    """Store when a log was created by the cluster's clock, ahead of this machine's, to recognise the same log later."""
    _write_model(
        parse_path(known.at) / _FUTURE_LOGS_FILE, _FutureLogs(made_ms={**read_future_logs(known), table: made_ms})
    )


def _write_model(path: StoragePath, value: BaseModel) -> None:
    text = json.dumps(value.model_dump(mode="json"), indent=2) + "\n"
    if path.local_path is not None:
        atomic.write_text_atomically(path.local_path, text)
    else:
        put_file(path, text.encode())


def _read_model(path: StoragePath, kind: type[_Model]) -> _Model | None:
    try:
        return kind.model_validate_json(path.read())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise EnvironmentProblem(f"{path} cannot be read: {error.strerror}") from None
    except (ValidationError, UnicodeDecodeError):
        raise EnvironmentProblem(f"{path} is damaged; remove it and add the cluster again") from None


FILE_FIELDS = (
    "credentials_file",
    "user_file",
    "password_file",
    "tls_ca",
    "tls_cert",
    "tls_key",
    "tls_key_password_file",
    "hash_key_file",
)
"""Fields of a connection that name a file."""
MACHINE_LOCAL_FIELDS = ("user_env", "password_env", *FILE_FIELDS)
"""Fields of a connection that name a variable or a file of one machine."""
SETTINGS_FILE = "settings.toml"


def list_cluster_homes(home: HomeLocation, to: StoragePath | None = None) -> dict[str, StoragePath]:
    """Return the homes of clusters below a home by relative path, or with their paths in a copy at `to`."""
    list_clusters(home)  # completes a renewal whose process died
    clusters = parse_path(home.name) / CLUSTERS_FOLDER
    homes = {path.name: path for path in clusters.folders() if not path.name.startswith(".")}
    if isinstance(clusters, ObjectStorePath) and to is not None and to.local_path is not None:
        homes = _rename_for_folder(homes)
    for path in _machine_local_homes(home):
        homes.setdefault(path.name, path)
    return {f"{CLUSTERS_FOLDER}/{name}": path for name, path in sorted(homes.items())}


def list_homes_left_behind(home: HomeLocation, carried: Collection[StoragePath]) -> list[StoragePath]:
    """Return the homes that a copy leaves on this machine, because the store has homes of the same names."""
    return [path for path in _machine_local_homes(home) if path not in carried]


def list_extra_files(path: str, to: StoragePath) -> tuple[str, ...]:
    """Return the files to copy beside a home's tables; `path` is the home's path below the copy.

    The copy of a cluster's own home has no such path, and is no mirror.
    """
    of_clusters = (*SHARED_FILES, *([RENEWED_FILE] if isinstance(to, ObjectStorePath) else ())) if path else ()
    return (SETTINGS_FILE, *of_clusters)


def copy_connections(home: HomeLocation, to: str) -> list[ScyllaCluster]:
    """Copy the connections of a home's clusters into its copy; return the clusters whose connection is machine-local.

    A cluster that the copy has already stays as it is.
    """
    stay = []
    for cluster in list_clusters(home):
        if get_machine_local_options(cluster.connection):
            stay.append(cluster)
            continue
        copied = open_home_location(to)
        try:
            find_cluster(copied, cluster.name)
        except NotFound:
            add_cluster(copied, cluster.name, cluster.connection)
    return stay


def copy_selections(home: HomeLocation, to: str) -> None:
    """Copy the files that select the tables of clusters to ingest, as bytes, into this machine's part of a home's copy.

    A file that the copy has already stays as it is.
    """
    for path in sorted((home.path / CLUSTERS_FOLDER).glob(f"*/{SELECTION_FILE}")):
        target = get_selection_path(open_home_location(to), path.parent.name)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            atomic.write_bytes_atomically(target, read_user_bytes(path, what=f"table list {path}"))


def get_machine_local_options(connection: Connection) -> list[str]:
    """Return the names of a connection's options that apply only to this machine."""
    return [name for name in MACHINE_LOCAL_FIELDS if getattr(connection, name) is not None]


_OPTIONS_BY_FIELD = {
    "addresses": "--address",
    "attribute_types": "--attribute",
    "page_rows": "--page-size",
    "left_out": "--leave-out",
    "hashed": "--hash",
    "requests_per_second": "--request-rate",
    "rows_per_second": "--rate",
    "tls_host_names": "--no-tls-hostname-check",
}
"""The options of `cluster add` that are not named after their field of `Connection`."""


def get_connection_option(field: str) -> str:
    """Return the option of `cluster add` for a field of `Connection`."""
    return _OPTIONS_BY_FIELD.get(field, f"--{field.replace('_', '-')}")


def connection_options(connection: Connection) -> Iterator[str]:
    """Yield the options of `cluster add` that describe a connection."""
    for contact in connection.contacts:
        yield from ("--contact", contact)
    derived = {"contacts", "hash_key_check", "decode_attributes"}
    for name, value in connection.model_dump(exclude_defaults=True, exclude=derived).items():
        option = get_connection_option(name)
        if isinstance(value, dict):
            for node, address in value.items():
                yield from (option, f"{node}={address}")
        elif isinstance(value, tuple):
            for part in value:
                yield from (option, part)
        else:
            yield from (option,) if isinstance(value, bool) else (option, f"{value}")


def _machine_local_homes(home: HomeLocation) -> list[StoragePath]:
    """Return homes of clusters on this machine although the home is in a store, as in early releases."""
    folders = [] if home.address is None else sorted((home.path / CLUSTERS_FOLDER).glob("*/lake"))
    return [parse_path(folder.parent) for folder in folders if not folder.parent.name.startswith(".")]


def _rename_for_folder(found: Mapping[str, StoragePath]) -> dict[str, StoragePath]:
    """Return homes in a store by their names in a folder: the newest has its cluster's name, others say until when."""
    names = {}
    for cluster in (name for name in found if "." not in name):
        at = cluster
        while (after := find_successor(found[at])) is not None and after in found:
            names[at] = f"{cluster}.until-{after.rpartition('.since-')[2]}"
            at = after
        names[at] = cluster
    return {names.get(name, name): path for name, path in found.items()}
