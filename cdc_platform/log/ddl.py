"""A table's schema as the CQL that makes it, for `platform.cdc_tables.ddl`, and back.

Types come in front of the table, those that others are made of first. When it was truncated, and its log made anew,
stands in comments behind it; when it was made, and which columns it lost lately, is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from cdc_platform.clock import Microseconds, format_us, parse_time_us, us_of
from cdc_platform.cql import statements as s
from cdc_platform.cql.catalog import Catalog
from cdc_platform.cql.definitions import define
from cdc_platform.cql.names import quoted
from cdc_platform.cql.parser import parse
from cdc_platform.cql.schema import Column, TableSchema
from cdc_platform.cql.types import UserType
from cdc_platform.errors import NotFound, StateError, UnknownTable
from cdc_platform.lake.lake import Lake
from cdc_platform.records import cdc_tables
from cdc_platform.records.cdc_tables import CdcTable


def ddl_of(catalog: Catalog, schema: TableSchema) -> str:
    """The statements that make a table of the catalog, and the types that it uses."""
    types = catalog.keyspace(schema.keyspace).types
    return "\n".join([*(_type_ddl(types[name]) for name in _used(types, schema)), _table_ddl(schema), *_notes(schema)])


def schema_of(lake: Lake, keyspace: str, table: str) -> TableSchema:
    """The schema of a table that the platform was told of.

    Raises:
        NotFound: it was not, or not with its definition.
    """
    found = known_tables(Catalog(), [cdc_tables.find(lake, keyspace, table)])
    if not found:
        raise UnknownTable(
            f"the definition of {keyspace}.{table} is not known; make the table with: cdc-platform log FILE.cql --keep"
        )
    return found[0]


def known_tables(catalog: Catalog, tables: Iterable[CdcTable]) -> list[TableSchema]:
    """Put the tables whose definition is known into a catalog, which has none of their types or has the same.

    Raises:
        StateError: a definition is damaged.
    """
    found = []
    for known in tables:
        if known.ddl is None:
            continue
        try:
            for statement in parse(known.ddl):
                _define(catalog, statement.body, us_of(known.created_at_ms))
            schema = noted(catalog.table(s.Name(known.keyspace_name, known.table_name)), known.ddl)
            catalog.put(schema)
            found.append(schema)
        except (NotFound, ValueError) as error:
            raise StateError(
                f"the definition of {known.full_name} in platform.cdc_tables cannot be read: {error}; write it"
                f" anew with: cdc-platform tables alter {known.full_name}"
            ) from None
    return found


def noted(schema: TableSchema, ddl: str) -> TableSchema:
    """The table with what its definition says in comments, for which CQL has no words."""
    found = {name: parse_time_us(time) for name, time in _NOTE.findall(ddl)}
    return replace(schema, truncated_us=found.get("truncated"), log_since_us=found.get("log made anew"))


def _notes(schema: TableSchema) -> Iterator[str]:
    if schema.truncated_us is not None:
        yield f"-- truncated: {format_us(schema.truncated_us)}"
    if schema.log_since_us is not None:
        yield f"-- log made anew: {format_us(schema.log_since_us)}"


_NOTE = re.compile(r"^-- (truncated|log made anew): (\S+)$", re.MULTILINE)


def _define(catalog: Catalog, body: s.Body, at_us: Microseconds) -> None:
    if isinstance(body, s.Definition):
        define(catalog, body, at_us)


def _used(types: dict[str, UserType], schema: TableSchema) -> Iterator[str]:
    """The names of the types that a table uses, each behind those that it is made of."""
    seen: dict[str, None] = {}

    def visit(name: str) -> None:
        for _, part in types[name].fields:
            for inner in part.user_types():
                if inner.name not in seen:
                    visit(inner.name)
        seen.setdefault(name)

    for column in schema.columns:
        for used in column.type.user_types():
            visit(used.name)
    return iter(seen)


def _type_ddl(kind: UserType) -> str:
    fields = ", ".join(f"{quoted(name)} {part.cql}" for name, part in kind.fields)
    return f"CREATE TYPE IF NOT EXISTS {quoted(kind.keyspace)}.{quoted(kind.name)} ({fields});"


def _table_ddl(schema: TableSchema) -> str:
    columns = "".join(f"    {_column(column)},\n" for column in schema.columns)
    partition = ", ".join(quoted(column.name) for column in schema.partition_key)
    clustering = "".join(f", {quoted(column.name)}" for column in schema.clustering_key)
    options = " AND ".join(_options(schema))
    return (
        f"CREATE TABLE {quoted(schema.keyspace)}.{quoted(schema.name)} (\n{columns}"
        f"    PRIMARY KEY (({partition}){clustering})\n) WITH {options};"
    )


def _column(column: Column) -> str:
    return f"{quoted(column.name)} {column.type.cql}{' static' if column.kind == 'static' else ''}"


def _options(schema: TableSchema) -> Iterator[str]:
    cdc = schema.cdc
    yield (
        f"cdc = {{'enabled': '{_boolean(cdc.enabled)}', 'preimage': '{cdc.preimage}', 'postimage':"
        f" '{_boolean(cdc.postimage)}', 'delta': '{cdc.delta}', 'ttl': '{cdc.ttl}'}}"
    )
    if schema.clustering_key:
        order = ", ".join(f"{quoted(key.name)} {'DESC' if key.descending else 'ASC'}" for key in schema.clustering_key)
        yield f"CLUSTERING ORDER BY ({order})"
    if schema.default_ttl:
        yield f"default_time_to_live = {schema.default_ttl}"


def _boolean(value: bool) -> str:
    return "true" if value else "false"
