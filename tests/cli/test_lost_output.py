"""Commands whose output is lost: a full device, a closed stream, a terminal that cannot display it.

Exit code 2 means that nothing was changed, so a command that committed something never exits with it.
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
"""Commands that start a JVM, which many other tests do."""
ENDS_WITH_ITS_OUTPUT = ("sql", "status", "streams")


def run_with_output(words: list[str], output: TextIO | None, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the program in this process with another standard output and return its exit code."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", output)
        with pytest.raises(SystemExit) as exited:
            program.main(words)
    assert isinstance(exited.value.code, int)
    return exited.value.code


def full() -> TextIO:
    """Return a full device."""
    return Path("/dev/full").open("w", encoding="utf-8")


def unread() -> TextIO:
    """Return a pipe whose reader is closed."""
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "w", encoding="utf-8")


def closed() -> None:
    """Return None, as Python has in a process started with `>&-`."""


@pytest.mark.grid("commands without an output", 12)
@pytest.mark.parametrize("output", [full, unread, closed])
@pytest.mark.parametrize("asked", [case for case in CASES if case.line not in SPARK], ids=str)
def test_a_command_does_the_same_without_an_output(
    asked: Asked,
    output: Callable[[], TextIO | None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The command writes the rows that it writes with an output; only a full device changes the exit code."""
    folder = tmp_path / "place"
    folder.mkdir()
    home = home_of(asked, folder)
    write_files(tmp_path / "before", home.parent)
    for line in asked.behind:
        assert ask(line, asked.ms, str(home), tmp_path / "before").exit_code == 0, line
    reference_home = Path(shutil.copytree(home, tmp_path / "heard"))
    for name in ("files", "heard files"):
        write_files(tmp_path / name, home.parent)
    expected_code = ask(asked.line, asked.ms, str(reference_home), tmp_path / "heard files").exit_code
    words = words_of(asked.line, asked.ms, str(home), tmp_path / "files")
    capfd.readouterr()
    code = run_with_output(words, output(), monkeypatch)
    lost = capfd.readouterr().err.count("[result-not-written]")
    assert rows_of(Lake(home / "lake")) == rows_of(Lake(reference_home / "lake"))
    if output is full and lost:
        assert (code, lost) == (1, 1)
    elif asked.line.split()[0] in ENDS_WITH_ITS_OUTPUT and output is unread:
        assert (code, lost) == (0, 0)
    else:
        assert (code, lost) == (expected_code, 0)
    assert output is not full or lost or not run(*words).stdout


@pytest.mark.parametrize("streams", ["> /dev/full 2> /dev/full", ">&-", ">&- 2>&-", "<&- >&- 2>&-", "2>&-"])
def test_a_change_is_made_with_any_standard_streams(tmp_path: Path, streams: str) -> None:
    """A separate process's first files must not get the descriptors of the streams."""
    home = tmp_path / "home"
    assert run("--home", home, "tables", "add", "ks.t", "--ttl", "60").exit_code == 0
    command = f"{sys.executable} -m cdc_platform --home {home} tables alter ks.t --ttl 777 {streams}"
    result = subprocess.run(["bash", "-c", command], check=False)
    assert result.returncode == int("full" in streams)
    assert run("--home", home, "tables", "--json").rows[0]["ttl_seconds"] == 777


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_characters_that_a_terminal_cannot_display_are_escaped(tmp_path: Path, encoding: str) -> None:
    """A tick, a table's lines and nodes' names cause no failure after a commit."""
    home = tmp_path / "home"
    command = [sys.executable, "-m", "cdc_platform", "--home", str(home), "tables", "add", "ks.t", "--ttl", "60"]
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    result = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert (result.returncode, result.stderr) == (0, b"")
    printed = subprocess.run([*command[:5], "tables"], capture_output=True, env=environment, check=False)
    assert printed.returncode == 0
    assert "ks.t" in printed.stdout.decode(encoding)
