"""What commands say that is left to do, read back: the lines, and whether the program takes them as they stand."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import click
from support.command_line import Answer

from cdc_platform.cli import program


def lines_of(answer: Answer) -> list[str]:
    """What an answer says to run next, as lines: those that begin with `next:`, or the field `next` of a document."""
    if answer.stdout.startswith("{"):
        steps = answer.json["next"]
        return [f"{step['command']}  # {step['why']}" if step["why"] else step["command"] for step in steps]
    both = answer.stdout.splitlines() + answer.stderr.splitlines()
    return [line.removeprefix("next: ") for line in both if line.startswith("next: ")]


def words_of(line: str) -> list[str]:
    """The words of a line behind the program's name, as a shell reads them: no comment, no quotes."""
    name, *words = shlex.split(line, comments=True)
    assert name == "cdc-platform"
    return words


def path_of(words: Sequence[str]) -> str:
    """The command that the program would run for these words, by its path; nothing is run.

    Raises:
        click.UsageError: there is no such command, or it doesn't take them.
    """
    command: click.Command = program
    context, rest, path = None, list(words), []
    while True:
        context = command.make_context(command.name, rest, parent=context)
        rest = [*context._protected_args, *context.args]
        if not isinstance(command, click.Group) or not rest:
            return " ".join(path)
        name, found, rest = click.Group.resolve_command(command, context, rest)
        assert name is not None
        assert found is not None
        path.append(name)
        command = found
