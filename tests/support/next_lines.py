"""Read the next steps that commands print, and check whether the program accepts them unchanged."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import click
from support.command_line import Answer

from cdc_platform.cli import program


def lines_of(answer: Answer) -> list[str]:
    """Return the next steps of an answer as lines: lines that begin with `next:`, or the document's field `next`."""
    if answer.stdout.startswith("{"):
        steps = answer.json["next"]
        return [f"{step['command']}  # {step['why']}" if step["why"] else step["command"] for step in steps]
    both = answer.stdout.splitlines() + answer.stderr.splitlines()
    return [line.removeprefix("next: ") for line in both if line.startswith("next: ")]


def words_of(line: str) -> list[str]:
    """Return the words of a line after the program's name, as a shell parses them, without comments and quotes."""
    name, *words = shlex.split(line, comments=True)
    assert name == "cdc-platform"
    return words


def path_of(words: Sequence[str]) -> str:
    """Return the path of the command that the program would run for these words, without running it.

    Raises:
        click.UsageError: there is no such command, or it rejects the words.
    """
    command: click.Command = program
    context, rest, path = None, list(words), []
    while True:
        context = command.make_context(command.name, rest, parent=context)
        rest = [*context._protected_args, *context.args]
        if not isinstance(command, click.Group) or not rest:
            return " ".join(path)
        name, subcommand, rest = click.Group.resolve_command(command, context, rest)
        assert name is not None
        assert subcommand is not None
        path.append(name)
        command = subcommand
