"""Files of a home that Dagster's UI shows, pictures and pages: where they lie, and which address they have there.

They are made from what the tables say and can be made again; nothing reads them but people.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from cdc_platform import drafts

FOLDER = "shown"
"""In a home; and the first part of their addresses."""
PREFIX_VARIABLE = "CDC_PLATFORM_UI_PREFIX"
"""The path below which a proxy has the UI, where there is one."""
PICTURES, REPORTS = "pictures", "reports"
_NAMES = {PICTURES: re.compile(r"[0-9a-f]{32}\.png"), REPORTS: re.compile(r"\w[\w.-]{0,120}\.html", re.ASCII)}
_TIME = re.compile(r"(\d{4}-\d{2}-\d{2}T\d{2})-(\d{2})(?:-(\d{2}))?(?=\D|$)")


@dataclass(frozen=True)
class Shown:
    """A file, which may be there or not, and its address in the UI."""

    file: Path
    address: str


def picture(home: Path, png: bytes) -> Shown:
    """Keep a picture, named by its bytes: the same one is kept once.

    Raises:
        OSError: it cannot be written.
    """
    found = _at(home, PICTURES, f"{blake2b(png, digest_size=16).hexdigest()}.png")
    if not found.file.exists():
        found.file.parent.mkdir(parents=True, exist_ok=True)
        drafts.write_bytes(found.file, png)
    return found


def report(home: Path, key: str) -> Shown | None:
    """Where the page of a generation is, or would be; None where its key is no name for a file."""
    name = f"{key.replace(':', '-')}.html"
    return _at(home, REPORTS, name) if _NAMES[REPORTS].fullmatch(name) else None


def key_of(report_name: str) -> str:
    """What the generation is called that a page is named after: its key, or another name for it."""
    name = report_name.removesuffix(".html")
    time = _TIME.match(name)
    return name if time is None else f"{':'.join(part for part in time.groups() if part)}{name[time.end() :]}"


def found(home: Path, path: str) -> Path | None:
    """The file of an address without the prefix; None where no file can have it. It need not be there."""
    parts = path.split("/")
    if len(parts) != 4 or parts[:2] != ["", FOLDER] or parts[2] not in _NAMES:
        return None
    return _at(home, parts[2], parts[3]).file if _NAMES[parts[2]].fullmatch(parts[3]) else None


def _at(home: Path, kind: str, name: str) -> Shown:
    return Shown(home / FOLDER / kind / name, f"{os.environ.get(PREFIX_VARIABLE, '')}/{FOLDER}/{kind}/{name}")
