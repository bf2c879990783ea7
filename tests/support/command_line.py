"""Run the command line in the tests' own process and capture its output and exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner

from cdc_platform.cli import program


@dataclass(frozen=True)
class Answer:
    """The output and exit code of a command."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """Return the one JSON document on standard output."""
        return json.loads(self.stdout)

    @property
    def facts(self) -> dict[str, Any]:
        """Return the fields of the JSON document without its version and next steps."""
        return {name: value for name, value in self.json.items() if name not in ("version", "next")}

    @property
    def rows(self) -> list[Any]:
        """Return the one list of the JSON document, apart from the next steps."""
        (rows,) = (value for name, value in self.json.items() if isinstance(value, list) and name != "next")
        return rows


Cli = Callable[..., Answer]


def run(*args: str | Path, stdin: str | bytes | None = None) -> Answer:
    """Run the program with these arguments."""
    result = CliRunner().invoke(program, [str(arg) for arg in args], input=stdin)
    return Answer(result.exit_code, result.stdout, result.stderr)


def paths_of(group: click.Group, before: str = "") -> set[str]:
    """Return the path of every command of a group, including groups that run by themselves."""
    paths: set[str] = set()
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        path = f"{before} {name}".strip()
        if isinstance(command, click.Group):
            paths |= paths_of(command, path) | ({path} if command.invoke_without_command else set())
        else:
            paths.add(path)
    return paths
