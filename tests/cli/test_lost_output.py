"""Commands whose result nobody takes: a full device, a closed stream, a terminal that cannot show it.

Exit code 2 says that nothing was changed: a command that has committed something never leaves with it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import pytest
from support.command_line import run
from support.homes.every_command import CASES, Asked, ask, home_of, rows_of, words_of, write_files

from cdc_platform.cli import program
from cdc_platform.delta import Lake

SPARK = ("bootstrap {files}/node.json --run", "repair --run")
"""What starts a JVM, which many other tests do."""
ENDS_WITH_ITS_OUTPUT = ("sql", "status", "streams")


def leave(words: list[str], output: TextIO | None, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the program in this process with another standard output; answer with its exit code."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", output)
        with pytest.raises(SystemExit) as left:
            program.main(words)
    assert isinstance(left.value.code, int)
    return left.value.code


def full() -> TextIO:
    """A device that takes nothing."""
    return Path("/dev/full").open("w", encoding="utf-8")


def unread() -> TextIO:
    """A pipe whose reader has left."""
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "w", encoding="utf-8")


def closed() -> None:
    """What Python has where the process was started with `>&-`."""


@pytest.mark.grid("commands without an output", 12)
@pytest.mark.parametrize("output", [full, unread, closed])
@pytest.mark.parametrize("asked", [each for each in CASES if each.line not in SPARK], ids=str)
def test_a_command_does_the_same_without_an_output(
    asked: Asked,
    output: Callable[[], TextIO | None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The home has the same rows as behind the same command that was heard; only a full device changes the code."""
    place = tmp_path / "place"
    place.mkdir()
    home = home_of(asked, place)
    write_files(tmp_path / "before", home.parent)
    for line in asked.behind:
        assert ask(line, asked.ms, str(home), tmp_path / "before").exit_code == 0, line
    heard = Path(shutil.copytree(home, tmp_path / "heard"))
    for name in ("files", "heard files"):
        write_files(tmp_path / name, home.parent)
    own = ask(asked.line, asked.ms, str(heard), tmp_path / "heard files").exit_code
    words = words_of(asked.line, asked.ms, str(home), tmp_path / "files")
    capfd.readouterr()
    code = leave(words, output(), monkeypatch)
    lost = capfd.readouterr().err.count("[result-not-written]")
    assert rows_of(Lake(home / "lake")) == rows_of(Lake(heard / "lake"))
    if output is full and lost:
        assert (code, lost) == (1, 1)
    elif asked.line.split()[0] in ENDS_WITH_ITS_OUTPUT and output is unread:
        assert (code, lost) == (0, 0)
    else:
        assert (code, lost) == (own, 0)
    assert output is not full or lost or not run(*words).stdout


@pytest.mark.parametrize("streams", ["> /dev/full 2> /dev/full", ">&-", ">&- 2>&-", "<&- >&- 2>&-", "2>&-"])
def test_a_change_is_made_whatever_the_standard_streams_are(tmp_path: Path, streams: str) -> None:
    """In a process of its own, whose first files must not get the numbers of the streams."""
    home = tmp_path / "home"
    assert run("--home", home, "tables", "add", "ks.t", "--ttl", "60").exit_code == 0
    command = f"{sys.executable} -m cdc_platform --home {home} tables alter ks.t --ttl 777 {streams}"
    done = subprocess.run(["bash", "-c", command], check=False)
    assert done.returncode == int("full" in streams)
    assert run("--home", home, "tables", "--json").rows[0]["ttl_seconds"] == 777


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_what_a_terminal_cannot_show_is_escaped(tmp_path: Path, encoding: str) -> None:
    """A tick, lines of a table, names of nodes: no failure behind a commit."""
    home = tmp_path / "home"
    command = [sys.executable, "-m", "cdc_platform", "--home", str(home), "tables", "add", "ks.t", "--ttl", "60"]
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    shown = subprocess.run([*command[:5], "tables"], capture_output=True, env=environment, check=False)
    assert shown.returncode == 0
    assert "ks.t" in shown.stdout.decode(encoding)
