"""Locate and open homes: `<home>/lake/<keyspace>/<table>`, `<home>/dagster`, `<home>/settings.toml`.

A home is a folder or a prefix of an object store. A home in a store keeps machine-local state (Dagster's storage,
sockets, logs) in a local folder, see `local_state_folder`. `platform.json` holds the layout number; a home with a newer
layout is refused. Only the owner can read a new home, because its content decides what runs under the owner's name.
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
LAYOUT_VERSION = 2
MARKER_FILE = "platform.json"
"""The file with the layout's number. Every reader of the home can read it."""
# Tested one by one: in a path, Spark treats these as a pattern or as part of an address, and Delta as an escape.
_FORBIDDEN_CHARACTERS = frozenset("[]{}%#?*\\")


@dataclass(frozen=True)
class HomeLocation:
    """An existing, readable home with a layout that this version supports. Created by `open_home_location`.

    `path` is its folder. For a home in a store (`address`) it is the folder of this machine's local state. `layout` is
    the number in its marker; homes of earlier layouts work without a migration.
    """

    path: Path
    address: str | None = None
    layout: int = LAYOUT_VERSION

    @property
    def name(self) -> str:
        """Return the home's path or address."""
        return self.address or str(self.path)

    @property
    def lake(self) -> Path | str:
        """Return the root of the Delta tables."""
        return self.path / "lake" if self.address is None else f"{self.address}/lake"

    @property
    def dagster(self) -> Path:
        """Return `DAGSTER_HOME`, which holds the runs, events and schedules of this home."""
        return self.path / "dagster"

    @cached_property
    def settings(self) -> Settings:
        """Return the settings of this home, which are read once."""
        return load_settings(parse_path(self.name) / "settings.toml")


def make_private_folder(folder: Path) -> Path:
    """Create a folder that only its owner can access, or restrict the permissions of an existing one, and return it."""
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_mode & 0o077:
        folder.chmod(0o700)
    return folder


def locate_home(path: str | Path | None = None) -> StoragePath:
    """Return the location of the home at `path`, `$CDC_PLATFORM_HOME` or `./.cdc-platform`, whether or not it exists.

    Raises:
        InputError: the address names no location in a known store, or is not UTF-8.
    """
    name = path or os.environ.get(HOME_VARIABLE) or DEFAULT_HOME
    if not is_valid_utf8(str(name)):
        raise InputError(f"home {str(name)!r} is not UTF-8; choose another with --home or {HOME_VARIABLE}")
    return parse_root(name)


def home_exists(path: str | Path | None = None) -> bool:
    """Return True if there is a home at `path`, or a folder that could become one."""
    location = locate_home(path)
    return (
        location.local_path.exists() if location.local_path is not None else (location / MARKER_FILE).stat() is not None
    )


def local_state_folder(home: StoragePath) -> Path:
    """Return this machine's folder for local state: the home, or a separate folder if the home is in a store."""
    if home.local_path is not None:
        return home.local_path
    address = str(home)
    base = os.environ.get(STATE_VARIABLE) or os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    name = re.sub(r"[^A-Za-z0-9]+", "-", address).strip("-")[-48:]
    digest = hashlib.sha256(address.encode()).hexdigest()[:8]
    return Path(base).expanduser().absolute() / "cdc-platform" / f"{name}-{digest}"


def remove_empty_home(home: HomeLocation) -> None:
    """Remove a home that was created needlessly. One that holds any file of a lake, or a foreign file, stays."""
    if isinstance(location := parse_path(home.name), ObjectStorePath):
        if not (location / "lake").is_folder():
            (location / MARKER_FILE).remove()
        return
    foreign = [
        entry.name for entry in home.path.iterdir() if entry.name not in ("platform.json", "lake", ".lake.turns")
    ]
    if not foreign and not any(path.is_file() for path in (home.path / "lake").rglob("*")):
        shutil.rmtree(home.path)


def open_home_location(path: str | Path | None = None, *, create: bool = True) -> HomeLocation:
    """Open the home at `path`, `$CDC_PLATFORM_HOME` or `./.cdc-platform`; create it if `create` is set.

    Without `create` the home need not be writable: it can be read, and writes to it fail with their own message.

    Raises:
        EnvironmentProblem: the home cannot be created or written to (or read, without `create`), or a newer version
            wrote it.
        InputError: its path has a character that Spark and Delta misread.
    """
    location = locate_home(path)
    if isinstance(location, ObjectStorePath):
        return _open_store_home(location, create=create)
    root = location.local_path
    assert root is not None
    marker = root / MARKER_FILE
    remedy = f"choose another with --home or {HOME_VARIABLE}"
    unfit = sorted(_FORBIDDEN_CHARACTERS.intersection(str(root)))
    if unfit:
        raise InputError(f"home {root} has {' '.join(unfit)} in its path, which Spark and Delta misread; {remedy}")
    try:
        if not root.exists() and not create:
            raise EnvironmentProblem(f"home {root} does not exist; {remedy}")
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        writable = os.access(root, os.W_OK | os.X_OK)
        if not writable and (create or not os.access(root, os.R_OK | os.X_OK)):
            what = "writable" if create else "readable"
            raise EnvironmentProblem(f"home {root} is not {what}; change its permissions or {remedy}")
        if writable and not marker.exists():
            atomic.write_text_atomically(marker, json.dumps({"layout": LAYOUT_VERSION}) + "\n")
        layout = (
            json.loads(marker.read_text(encoding="utf-8"))["layout"] if writable or marker.exists() else LAYOUT_VERSION
        )
    except OSError as error:
        if is_disk_full(error):
            raise disk_full_error(root) from None
        raise EnvironmentProblem(f"home {root} cannot be used: {error.strerror}; {remedy}") from None
    except (ValueError, KeyError, TypeError):
        raise _damaged_marker_error(marker, remedy) from None
    return HomeLocation(root, layout=_checked_layout(root, layout, remedy))


def _open_store_home(home: ObjectStorePath, *, create: bool) -> HomeLocation:
    remedy = f"choose another with --home or {HOME_VARIABLE}"
    marker = home / MARKER_FILE
    try:
        if create and marker.stat() is None:
            marker.create(f"{json.dumps({'layout': LAYOUT_VERSION})}\n".encode())
        layout = json.loads(marker.read())["layout"]
    except FileNotFoundError:
        what = f"home {home}" if home.has_bucket() else f"the bucket {home.root}"
        raise EnvironmentProblem(f"{what} does not exist; {remedy}") from None
    except PlatformError:
        raise  # an error of the store and not of the file's content; some are ValueErrors
    except (ValueError, KeyError, TypeError):
        raise _damaged_marker_error(marker, remedy) from None
    layout = _checked_layout(home, layout, remedy)
    folder = local_state_folder(home)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        make_private_folder(folder)
    except OSError as error:
        raise EnvironmentProblem(
            f"{folder}, this machine's local state of home {home}, cannot be created: {error.strerror}; name "
            f"another folder with {STATE_VARIABLE}"
        ) from None
    return HomeLocation(folder, str(home), layout)


def assert_layout_supported(home: StoragePath) -> None:
    """Raise an error if the marker of a home is damaged, or a newer version wrote it. A home without one passes.

    Raises:
        EnvironmentProblem: see above.
    """
    remedy = f"choose another home with --home or {HOME_VARIABLE}"
    try:
        layout = json.loads((home / MARKER_FILE).read())["layout"]
    except FileNotFoundError:
        return
    except PlatformError:
        raise
    except (ValueError, KeyError, TypeError):
        raise _damaged_marker_error(home / MARKER_FILE, remedy) from None
    _checked_layout(home, layout, remedy)


def _damaged_marker_error(marker: Path | StoragePath, remedy: str) -> EnvironmentProblem:
    return EnvironmentProblem(f'{marker} is damaged: it must hold {{"layout": {LAYOUT_VERSION}}}; {remedy}')


def _checked_layout(root: Path | StoragePath, layout: object, remedy: str) -> int:
    if not isinstance(layout, int) or layout > LAYOUT_VERSION:
        raise NewerLayout(
            f"home {root} has layout {layout}, written by a newer version; this version supports up to "
            f"{LAYOUT_VERSION}: upgrade, "
            f"or {remedy}"
        )
    return layout
