"""Schemas as CQL and back: the stored definition of a table contains all that its log depends on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.files.cql_scripts import Rehearse

from cdc_platform.cdclog import load_table_schemas, read_table_schema
from cdc_platform.clock import Clock, Microseconds, Milliseconds
from cdc_platform.cql import Catalog, TableSchema, apply_definition, format_ddl, parse_statements
from cdc_platform.cql.ast import DefinitionStatement, QualifiedName
from cdc_platform.delta import Lake
from cdc_platform.errors import NotFound
from cdc_platform.metastore import CdcTable, cdc_tables

SCRIPTS = {
    "simple": "CREATE TABLE ks.t (pk int PRIMARY KEY, v int) WITH cdc = {'enabled': true};",
    "keys": """CREATE TABLE ks.t (z text, "Pk" int, b int, a timeuuid, s int static, "select" blob,
        PRIMARY KEY (("Pk", z), b, a))
        WITH CLUSTERING ORDER BY (b DESC, a ASC) AND default_time_to_live = 9;""",
    "options": """CREATE TABLE ks.t (pk int PRIMARY KEY)
        WITH cdc = {'enabled': true, 'preimage': 'full', 'postimage': true, 'delta': 'keys', 'ttl': 0};""",
    "types": """CREATE TYPE ks.low (a list<int>); CREATE TYPE ks."High" (l frozen<low>, "B" frozen<set<text>>);
        CREATE TYPE ks.unused (a int);
        CREATE TABLE ks.t (pk frozen<"High"> PRIMARY KEY, a tuple<int, frozen<low>>, h "High", f frozen<low>,
            m map<frozen<"High">, frozen<list<frozen<low>>>>, v frozen<map<text, set<int>>>);""",
}  # fmt: skip


def define(script: str) -> tuple[Catalog, TableSchema]:
    """Return the catalog that a script creates, and its table ks.t."""
    catalog = Catalog()
    for statement in parse_statements(script):
        assert isinstance(statement.body, DefinitionStatement)
        apply_definition(catalog, statement.body, Microseconds(7_000))
    return catalog, catalog.table(QualifiedName("ks", "t"))


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_a_schema_is_restored_from_its_ddl(script: str) -> None:
    """Columns, types, order and options are restored."""
    catalog, schema = define(script)
    stored_table = CdcTable("ks", "t", True, 0, Milliseconds(7), format_ddl(catalog, schema))
    assert load_table_schemas(Catalog(), [stored_table]) == [schema]


def test_tables_that_share_a_type_are_loaded_together() -> None:
    """The definition of each table contains the type, and the catalog has it once."""
    catalog, schema = define(
        """CREATE TYPE ks.ut (a int); CREATE TABLE ks.t (pk int PRIMARY KEY, u ut);
        CREATE TABLE ks.u (pk int PRIMARY KEY, u ut);"""
    )
    other = catalog.table(QualifiedName("ks", "u"))
    tables = [
        CdcTable("ks", table_schema.name, True, 0, Milliseconds(7), format_ddl(catalog, table_schema))
        for table_schema in (schema, other)
    ]
    assert load_table_schemas(Catalog(), tables) == [schema, other]


def test_the_schema_of_a_table_is_read_from_the_lake(lake: Lake) -> None:
    """It has the stated creation time, else the earliest possible; a table added without definition has no schema."""
    catalog, schema = define(SCRIPTS["simple"])
    clock, ddl = Clock(Microseconds(9_000)), format_ddl(catalog, schema)
    cdc_tables.add_cdc_table(lake, clock, "ks", "t", ttl_seconds=86_400, ddl=ddl)
    cdc_tables.add_cdc_table(lake, clock, "ks", "bare", ttl_seconds=86_400)
    assert read_table_schema(lake, "ks", "t") == replace(schema, created_at_us=Microseconds(0))
    cdc_tables.alter_cdc_table(lake, clock, "ks", "t", created_at_ms=Milliseconds(7))
    assert read_table_schema(lake, "ks", "t") == schema
    with pytest.raises(NotFound, match=r"the definition of ks\.bare is not known"):
        read_table_schema(lake, "ks", "bare")


def test_definitions_are_valid_scripts(rehearsed: Rehearse) -> None:
    """A stored definition can be run as a script."""
    catalog, schema = define(SCRIPTS["types"])
    result = rehearsed(format_ddl(catalog, schema))
    assert [str(outcome.error) for outcome in result.outcomes if outcome.error] == []
