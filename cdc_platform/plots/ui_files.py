"""Files of a home that Dagster's UI serves, plots and report pages: their paths and addresses.

They derive from the tables and can be made again.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from cdc_platform.storage import atomic

UI_FOLDER = "shown"
"""The folder in a home, and the first part of the files' addresses."""
UI_PREFIX_VARIABLE = "CDC_PLATFORM_UI_PREFIX"
"""The path prefix under which a proxy serves the UI, if any."""
_PLOTS, UI_REPORTS = "pictures", "reports"
_INVARIANTS = "invariants"
_NAME_PATTERNS = {_PLOTS: re.compile(r"[0-9a-f]{32}\.png"), UI_REPORTS: re.compile(r"\w[\w.-]{0,120}\.html", re.ASCII)}
_TIME = re.compile(r"(\d{4}-\d{2}-\d{2}T\d{2})-(\d{2})(?:-(\d{2}))?(?=\D|$)")


@dataclass(frozen=True)
class UiFile:
    """A file, existing or not, and its address in the UI."""

    file: Path
    address: str


def store_plot(home: Path, png: bytes) -> UiFile:
    """Store a plot under the hash of its bytes, so that equal plots are stored once.

    Raises:
        OSError: it cannot be written.
    """
    plot = _ui_file(home, _PLOTS, f"{blake2b(png, digest_size=16).hexdigest()}.png")
    if not plot.file.exists():
        plot.file.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_bytes_atomically(plot.file, png)
    return plot


def report_file(home: Path, key: str) -> UiFile | None:
    """Return the file of a generation's page, existing or not; None if its key is no valid file name."""
    name = f"{key.replace(':', '-')}.html"
    return _ui_file(home, UI_REPORTS, name) if _NAME_PATTERNS[UI_REPORTS].fullmatch(name) else None


def invariant_address(name: str) -> str:
    """Return the address of the page that explains an invariant. It has no file: the declaration is its source."""
    return f"{os.environ.get(UI_PREFIX_VARIABLE, '')}/{UI_FOLDER}/{_INVARIANTS}/{name}.html"


def invariant_from_address(path: str) -> str | None:
    """Return the name of the invariant whose page has an address without the prefix; None for other addresses."""
    parts = path.split("/")
    is_page = len(parts) == 4 and parts[:3] == ["", UI_FOLDER, _INVARIANTS] and parts[3].endswith(".html")
    return parts[3].removesuffix(".html") if is_page else None


def generation_key_from_name(report_name: str) -> str:
    """Return the generation's key, or another name of it, from the name of its page."""
    name = report_name.removesuffix(".html")
    time = _TIME.match(name)
    return name if time is None else f"{':'.join(part for part in time.groups() if part)}{name[time.end() :]}"


def file_from_address(home: Path, path: str) -> Path | None:
    """Return the file, existing or not, of an address without the prefix; None if no file can have the address."""
    parts = path.split("/")
    if len(parts) != 4 or parts[:2] != ["", UI_FOLDER] or parts[2] not in _NAME_PATTERNS:
        return None
    return _ui_file(home, parts[2], parts[3]).file if _NAME_PATTERNS[parts[2]].fullmatch(parts[3]) else None


def _ui_file(home: Path, kind: str, name: str) -> UiFile:
    return UiFile(home / UI_FOLDER / kind / name, f"{os.environ.get(UI_PREFIX_VARIABLE, '')}/{UI_FOLDER}/{kind}/{name}")
