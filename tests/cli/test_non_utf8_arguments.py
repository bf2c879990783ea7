"""Arguments that are not UTF-8, in every position of every command: one line, exit code 2, and no change."""

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
"""Python's form of the byte 0xff in an argument."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty home."""
    open_home_location(tmp_path / "home", create=True)
    return tmp_path / "home"


def command_at(path: str) -> click.Command:
    """Return a command by its path."""
    command: click.Command = program
    for name in path.split():
        assert isinstance(command, click.Group)
        inner = command.get_command(click.Context(command), name)
        assert inner is not None
        command = inner
    return command


@pytest.mark.parametrize("path", sorted(paths_of(program)))
def test_foreign_bytes_are_refused_in_one_line(path: str, home: Path) -> None:
    """The invalid bytes are an argument, a surplus argument, and the value of each option."""
    options = [option for option in command_at(path).params if isinstance(option, click.Option) and not option.is_flag]
    before = listing(home)
    for more in ([BYTES], ["x", BYTES], *([option.opts[-1], BYTES] for option in options)):
        answer = run("--home", home, *path.split(), *more)
        assert (answer.exit_code, answer.stdout, answer.stderr.count("\n")) == (2, "", 1), answer
        assert "is not UTF-8" in answer.stderr
        assert "\udcff" not in answer.stderr
    assert listing(home) == before


@pytest.mark.parametrize("more", [("--home", BYTES, "status"), ("--clock", BYTES, "status"), (BYTES,), (f"--{BYTES}",)])
def test_foreign_bytes_before_a_command_are_refused(more: tuple[str, ...]) -> None:
    """Invalid bytes in the options of the program and in a command's name are refused."""
    answer = run(*more)
    assert (answer.exit_code, answer.stderr.count("\n"), "is not UTF-8" in answer.stderr) == (2, 1, True), answer


def test_a_home_with_foreign_bytes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment variable with such a path is refused, and nothing is created there."""
    monkeypatch.setenv(HOME_VARIABLE, f"{tmp_path}/{BYTES}")
    for command in (("status",), ("tables", "add", "ks.t", "--ttl", "60"), ("demo",), ("up", "--port", "0")):
        answer = run(*command)
        assert (answer.exit_code, answer.stderr.count("\n"), "is not UTF-8" in answer.stderr) == (2, 1, True), answer
    assert list(tmp_path.iterdir()) == []


def test_a_separate_process_refuses_in_one_line(home: Path) -> None:
    """The bytes are as the system passes them."""
    command = [sys.executable, "-m", "cdc_platform", "--home", str(home), "sql", b"SELECT '\xff'"]
    result = subprocess.run(command, capture_output=True, check=False)
    assert (result.returncode, result.stdout, result.stderr.count(b"\n")) == (2, b"", 1)
    assert result.stderr.startswith(b"error: argument 4, ")
