"""Indexes that ScyllaDB builds from a table's CDC log: what each class changes in the table, and what it refuses.

The semantics are those of ScyllaDB's `index/`: `external_index.cc` and the classes that derive from it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command_line import run
from support.nodes import node_fields
from support.states import SEARCH_CLASSES as TURNS_CDC_ON
from support.states import UNKNOWN

from cdc_platform.cdclog import read_table_schema
from cdc_platform.clock import Clock, Microseconds
from cdc_platform.cql import SEARCH_INDEX_CLASSES
from cdc_platform.cql.search_indexes import CASSANDRA_INDEX_CLASSES
from cdc_platform.delta import Lake
from cdc_platform.errors import InputError
from cdc_platform.importing.run import import_paths
from cdc_platform.metastore import cdc_tables

PLAIN = [
    "StorageAttachedIndex",
    "SAI",
    "SASIIndex",
    "org.apache.cassandra.index.sasi.SASIIndex",
    "org.apache.cassandra.index.sai.StorageAttachedIndex",
]
KEYSPACE = "CREATE KEYSPACE ks WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}"
TABLETS = f"{KEYSPACE} AND tablets = {{'enabled': true}};"
TABLE = "CREATE TABLE ks.t (p int PRIMARY KEY, v text);"
CLOCK = Clock(Microseconds(1_700_000_000_000_000))


def index(class_name: str, custom: str = "CUSTOM ") -> str:
    """Return the statement that creates an index of a class."""
    return f"CREATE {custom}INDEX i ON ks.t (v) USING '{class_name}';"


def run_statements(folder: Path, text: str) -> list[tuple[str, str, int]]:
    """Run statements; return the outcome of each, the reason, and its number of log rows."""
    (folder / "script.cql").write_text(text)
    answer = run("--home", folder / "home", "cql", "run", folder / "script.cql", "--json")
    return [
        (statement["outcome"], statement["reason"] or "", len(statement["rows"]))
        for statement in answer.json["statements"]
    ]


def test_every_class_is_covered() -> None:
    """A class added to the product's lists needs its semantics in this file."""
    assert dict(SEARCH_INDEX_CLASSES) == TURNS_CDC_ON
    assert {name.lower() for name in PLAIN} == CASSANDRA_INDEX_CLASSES


@pytest.fixture(autouse=True)
def _a_generation(tmp_path: Path) -> None:
    """Create a home with a ring; tablet-based tables need no generation."""
    (tmp_path / "ring.json").write_text(json.dumps([node_fields(1, tokens=[-5, 5])]))
    assert run("--home", tmp_path / "home", "import", tmp_path / "ring.json").exit_code == 0


@pytest.mark.parametrize("custom", ["CUSTOM ", ""])
@pytest.mark.parametrize("class_name", [*TURNS_CDC_ON, "VECTOR_INDEX"])
def test_a_class_turns_cdc_on_or_does_not(class_name: str, custom: str, tmp_path: Path) -> None:
    """A write leaves rows only while an index that needs CDC exists."""
    write = "INSERT INTO ks.t (p, v) VALUES (1, 'x');"
    script = f"{TABLETS} {TABLE} {write} {index(class_name, custom)} {write} DROP INDEX ks.i; {write}"
    results = run_statements(tmp_path, script)
    assert [became for became, *_ in results] == ["done"] * 7
    assert [rows for *_, rows in results] == [0, 0, 0, 0, int(TURNS_CDC_ON[class_name.lower()]), 0, 0]


@pytest.mark.parametrize("class_name", PLAIN)
def test_plain_classes_change_nothing(class_name: str, tmp_path: Path) -> None:
    """They are passed over with a reason, like secondary indexes and the drop of an unknown index."""
    script = f"{TABLETS} {TABLE} {index(class_name)} CREATE INDEX ON ks.t (v); DROP INDEX ks.i;"
    assert [became for became, *_ in run_statements(tmp_path, script)] == ["done", "done", *["passed over"] * 3]


@pytest.mark.parametrize("custom", ["CUSTOM ", ""])
def test_an_unknown_class_is_refused_by_name(custom: str, tmp_path: Path) -> None:
    """A script refuses it, and so does the import of a schema, which then imports nothing."""
    results = run_statements(tmp_path, f"{TABLETS} {TABLE} {index(UNKNOWN, custom)}")
    assert (results[2][0], f"class '{UNKNOWN}' is not known" in results[2][1]) == ("wrong", True)
    (tmp_path / "schema.cql").write_text(f"{TABLETS}\n{TABLE}\n{index(UNKNOWN, custom)}\n")
    lake = Lake(tmp_path / "lake")
    with pytest.raises(InputError, match=f"line 3: .*class '{UNKNOWN}' is not known"):
        import_paths(lake, CLOCK, [tmp_path / "schema.cql"])
    assert cdc_tables.read_cdc_tables(lake) == []


@pytest.mark.parametrize("class_name", TURNS_CDC_ON)
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("'enabled': false", "is turned off"),
        ("'enabled': true, 'ttl': 86399", "a CDC TTL of at least 86400 seconds"),
        ("'enabled': true, 'delta': 'keys'", "delta 'full' or post-images"),
        ("'enabled': true, 'delta': 'keys', 'preimage': true", "delta 'full' or post-images"),
        ("'enabled': true, 'ttl': 86400", None),
        ("'enabled': true, 'ttl': 0", None),
        ("'enabled': true, 'delta': 'keys', 'postimage': true", None),
    ],
)
def test_all_search_indexes_require_the_same_options(
    class_name: str, options: str, said: str | None, tmp_path: Path
) -> None:
    """The rules apply to a table with these options, and to ALTER TABLE on a table with the index."""
    definition = f"CREATE TABLE ks.t (p int PRIMARY KEY, v text) WITH cdc = {{{options}}};"
    became, reason, _ = run_statements(tmp_path, f"{TABLETS} {definition} {index(class_name)}")[2]
    assert (became, said is None or said in reason) == ("done" if said is None else "wrong", True)
    altered = (
        f"{TABLETS} CREATE TABLE ks.t (p int PRIMARY KEY, v text) WITH cdc = {{'enabled': true}}; {index(class_name)}"
    )
    became, reason, _ = run_statements(tmp_path, f"{altered} ALTER TABLE ks.t WITH cdc = {{{options}}};")[3]
    expected = said if said != "is turned off" else "cannot be turned off"
    assert (became, expected is None or expected in reason) == ("done" if said is None else "wrong", True)


@pytest.mark.parametrize("class_name", TURNS_CDC_ON)
def test_search_indexes_need_tablets(class_name: str, tmp_path: Path) -> None:
    """An index of these classes needs a keyspace with tablets, as in ScyllaDB."""
    for keyspace in (f"{KEYSPACE};", f"{KEYSPACE} AND tablets = {{'enabled': false}};"):
        became, reason, _ = run_statements(tmp_path, f"{keyspace} {TABLE} {index(class_name)}")[2]
        assert (became, "needs a keyspace with tablets" in reason) == ("wrong", True)


def test_options_without_enabled_leave_the_cdc_of_an_index_enabled(tmp_path: Path) -> None:
    """The index still needs the log, with the new options, to which the same rules apply."""
    script = f"{TABLETS} {TABLE} {index('fulltext_index')} ALTER TABLE ks.t WITH cdc = {{'ttl': '%s'}};"
    write = " INSERT INTO ks.t (p, v) VALUES (1, 'x');"
    assert [rows for *_, rows in run_statements(tmp_path, script % 100000 + write)][-1] == 1
    assert run_statements(tmp_path, script % 60)[-1][0] == "wrong"


def test_an_index_is_known_to_later_scripts(tmp_path: Path) -> None:
    """A later script refuses options that the index does not allow, and dropping the index disables CDC again."""
    home = tmp_path / "home"
    for text, code in (
        (f"{TABLETS} {TABLE} {index('vector_index')}", 0),
        ("ALTER TABLE ks.t WITH cdc = {'enabled': false};", 2),
        (index("pattern_index").replace("INDEX i", "INDEX j"), 0),
        ("DROP INDEX ks.i;", 0),
    ):
        (tmp_path / "script.cql").write_text(text)
        assert run("--home", home, "cql", "run", tmp_path / "script.cql", "--apply").exit_code == code, text
        if "DROP" not in text:
            assert cdc_tables.find_cdc_table(Lake(home / "lake"), "ks", "t").enabled
    assert not cdc_tables.find_cdc_table(Lake(home / "lake"), "ks", "t").enabled
    assert [search_index.name for search_index in read_table_schema(Lake(home / "lake"), "ks", "t").search_indexes] == [
        "j"
    ]


@pytest.mark.parametrize("class_name", TURNS_CDC_ON)
def test_a_described_schema_has_the_tables_of_its_indexes(class_name: str, tmp_path: Path) -> None:
    """DESCRIBE prints no CDC option for a table that has a log only through its index."""
    lake = Lake(tmp_path / "lake")
    (tmp_path / "schema.cql").write_text(f"{TABLETS}\n{TABLE}\n{index(class_name)}\n")
    import_paths(lake, CLOCK, [tmp_path / "schema.cql"])
    tables = [(table.full_name, table.enabled, table.ttl_seconds) for table in cdc_tables.read_cdc_tables(lake)]
    assert tables == ([("ks.t", True, 86_400)] if TURNS_CDC_ON[class_name] else [])
    assert import_paths(lake, CLOCK, [tmp_path / "schema.cql"]).rows_written == 0
