"""What a command writes is read back by the commands that read its format: homes of every state, and odd names."""

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


def made(folder: Path, name: str) -> Path:
    """The home of this name, of those that tests have in every state."""
    folder.mkdir()
    return home_of(folder, name) if name in HOMES else home_for(folder, name) / HOME


def files_in(folder: Path) -> dict[str, bytes]:
    """Every file of an export by its name."""
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


@pytest.mark.parametrize("name", [*HOMES, *PROBLEMS])
def test_an_export_is_imported_as_it_was_written(tmp_path: Path, name: str) -> None:
    """Another home exports the same bytes of it, whatever state a cluster is in; logs are of the first one."""
    home, first, second = made(tmp_path / "made", name), tmp_path / "first", tmp_path / "second"
    written = run("--home", home, "--clock", AT, "export", first)
    if written.exit_code:
        assert "there is nothing to export" in written.stderr or "than its commits recorded" in written.stderr, written
        return
    other = tmp_path / "other"
    imported = run("--home", other, "--clock", AT, "import", "--allow-incomplete", first)
    assert imported.exit_code == 0, imported
    again = run("--home", other, "--clock", AT, "export", second)
    assert again.exit_code == 0, again
    expected = {file: content for file, content in files_in(first).items() if not file.startswith("logs")}
    expected["load.cql"] = b"".join(line for line in expected["load.cql"].splitlines(True) if b"'logs/" not in line)
    assert files_in(second) == expected


@pytest.mark.parametrize("name", [*HOMES, *PROBLEMS])
def test_a_ring_is_read_as_it_was_written(tmp_path: Path, name: str) -> None:
    """By `import` into another home, and by `rehearse`, which adds a node to it."""
    home, file = made(tmp_path / "made", name), tmp_path / "ring.json"
    written = run("--home", home, "--clock", AT, "ring", "--json")
    assert written.exit_code == 0, written
    file.write_text(written.stdout, encoding="utf-8")
    steps = tmp_path / "steps.json"
    steps.write_text('[{"add": {"shard_count": 2, "num_tokens": 4}}]', encoding="utf-8")
    if written.json:
        assert_ring_comes_back(tmp_path, file, written.json)
        assert run("--home", tmp_path / "none", "rehearse", steps, "--ring", file).exit_code == 0


def assert_ring_comes_back(folder: Path, file: Path, nodes: list[object]) -> None:
    """Hold that a home into which a ring snapshot was imported writes the same one."""
    imported = run("--home", folder / "imported", "import", file)
    assert imported.exit_code == 0, imported
    assert run("--home", folder / "imported", "ring", "--json").json == nodes


ODD_NAMES = ["", "a b", 'dc\'s "one"', "ü€𐍈", "-", "{x}, [y]", "null", "a\\b", "x" * 255]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names_of_nodes_come_back(tmp_path: Path, name: str) -> None:
    """Empty ones, which are not known, among them; tokens at the ends of the ring, with and without features."""
    nodes = [
        Node(UUID(int=1), (-(2**63) + 1, 0), 1, 0, "", name, name, ()),
        Node(UUID(int=2), (2**63 - 1,), 4096, 31, "2001:db8::1", name, "r1", tuple(sorted({name, "F"} - {""}))),
    ]
    write_nodes(Lake(tmp_path / "home" / "lake"), nodes)
    written = run("--home", tmp_path / "home", "ring", "--json")
    assert written.exit_code == 0, written
    (tmp_path / "ring.json").write_text(written.stdout, encoding="utf-8")
    assert_ring_comes_back(tmp_path, tmp_path / "ring.json", written.json)
    exported = run("--home", tmp_path / "home", "export", tmp_path / "exported")
    assert exported.exit_code == 0, exported
    shutil.rmtree(tmp_path / "imported")
    assert_ring_comes_back(tmp_path, tmp_path / "exported" / "ring.json", written.json)
    there = read_current_ring(Lake(tmp_path / "imported" / "lake"))
    assert sorted(there.nodes, key=lambda node: node.host_id) == nodes


SCHEMA = """CREATE TYPE "Kw"."select" ("Group" int, "a b" text);
CREATE TABLE "Kw"."Select" ("from" int, "Ck" text, "ü" "select", "it's" frozen<"select">, l list<int>,
    PRIMARY KEY ("from", "Ck")) WITH cdc = {'enabled': true} AND CLUSTERING ORDER BY ("Ck" DESC);
INSERT INTO "Kw"."Select" ("from", "Ck", "ü", "it's", l)
    VALUES (1, 'a,"b"', {"Group": 1, "a b": 'x'}, {"Group": 2}, [3]);
"""


def test_odd_names_of_tables_come_back(tmp_path: Path) -> None:
    """The statements of an export are understood by `cql run`; a table's definition makes the table that it is of."""
    home = home_of(tmp_path, "plain")
    script = tmp_path / "odd.cql"
    script.write_text(SCHEMA, encoding="utf-8")
    at = ("--home", home, "--clock", format_ms(Milliseconds(FIRST_MS + 1_000)))
    kept = run(*at, "cql", "run", script, "--apply", "--json")
    assert kept.exit_code == 0, kept
    exported = run(*at, "export", tmp_path / "exported")
    assert exported.exit_code == 0, exported
    (definition,) = [each.ddl for each in cdc_tables.read_cdc_tables(Lake(home / "lake")) if each.keyspace_name == "Kw"]
    (tmp_path / "other").mkdir()
    of_other = ("--home", home_with_generations(tmp_path / "other", {ID: FIRST_MS}), *at[2:])
    for number, text in enumerate(
        [(tmp_path / "exported" / "logs" / "tables.cql").read_text(encoding="utf-8"), definition]
    ):
        assert text is not None
        file = tmp_path / f"{number}.cql"
        file.write_text(text, encoding="utf-8")
        read = run(*of_other, "cql", "run", file, "--strict", "--json")
        assert read.exit_code == 0, read
        assert run("--home", tmp_path / f"imported {number}", *at[2:], "import", file).exit_code == 0
    shown = run(*at, "explain", "--pk", "1", "--table", '"Kw"."Select"', "--json")
    assert shown.exit_code == 0, shown
    again = run(*at, "cql", "run", script, "--json")
    assert "exists already" in again.stdout + again.stderr


def test_a_record_is_verified_as_it_was_written(tmp_path: Path) -> None:
    """The page and the record of a generation, of a home whose nodes have no addresses."""
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
