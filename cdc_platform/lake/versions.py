"""The tables that lie in a lake, declared or not, and their newest versions, by the names of Delta's files alone."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cdc_platform.lake.commits import version_of
from cdc_platform.lake.files import LOG_FOLDER
from cdc_platform.lake.lake import Lake
from cdc_platform.places import Place, place_of

_STATE = re.compile(r"\..*_scylla_cdc_log\.state")


def versions(lake: Lake) -> dict[str, int]:
    """The newest version of each table by `keyspace.name`. No log is read; a folder without one is no table.

    Raises:
        OSError: a folder cannot be read.
    """
    return {name: newest for name, folder in folders(lake.place) if (newest := _newest(place_of(folder))) is not None}


def stored_names(lake: Lake) -> list[tuple[str, str]]:
    """(keyspace, name) of every table that has a log in the lake, declared or not, by name."""
    return [(place.folder.name, place.name) for place in _places(lake.place) if (place / LOG_FOLDER).is_folder()]


def folders(root: Place) -> Iterator[tuple[str, str]]:
    """The tables of a lake and what looks like one: names and folders, in the order of the names."""
    return ((f"{place.folder.name}.{place.name}", str(place)) for place in _places(root))


def state_folders(root: Place) -> Iterator[tuple[str, str]]:
    """The states that lie beside the logs of a lake, as `folders`: tables that no list of tables names."""
    states = (place for keyspace in root.folders() for place in keyspace.folders() if _STATE.fullmatch(place.name))
    return ((f"{place.folder.name}.{place.name}", str(place)) for place in states)


def is_state(name: str) -> bool:
    """Whether a table of this name (`keyspace.name`) is the state beside a log."""
    return _STATE.fullmatch(name.partition(".")[2]) is not None


def _places(root: Place) -> Iterator[Place]:
    for keyspace in root.folders():
        yield from (place for place in keyspace.folders() if place.name[0] != ".")


def _newest(folder: Place) -> int | None:
    found = map(version_of, (folder / LOG_FOLDER).names())
    return max((version for version in found if version is not None), default=None)
