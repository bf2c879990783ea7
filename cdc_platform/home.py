"""Where a platform lives: `<home>/lake/<keyspace>/<table>`, `<home>/dagster`, `<home>/settings.toml`.

A home is a folder, or a prefix of an object store: then tables, settings and the mark of its layout lie there, and what
is of one machine alone (Dagster's storage, sockets, logs) in a folder of that machine, see `state_folder`.
The home carries the number of its layout in `platform.json`; a home that a newer version wrote is refused, not guessed.
A new home is its owner's alone: what is in it decides what is run in the owner's name.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cdc_platform import drafts
from cdc_platform.errors import (
    EnvironmentProblem,
    InputError,
    NewerLayout,
    PlatformError,
    is_full,
    is_text,
    no_space,
)
from cdc_platform.places import Place, Stored, place_of, root_of
from cdc_platform.settings import Settings, load_settings

VARIABLE = "CDC_PLATFORM_HOME"
DEFAULT = ".cdc-platform"
STATE_VARIABLE = "CDC_PLATFORM_STATE"
LAYOUT = 1
MARKER = "platform.json"
"""The file that carries the number of the layout; whoever reads the home can read it."""
# Tried out one by one: Spark takes these of a path for a pattern or a part of an address, Delta for an escape.
_NOT_IN_PATHS = frozenset("[]{}%#?*\\")


@dataclass(frozen=True)
class Home:
    """A home that exists, can be read and has a layout that this version knows. Made by `open_home`.

    `path` is its folder; of one in a store (`address`) the folder of what is this machine's alone.
    """

    path: Path
    address: str | None = None

    @property
    def name(self) -> str:
        """What it is called by: its path or its address."""
        return self.address or str(self.path)

    @property
    def lake(self) -> Path | str:
        """The root of the Delta tables."""
        return self.path / "lake" if self.address is None else f"{self.address}/lake"

    @property
    def dagster(self) -> Path:
        """`DAGSTER_HOME`: runs, events and schedules of this home."""
        return self.path / "dagster"

    @cached_property
    def settings(self) -> Settings:
        """The settings of this home, read once."""
        return load_settings(place_of(self.name) / "settings.toml")


def owners_alone(folder: Path) -> Path:
    """A folder that nobody but its owner can look into; made, or closed if it was open to others."""
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_mode & 0o077:
        folder.chmod(0o700)
    return folder


def location(path: str | Path | None = None) -> Place:
    """Where the home at `path`, `$CDC_PLATFORM_HOME` or `./.cdc-platform` is, or would be.

    Raises:
        InputError: it is an address that names no place in a store that is known, or no UTF-8.
    """
    name = path or os.environ.get(VARIABLE) or DEFAULT
    if not is_text(str(name)):
        raise InputError(f"home {str(name)!r} is not UTF-8; choose another with --home or {VARIABLE}")
    return root_of(name)


def is_there(path: str | Path | None = None) -> bool:
    """Whether there is a home at `path`, or what could become one."""
    place = location(path)
    return place.here.exists() if place.here is not None else (place / MARKER).seen() is not None


def state_folder(home: Place) -> Path:
    """Where this machine keeps what is its own of a home: in its folder, or apart where it lies in a store."""
    if home.here is not None:
        return home.here
    address = str(home)
    base = os.environ.get(STATE_VARIABLE) or os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    name = re.sub(r"[^A-Za-z0-9]+", "-", address).strip("-")[-48:]
    digest = hashlib.sha256(address.encode()).hexdigest()[:8]
    return Path(base).expanduser().absolute() / "cdc-platform" / f"{name}-{digest}"


def unmake(home: Home) -> None:
    """Take a home away that was made for nothing: one that holds anything of a lake, or of somebody else, stays."""
    if isinstance(place := place_of(home.name), Stored):
        if not (place / "lake").is_folder():
            (place / MARKER).remove()
        return
    strange = [each.name for each in home.path.iterdir() if each.name not in ("platform.json", "lake", ".lake.turns")]
    if not strange and not any(path.is_file() for path in (home.path / "lake").rglob("*")):
        shutil.rmtree(home.path)


def open_home(path: str | Path | None = None, *, create: bool = True) -> Home:
    """Open (and make, unless told otherwise) the home at `path`, `$CDC_PLATFORM_HOME` or `./.cdc-platform`.

    One that is not to be made need not be writable: it can be looked at, and what writes to it says that it cannot.

    Raises:
        EnvironmentProblem: the home cannot be made, or written to (or read, if it is not to be made), or a newer
            version wrote it.
        InputError: its path has a character that Spark and Delta do not take as it stands.
    """
    place = location(path)
    if isinstance(place, Stored):
        return _open_stored(place, create=create)
    root = place.here
    assert root is not None
    marker = root / MARKER
    mend = f"choose another with --home or {VARIABLE}"
    unfit = sorted(_NOT_IN_PATHS.intersection(str(root)))
    if unfit:
        raise InputError(f"home {root} has {' '.join(unfit)} in its path, which Spark and Delta misread; {mend}")
    try:
        if not root.exists() and not create:
            raise EnvironmentProblem(f"home {root} does not exist; {mend}")
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        writable = os.access(root, os.W_OK | os.X_OK)
        if not writable and (create or not os.access(root, os.R_OK | os.X_OK)):
            what = "writable" if create else "readable"
            raise EnvironmentProblem(f"home {root} is not {what}; change its permissions or {mend}")
        if writable and not marker.exists():
            drafts.write(marker, json.dumps({"layout": LAYOUT}) + "\n")
        layout = json.loads(marker.read_text(encoding="utf-8"))["layout"] if writable or marker.exists() else LAYOUT
    except OSError as error:
        if is_full(error):
            raise no_space(root) from None
        raise EnvironmentProblem(f"home {root} cannot be used: {error.strerror}; {mend}") from None
    except (ValueError, KeyError, TypeError):
        raise _damaged(marker, mend) from None
    _refuse_newer(root, layout, mend)
    return Home(root)


def _open_stored(place: Stored, *, create: bool) -> Home:
    mend = f"choose another with --home or {VARIABLE}"
    marker = place / MARKER
    try:
        if create and marker.seen() is None:
            marker.create(f"{json.dumps({'layout': LAYOUT})}\n".encode())
        layout = json.loads(marker.read())["layout"]
    except FileNotFoundError:
        what = f"home {place}" if place.has_bucket() else f"the bucket {place.root}"
        raise EnvironmentProblem(f"{what} does not exist; {mend}") from None
    except PlatformError:
        raise  # of the store, not of what the file holds; some are ValueErrors
    except (ValueError, KeyError, TypeError):
        raise _damaged(marker, mend) from None
    _refuse_newer(place, layout, mend)
    folder = state_folder(place)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        owners_alone(folder)
    except OSError as error:
        raise EnvironmentProblem(
            f"{folder}, where this machine keeps its own part of home {place}, cannot be made: {error.strerror}; name "
            f"another folder with {STATE_VARIABLE}"
        ) from None
    return Home(folder, str(place))


def _damaged(marker: Path | Place, mend: str) -> EnvironmentProblem:
    return EnvironmentProblem(f'{marker} is damaged: it must hold {{"layout": {LAYOUT}}}; {mend}')


def _refuse_newer(root: Path | Place, layout: object, mend: str) -> None:
    if not isinstance(layout, int) or layout > LAYOUT:
        raise NewerLayout(
            f"home {root} has layout {layout}, written by a newer version; this one knows up to {LAYOUT}: upgrade, "
            f"or {mend}"
        )
