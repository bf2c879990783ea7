"""CDC logs in a schema: their keyspace, whether they exist, their age, and options that disable CDC."""

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
CREATED = "WITH ID = 8c0a2eb0-0607-11ef-b773-697dd8707676"
CREATED_MS = 1_714_381_495_579


def tables(text: str) -> list[DescribedTable]:
    """Return the tables of a schema."""
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
def test_use_sets_the_keyspace_of_later_tables(text: str, names: list[str]) -> None:
    """A table without a keyspace is in the current one, and uses its types."""
    assert is_schema_text(text)
    described = tables(text)
    assert [table.full_name for table in described] == names
    beginnings = [f"CREATE TABLE {table.keyspace}.{table.name} ".replace("Ks", '"Ks"') for table in described]
    assert all(text in (table.ddl or "") for text, table in zip(beginnings, described, strict=True))


def test_log_without_a_keyspace_is_refused() -> None:
    """The refusal names the table; a table without a log needs no keyspace."""
    assert tables("CREATE TABLE t (a int PRIMARY KEY);") == []
    with pytest.raises(InputError, match=r"t has no keyspace, and no USE names one; write keyspace\.t"):
        tables(f"CREATE TABLE t (a int PRIMARY KEY) WITH {ON};")


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        (f"CREATE TABLE ks.t (a int PRIMARY KEY) WITH {ON};", (True, True, 60, None)),
        (f"CREATE TABLE ks.t (a int PRIMARY KEY) WITH {OFF};", (False, False, 60, None)),
        (
            f"CREATE TABLE ks.t (a int PRIMARY KEY) WITH {OFF}; CREATE TABLE ks.t_scylla_cdc_log {LOG} {CREATED};",
            (True, False, 60, CREATED_MS),
        ),
        (
            f"CREATE TABLE ks.t_scylla_cdc_log {LOG}; CREATE TABLE ks.t (a int PRIMARY KEY) WITH {OFF};",
            (True, False, 60, None),
        ),
        (
            f"CREATE TABLE ks.t (a int PRIMARY KEY) WITH {ON}; CREATE TABLE ks.t_scylla_cdc_log {LOG} {CREATED};",
            (True, True, 60, CREATED_MS),
        ),
        (f"CREATE TABLE ks.t (a int PRIMARY KEY); CREATE TABLE ks.t_scylla_cdc_log {LOG};", (True, False, None, None)),
        (f"CREATE TABLE ks.t_scylla_cdc_log {LOG} {CREATED};", (True, True, None, CREATED_MS)),
        (
            f"CREATE TABLE ks.t (a int PRIMARY KEY) WITH {ON}; ALTER TABLE ks.t WITH {OFF};",
            (True, False, 60, None),
        ),
    ],
)
def test_existing_log_counts(text: str, facts: tuple[bool, bool, int | None, int | None]) -> None:
    """It is printed as a table, or its base table has or had CDC enabled; only its ID gives its age."""
    (table,) = tables(text)
    assert (table.is_logged, table.enabled, table.ttl_seconds, table.created_at_ms) == facts


def test_table_with_a_logs_name_is_no_log() -> None:
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
def test_options_without_enabled_disable_cdc(options: str, warns: bool, tmp_path: Path) -> None:
    """An import and a script warn of it, unless the options state it themselves."""
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


def test_no_warning_if_cdc_was_disabled_before(tmp_path: Path) -> None:
    """Options cannot disable CDC of a table that does not have it."""
    file = tmp_path / "off.cql"
    text = f"{KEYSPACE}\nCREATE TABLE ks.t (a int PRIMARY KEY);\nALTER TABLE ks.t WITH cdc = {{'ttl': 70}};"
    file.write_text(text, encoding="utf-8")
    home = tmp_path / "home"
    assert run("--home", home, "tables", "declare-none").exit_code == 0
    for words in (("import", file), ("cql", "run", file)):
        assert "cdc-turned-off" not in run("--home", home, *words).stderr


def test_log_without_base_table_has_no_ttl_and_is_reported(tmp_path: Path) -> None:
    """Its TTL is unknown until a later schema has its base table."""
    file, home = tmp_path / "log.cql", tmp_path / "home"
    file.write_text(f"{KEYSPACE}\nCREATE TABLE ks.t_scylla_cdc_log {LOG} {CREATED};", encoding="utf-8")
    answer = run("--home", home, "import", file)
    assert "ks.t: the schema has its log but not its CDC options" in answer.stderr
    (table,) = run("--home", home, "tables", "--json").rows
    assert (table["ttl_seconds"], table["enabled"], table["ddl"]) == (0, True, None)
