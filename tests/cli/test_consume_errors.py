"""Invalid input to `consume`: one clear line, exit code 2, and no change."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.files.bad_input import Case, argument, assert_refused

CASES = [
    argument("no table", "Missing argument 'TABLE'", "consume", "--name", "audit"),
    argument("no name", "Missing option '--name'", "consume", "ks.t"),
    argument("a table without keyspace", "write it as keyspace.table", "consume", "orders", "--name", "audit"),
    argument("an unknown table", "shop.nothing", "consume", "shop.nothing", "--name", "audit"),
    argument("an empty name", "is no name of a consumer", "consume", "ks.t", "--name", ""),
    argument("a name with a path", "is no name of a consumer", "consume", "ks.t", "--name", "../audit"),
    argument("a name that is too long", "1 to 48", "consume", "ks.t", "--name", "x" * 49),
    argument("a name beyond ASCII", "letters, digits", "consume", "ks.t", "--name", "prüfung"),
    argument("no time", "not a time", "consume", "ks.t", "--name", "audit", "--until", "tomorrow"),
    argument("a time without zone", "time without a zone", "consume", "ks.t", "--name", "a", "--until", "2026-01-01"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_input_is_refused(case: Case, seeded_home: Path, tmp_path: Path) -> None:
    """The message says in one line why the table cannot be consumed."""
    assert_refused(case, seeded_home, tmp_path)
