"""Homes that earlier releases left, packed in `tests/data/homes`."""

from __future__ import annotations

import json
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

PACKED = Path(__file__).resolve().parents[2] / "data" / "homes"


SERVED = "served/2026-11-28"
"""A home with Dagster's runs, events, partitions and a stopped schedule, in the folder `served`."""


def unpack(release: str, folder: Path) -> Path:
    """Unpack the homes of a release below a folder."""
    with tarfile.open(PACKED / f"{release}.tar.xz") as packed:
        # Python 3.11 supports extraction filters from 3.11.4 on, and Debian 12 has 3.11.2; Python 3.14 uses this one by
        # default.
        packed.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
        packed.extractall(folder)
    return folder


def stopped_schedules(home: Path) -> list[str]:
    """Return the schedules that a person has stopped, from Dagster's storage in a home."""
    with closing(sqlite3.connect(f"file:{home}/dagster/schedules/schedules.db?mode=ro", uri=True)) as database:
        rows = database.execute("SELECT job_body FROM jobs WHERE status = 'STOPPED'").fetchall()
        rows += database.execute("SELECT instigator_body FROM instigators WHERE status = 'STOPPED'").fetchall()
    return sorted({json.loads(body)["origin"]["job_name"] for (body,) in rows})
