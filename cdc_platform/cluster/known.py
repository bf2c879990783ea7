"""The clusters that are known by name: how each is reached, and which one it was when it was last looked at.

Each has a home of its own in `<home>/clusters/NAME`; beside its tables lies `identity.json`, by which a cluster that
was restored or rebuilt under the same name is recognised, and `mirror.json`, by which commands know that nothing is
made there (`lake.mirrors`). `cluster.json` tells how it is reached. It lies there too, but of a home in a store in this
machine's part of it, since other machines have other ways.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict, ValidationError

from cdc_platform import drafts
from cdc_platform.clock import Clock, Milliseconds, format_ms
from cdc_platform.cluster.connection import Connection, checked
from cdc_platform.errors import EnvironmentProblem, InputError, NotFound, StateError
from cdc_platform.home import Home, open_home, state_folder
from cdc_platform.lake.copying import put
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.mirrors import CONNECTION, FOLDER, IDENTITY, MARK, home_around, mirror_at
from cdc_platform.lake.turns import turn
from cdc_platform.lake.versions import versions
from cdc_platform.places import Place, place_of
from cdc_platform.records.ring import NORMAL, members

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,47}")
NEXT = "renewed.json"
"""The file by which the home of a cluster in a store says which took its place."""
_AHEAD = "logs-ahead.json"
BESIDE = (MARK, IDENTITY, _AHEAD)
"""What lies beside the tables of a home and is every machine's."""
_Kind = TypeVar("_Kind", bound=BaseModel)


class Identity(BaseModel):
    """Which cluster it is: its name for itself, its hosts, and the newest generation's time (ms) that was seen."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cluster_name: str
    host_ids: tuple[UUID, ...]
    newest_ms: Milliseconds | None = None


class _Next(BaseModel):
    """Which folder beside a home in a store has the cluster that goes by its name now."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    folder: str


class _Mirror(BaseModel):
    """Of which cluster a home is the mirror, by its name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cluster: str


class _LogsAhead(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    made_ms: dict[str, Milliseconds]


@dataclass(frozen=True)
class KnownCluster:
    """A cluster by its name. `home` is the folder of its own home; of one in a store (`address`) this machine's part.

    `identity` is None until it was looked at.
    """

    name: str
    home: Path
    connection: Connection
    identity: Identity | None
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
        nodes = members(Lake(self.open_home().lake))
        return [node.address for node in nodes if node.status == NORMAL and node.address]


def add(home: Home, name: str, connection: Connection) -> KnownCluster:
    """Keep the way to a cluster under a name. The same again changes nothing; `remove` it to give it another way.

    Raises:
        InputError: the name or the connection breaks a rule, or the name is taken by another way.
    """
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name!r} is no name of a cluster: 1 to 48 lower-case letters, digits, - and _, no sign first"
        )
    checked(connection)
    with _turn(home):
        folder = home.path / FOLDER / name
        _complete(home, name)
        if (folder / CONNECTION).exists():
            known = find(home, name)
            if known.connection != connection:
                raise InputError(
                    f"a cluster {name} is known already, reached otherwise; take it out first with: "
                    f"cdc-platform cluster remove {name}"
                )
            return known
        _make_mirror(str(folder), name)
        address = _address(home, name)
        if address is not None:
            _make_mirror(address, name)
        _write(place_of(folder / CONNECTION), connection)
        return find(home, name)


def find(home: Home, name: str) -> KnownCluster:
    """The cluster of this name.

    Raises:
        NotFound: there is none.
        EnvironmentProblem: a file of it is damaged.
    """
    if _NAME.fullmatch(name):
        _complete(home, name)
    folder = home.path / FOLDER / name
    connection = _read(place_of(folder / CONNECTION), Connection) if _NAME.fullmatch(name) else None
    if connection is None:
        raise _unknown(home, name)
    address = _address(home, name)
    place = place_of(address or folder)
    return KnownCluster(name, state_folder(place), connection, _read(place / IDENTITY, Identity), address)


def _unknown(home: Home, name: str) -> NotFound:
    place = place_of(home.name)
    around = home_around(place)
    if around is not None and mirror_at(place) == name:
        return NotFound(
            f"this is the home of {name} itself, and ways to clusters are known in the one that it lies in; run it"
            f" with: --home {around}"
        )
    names = ", ".join(each.name for each in clusters(home)) or "none is"
    return NotFound(
        f"no cluster {name or repr(name)} is known ({names}); tell of it with: cdc-platform cluster add NAME"
        " --contact HOST:PORT"
    )


def clusters(home: Home) -> list[KnownCluster]:
    """All of them, by name."""
    for ready in (home.path / FOLDER).glob(".*.renewed"):
        _complete(home, ready.name.removeprefix(".").removesuffix(".renewed"))
    places = sorted((home.path / FOLDER).glob(f"*/{CONNECTION}"))
    return [find(home, place.parent.name) for place in places if _NAME.fullmatch(place.parent.name)]


def remove(home: Home, name: str) -> KnownCluster:
    """Forget how a cluster is reached. What was observed of it stays in its home.

    Raises:
        NotFound: there is none of this name.
    """
    with _turn(home):
        known = find(home, name)
        (home.path / FOLDER / name / CONNECTION).unlink()
        return known


def renew(home: Home, name: str, clock: Clock) -> str | None:
    """Say that another cluster goes by this name now: what was observed of the one before is moved aside.

    In a store it stays, and another place is for the new one. Answers where the one before is, None where nothing was
    observed.

    Raises:
        NotFound: there is none of this name.
    """
    with _turn(home):
        known = find(home, name)
        if known.identity is None and not versions(Lake(known.open_home().lake)):
            return None
        stamp = format_ms(clock.now_ms()).translate(str.maketrans("", "", ":-."))
        if known.address is not None:
            fresh = f"{name}.since-{stamp}"
            _make_mirror(f"{home.address}/{FOLDER}/{fresh}", name)
            _write(place_of(known.address) / NEXT, _Next(folder=fresh))
            return known.address
        aside = known.home.with_name(f"{name}.until-{stamp}")
        # The new home is ready before the old one goes: a process that dies in between leaves what `_complete` ends.
        _write(place_of(_make_mirror(str(_renewed(home, name)), name).path / CONNECTION), known.connection)
        known.home.rename(aside)
        _complete(home, name)
        # What lies aside is a home still, and no longer a cluster that is known by name.
        (aside / CONNECTION).unlink()
        return str(aside)


def seen_of(home: Home) -> tuple[UUID, ...]:
    """The hosts of the cluster that this home itself is of; none where it is no observed cluster's home."""
    seen = _read(place_of(home.name) / IDENTITY, Identity)
    return () if seen is None else seen.host_ids


def observed_hosts(home: Home) -> dict[UUID, str]:
    """The hosts of every cluster that was observed from this home, or beside it, with the name that it had then.

    Those count too of which the home was moved aside, or which are known by name no more.
    """
    mine = place_of(home.name)
    around = [mine / FOLDER, place_of(home.path / FOLDER)]
    if mine.folder.name == FOLDER:
        around.append(mine.folder)
    found: dict[UUID, str] = {}
    for each in (place for folder in around for place in folder.folders()):
        seen = _read(each / IDENTITY, Identity)
        found |= dict.fromkeys(seen.host_ids if seen else (), each.name)
    return found


def _address(home: Home, name: str) -> str | None:
    """Where a cluster's home in a store is; None where it is a folder, as it was of all homes once."""
    if home.address is None or (home.path / FOLDER / name / "lake").exists():
        return None
    folder = name
    while (after := renewed_by(place_of(f"{home.address}/{FOLDER}/{folder}"))) is not None:
        folder = after
    return f"{home.address}/{FOLDER}/{folder}"


def renewed_by(place: Place) -> str | None:
    """The name of the folder beside a home in a store that took its place; None where it is the newest."""
    after = _read(place / NEXT, _Next)
    return None if after is None else after.folder


def _make_mirror(at: str, name: str) -> Home:
    """The home of what will be seen of a cluster, marked so that nothing else ever gets in."""
    made = open_home(at)
    _write(place_of(made.name) / MARK, _Mirror(cluster=name))
    return made


def _renewed(home: Home, name: str) -> Path:
    return home.path / FOLDER / f".{name}.renewed"


def _complete(home: Home, name: str) -> None:
    """Give a cluster its new home, if that is ready and the old one has gone."""
    place = home.path / FOLDER / name
    if (_renewed(home, name) / CONNECTION).exists() and not place.exists():
        _renewed(home, name).rename(place)


def _turn(home: Home) -> AbstractContextManager[None]:
    return turn(Lake(home.lake), "clusters")


def assert_same(known: KnownCluster, seen: Identity, times_ms: Sequence[Milliseconds] | None = None) -> None:
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


def remember(known: KnownCluster, seen: Identity) -> None:
    """Keep which cluster it is. Times never go back."""
    before = None if known.identity is None else known.identity.newest_ms
    newest = max((ms for ms in (before, seen.newest_ms) if ms is not None), default=None)
    _write(place_of(known.at) / IDENTITY, seen.model_copy(update={"newest_ms": newest}))


def logs_ahead(known: KnownCluster) -> dict[str, Milliseconds]:
    """The logs (`keyspace.table`) that were newer than this machine's clock said as they were seen: when made (ms)."""
    kept = _read(place_of(known.at) / _AHEAD, _LogsAhead)
    return {} if kept is None else dict(kept.made_ms)


def keep_log_ahead(known: KnownCluster, table: str, made_ms: Milliseconds) -> None:
    """Keep when a log was made by the cluster's clock, which is later than this machine's: it is the same one later."""
    _write(place_of(known.at) / _AHEAD, _LogsAhead(made_ms={**logs_ahead(known), table: made_ms}))


def _write(place: Place, value: BaseModel) -> None:
    text = json.dumps(value.model_dump(mode="json"), indent=2) + "\n"
    if place.here is not None:
        drafts.write(place.here, text)
    else:
        put(place, text.encode())


def _read(path: Place, kind: type[_Kind]) -> _Kind | None:
    try:
        return kind.model_validate_json(path.read())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise EnvironmentProblem(f"{path} cannot be read: {error.strerror}") from None
    except (ValidationError, UnicodeDecodeError):
        raise EnvironmentProblem(f"{path} is damaged; remove it and add the cluster again") from None
