"""What every table of bad input is made of: the cases, and what must hold of each."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from click.testing import CliRunner

from cdc_platform.cli import program


@dataclass(frozen=True)
class Case:
    """A command with the files it is given, and what its message must say. `{dir}` is where the files are."""

    name: str
    args: tuple[str, ...]
    says: str
    files: Mapping[str, str | bytes] = field(default_factory=dict)


def argument(name: str, says: str, *args: str) -> Case:
    """A command with wrong arguments and no files."""
    return Case(f"argument: {name}", args, says)


def given(case: Case, folder: Path) -> list[str]:
    """The case's arguments, its files written."""
    for name, text in case.files.items():
        (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return [arg.replace("{dir}", str(folder)) for arg in case.args]


def listing(folder: Path) -> dict[str, str]:
    """Every file below a folder with the hash of its bytes, but the locks by which commands take turns."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".lake.turns" not in path.parts
    }


def assert_one_line(stderr: str, says: str) -> None:
    """Standard error is one line that begins with `error:`, says this, and is no stack trace."""
    lines = stderr.splitlines()
    assert len(lines) == 1, stderr
    assert lines[0].startswith("error: ")
    assert says in lines[0]
    assert len(lines[0]) < 700


def assert_refused(case: Case, home: Path, folder: Path, *, exit_code: int = 2) -> str:
    """The command leaves with this code and one line on standard error, and the home is byte for byte as before.

    Answers with that line.
    """
    args = given(case, folder)
    before = listing(home)
    result = CliRunner().invoke(program, ["--home", str(home), *args])
    assert (result.exit_code, result.stdout) == (exit_code, ""), result.output
    assert_one_line(result.stderr, case.says)
    assert listing(home) == before
    return result.stderr
