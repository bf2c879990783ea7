"""The plugin that lets tests write to memory: which folders of earlier runs it removes, and when it needs disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support import memory


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that the plugin uses instead of /dev/shm."""
    monkeypatch.setattr(memory, "_IN_MEMORY", tmp_path)
    return tmp_path


def test_only_folders_of_ended_runs_are_removed(folder: Path) -> None:
    """A run locks its folder while its process lives; folders of other programs are never removed."""
    running, finished, other = (folder / name for name in (f"{memory._PREFIX}a", f"{memory._PREFIX}b", "other"))
    for path in (running, finished, other):
        (path / "pytest").mkdir(parents=True)
    lock = memory._lock(running)
    assert lock is not None
    memory._remove_ended_runs()
    assert sorted(path.name for path in folder.iterdir()) == sorted([running.name, other.name])
    os.close(lock)
    memory._remove_ended_runs()
    assert [path.name for path in folder.iterdir()] == [other.name]


def test_programs_and_files_must_fit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files may use the memory that the programs of a run do not need."""
    missing = memory._missing_bytes()
    monkeypatch.setattr(memory, "_PROGRAMS_BYTES", memory._PROGRAMS_BYTES + (1 << 40))
    assert memory._missing_bytes() > max(missing, 1 << 39)
