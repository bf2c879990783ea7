"""The tables that lie in a lake, declared or not, and their newest versions, by the names of Delta's files alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from cdc_platform.lake.files import LOG_FOLDER
from cdc_platform.lake.lake import Lake


def versions(lake: Lake) -> dict[str, int]:
    """The newest version of each table by `keyspace.name`. No log is read; a folder without one is no table.

    Raises:
        OSError: a folder cannot be read.
    """
    return {name: newest for name, folder in folders(lake.root) if (newest := _newest(folder)) is not None}


def stored_names(lake: Lake) -> list[tuple[str, str]]:
    """(keyspace, name) of every table that has a log in the lake, declared or not, by name."""
    return [(path.parent.name, path.name) for path in _paths(lake.root) if (path / LOG_FOLDER).exists()]


def folders(root: Path) -> Iterator[tuple[str, str]]:
    """The tables of a lake and what looks like one: names and folders, in the order of the names."""
    return ((f"{path.parent.name}.{path.name}", str(path)) for path in _paths(root))


def _paths(root: Path) -> Iterator[Path]:
    for keyspace in sorted(path for path in root.glob("*") if path.is_dir()):
        yield from sorted(path for path in keyspace.iterdir() if path.is_dir() and path.name[0] != ".")


def _newest(folder: str) -> int | None:
    try:
        with os.scandir(Path(folder, LOG_FOLDER)) as entries:
            stems = [entry.name[:-5] for entry in entries if entry.name.endswith(".json")]
    except FileNotFoundError:
        return None
    return max((int(stem) for stem in stems if stem.isdigit()), default=None)
