"""Delta's JARs are fetched once, and never used with other content.

The resolver runs for real; it gets the JARs from a folder, as from a mirror, so these tests need no network.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cdc_platform.errors import EnvironmentProblem
from cdc_platform.spark import CACHE_VARIABLE, DELTA_JARS, get_cache_folder, get_jars, list_missing_jars
from cdc_platform.spark.jars import IVY_SETTINGS_VARIABLE

SETTINGS = """<ivysettings>
  <settings defaultResolver="mirror"/>
  <resolvers>
    <filesystem name="mirror"><artifact pattern="{folder}/[artifact]-[revision].[ext]"/></filesystem>
  </resolvers>
</ivysettings>
"""


@pytest.fixture(scope="module")
def real_jars() -> list[Path]:
    """The JARs of this machine's own cache."""
    return get_jars()


@pytest.fixture
def mirror(tmp_path: Path, real_jars: list[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that serves the JARs, and an empty cache."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    for path in real_jars:
        shutil.copy(path, folder)
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(SETTINGS.format(folder=folder), encoding="utf-8")
    monkeypatch.setenv(IVY_SETTINGS_VARIABLE, str(settings))
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return folder


def test_first_start_fetches_and_later_ones_are_offline(mirror: Path) -> None:
    """Once the cache has the JARs, the repository may be gone; the cache has nothing but the JARs."""
    assert len(list_missing_jars()) == len(DELTA_JARS)
    fetched = get_jars()
    assert list_missing_jars() == []
    shutil.rmtree(mirror)
    assert get_jars() == fetched
    names = {path.name for path in (get_cache_folder() / "jars").iterdir()}
    assert names == {jar.file_name for jar in DELTA_JARS} | {"lock"}


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(b"\0" + path.read_bytes()[1:]),
        lambda path: path.unlink(),
    ],
    ids=["cut off", "changed", "gone"],
)
def test_damaged_jar_is_fetched_again(mirror: Path, damage: Callable[[Path], object]) -> None:
    """The content decides, not the name: one JAR is replaced, the other stays."""
    good, bad = get_jars()
    untouched, content = good.stat().st_mtime_ns, bad.read_bytes()
    damage(bad)
    assert [jar.file_name for jar in list_missing_jars()] == [bad.name]
    get_jars()
    assert bad.read_bytes() == content
    assert good.stat().st_mtime_ns == untouched


def test_wrong_content_from_the_repository_is_discarded(mirror: Path) -> None:
    """Neither a repository nor a proxy can substitute another JAR."""
    (mirror / DELTA_JARS[1].file_name).write_bytes(b"not the JAR")
    with pytest.raises(EnvironmentProblem, match=r"came with sha256 .* instead of .* discarded"):
        get_jars()
    assert DELTA_JARS[1] in list_missing_jars()


def test_offline_first_start_is_one_line(mirror: Path) -> None:
    """The line has the missing JARs, the reason and the remedies."""
    shutil.rmtree(mirror)
    with pytest.raises(EnvironmentProblem, match=r"could not be fetched.*needs the network.*mirror"):
        get_jars()
    assert [path.name for path in (get_cache_folder() / "jars").iterdir()] == ["lock"]


def test_unwritable_cache_is_named(mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line names the folder and the variable that chooses another."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file" / "cache"))
    with pytest.raises(EnvironmentProblem, match=f"cannot be used.*{CACHE_VARIABLE}"):
        get_jars()


def test_concurrent_processes_share_one_fetch(mirror: Path) -> None:
    """All of them get complete JARs."""
    code = (
        "from cdc_platform.spark.jars import get_jars, list_missing_jars; get_jars(); print(len(list_missing_jars()))"
    )
    starts = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [start.communicate(timeout=120)[0] for start in starts] == ["0\n"] * 3


def test_location_of_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The platform's own variable comes first, then the desktop's, then the usual place."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert get_cache_folder() == tmp_path / "own"
    monkeypatch.delenv(CACHE_VARIABLE)
    assert get_cache_folder() == tmp_path / "xdg" / "cdc-platform"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert get_cache_folder() == tmp_path / ".cache" / "cdc-platform"
