"""The schemas of tables by their definitions in `platform.cdc_tables.ddl`, which `cql.written` has written."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from cdc_platform.clock import Microseconds, parse_time_us, us_of
from cdc_platform.cql import statements as s
from cdc_platform.cql.catalog import Catalog
from cdc_platform.cql.definitions import define
from cdc_platform.cql.parser import parse
from cdc_platform.cql.schema import SearchIndex, TableSchema
from cdc_platform.errors import NotFound, StateError, UnknownTable
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.mirrors import mend
from cdc_platform.records import cdc_tables
from cdc_platform.records.table_history import CdcTable, TableChange, as_it_stands


def schema_of(lake: Lake, keyspace: str, table: str) -> TableSchema:
    """The schema of a table that the platform was told of.

    Raises:
        NotFound: it was not, or not with its definition.
    """
    found = known_tables(Catalog(), [cdc_tables.find(lake, keyspace, table)])
    if not found:
        do = mend(lake, "make the table with: cdc-platform log FILE.cql --keep")
        raise UnknownTable(f"the definition of {keyspace}.{table} is not known; {do}")
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
                _define(catalog, statement.body, us_of(known.oldest_ms))
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
    options = set(_CDC_NOTE.findall(ddl))
    return replace(
        schema,
        truncated_us=found.get("truncated"),
        log_since_us=found.get("log made anew"),
        search_indexes=tuple(SearchIndex(name, class_name) for class_name, name in _INDEX_NOTE.findall(ddl)),
        cdc_by_index="on by a search index" in options,
        cdc_turned_off="turned off" in options,
    )


def schema_as_told(change: TableChange) -> TableSchema | None:
    """The table as it was told to be by a change; None where that was without its definition."""
    return next(iter(known_tables(Catalog(), [as_it_stands(change)])), None)


_INDEX_NOTE = re.compile(r"^-- search index: (\S+) (.+)$", re.MULTILINE)
_CDC_NOTE = re.compile(r"^-- CDC: (.+)$", re.MULTILINE)
_NOTE = re.compile(r"^-- (truncated|log made anew): (\S+)$", re.MULTILINE)


def _define(catalog: Catalog, body: s.Body, at_us: Microseconds) -> None:
    if isinstance(body, s.Definition):
        define(catalog, body, at_us)
