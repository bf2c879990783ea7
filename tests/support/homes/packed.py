"""Homes that earlier releases left, packed in `tests/data/homes`."""

from __future__ import annotations

import json
import sqlite3
import tarfile
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from cdc_platform import home_migration
from cdc_platform.cli.home import _plan_migration
from cdc_platform.home_location import open_home_location
from cdc_platform.storage import parse_path

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


def add_cluster_homes(home: Path, names: Iterable[str]) -> None:
    """Add homes of clusters, without tables and as version 0.2.0 left them, below a home."""
    for name in names:
        folder = home / "clusters" / name
        folder.mkdir(parents=True)
        (folder / "platform.json").write_text('{"layout": 1}\n', encoding="utf-8")
        (folder / "settings.toml").write_text("generation_retry_ms = 5\npolicy = 'strict'\n", encoding="utf-8")


def begin_migration(home: Path, files: int) -> None:
    """Begin a migration of a home in a folder, and end it after it has replaced so many files."""
    root = parse_path(str(home))
    (part,) = _plan_migration(open_home_location(home))
    assert home_migration._begin(root, root / home_migration.MIGRATION_FOLDER, part.steps)
    for number, entry in enumerate(home_migration._read_journal(root / home_migration.MIGRATION_FOLDER)[:files]):
        (home / entry["path"]).write_bytes((home / home_migration.MIGRATION_FOLDER / f"{number}.after").read_bytes())


def stopped_schedules(home: Path) -> list[str]:
    """Return the schedules that a person has stopped, from Dagster's storage in a home."""
    with closing(sqlite3.connect(f"file:{home}/dagster/schedules/schedules.db?mode=ro", uri=True)) as database:
        rows = database.execute("SELECT job_body FROM jobs WHERE status = 'STOPPED'").fetchall()
        rows += database.execute("SELECT instigator_body FROM instigators WHERE status = 'STOPPED'").fetchall()
    return sorted({json.loads(body)["origin"]["job_name"] for (body,) in rows})
