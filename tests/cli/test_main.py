"""The program around the commands: help, completion, and what becomes of failures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from support.command_line import run

from cdc_platform.cli import main as program_module
from cdc_platform.cli import program
from cdc_platform.cli.main import COMMANDS
from cdc_platform.errors import AuditFailed, StateError, WriteRefused

NAMES = [name for name in COMMANDS if name in program.list_commands(click.Context(program))]


def test_help_lists_every_command_and_loads_none() -> None:
    """`--help` is the same as no command at all."""
    answer = run("--help")
    assert answer.exit_code == 0
    assert run() == answer
    for name in NAMES:
        assert f"\n  {name} " in answer.stdout
    code = (
        "import sys; from cdc_platform.cli.main import program\n"
        "try: program.main(['--help'])\n"
        "finally: print([m for m in sys.modules if m in ('numpy', 'pydantic', 'pyarrow', 'rich')], file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stderr.strip() == "[]"


@pytest.mark.parametrize("name", NAMES)
def test_every_help_shows_an_example(name: str) -> None:
    """Each command says what it does and shows how it is typed."""
    for option in ("--help", "-h"):
        answer = run(name, option)
        assert answer.exit_code == 0
        assert f"Usage: cdc-platform {name}" in answer.stdout
        assert f"\n  Example:\n    cdc-platform {name}" in answer.stdout


def test_commands_of_absent_modules_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command whose module is not installed does not break the others."""
    monkeypatch.setitem(program_module.COMMANDS, "later", ("no_such_module", "Comes later."))
    assert "later" not in run("--help").stdout
    answer = run("later")
    assert answer.exit_code == 2
    assert "No such command 'later'" in answer.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_call_the_program(shell: str) -> None:
    """The script asks `cdc-platform` itself what comes next."""
    answer = run("completion", shell)
    assert answer.exit_code == 0
    assert f"_CDC_PLATFORM_COMPLETE={shell}_complete" in answer.stdout


@pytest.mark.parametrize(
    ("typed", "offered"), [("gen", "generations"), ("explain --po", "--policy"), ("com", "completion")]
)
def test_completion_completes(typed: str, offered: str) -> None:
    """Commands and options are completed."""
    words = f"cdc-platform {typed}"
    env = {"_CDC_PLATFORM_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    result = CliRunner().invoke(program, [], env=env)
    assert offered in result.output


@pytest.mark.parametrize(
    ("error", "exit_code", "line"),
    [
        (StateError("an earlier join\n  is unfinished"), 2, "error: an earlier join is unfinished"),
        (WriteRefused("FUTURE", "too far ahead"), 1, "error: too far ahead"),
        (AuditFailed("row_count is violated"), 1, "error: row_count is violated"),
        (PermissionError(13, "Permission denied", "/x"), 2, "error: /x: Permission denied"),
        (
            ValueError("boom"),
            70,
            "error: this is a defect of cdc-platform: ValueError: boom; cdc-platform --debug ring",
        ),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_every_failure_is_one_line_and_a_code(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, exit_code: int, line: str
) -> None:
    """Errors that are meant are told as they are; all others are owned up to as defects; none shows a trace."""

    @click.command()
    def failing() -> None:
        raise error

    monkeypatch.setattr(program, "get_command", lambda ctx, name: failing)
    answer = run("ring")
    assert answer.exit_code == exit_code
    assert answer.stdout == ""
    assert answer.stderr.strip().startswith(line)
    assert len(answer.stderr.strip().splitlines()) <= 1
    assert "Traceback" not in answer.stderr


def test_debug_shows_where_a_failure_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trace comes before the line, and only when it is asked for."""

    @click.command()
    def failing() -> None:
        raise ValueError("boom")

    monkeypatch.setattr(program, "get_command", lambda ctx, name: failing)
    answer = run("--debug", "ring")
    assert answer.exit_code == 70
    assert "Traceback" in answer.stderr
    assert answer.stderr.splitlines()[-1].startswith("error: ")


def test_a_reader_that_stops_early_is_no_failure(seeded_home: Path) -> None:
    """`| head` closes the pipe: no trace and no error line."""
    command = f"{sys.executable} -m cdc_platform --home {seeded_home} ring --json | head -c 1"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert (result.stdout, result.stderr) == ("[", "")


def test_the_version_is_told() -> None:
    """`--version` names the program."""
    assert run("--version").stdout.startswith("cdc-platform, version ")
