"""The tables that lie in a lake, declared or not, and their newest versions, by the names of Delta's files alone."""

from __future__ import annotations

from collections.abc import Iterator

from cdc_platform.lake.files import LOG_FOLDER
from cdc_platform.lake.lake import Lake
from cdc_platform.places import Place, place_of


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


def _places(root: Place) -> Iterator[Place]:
    for keyspace in root.folders():
        yield from (place for place in keyspace.folders() if place.name[0] != ".")


def _newest(folder: Place) -> int | None:
    stems = [name[:-5] for name in (folder / LOG_FOLDER).names() if name.endswith(".json")]
    return max((int(stem) for stem in stems if stem.isdigit()), default=None)
