"""Output of a command is read by the commands for its format, from homes in every state and with odd names."""

from __future__ import annotations

import shutil
from pathlib import Path
from uuid import UUID

import pytest
from support.command_line import run
from support.files.export_files import ID
from support.homes.imported import home_with_generations
from support.homes.questions import HOME, PROBLEMS, home_for
from support.homes.timelines import FIRST_MS, HOMES, home_of

from cdc_platform.clock import Milliseconds, format_ms
from cdc_platform.delta import Lake
from cdc_platform.metastore import cdc_tables, read_current_ring, write_nodes
from cdc_platform.ring import Node

AT = format_ms(Milliseconds(1_785_000_000_000))


def create_home(folder: Path, name: str) -> Path:
    """Create the named home, one of those that tests have in every state."""
    folder.mkdir()
    return home_of(folder, name) if name in HOMES else home_for(folder, name) / HOME


def files_in(folder: Path) -> dict[str, bytes]:
    """Return every file of an export by its name."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", [*HOMES, *PROBLEMS])
def test_imported_export_is_exported_unchanged(tmp_path: Path, name: str) -> None:
    """Another home exports the same bytes, whatever the cluster's state; logs belong to the first home."""
    home, first, second = create_home(tmp_path / "made", name), tmp_path / "first", tmp_path / "second"
    written = run("--home", home, "--clock", AT, "export", first)
    if written.exit_code:
        assert "there is nothing to export" in written.stderr or "than its commits recorded" in written.stderr, written
        return
    other = tmp_path / "other"
    imported = run("--home", other, "--clock", AT, "import", "--allow-incomplete", first)
    assert imported.exit_code == 0, imported
    exported_again = run("--home", other, "--clock", AT, "export", second)
    assert exported_again.exit_code == 0, exported_again
    expected = {file: content for file, content in files_in(first).items() if not file.startswith("logs")}
    expected["load.cql"] = b"".join(line for line in expected["load.cql"].splitlines(True) if b"'logs/" not in line)
    assert files_in(second) == expected


@pytest.mark.parametrize("name", [*HOMES, *PROBLEMS])
def test_printed_ring_is_read(tmp_path: Path, name: str) -> None:
    """`import` reads it into another home, and `rehearse` adds a node to it."""
    home, file = create_home(tmp_path / "made", name), tmp_path / "ring.json"
    written = run("--home", home, "--clock", AT, "ring", "--json")
    assert written.exit_code == 0, written
    file.write_text(written.stdout, encoding="utf-8")
    steps = tmp_path / "steps.json"
    steps.write_text('[{"add": {"shard_count": 2, "num_tokens": 4}}]', encoding="utf-8")
    if written.json:
        assert_ring_round_trip(tmp_path, file, written.json)
        assert run("--home", tmp_path / "none", "rehearse", steps, "--ring", file).exit_code == 0


def assert_ring_round_trip(folder: Path, file: Path, nodes: list[object]) -> None:
    """Assert that a home prints the ring snapshot that was imported into it."""
    imported = run("--home", folder / "imported", "import", file)
    assert imported.exit_code == 0, imported
    assert run("--home", folder / "imported", "ring", "--json").json == nodes


ODD_NAMES = ["", "a b", 'dc\'s "one"', "ü€𐍈", "-", "{x}, [y]", "null", "a\\b", "x" * 255]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names_of_nodes_are_preserved(tmp_path: Path, name: str) -> None:
    """This includes empty names, which are unknown, tokens at the ring's ends, and features."""
    nodes = [
        Node(UUID(int=1), (-(2**63) + 1, 0), 1, 0, "", name, name, ()),
        Node(UUID(int=2), (2**63 - 1,), 4096, 31, "2001:db8::1", name, "r1", tuple(sorted({name, "F"} - {""}))),
    ]
    write_nodes(Lake(tmp_path / "home" / "lake"), nodes)
    written = run("--home", tmp_path / "home", "ring", "--json")
    assert written.exit_code == 0, written
    (tmp_path / "ring.json").write_text(written.stdout, encoding="utf-8")
    assert_ring_round_trip(tmp_path, tmp_path / "ring.json", written.json)
    exported = run("--home", tmp_path / "home", "export", tmp_path / "exported")
    assert exported.exit_code == 0, exported
    shutil.rmtree(tmp_path / "imported")
    assert_ring_round_trip(tmp_path, tmp_path / "exported" / "ring.json", written.json)
    ring = read_current_ring(Lake(tmp_path / "imported" / "lake"))
    assert sorted(ring.nodes, key=lambda node: node.host_id) == nodes


SCHEMA = """CREATE TYPE "Kw"."select" ("Group" int, "a b" text);
CREATE TABLE "Kw"."Select" ("from" int, "Ck" text, "ü" "select", "it's" frozen<"select">, l list<int>,
    PRIMARY KEY ("from", "Ck")) WITH cdc = {'enabled': true} AND CLUSTERING ORDER BY ("Ck" DESC);
INSERT INTO "Kw"."Select" ("from", "Ck", "ü", "it's", l)
    VALUES (1, 'a,"b"', {"Group": 1, "a b": 'x'}, {"Group": 2}, [3]);
"""


def test_odd_names_of_tables_are_preserved(tmp_path: Path) -> None:
    """`cql run` accepts the statements of an export, and a stored definition creates its table."""
    home = home_of(tmp_path, "plain")
    script = tmp_path / "odd.cql"
    script.write_text(SCHEMA, encoding="utf-8")
    at = ("--home", home, "--clock", format_ms(Milliseconds(FIRST_MS + 1_000)))
    applied = run(*at, "cql", "run", script, "--apply", "--json")
    assert applied.exit_code == 0, applied
    exported = run(*at, "export", tmp_path / "exported")
    assert exported.exit_code == 0, exported
    (definition,) = [
        table.ddl for table in cdc_tables.read_cdc_tables(Lake(home / "lake")) if table.keyspace_name == "Kw"
    ]
    (tmp_path / "other").mkdir()
    other_home = ("--home", home_with_generations(tmp_path / "other", {ID: FIRST_MS}), *at[2:])
    for number, text in enumerate(
        [(tmp_path / "exported" / "logs" / "tables.cql").read_text(encoding="utf-8"), definition]
    ):
        assert text is not None
        file = tmp_path / f"{number}.cql"
        file.write_text(text, encoding="utf-8")
        answer = run(*other_home, "cql", "run", file, "--strict", "--json")
        assert answer.exit_code == 0, answer
        assert run("--home", tmp_path / f"imported {number}", *at[2:], "import", file).exit_code == 0
    explanation = run(*at, "explain", "--pk", "1", "--table", '"Kw"."Select"', "--json")
    assert explanation.exit_code == 0, explanation
    repeated = run(*at, "cql", "run", script, "--json")
    assert "exists already" in repeated.stdout + repeated.stderr


def test_written_page_is_verified(tmp_path: Path) -> None:
    """Page and record of a generation verify in a home whose nodes have no addresses."""
    home = home_of(tmp_path, "three")
    nodes = [
        Node(node.host_id, node.tokens, node.shard_count, node.ignore_msb)
        for node in read_current_ring(Lake(home / "lake")).nodes
    ]
    write_nodes(Lake(home / "lake"), nodes or [Node(UUID(int=1), (1,), 1, 12)])
    at = ("--home", home, "--clock", AT)
    page = tmp_path / "page.html"
    assert run(*at, "report", "latest", "--html", page).exit_code == 0
    assert run(*at, "report", "--verify", page).exit_code == 0
