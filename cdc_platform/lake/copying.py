"""A lake from one place to another: the tables as they were at one set of versions, with all of their history.

What is copied are Delta's own files, so that a table there is what it is here, byte by byte: its commits, who made
them, and the digests by which anybody can check it. Rows are made anew by nobody.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from cdc_platform import drafts
from cdc_platform.errors import ConflictError, StateError
from cdc_platform.lake import contract, files
from cdc_platform.lake.files import LOG_FOLDER, plain_path
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.translate import translated
from cdc_platform.lake.verification import verify
from cdc_platform.lake.versions import versions
from cdc_platform.places import Place, place_of

_LOOKS = 5


@dataclass(frozen=True)
class Copied:
    """What lies at the other end now: tables, files in all, and how many of them were there already."""

    tables: int
    files: int
    found: int


def settled_versions(lake: Lake) -> dict[str, int]:
    """The newest version of each table, such that none changed while they were looked up.

    Raises:
        ConflictError: somebody writes all the time.
    """
    seen = versions(lake)
    for _ in range(_LOOKS):
        again = versions(lake)
        if again == seen:
            return seen
        seen = again
    raise ConflictError(f"{lake.place} is written to all the time; copy it when less is going on")


def assert_fit(target: Lake) -> None:
    """Hold that a lake may be copied there.

    Raises:
        Unavailable, NoConditionalWrites: there is no room, or the store is none that may be written to.
    """
    contract.assert_fit(target.place, 0, f"copying to {target.place.folder}")


def copy(source: Lake, target: Lake, at: Mapping[str, int], told: Callable[[str], None]) -> Copied:
    """Copy the tables as they are at these versions, and compare what lies there with the digests of its commits.

    A file that is there, as long as it is here, is not copied again. `told` gets the name of each table.

    Raises:
        StateError: what lies at the other end is not what the commits say, or is another table.
    """
    assert_fit(target)
    count = found = 0
    for name, version in at.items():
        told(name)
        keyspace, _, short = name.partition(".")
        here, there = (lake.place / f"{keyspace}/{short}" for lake in (source, target))
        # The log comes last, and in its order: a table is there at once, or grows version by version.
        for path in _paths(here, version):
            count += 1
            found += _brought(here / path, there / path)
    wrong = [line for each in verify(target, deep=True, names=at) for line in (*each.damage, *each.strange)]
    if wrong:
        raise StateError(f"the copy at {target.place} is not what was copied: {wrong[0]}")
    newest = versions(target)
    other = next((name for name, version in at.items() if newest.get(name) != version), None)
    if other is not None:
        raise StateError(f"{other} at {target.place} is at version {newest.get(other)}, not {at[other]}: it is another")
    return Copied(len(at), count, found)


def _paths(table: Place, version: int) -> Iterator[str]:
    """The files of a table up to a version: those of its rows, checkpoints, then the commits."""
    log = table / LOG_FOLDER
    names = [name for name in log.names() if name[:20].isdigit() and int(name[:20]) <= version]
    commits = [name for name in names if name.endswith(".json")]
    with translated(f"opening {table}"):
        opened = files.opened(str(table), version)
        held = {plain_path(path) for path in opened.get_add_actions().column("path").to_pylist()}
    for name in commits:
        for line in (log / name).read().decode().splitlines():
            added = json.loads(line).get("add")
            if added is not None:
                held.add(plain_path(added["path"]))
    # Files of earlier versions that an upkeep has removed are gone here as well.
    yield from (path for path in sorted(held) if (table / path).seen() is not None)
    yield from (f"{LOG_FOLDER}/{name}" for name in sorted(set(names) - set(commits)))
    yield from (f"{LOG_FOLDER}/{name}" for name in sorted(commits))


def _brought(source: Place, target: Place) -> bool:
    """Bring a file there; whether it was there already."""
    here, there = source.seen(), target.seen()
    if there is not None and here is not None and there.bytes == here.bytes:
        return True
    put(target, source.read())
    return False


def note_of(home: str) -> Place:
    """Where it is noted that a home is a copy that is not whole yet."""
    return place_of(home) / ".copying.json"


def put(place: Place, content: bytes) -> None:
    """Give a file at either end this content."""
    with drafts.temporary_folder("cdc-platform") as folder:
        draft = folder / "file"
        draft.write_bytes(content)
        if place.here is not None:
            place.here.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        place.receive(draft)


def put_settings(source: str, target: str) -> None:
    """Bring the settings of a home there, if it has any."""
    settings = place_of(source) / "settings.toml"
    if settings.seen() is not None:
        put(place_of(target) / "settings.toml", settings.read())
