"""Every door that reads a user's file, times what is too large or too deep: one line, exit code 2, bounded memory.

Each in a process of its own, whose memory the system tells. What is in a file that fits is other tests' subject.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.command_line import run
from support.processes.watched import Left, watched

from cdc_platform.home import open_home
from cdc_platform.sources.sizes import MOST_JSON, most_export

TERABYTE = 1 << 40
MOST_HELD = 512 << 20
"""Bytes that a process may hold that reads 64 MiB and refuses them; without them it is a third of that."""
A_DOOR = pytest.mark.grid("hostile files at every door", 16)


@dataclass(frozen=True)
class Door:
    """A command line with `{file}` in it, what it reads there, and, where it fails before, what has to be there."""

    command: tuple[str, ...]
    reads: str = "json"
    by_stream: bool = False
    needs: Mapping[str, str] | None = None


CREATE = "CREATE KEYSPACE ks; CREATE TABLE ks.t (pk int PRIMARY KEY, v text) WITH cdc = {'enabled': true};"
INSERT = f"{CREATE} INSERT INTO ks.t (pk, v) VALUES (?, ?);"
CHANGES = '[{"wait": 3600}]'
DOORS = {
    "bootstrap": Door(("bootstrap", "{file}")),
    "bootstrap -": Door(("bootstrap", "-"), by_stream=True),
    "import": Door(("import", "{file}")),
    "import, an export": Door(("import", "{file}"), "csv"),
    "import, what SELECT JSON prints": Door(("import", "{file}"), "printed"),
    "import, a schema": Door(("import", "{file}"), "schema"),
    "import, what nodetool prints": Door(("import", "{file}"), "ring"),
    "rehearse": Door(("rehearse", "{file}")),
    "rehearse --ring": Door(("rehearse", "{dir}/changes.json", "--ring", "{file}"), needs={"changes.json": CHANGES}),
    "log": Door(("log", "{file}"), "cql"),
    "log --keep": Door(("log", "{file}", "--keep"), "cql"),
    "log --values": Door(("log", "{dir}/a.cql", "--values", "{file}"), "values", needs={"a.cql": INSERT}),
    "tablets create": Door(("tablets", "create", "ks.t", "--ends", "{file}")),
    "tablets create -": Door(("tablets", "create", "ks.t", "--ends", "-"), by_stream=True),
    "tablets resize": Door(("tablets", "resize", "ks.t", "--ends", "{file}")),
    "credentials": Door(("observe", "credentials"), "toml"),
    "certificates": Door(("observe", "ca"), "pem"),
}


def hollow(folder: Path) -> Path:
    """A file of a size that takes no disk: all zeros."""
    path = folder / "huge"
    path.touch(mode=0o600)
    os.truncate(path, TERABYTE)
    return path


def of_text(text: str) -> Callable[[Path], Path]:
    """A file with this text."""

    def write(folder: Path) -> Path:
        path = folder / "given"
        path.touch(mode=0o600)
        path.write_text(text, encoding="utf-8")
        return path

    return write


def deep(form: str, levels: int) -> str:
    """As many levels of what the door reads, one in the other."""
    around = {
        "json": ("", "[", "1", "]", ""),
        "values": ("[[[1, ", "[", "1", "]", "]]]"),
        "cql": (f"{CREATE} INSERT INTO ks.t (pk, v) VALUES (", "[", "1", "]", ", 'a');"),
        "csv": ("id,range_end,ignore_msb,num_ranges,streams\n", "{", "0x00", "}", ""),
        "printed": (" [json]\n------\n ", "[", "1", "]", "\n\n(1 rows)\n"),
        "schema": ("CREATE TABLE ks.t (a ", "frozen<list<", "int", ">>", ") WITH cdc = {'enabled': true};"),
        "ring": ("TokenRange: \n\tTokenRange(start_token:1, endpoints:", "[", "", "]", "\n"),
        "toml": ("user = ", "[", "1", "]", "\n"),
        "pem": ("", "-----BEGIN CERTIFICATE-----\n", "", "-----END CERTIFICATE-----\n", ""),
    }[form]
    before, opening, middle, closing, after = around
    return f"{before}{opening * levels}{middle}{closing * levels}{after}"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty home."""
    home = tmp_path / "home"
    open_home(home, create=True)
    return home


def prepared(home: Path, file: Path, door: Door) -> list[str]:
    """A door's command line for a file, with all that it needs beside it."""
    folder = home.parent
    for name, text in (door.needs or {}).items():
        (folder / name).write_text(text)
    if door.reads in ("toml", "pem"):
        option = ("--credentials-file",) if door.reads == "toml" else ("--tls", "--tls-ca")
        name = door.command[1]
        assert run("--home", home, "cluster", "add", name, "--contact", "127.0.0.1:1", *option, file).exit_code == 0
    return [part.format(file=file, dir=folder) for part in door.command]


def process(home: Path, file: Path, door: Door) -> Left:
    """Run a door's command on a file as a user does."""
    command = prepared(home, file, door)
    with file.open("rb") as stream:
        return watched("--home", home, *command, stream=stream if door.by_stream else None)


def assert_refused(left: Left) -> None:
    """One line that begins with `error:`, exit code 2, no more memory than that."""
    assert left.stderr.count("\n") == 1, left.stderr[:2_000]
    assert left.stderr.startswith("error: ")
    assert len(left.stderr) < 700
    assert (left.exit_code, left.held < MOST_HELD) == (2, True), left


@A_DOOR
@pytest.mark.parametrize("name", DOORS)
def test_what_is_too_large_is_refused(home: Path, tmp_path: Path, name: str) -> None:
    """A terabyte: no more is read of it than may be."""
    left = process(home, hollow(tmp_path), DOORS[name])
    assert_refused(left)
    assert "more than" in left.stderr


@A_DOOR
@pytest.mark.parametrize("name", DOORS)
def test_what_has_no_end_is_refused(home: Path, name: str) -> None:
    """A device that never ends and has no size to look at."""
    door = DOORS[name]
    if door.command[0] == "import" and most_export() > MOST_JSON * 4:
        pytest.skip("it would read a tenth of this machine's memory")
    if door.reads == "toml":
        pytest.skip("others can read the device, which is refused before it is opened")
    left = process(home, Path("/dev/zero"), door)
    assert_refused(left)
    assert "more than" in left.stderr


@A_DOOR
@pytest.mark.parametrize("name", DOORS)
def test_what_is_too_deep_is_refused(home: Path, tmp_path: Path, name: str) -> None:
    """Far beyond what Python bears."""
    left = process(home, of_text(deep(DOORS[name].reads, 100_000))(tmp_path), DOORS[name])
    assert_refused(left)
    assert DOORS[name].reads not in ("json", "values") or "nested" in left.stderr


@pytest.mark.parametrize("levels", [200, 970])
@pytest.mark.parametrize("name", [name for name, door in DOORS.items() if door.reads in ("json", "values", "cql")])
def test_what_python_can_just_read_is_refused(home: Path, tmp_path: Path, name: str, levels: int) -> None:
    """Just below its limit, where reading works and showing would not."""
    door, text = DOORS[name], deep(DOORS[name].reads, levels)
    arguments = prepared(home, of_text(text)(tmp_path), door)
    answer = run("--home", home, *arguments, stdin=text if door.by_stream else None)
    assert (answer.exit_code, answer.stderr.count("\n")) == (2, 1), answer.stderr[:2_000]
    assert door.reads == "cql" or "nested" in answer.stderr


@A_DOOR
@pytest.mark.parametrize("name", [name for name, door in DOORS.items() if door.reads in ("json", "values")])
def test_what_fits_takes_bounded_memory(home: Path, tmp_path: Path, name: str) -> None:
    """Empty lists up to the limit take the most; of exports `test_sizes` has the figure for a row."""
    lists = "[" + "[]," * 21_000_000 + "[]]"
    assert_refused(process(home, of_text(lists)(tmp_path), DOORS[name]))
