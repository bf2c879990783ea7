"""Homes that earlier releases left, as they are packed in `tests/data/homes`."""

from __future__ import annotations

import tarfile
from pathlib import Path

PACKED = Path(__file__).resolve().parents[2] / "data" / "homes"


def unpack(release: str, folder: Path) -> Path:
    """Unpack the homes of a release below a folder."""
    with tarfile.open(PACKED / f"{release}.tar.xz") as packed:
        # Python 3.11 knows of filters from 3.11.4 on, and Debian 12 has 3.11.2; from 3.14 on this one is used anyway.
        packed.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
        packed.extractall(folder)
    return folder
