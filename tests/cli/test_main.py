"""The program around the commands: help, completion, and failures."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from support.command_line import run

from cdc_platform.cli import main as program_module
from cdc_platform.cli import program
from cdc_platform.cli.commands import COMMAND_GROUPS, COMMANDS
from cdc_platform.errors import AuditFailed, StateError, WriteRefused
from cdc_platform.server.report_page import report_page

NAMES = [name for name in COMMANDS if name in program.list_commands(click.Context(program))]


def test_help_lists_every_command_and_imports_none() -> None:
    """`--help` prints the output of the program without a command."""
    answer = run("--help")
    assert answer.exit_code == 0
    assert run() == answer
    for name in NAMES:
        assert f"\n  {name} " in answer.stdout
    assert [title for title in COMMAND_GROUPS if f"\n{title}:\n" not in answer.stdout] == []
    code = (
        "import sys; from cdc_platform.cli.main import program\n"
        "try: program.main(['--help'])\n"
        "finally: print([m for m in sys.modules if m in ('numpy', 'pydantic', 'pyarrow', 'rich')], file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stderr.strip() == "[]"


@pytest.mark.parametrize("name", NAMES)
def test_every_help_shows_an_example(name: str) -> None:
    """The help of each command describes it and shows an example."""
    for option in ("--help", "-h"):
        answer = run(name, option)
        assert answer.exit_code == 0
        assert f"Usage: cdc-platform {name}" in answer.stdout
        assert f"\n  Example:\n    cdc-platform {name}" in answer.stdout


@pytest.mark.parametrize("name", NAMES)
def test_summaries_of_subcommands_fit_on_a_line(name: str) -> None:
    """The help of a group cuts no summary of its commands off."""
    commands = run(name, "--help").stdout.partition("\nCommands:\n")[2].splitlines()
    assert [line for line in commands if line.endswith("...")] == []


def test_every_function_accepts_the_options_of_its_command() -> None:
    """The parameters of each command are those of the function that runs it."""

    def leaves(command: click.Command) -> Iterator[click.Command]:
        inner = command.commands.values() if isinstance(command, click.Group) else ()
        yield command
        for subcommand in inner:
            yield from leaves(subcommand)

    context = click.Context(program)
    commands = [leaf for name in NAMES if (command := program.get_command(context, name)) for leaf in leaves(command)]
    commands.append(report_page)
    assert len(commands) > 50
    for command in commands:
        assert command.callback is not None
        parameters = inspect.signature(inspect.unwrap(command.callback)).parameters
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            exposed = {parameter.name for parameter in command.params if parameter.expose_value}
            assert exposed <= parameters.keys(), command.name


def test_commands_of_missing_modules_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command whose module is not installed does not break the others."""
    later = ("no_such_module", "Comes later.")
    monkeypatch.setitem(program_module.COMMANDS, "later", later)
    monkeypatch.setitem(program_module.COMMAND_GROUPS["Operate"], "later", later)
    assert "later" not in run("--help").stdout
    answer = run("later")
    assert answer.exit_code == 2
    assert "no such command 'later'" in answer.stderr


def test_a_mistyped_command_gets_a_suggestion() -> None:
    """The error names the closest command, or the help if none is close."""
    assert run("exlpain").stderr == "error: no such command 'exlpain'; did you mean 'explain'? [usage]\n"
    assert run("zzz").stderr == "error: no such command 'zzz'; see: cdc-platform --help [usage]\n"


def test_help_shows_the_help_of_any_command() -> None:
    """`help COMMAND` prints the output of `COMMAND --help`, for subcommands, too."""
    assert run("help") == run("--help")
    for names in (("explain",), ("tables",), ("tables", "add")):
        assert run("help", *names) == run(*names, "--help")
    assert run("help", "tables", "nix").exit_code == 2


def test_global_options_may_stand_after_the_command(tmp_path: Path) -> None:
    """`--home` and `--clock` have one meaning before and after the command, and the last one counts."""
    home, other = tmp_path / "home", tmp_path / "other"
    assert run("tables", "declare-none", "--home", home).exit_code == 0
    before = run("--home", home, "--clock", "2026-01-31T12:00:00Z", "tables", "--json")
    assert before.exit_code == 0
    assert run("tables", "--home", home, "--json", f"--clock={'2026-01-31T12:00:00Z'}") == before
    assert run("--home", other, "tables", "--json", "--home", home, "--clock", "2026-01-31T12:00:00Z") == before
    assert not other.exists()


def test_values_of_other_options_are_no_global_options(tmp_path: Path) -> None:
    """A value that looks like a global option, or an argument after `--`, stays at its position."""
    answer = run("--home", tmp_path, "check", "--accept", "x@1", "--reason", "--debug", "--json")
    assert "x" in answer.stderr
    assert "--reason" not in answer.stderr
    assert run("--home", tmp_path, "sql", "--", "--debug").exit_code == 2


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_call_the_program(shell: str) -> None:
    """The script asks `cdc-platform` itself for completions."""
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
    """Expected errors print their message, others are reported as defects, and none prints a stack trace."""

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


@pytest.mark.parametrize("error", [ValueError("the JVM is gone"), StateError("Spark is gone"), OSError(5, "gone")])
def test_an_error_of_the_clean_up_does_not_hide_an_interrupt(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Ctrl-C also ends the JVM, so that calls to it in a library's `finally` fail."""

    @click.command()
    def failing() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise error

    monkeypatch.setattr(program, "get_command", lambda ctx, name: failing)
    answer = run("ring")
    assert (answer.exit_code, answer.stdout, answer.stderr) == (130, "", "error: interrupted\n")


def test_debug_shows_where_a_failure_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stack trace comes before the error line, and only with --debug."""

    @click.command()
    def failing() -> None:
        raise ValueError("boom")

    monkeypatch.setattr(program, "get_command", lambda ctx, name: failing)
    answer = run("--debug", "ring")
    assert answer.exit_code == 70
    assert "Traceback" in answer.stderr
    assert answer.stderr.splitlines()[-1].startswith("error: ")


def test_a_reader_that_stops_early_is_no_failure(seeded_home: Path) -> None:
    """`| head` closes the pipe, which causes neither a stack trace nor an error line."""
    command = f"{sys.executable} -m cdc_platform --home {seeded_home} ring --json | head -c 1"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert (result.stdout, result.stderr) == ("[", "")


def test_the_version_is_printed() -> None:
    """`--version` names the program."""
    assert run("--version").stdout.startswith("cdc-platform, version ")
