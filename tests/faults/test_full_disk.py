"""A full disk: the command prints one line, leaves the home unchanged, and succeeds once there is space."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command_line import run
from support.files.export_files import TIME_MS, generation, streams_csv, timestamps_csv
from support.files.small_disk import small_disk

from cdc_platform.clock import Clock, Microseconds
from cdc_platform.delta import Lake
from cdc_platform.delta.errors import translate_error
from cdc_platform.errors import Unavailable
from cdc_platform.metastore import cdc_tables
from cdc_platform.storage import write_check
from cdc_platform.tables import TABLES

DISK = 4 * 1024 * 1024
COMMANDS = [("import", "{files}"), ("tables", "alter", "ks.t", "--ttl", "70")]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a small disk for one test."""
    with small_disk(tmp_path / "disk", DISK) as path:
        yield path


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Write exports of a generation."""
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "streams.csv").write_text(streams_csv({TIME_MS: generation()}), newline="")
    (folder / "times.csv").write_text(timestamps_csv({TIME_MS: None}), newline="")
    return folder


def fill_disk(disk: Path, free: int) -> Path:
    """Fill the disk up to `free` bytes; return the file that fills it."""
    filler = disk / "filler"
    space = os.statvfs(disk)
    with filler.open("wb") as file:
        file.write(b"\0" * max(space.f_bavail * space.f_frsize - free, 0))
    return filler


def contents(home: Path) -> dict[str, list[dict[str, object]]]:
    """Return the rows of every existing table."""
    lake = Lake(home / "lake")
    return {name: lake.read(table).to_pylist() for name, table in TABLES.items() if lake.exists(table)}


@pytest.mark.parametrize("free", [0, 4096, 12 * 1024, 200 * 1024])
def test_full_disk_is_reported_and_changes_nothing(disk: Path, files: Path, free: int) -> None:
    """On a full disk each command prints one line and changes nothing; with free space both succeed."""
    # Each command runs in its own process, so a line printed by a library's thread would show.
    home = disk / "home"
    clock = Clock(Microseconds(TIME_MS * 1000 + 5_000_000))
    cdc_tables.add_cdc_table(Lake(home / "lake"), clock, "ks", "t", ttl_seconds=60)
    run("--home", home, "tables")
    before = contents(home)
    filler = fill_disk(disk, free)
    program = [sys.executable, "-m", "cdc_platform", "--home", str(home)]
    for command in COMMANDS:
        words = [word.format(files=files) for word in command]
        done = subprocess.run([*program, *words], capture_output=True, text=True, timeout=120)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert "no space left on " in done.stderr
        assert "; free some and run again" in done.stderr
        assert contents(home) == before
    filler.unlink()
    for command in COMMANDS:
        assert run("--home", home, *(word.format(files=files) for word in command)).exit_code == 0


def test_failed_creation_of_a_home_is_reported(disk: Path) -> None:
    """Failing to create a home on a full disk leaves nothing that blocks the next attempt."""
    filler = fill_disk(disk, 0)
    answer = run("--home", disk / "home", "tables", "add", "ks.t", "--ttl", "60")
    assert answer.exit_code == 2
    assert "; free some and run again" in answer.stderr
    filler.unlink()
    assert run("--home", disk / "home", "tables", "add", "ks.t", "--ttl", "60").exit_code == 0


def test_full_disk_during_a_write_is_reported(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the check of free space, the store's error is translated and the table stays unchanged."""
    lake = Lake(disk / "lake")
    cdc_tables.add_cdc_table(lake, Clock(Microseconds(TIME_MS * 1000)), "ks", "t", ttl_seconds=60)
    before = contents(disk)
    monkeypatch.setattr(write_check, "_assert_disk_space", lambda *_: None)
    for free in (0, 4096):
        filler = fill_disk(disk, free)
        with pytest.raises(Unavailable, match=r"writing platform\.\w+: no space left on .*; free some and run again"):
            cdc_tables.alter_cdc_table(lake, Clock(Microseconds(TIME_MS * 1000 + 1)), "ks", "t", ttl_seconds=70)
        filler.unlink()
        assert contents(disk) == before


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device", "/lake/t/part-0.parquet"),
        OSError(122, "Disk quota exceeded", "/lake/t/part-0.parquet"),
        OSError('Unable to copy data to file "/lake/t/part-0.parquet": No space left on device (os error 28)'),
        Exception("Generic LocalFileSystem error: /lake/t/part-0.parquet: Disk quota exceeded (os error 122)"),
    ],
    ids=["full", "quota", "text", "engine"],
)
def test_every_full_disk_is_reported_alike(error: Exception) -> None:
    """Translate full disks and exceeded quotas, reported by the system or by a store, into one message."""
    translated = translate_error(error, "writing t")
    assert isinstance(translated, Unavailable)
    assert str(translated).startswith("writing t: no space left on /lake/t")
    assert str(translated).endswith("; free some and run again")
