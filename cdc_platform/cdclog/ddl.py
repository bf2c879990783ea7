"""Table schemas parsed from the definitions in `platform.cdc_tables.ddl`, which `cql.ddl` writes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace

from cdc_platform.clock import Microseconds, parse_time_us, us_from_ms
from cdc_platform.cql import Catalog, SearchIndex, TableSchema, apply_definition, parse_definitions
from cdc_platform.cql import ast as s
from cdc_platform.delta import Lake, choose_remedy
from cdc_platform.errors import NotFound, StateError, UnknownTable
from cdc_platform.metastore import CdcTable, TableChange, cdc_table_from_change, cdc_tables


def read_table_schema(lake: Lake, keyspace: str, table: str) -> TableSchema:
    """Return the schema of a registered table.

    Raises:
        NotFound: the table is not registered, or its definition is unknown.
    """
    schemas = load_table_schemas(Catalog(), [cdc_tables.find_cdc_table(lake, keyspace, table)])
    if not schemas:
        remedy = choose_remedy(lake, "make the table with: cdc-platform cql run FILE.cql --apply")
        raise UnknownTable(f"the definition of {keyspace}.{table} is not known; {remedy}")
    return schemas[0]


def load_table_schemas(catalog: Catalog, tables: Iterable[CdcTable]) -> list[TableSchema]:
    """Add the tables with a known definition to a catalog whose types, if any, are the same.

    Raises:
        StateError: a definition is damaged.
    """
    schemas = []
    for table in tables:
        if table.ddl is None:
            continue
        try:
            for statement in parse_definitions(table.ddl):
                _define_statement(catalog, statement.body, us_from_ms(table.oldest_ms))
            schema = with_comment_options(
                catalog.table(s.QualifiedName(table.keyspace_name, table.table_name)), table.ddl
            )
            catalog.put(schema)
            schemas.append(schema)
        except (NotFound, ValueError) as error:
            raise StateError(
                f"the definition of {table.full_name} in platform.cdc_tables cannot be read: {error}; write it"
                f" again with: cdc-platform tables alter {table.full_name}"
            ) from None
    return schemas


def with_comment_options(schema: TableSchema, ddl: str) -> TableSchema:
    """Return the table with the options in its definition's comments, which CQL cannot express."""
    times = {name: parse_time_us(time) for name, time in _TIME_COMMENT.findall(ddl)}
    options = set(_CDC_COMMENT.findall(ddl))
    return replace(
        schema,
        truncated_us=times.get("truncated"),
        log_since_us=times.get("log made anew"),
        search_indexes=tuple(SearchIndex(name, class_name) for class_name, name in _INDEX_COMMENT.findall(ddl)),
        cdc_by_index="on by a search index" in options,
        cdc_turned_off="turned off" in options,
        attributes=tuple((json.loads(name), kind) for kind, name in _ATTRIBUTE_COMMENT.findall(ddl)),
    )


def schema_from_change(change: TableChange) -> TableSchema | None:
    """Return the table as a change defined it; None if the change has no definition."""
    return next(iter(load_table_schemas(Catalog(), [cdc_table_from_change(change)])), None)


_INDEX_COMMENT = re.compile(r"^-- search index: (\S+) (.+)$", re.MULTILINE)
_ATTRIBUTE_COMMENT = re.compile(r'^-- attribute: (\w+) (".*")$', re.MULTILINE)
_CDC_COMMENT = re.compile(r"^-- CDC: (.+)$", re.MULTILINE)
_TIME_COMMENT = re.compile(r"^-- (truncated|log made anew): (\S+)$", re.MULTILINE)


def _define_statement(catalog: Catalog, body: s.StatementBody, at_us: Microseconds) -> None:
    if isinstance(body, s.DefinitionStatement):
        apply_definition(catalog, body, at_us)
