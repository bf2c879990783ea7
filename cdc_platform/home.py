"""Locate and open homes: `<home>/lake/<keyspace>/<table>`, `<home>/dagster`, `<home>/settings.toml`.

A home is a folder or a prefix of an object store. A home in a store keeps machine-local state (Dagster's storage,
sockets, logs) in a local folder, see `local_state_folder`. `platform.json` holds the layout number; a newer one is
refused. Only the owner can read a new home: its content decides what runs under the owner's name.
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

from cdc_platform.errors import (
    EnvironmentProblem,
    InputError,
    NewerLayout,
    PlatformError,
    disk_full_error,
    is_disk_full,
    is_valid_utf8,
)
from cdc_platform.settings import Settings, load_settings
from cdc_platform.storage import ObjectStorePath, StoragePath, atomic, parse_path, parse_root

HOME_VARIABLE = "CDC_PLATFORM_HOME"
DEFAULT_HOME = ".cdc-platform"
STATE_VARIABLE = "CDC_PLATFORM_STATE"
LAYOUT_VERSION = 1
MARKER_FILE = "platform.json"
"""The file that carries the number of the layout; whoever reads the home can read it."""
# Tried out one by one: Spark takes these of a path for a pattern or a part of an address, Delta for an escape.
_FORBIDDEN_CHARACTERS = frozenset("[]{}%#?*\\")


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
        return load_settings(parse_path(self.name) / "settings.toml")


def make_private_folder(folder: Path) -> Path:
    """A folder that nobody but its owner can look into; made, or closed if it was open to others."""
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_mode & 0o077:
        folder.chmod(0o700)
    return folder


def locate_home(path: str | Path | None = None) -> StoragePath:
    """Where the home at `path`, `$CDC_PLATFORM_HOME` or `./.cdc-platform` is, or would be.

    Raises:
        InputError: it is an address that names no place in a store that is known, or no UTF-8.
    """
    name = path or os.environ.get(HOME_VARIABLE) or DEFAULT_HOME
    if not is_valid_utf8(str(name)):
        raise InputError(f"home {str(name)!r} is not UTF-8; choose another with --home or {HOME_VARIABLE}")
    return parse_root(name)


def home_exists(path: str | Path | None = None) -> bool:
    """Whether there is a home at `path`, or what could become one."""
    place = locate_home(path)
    return place.here.exists() if place.here is not None else (place / MARKER_FILE).seen() is not None


def local_state_folder(home: StoragePath) -> Path:
    """Where this machine keeps what is its own of a home: in its folder, or apart where it lies in a store."""
    if home.here is not None:
        return home.here
    address = str(home)
    base = os.environ.get(STATE_VARIABLE) or os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    name = re.sub(r"[^A-Za-z0-9]+", "-", address).strip("-")[-48:]
    digest = hashlib.sha256(address.encode()).hexdigest()[:8]
    return Path(base).expanduser().absolute() / "cdc-platform" / f"{name}-{digest}"


def remove_empty_home(home: Home) -> None:
    """Take a home away that was made for nothing: one that holds anything of a lake, or of somebody else, stays."""
    if isinstance(place := parse_path(home.name), ObjectStorePath):
        if not (place / "lake").is_folder():
            (place / MARKER_FILE).remove()
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
    place = locate_home(path)
    if isinstance(place, ObjectStorePath):
        return _open_store_home(place, create=create)
    root = place.here
    assert root is not None
    marker = root / MARKER_FILE
    mend = f"choose another with --home or {HOME_VARIABLE}"
    unfit = sorted(_FORBIDDEN_CHARACTERS.intersection(str(root)))
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
            atomic.write_text_atomically(marker, json.dumps({"layout": LAYOUT_VERSION}) + "\n")
        layout = (
            json.loads(marker.read_text(encoding="utf-8"))["layout"] if writable or marker.exists() else LAYOUT_VERSION
        )
    except OSError as error:
        if is_disk_full(error):
            raise disk_full_error(root) from None
        raise EnvironmentProblem(f"home {root} cannot be used: {error.strerror}; {mend}") from None
    except (ValueError, KeyError, TypeError):
        raise _damaged_marker_error(marker, mend) from None
    _refuse_newer_layout(root, layout, mend)
    return Home(root)


def _open_store_home(place: ObjectStorePath, *, create: bool) -> Home:
    mend = f"choose another with --home or {HOME_VARIABLE}"
    marker = place / MARKER_FILE
    try:
        if create and marker.seen() is None:
            marker.create(f"{json.dumps({'layout': LAYOUT_VERSION})}\n".encode())
        layout = json.loads(marker.read())["layout"]
    except FileNotFoundError:
        what = f"home {place}" if place.has_bucket() else f"the bucket {place.root}"
        raise EnvironmentProblem(f"{what} does not exist; {mend}") from None
    except PlatformError:
        raise  # of the store, not of what the file holds; some are ValueErrors
    except (ValueError, KeyError, TypeError):
        raise _damaged_marker_error(marker, mend) from None
    _refuse_newer_layout(place, layout, mend)
    folder = local_state_folder(place)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        make_private_folder(folder)
    except OSError as error:
        raise EnvironmentProblem(
            f"{folder}, where this machine keeps its own part of home {place}, cannot be made: {error.strerror}; name "
            f"another folder with {STATE_VARIABLE}"
        ) from None
    return Home(folder, str(place))


def _damaged_marker_error(marker: Path | StoragePath, mend: str) -> EnvironmentProblem:
    return EnvironmentProblem(f'{marker} is damaged: it must hold {{"layout": {LAYOUT_VERSION}}}; {mend}')


def _refuse_newer_layout(root: Path | StoragePath, layout: object, mend: str) -> None:
    if not isinstance(layout, int) or layout > LAYOUT_VERSION:
        raise NewerLayout(
            f"home {root} has layout {layout}, written by a newer version; this one knows up to "
            f"{LAYOUT_VERSION}: upgrade, "
            f"or {mend}"
        )
