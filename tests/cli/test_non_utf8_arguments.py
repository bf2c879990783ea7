"""Arguments that are not UTF-8, at every place of every command: one line, exit code 2, and nothing changed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from support.command_line import paths_of, run
from support.files.bad_input import listing

from cdc_platform.cli import program
from cdc_platform.home_location import HOME_VARIABLE, open_home_location

BYTES = "a\udcffb"
"""What Python makes of the byte 0xff in an argument."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty home."""
    open_home_location(tmp_path / "home", create=True)
    return tmp_path / "home"


def command_at(path: str) -> click.Command:
    """A command by its path."""
    found: click.Command = program
    for name in path.split():
        assert isinstance(found, click.Group)
        inner = found.get_command(click.Context(found), name)
        assert inner is not None
        found = inner
    return found


@pytest.mark.parametrize("path", sorted(paths_of(program)))
def test_foreign_bytes_are_refused_in_one_line(path: str, home: Path) -> None:
    """As an argument, as one too many, and as the value of each option."""
    options = [each for each in command_at(path).params if isinstance(each, click.Option) and not each.is_flag]
    before = listing(home)
    for more in ([BYTES], ["x", BYTES], *([each.opts[-1], BYTES] for each in options)):
        answer = run("--home", home, *path.split(), *more)
        assert (answer.exit_code, answer.stdout, answer.stderr.count("\n")) == (2, "", 1), answer
        assert "is not UTF-8" in answer.stderr
        assert "\udcff" not in answer.stderr
    assert listing(home) == before


@pytest.mark.parametrize("more", [("--home", BYTES, "status"), ("--clock", BYTES, "status"), (BYTES,), (f"--{BYTES}",)])
def test_foreign_bytes_before_a_command_are_refused(more: tuple[str, ...]) -> None:
    """The options of the program, and its commands' names."""
    answer = run(*more)
    assert (answer.exit_code, answer.stderr.count("\n"), "is not UTF-8" in answer.stderr) == (2, 1, True), answer


def test_a_home_of_foreign_bytes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which a variable can name as well; nothing is made there."""
    monkeypatch.setenv(HOME_VARIABLE, f"{tmp_path}/{BYTES}")
    for command in (("status",), ("tables", "add", "ks.t", "--ttl", "60"), ("demo",), ("up", "--port", "0")):
        answer = run(*command)
        assert (answer.exit_code, answer.stderr.count("\n"), "is not UTF-8" in answer.stderr) == (2, 1, True), answer
    assert list(tmp_path.iterdir()) == []


def test_a_real_process_says_so_in_one_line(home: Path) -> None:
    """With bytes as the system hands them over."""
    command = [sys.executable, "-m", "cdc_platform", "--home", str(home), "sql", b"SELECT '\xff'"]
    done = subprocess.run(command, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
    assert done.stderr.startswith(b"error: argument 4, ")
