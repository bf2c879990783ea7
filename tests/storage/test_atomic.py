"""Drafts stay while their owner lives, and the next process removes abandoned ones; files are complete or absent."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from cdc_platform.storage import atomic

HOLDER = """
import sys, time
from pathlib import Path
from typing import Any
from cdc_platform.storage import atomic
print(atomic.make_draft_folder(Path(sys.argv[1]), "table"), flush=True)
time.sleep(600)
"""


def test_draft_lives_as_long_as_its_owner(tmp_path: Path) -> None:
    """A living process's draft stays at any age; the next process removes that of a killed one."""
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        draft = Path(holder.stdout.readline().strip())
        (draft / "file").write_text("half", encoding="utf-8")
        os.utime(draft, (0, 0))
        atomic.discard_draft(atomic.make_draft_folder(tmp_path, "other"))
        assert (draft / "file").exists()
        holder.send_signal(signal.SIGKILL)
    atomic.discard_draft(atomic.make_draft_folder(tmp_path, "other"))
    assert list(tmp_path.iterdir()) == []


def test_only_drafts_are_swept(tmp_path: Path) -> None:
    """Files of other programs in a shared folder stay, whatever their names."""
    foreign = [tmp_path / name for name in ("notes.draft", ".notes.draft", f".notes.{1:032x}", f"{1:032x}.draft")]
    for path in foreign:
        path.mkdir()
    atomic.discard_draft(atomic.make_draft_folder(tmp_path, "table"))
    atomic.sweep_drafts(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(foreign)


def test_file_is_written_atomically(tmp_path: Path) -> None:
    """It has the new text, no draft remains, and the draft of a killed writer is removed."""
    (tmp_path / f".settings.json.{1:032x}.draft").write_text("{", encoding="utf-8")
    for text in ("old", "new"):
        atomic.write_text_atomically(tmp_path / "settings.json", text)
    assert [(path.name, path.read_text(encoding="utf-8")) for path in tmp_path.iterdir()] == [("settings.json", "new")]


def test_secret_is_private_from_the_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The draft has the mode before it has content, and the file gets it, whatever its mode was."""
    modes = []
    write_bytes = Path.write_bytes

    def record_mode(draft: Path, content: bytes) -> int:
        modes.append(stat.S_IMODE(draft.stat().st_mode))
        return write_bytes(draft, content)

    target = tmp_path / "ui.token"
    target.write_text("old")
    target.chmod(0o644)
    monkeypatch.setattr(Path, "write_bytes", record_mode)
    atomic.write_text_atomically(target, "secret", mode=0o600)
    assert modes == [0o600]
    assert (stat.S_IMODE(target.stat().st_mode), target.read_text()) == (0o600, "secret")


def test_failed_write_leaves_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The existing file stays unchanged, and no draft remains."""
    atomic.write_text_atomically(tmp_path / "settings.json", "old")

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(OSError, match="No space"):
        atomic.write_text_atomically(tmp_path / "settings.json", "new")
    monkeypatch.undo()
    assert [(path.name, path.read_text(encoding="utf-8")) for path in tmp_path.iterdir()] == [("settings.json", "old")]


def test_temporary_folder_is_private(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only its owner may read it, and it is removed when the block exits."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with atomic.temporary_folder("cdc-platform") as folder:
        assert folder.parent == tmp_path
        assert folder.stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.iterdir()) == []
