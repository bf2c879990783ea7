"""Where a platform lives on disk: `<home>/lake/<keyspace>/<table>`, `<home>/dagster`, `<home>/settings.toml`.

The home carries the number of its layout in `platform.json`; a home that a newer version wrote is refused, not guessed.
A new home is its owner's alone: what is in it decides what is run in the owner's name.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cdc_platform import drafts
from cdc_platform.errors import EnvironmentProblem, InputError, is_full, no_space
from cdc_platform.settings import Settings, load_settings

VARIABLE = "CDC_PLATFORM_HOME"
DEFAULT = ".cdc-platform"
LAYOUT = 1
# Tried out one by one: Spark takes these of a path for a pattern or a part of an address, Delta for an escape.
_NOT_IN_PATHS = frozenset("[]{}%#?*\\")


@dataclass(frozen=True)
class Home:
    """A home that exists, can be read and has a layout that this version knows. Made by `open_home`."""

    path: Path

    @property
    def lake(self) -> Path:
        """The root of the Delta tables."""
        return self.path / "lake"

    @property
    def dagster(self) -> Path:
        """`DAGSTER_HOME`: runs, events and schedules of this home."""
        return self.path / "dagster"

    @cached_property
    def settings(self) -> Settings:
        """The settings of this home, read once."""
        return load_settings(self.path / "settings.toml")


def owners_alone(folder: Path) -> Path:
    """A folder that nobody but its owner can look into; made, or closed if it was open to others."""
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_mode & 0o077:
        folder.chmod(0o700)
    return folder


def location(path: str | Path | None = None) -> Path:
    """Where the home at `path`, `$CDC_PLATFORM_HOME` or `./.cdc-platform` is, or would be."""
    return Path(path or os.environ.get(VARIABLE) or DEFAULT).expanduser().absolute()


def unmake(home: Home) -> None:
    """Take a home away that was made for nothing: one that holds anything of a lake, or of somebody else, stays."""
    strange = [each.name for each in home.path.iterdir() if each.name not in ("platform.json", "lake", ".lake.turns")]
    if not strange and not any(path.is_file() for path in home.lake.rglob("*")):
        shutil.rmtree(home.path)


def open_home(path: str | Path | None = None, *, create: bool = True) -> Home:
    """Open (and make, unless told otherwise) the home at `path`, `$CDC_PLATFORM_HOME` or `./.cdc-platform`.

    One that is not to be made need not be writable: it can be looked at, and what writes to it says that it cannot.

    Raises:
        EnvironmentProblem: the home cannot be made, or written to (or read, if it is not to be made), or a newer
            version wrote it.
        InputError: its path has a character that Spark and Delta do not take as it stands.
    """
    root = location(path)
    marker = root / "platform.json"
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
        raise EnvironmentProblem(f'{marker} is damaged: it must hold {{"layout": {LAYOUT}}}; {mend}') from None
    if not isinstance(layout, int) or layout > LAYOUT:
        raise EnvironmentProblem(
            f"home {root} has layout {layout}, written by a newer version; this one knows up to {LAYOUT}: upgrade, "
            f"or {mend}"
        )
    return Home(root)
