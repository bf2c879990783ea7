"""Texts of two million characters in a script take bounded memory per character, or are refused by size."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import run
from support.nodes import node_text
from support.processes.watched import Left, watched

SIZE = 2_000_000
A_CHARACTER = 64
"""Bytes of memory that a script's character may take, beyond the memory of the process without it."""
TABLE = (
    "CREATE KEYSPACE ks WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 1};\n"
    "CREATE TABLE ks.t (p int PRIMARY KEY, v text, b blob, n varint, d decimal, f duration)"
    " WITH cdc = {'enabled': true};\n"
)
TEXTS = {
    "a text": f"INSERT INTO ks.t (p, v) VALUES (1, '{'a' * SIZE}');",
    "a text of quotes": f"INSERT INTO ks.t (p, v) VALUES (1, '{chr(39) * SIZE}');",
    "a text of semicolons": f"INSERT INTO ks.t (p, v) VALUES (1, '{'; ' * (SIZE // 2)}');",
    "a text between dollars": f"INSERT INTO ks.t (p, v) VALUES (1, $${'a' * SIZE}$$);",
    "a text without an end": f"INSERT INTO ks.t (p, v) VALUES (1, '{'a' * SIZE});",
    "quotes without an end": f"INSERT INTO ks.t (p, v) VALUES (1, '{chr(39) * (SIZE + 1)});",
    "bytes": f"INSERT INTO ks.t (p, b) VALUES (1, 0x{'ab' * (SIZE // 2)});",
    "a name": f'INSERT INTO ks.t (p, "{"a" * SIZE}") VALUES (1, 2);',
    "a name of quotes": f'INSERT INTO ks.t (p, "{chr(34) * SIZE}") VALUES (1, 2);',
    "a marker": f'INSERT INTO ks.t (p, v) VALUES (1, :"{"a" * SIZE}");',
    "a comment": f"/*{'a' * SIZE}*/ INSERT INTO ks.t (p, v) VALUES (1, 'a');",
    "a read": f"SELECT {'a' * SIZE} FROM ks.t;",
    "a command of cqlsh": f"COPY {'a' * SIZE} FROM 'x';",
    "blanks": f"INSERT INTO ks.t (p, v) VALUES (1, {' ' * SIZE} 'a');",
    "JSON": f'INSERT INTO ks.t JSON \'{{"p": 1, "v": "{"a" * SIZE}"}}\';',
    "bytes in JSON": f'INSERT INTO ks.t JSON \'{{"p": 1, "b": "0x{"ab" * (SIZE // 2)}"}}\';',
}
REFUSED = {
    "an integer": f"INSERT INTO ks.t (p, n) VALUES (1, {'1' * SIZE});",
    "a negative integer": f"INSERT INTO ks.t (p, n) VALUES (1, -{'1' * SIZE});",
    "a decimal": f"INSERT INTO ks.t (p, d) VALUES (1, 1.{'1' * SIZE});",
    "a duration": f"INSERT INTO ks.t (p, f) VALUES (1, {'1d' * (SIZE // 2)});",
    "a duration of one count": f"INSERT INTO ks.t (p, f) VALUES (1, {'1' * SIZE}d);",
    "an integer in JSON": f'INSERT INTO ks.t JSON \'{{"p": 1, "n": {"1" * SIZE}}}\';',
    "an integer in a text of JSON": f'INSERT INTO ks.t JSON \'{{"p": 1, "n": "{"1" * SIZE}"}}\';',
    "a pattern": f"UPDATE ks.t SET v = 'b' WHERE p = 1 IF v LIKE '{'%a' * (SIZE // 2)}';",
}
"""Texts that are refused, in one line with the limit, because they would take quadratic time."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a generation, so that writes are accepted."""
    folder = tmp_path_factory.mktemp("literals")
    (folder / "node.json").write_text(node_text(1), encoding="utf-8")
    command = ("--clock", "2026-01-01T00:00:00Z", "bootstrap", folder / "node.json", "--run")
    assert run("--home", folder / "home", *command).exit_code == 0
    return folder / "home"


def run_script(home: Path, tmp_path: Path, text: str) -> Left:
    """Return the result of `cql run` for a script."""
    script = tmp_path / "script.cql"
    script.write_text(f"{TABLE}INSERT INTO ks.t (p, v) VALUES (1, 'a');\n{text}\n", encoding="utf-8")
    return watched("--home", home, "--clock", "2026-01-01T01:00:00Z", "cql", "run", script)


@pytest.mark.grid("large literals", 6)
@pytest.mark.parametrize("name", [*TEXTS, *REFUSED])
def test_a_large_literal_takes_bounded_memory(home: Path, tmp_path: Path, name: str) -> None:
    """A quarter of a kilobyte per character would be half a gigabyte."""
    without = run_script(home, tmp_path, "")
    result = run_script(home, tmp_path, TEXTS.get(name) or REFUSED[name])
    assert (without.exit_code, result.exit_code in (0, 1, 2)) == (0, True), result.stderr[:2_000]
    assert result.held - without.held < A_CHARACTER * SIZE
    assert len(result.stderr) < 5_000, result.stderr[:5_000]
    assert ("at most" in result.stderr) == (name in REFUSED), result.stderr
