"""Cases of bad input, and the assertions that hold for each of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from click.testing import CliRunner

from cdc_platform.cli import program


@dataclass(frozen=True)
class Case:
    """A command with its files, and text that its message must contain. `{dir}` is the folder of the files."""

    name: str
    args: tuple[str, ...]
    says: str
    files: Mapping[str, str | bytes] = field(default_factory=dict)


def argument(name: str, says: str, *args: str) -> Case:
    """Return a case with wrong arguments and without files."""
    return Case(f"argument: {name}", args, says)


def given(case: Case, folder: Path) -> list[str]:
    """Write the case's files and return its arguments."""
    for name, text in case.files.items():
        (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return [arg.replace("{dir}", str(folder)) for arg in case.args]


def listing(folder: Path) -> dict[str, str]:
    """Return the hash of every file below a folder, except lock files."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".lake.turns" not in path.parts
    }


def assert_one_line(stderr: str, says: str) -> None:
    """Assert that standard error is one line that begins with `error:` and contains the text."""
    lines = stderr.splitlines()
    assert len(lines) == 1, stderr
    assert lines[0].startswith("error: ")
    assert says in lines[0]
    assert len(lines[0]) < 700


def assert_refused(case: Case, home: Path, folder: Path, *, exit_code: int = 2) -> str:
    """Assert that the command prints one error line, exits with the code and leaves the home unchanged byte for byte.

    Return that line.
    """
    args = given(case, folder)
    before = listing(home)
    result = CliRunner().invoke(program, ["--home", str(home), *args])
    assert (result.exit_code, result.stdout) == (exit_code, ""), result.output
    assert_one_line(result.stderr, case.says)
    assert listing(home) == before
    return result.stderr
