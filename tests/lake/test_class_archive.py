"""The archive of loaded classes: made by a first JVM, mapped by later ones, and never a reason for a failure.

The JVM here is a small one, Spark's resolver asked for its version: what is recorded and mapped are its classes.
"""

from __future__ import annotations

import os
import struct
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from cdc_platform.lake.class_archive import SWITCH, archive_options
from cdc_platform.lake.jars import spark_home
from cdc_platform.lake.java import find_java

IVY = next(spark_home().joinpath("jars").glob("ivy-*.jar"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An archive folder that is not there yet."""
    return tmp_path / "classes"


def options(folder: Path, *, record: bool = True) -> list[str]:
    """The options that a session with this class path would get."""
    return archive_options(folder, find_java(), [IVY], record=record)


def run(given: list[str]) -> subprocess.CompletedProcess[str]:
    """Run the small JVM with these options and a log of where its classes come from."""
    command = [find_java().executable, *given, "-Xlog:class+load:stdout", "-cp", str(IVY), "org.apache.ivy.Main"]
    return subprocess.run([*command, "-version"], capture_output=True, text=True, timeout=120, check=False)


def test_the_second_start_maps_what_the_first_one_recorded(folder: Path) -> None:
    """The first run writes the archive as it ends; the second finds its classes in it."""
    recording = options(folder)
    assert any("ArchiveClassesAtExit" in option for option in recording)
    assert run(recording).returncode == 0
    using = options(folder)
    assert any("SharedArchiveFile" in option for option in using)
    assert "org.apache.ivy.Main source: shared objects file (top)" in run(using).stdout
    assert len(list(folder.iterdir())) == 1
    assert options(folder, record=False) == using


def test_first_starts_at_once_do_not_disturb_each_other(folder: Path) -> None:
    """Each records a draft of its own; one becomes the archive, the others go."""
    first, second = options(folder), options(folder)
    assert first != second
    run(first)
    run(second)
    assert len(list(folder.iterdir())) == 2
    assert any("SharedArchiveFile" in option for option in options(folder))
    assert len(list(folder.iterdir())) == 1


def test_a_half_written_draft_is_never_used(folder: Path) -> None:
    """A JVM that was killed while it recorded leaves a file without a header; it goes when it is old."""
    (recording,) = [option for option in options(folder) if "ArchiveClassesAtExit" in option]
    draft = Path(recording.partition("=")[2])
    draft.write_bytes(bytes(1 << 20))
    assert not any("SharedArchiveFile" in option for option in options(folder))
    assert draft.exists()
    os.utime(draft, (0, 0))
    options(folder)
    assert not draft.exists()


@pytest.mark.parametrize("content", [b"", b"garbage", None], ids=["empty", "garbage", "cut off"])
def test_a_damaged_archive_is_recorded_anew(folder: Path, content: bytes | None) -> None:
    """A JVM dies in an archive that was cut off, so none is handed to it."""
    run(options(folder))
    options(folder)
    (archive,) = folder.iterdir()
    archive.chmod(0o600)
    archive.write_bytes(archive.read_bytes()[:-4096] if content is None else content)
    recording = options(folder)
    assert any("ArchiveClassesAtExit" in option for option in recording)
    assert run(recording).returncode == 0
    assert any("SharedArchiveFile" in option for option in options(folder))


def test_an_archive_belongs_to_one_java_and_one_class_path(folder: Path, tmp_path: Path) -> None:
    """Another build of Java or another JAR records an archive of its own; only the last two are kept."""
    jar = tmp_path / "a.jar"
    java = find_java()
    for age, (changed, content) in enumerate(
        [(java, b"1"), (replace(java, version=java.version + " b2"), b"1"), (java, b"22")]
    ):
        jar.write_bytes(content)
        (recording,) = [
            option for option in archive_options(folder, changed, [jar], record=True) if "ArchiveClasses" in option
        ]
        Path(recording.partition("=")[2]).write_bytes(struct.pack("=I", 0xF00BABA8))
        assert any("SharedArchiveFile" in option for option in archive_options(folder, changed, [jar], record=True))
        for archive in folder.glob("*.jsa"):
            os.utime(archive, (age, age))
    assert len(list(folder.glob("*.jsa"))) == 2


def test_where_writing_is_not_safe_there_is_no_archive(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that others can write to could hold anybody's classes; and it can be turned off."""
    folder.mkdir()
    folder.chmod(0o777)
    assert options(folder) == []
    folder.chmod(0o700)
    assert options(folder) != []
    monkeypatch.setenv(SWITCH, "0")
    assert options(folder) == []
    monkeypatch.delenv(SWITCH)
    assert (
        archive_options(folder / "file" / "x", replace(find_java(), version="Eclipse OpenJ9 VM"), [], record=True) == []
    )
    (folder / "file").write_text("", encoding="utf-8")
    assert options(folder / "file") == []
