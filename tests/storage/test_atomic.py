"""Drafts: held for as long as their owner lives, swept by the next one that passes; files that are whole or absent."""

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


def test_a_draft_lives_as_long_as_its_owner(tmp_path: Path) -> None:
    """However old it is, a living process keeps it; once that was killed the next one that passes removes it."""
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
    """What other programs leave in a shared folder is not ours to remove, whatever it is called."""
    theirs = [tmp_path / name for name in ("notes.draft", ".notes.draft", f".notes.{1:032x}", f"{1:032x}.draft")]
    for path in theirs:
        path.mkdir()
    atomic.discard_draft(atomic.make_draft_folder(tmp_path, "table"))
    atomic.sweep_drafts(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(theirs)


def test_a_file_is_written_at_once(tmp_path: Path) -> None:
    """It has the new text, nothing is left beside it, and what a killed writer left is gone."""
    (tmp_path / f".settings.json.{1:032x}.draft").write_text("{", encoding="utf-8")
    for text in ("old", "new"):
        atomic.write_text_atomically(tmp_path / "settings.json", text)
    assert [(path.name, path.read_text(encoding="utf-8")) for path in tmp_path.iterdir()] == [("settings.json", "new")]


def test_a_secret_is_its_owners_alone_from_the_first_byte_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The draft has the mode before there is anything in it, and the file has it whatever it had before."""
    modes = []
    write_bytes = Path.write_bytes

    def seen(draft: Path, content: bytes) -> int:
        modes.append(stat.S_IMODE(draft.stat().st_mode))
        return write_bytes(draft, content)

    target = tmp_path / "ui.token"
    target.write_text("old")
    target.chmod(0o644)
    monkeypatch.setattr(Path, "write_bytes", seen)
    atomic.write_text_atomically(target, "secret", mode=0o600)
    assert modes == [0o600]
    assert (stat.S_IMODE(target.stat().st_mode), target.read_text()) == (0o600, "secret")


def test_a_file_that_cannot_be_written_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that is there is as it was, and no draft is left."""
    atomic.write_text_atomically(tmp_path / "settings.json", "old")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        atomic.write_text_atomically(tmp_path / "settings.json", "new")
    monkeypatch.undo()
    assert [(path.name, path.read_text(encoding="utf-8")) for path in tmp_path.iterdir()] == [("settings.json", "old")]


def test_a_temporary_folder_is_its_owners_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nobody else looks into it, and it is gone with its block."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with atomic.temporary_folder("cdc-platform") as folder:
        assert folder.parent == tmp_path
        assert folder.stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.iterdir()) == []
