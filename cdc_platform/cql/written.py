"""A table's schema as the CQL that makes it: the types that it uses first, those that others are made of before them.

When it was truncated, and its log made anew, stands in comments behind it; when it was made, and which columns it lost
lately, is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cdc_platform.clock import format_us
from cdc_platform.cql.catalog import Catalog
from cdc_platform.cql.names import quoted
from cdc_platform.cql.schema import LOG_KEY, Column, SearchIndex, TableSchema, log_columns
from cdc_platform.cql.types import UserType


def ddl_of(catalog: Catalog, schema: TableSchema) -> str:
    """The statements that make a table of the catalog, and the types that it uses."""
    types = catalog.keyspace(schema.keyspace).types
    return "\n".join([*(_type_ddl(types[name]) for name in _used(types, schema)), _table_ddl(schema), *_notes(schema)])


def plain_ddl(catalog: Catalog, schema: TableSchema) -> list[str]:
    """What makes a table without CDC, and a plain table that is as its log; each where it is not there yet."""
    types = catalog.keyspace(schema.keyspace).types
    base = ", ".join(_column(column) for column in schema.columns)
    order = f" WITH {_order(schema)}" if schema.clustering_key else ""
    log = ", ".join(f"{quoted(each.name)} {each.type.cql}" for each in log_columns(schema))
    place = f"{quoted(schema.keyspace)}.{quoted(schema.log_name)}"
    return [
        *(_type_ddl(types[name]) for name in _used(types, schema)),
        f"CREATE TABLE IF NOT EXISTS {quoted(schema.keyspace)}.{quoted(schema.name)} "
        f"({base}, PRIMARY KEY ({_key(schema)})){order};",
        f"CREATE TABLE IF NOT EXISTS {place} ({log}, PRIMARY KEY ({', '.join(map(quoted, LOG_KEY))}));",
    ]


def index_lines(ddl: str) -> list[str]:
    """What stands in comments of the search indexes of a table, see `index_notes`."""
    return [line for line in ddl.splitlines() if line.startswith(("-- search index: ", "-- CDC: on"))]


def without_notes(ddl: str) -> str:
    """What makes the table, without what stands in comments."""
    return "\n".join(line for line in ddl.splitlines() if not line.startswith("-- "))


def _notes(schema: TableSchema) -> Iterator[str]:
    if schema.truncated_us is not None:
        yield f"-- truncated: {format_us(schema.truncated_us)}"
    if schema.log_since_us is not None:
        yield f"-- log made anew: {format_us(schema.log_since_us)}"
    yield from index_notes(schema.search_indexes, by_index=schema.cdc_by_index)
    if schema.cdc_turned_off and not schema.cdc.enabled:
        yield "-- CDC: turned off"


def index_notes(indexes: Iterable[SearchIndex], *, by_index: bool) -> Iterator[str]:
    """What stands in comments of a table's search indexes, and whether one of them has turned CDC on."""
    for index in indexes:
        yield f"-- search index: {index.class_name} {index.name}"
    if by_index:
        yield "-- CDC: on by a search index"


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
    columns = "".join(
        f"    {_column(column)}{' TTL' * (column.name == schema.row_ttl)},\n" for column in schema.columns
    )
    options = " AND ".join(_options(schema))
    return (
        f"CREATE TABLE {quoted(schema.keyspace)}.{quoted(schema.name)} (\n{columns}"
        f"    PRIMARY KEY ({_key(schema)})\n) WITH {options};"
    )


def _key(schema: TableSchema) -> str:
    partition = ", ".join(quoted(column.name) for column in schema.partition_key)
    return f"({partition})" + "".join(f", {quoted(column.name)}" for column in schema.clustering_key)


def _column(column: Column) -> str:
    return f"{quoted(column.name)} {column.type.cql}{' static' if column.kind == 'static' else ''}"


def _options(schema: TableSchema) -> Iterator[str]:
    cdc = schema.cdc
    yield (
        f"cdc = {{'enabled': '{_boolean(cdc.enabled)}', 'preimage': '{cdc.preimage}', 'postimage':"
        f" '{_boolean(cdc.postimage)}', 'delta': '{cdc.delta}', 'ttl': '{cdc.ttl}'}}"
    )
    if schema.clustering_key:
        yield _order(schema)
    if schema.default_ttl:
        yield f"default_time_to_live = {schema.default_ttl}"


def _order(schema: TableSchema) -> str:
    keys = ", ".join(f"{quoted(key.name)} {'DESC' if key.descending else 'ASC'}" for key in schema.clustering_key)
    return f"CLUSTERING ORDER BY ({keys})"


def _boolean(value: bool) -> str:
    return "true" if value else "false"
