"""The command line in the tests' own process: what a command wrote, and how it left."""

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
    """What a command wrote and how it left."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        """Standard output as the one JSON document that it has to be."""
        return json.loads(self.stdout)

    @property
    def facts(self) -> dict[str, Any]:
        """The fields of a JSON document, without its version and the steps to take next."""
        return {name: value for name, value in self.json.items() if name not in ("version", "next")}

    @property
    def rows(self) -> list[Any]:
        """The one list of a JSON document, beside the steps to take next."""
        (rows,) = (value for name, value in self.json.items() if isinstance(value, list) and name != "next")
        return rows


Cli = Callable[..., Answer]


def run(*args: str | Path, stdin: str | bytes | None = None) -> Answer:
    """Run the program with these arguments."""
    result = CliRunner().invoke(program, [str(arg) for arg in args], input=stdin)
    return Answer(result.exit_code, result.stdout, result.stderr)


def paths_of(group: click.Group, before: str = "") -> set[str]:
    """Every command of a group by its path; a group that runs by itself is one as well."""
    found: set[str] = set()
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        path = f"{before} {name}".strip()
        if isinstance(command, click.Group):
            found |= paths_of(command, path) | ({path} if command.invoke_without_command else set())
        else:
            found.add(path)
    return found
