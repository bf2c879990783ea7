"""What a schema says of CDC logs: in which keyspace, whether they are there, how old, and what turns CDC off."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import run

from cdc_platform.errors import InputError
from cdc_platform.importing.formats.described_schema import DescribedTable, is_schema_text, parse_schema_text

ON = "cdc = {'enabled': 'true', 'ttl': '60'}"
OFF = "cdc = {'enabled': 'false', 'ttl': '60'}"
KEYSPACE = "CREATE KEYSPACE ks WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': '3'};"
LOG = (
    '(a int, "cdc$stream_id" blob, "cdc$time" timeuuid, "cdc$batch_seq_no" int, '
    'PRIMARY KEY ("cdc$stream_id", "cdc$time", "cdc$batch_seq_no"))'
)
MADE = "WITH ID = 8c0a2eb0-0607-11ef-b773-697dd8707676"
MADE_MS = 1_714_381_495_579


def tables(text: str) -> list[DescribedTable]:
    """The tables of a schema."""
    return parse_schema_text("schema.cql", text).tables


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (f"USE ks; CREATE TABLE t (a int PRIMARY KEY) WITH {ON};", ["ks.t"]),
        (f'USE "Ks"; CREATE TABLE t (a int PRIMARY KEY) WITH {ON};', ["Ks.t"]),
        (
            f"USE a; CREATE TABLE t (a int PRIMARY KEY) WITH {ON}; USE b; CREATE TABLE t (a int PRIMARY KEY) WITH {ON};"
            f"CREATE TABLE c.t (a int PRIMARY KEY) WITH {ON};",
            ["a.t", "b.t", "c.t"],
        ),
        (f"{KEYSPACE} USE ks; CREATE TYPE u (x int); CREATE TABLE t (a int PRIMARY KEY, b u) WITH {ON};", ["ks.t"]),
    ],
)
def test_use_names_the_keyspace_of_what_follows(text: str, names: list[str]) -> None:
    """A table without a keyspace is in the one in use, and is read with the types of that one."""
    assert is_schema_text(text)
    found = tables(text)
    assert [table.full_name for table in found] == names
    made = [f"CREATE TABLE {table.keyspace}.{table.name} ".replace("Ks", '"Ks"') for table in found]
    assert all(text in (table.ddl or "") for text, table in zip(made, found, strict=True))


def test_a_log_without_any_keyspace_is_refused() -> None:
    """By name; a table without a log needs none."""
    assert tables("CREATE TABLE t (a int PRIMARY KEY);") == []
    with pytest.raises(InputError, match=r"t has no keyspace, and no USE names one; write keyspace\.t"):
        tables(f"CREATE TABLE t (a int PRIMARY KEY) WITH {ON};")


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        (f"CREATE TABLE ks.t (a int PRIMARY KEY) WITH {ON};", (True, True, 60, None)),
        (f"CREATE TABLE ks.t (a int PRIMARY KEY) WITH {OFF};", (False, False, 60, None)),
        (
            f"CREATE TABLE ks.t (a int PRIMARY KEY) WITH {OFF}; CREATE TABLE ks.t_scylla_cdc_log {LOG} {MADE};",
            (True, False, 60, MADE_MS),
        ),
        (
            f"CREATE TABLE ks.t_scylla_cdc_log {LOG}; CREATE TABLE ks.t (a int PRIMARY KEY) WITH {OFF};",
            (True, False, 60, None),
        ),
        (
            f"CREATE TABLE ks.t (a int PRIMARY KEY) WITH {ON}; CREATE TABLE ks.t_scylla_cdc_log {LOG} {MADE};",
            (True, True, 60, MADE_MS),
        ),
        (f"CREATE TABLE ks.t (a int PRIMARY KEY); CREATE TABLE ks.t_scylla_cdc_log {LOG};", (True, False, None, None)),
        (f"CREATE TABLE ks.t_scylla_cdc_log {LOG} {MADE};", (True, True, None, MADE_MS)),
        (
            f"CREATE TABLE ks.t (a int PRIMARY KEY) WITH {ON}; ALTER TABLE ks.t WITH {OFF};",
            (True, False, 60, None),
        ),
    ],
)
def test_a_log_that_is_there_counts(text: str, facts: tuple[bool, bool, int | None, int | None]) -> None:
    """Printed as a table, or that of a table whose CDC is or was on; its age by its ID alone."""
    (table,) = tables(text)
    assert (table.is_logged, table.enabled, table.ttl_seconds, table.created_at_ms) == facts


def test_a_table_that_is_only_named_like_a_log_is_none() -> None:
    """It has no stream IDs."""
    assert tables("CREATE TABLE ks.t_scylla_cdc_log (a int PRIMARY KEY);") == []


@pytest.mark.parametrize(
    ("options", "warns"),
    [
        ("{'ttl': '70'}", True),
        ("{'TTL': '70'}", True),
        ("{}", True),
        ("{'enabled': 'false'}", False),
        ("{'Enabled': true}", False),
    ],
)
def test_options_without_enabled_turn_cdc_off(options: str, warns: bool, tmp_path: Path) -> None:
    """Where a schema is imported, and where a script is run; what says so itself is no surprise."""
    text = f"{KEYSPACE}\nCREATE TABLE ks.t (a int PRIMARY KEY) WITH {ON};\nALTER TABLE ks.t WITH cdc = {options};"
    file = tmp_path / "schema.cql"
    file.write_text(text, encoding="utf-8")
    for number, words in enumerate((("import", file), ("cql", "run", file, "--apply"))):
        home = tmp_path / str(number)
        assert run("--home", home, "tables", "declare-none").exit_code == 0
        answer = run("--home", home, *words)
        assert answer.exit_code == 0, answer.stderr
        assert ("line 3: ALTER TABLE ks.t WITH cdc sets options without 'enabled'" in answer.stderr) == warns
        assert ("[cdc-turned-off]" in answer.stderr) == warns
    (table,) = tables(text)
    assert table.enabled == (options == "{'Enabled': true}")


def test_a_script_that_leaves_cdc_off_as_it_was_warns_of_nothing(tmp_path: Path) -> None:
    """A table whose CDC is off cannot be turned off."""
    file = tmp_path / "off.cql"
    text = f"{KEYSPACE}\nCREATE TABLE ks.t (a int PRIMARY KEY);\nALTER TABLE ks.t WITH cdc = {{'ttl': 70}};"
    file.write_text(text, encoding="utf-8")
    home = tmp_path / "home"
    assert run("--home", home, "tables", "declare-none").exit_code == 0
    for words in (("import", file), ("cql", "run", file)):
        assert "cdc-turned-off" not in run("--home", home, *words).stderr


def test_a_log_without_base_table_retains_everything_and_is_reported(tmp_path: Path) -> None:
    """Nobody knows its TTL; a later schema with its base table says more."""
    file, home = tmp_path / "log.cql", tmp_path / "home"
    file.write_text(f"{KEYSPACE}\nCREATE TABLE ks.t_scylla_cdc_log {LOG} {MADE};", encoding="utf-8")
    answer = run("--home", home, "import", file)
    assert "ks.t: the schema has its log but not its CDC options" in answer.stderr
    (table,) = run("--home", home, "tables", "--json").rows
    assert (table["ttl_seconds"], table["enabled"], table["ddl"]) == (0, True, None)
