"""Which column of a table says when its rows expire: `expires timestamp TTL` of ScyllaDB 2026.

The rules are those of its test/cqlpy/test_ttl_row.py. The rows themselves stay until its scan comes by, of which no
script tells.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from cdc_platform.cql import statements as s
from cdc_platform.cql.schema import TableSchema
from cdc_platform.cql.types import BIGINT, INT, TIMESTAMP
from cdc_platform.errors import InputError

_TYPES = (TIMESTAMP, BIGINT, INT)


def marked(schema: TableSchema, columns: Iterable[s.ColumnDefinition]) -> TableSchema:
    """The table with the column of those that is defined with TTL, if there is one; raises InputError."""
    names = [column.name for column in columns if column.row_ttl]
    if len(names) > 1:
        raise InputError(f"{schema.full_name} has more than one TTL column, {', '.join(names)}; leave one of them")
    return _expiring_by(schema, names[0]) if names else schema


def altered(schema: TableSchema, name: str | None) -> TableSchema:
    """The table after ALTER TABLE ... TTL with a column, or NULL: a table has one, and another only behind none.

    Raises:
        NotFound: there is no such column.
        InputError: the table has a TTL column already, or none; or the column can be none.
    """
    known = schema.row_ttl
    if name is None:
        if known is None:
            raise InputError(f"{schema.full_name} does not have a TTL column; there is nothing to take back")
        return replace(schema, row_ttl=None)
    if known is not None:
        raise InputError(f"{schema.full_name} already has a TTL column, {known}; ALTER TABLE ... TTL NULL first")
    return _expiring_by(schema, name)


def without_lost(schema: TableSchema) -> TableSchema:
    """The table without its TTL column, if that was dropped."""
    return schema if schema.row_ttl is None or schema.has(schema.row_ttl) else replace(schema, row_ttl=None)


def _expiring_by(schema: TableSchema, name: str) -> TableSchema:
    column = schema.column(name)
    if column.kind != "regular":
        what = "a primary key" if column.is_key else "a static"
        raise InputError(f"Cannot use {what} column as TTL column {name} of {schema.full_name}; take a regular one")
    if column.type not in _TYPES:
        raise InputError(f"TTL column {name} is {column.type.cql}; it must be of type timestamp, bigint or int")
    return replace(schema, row_ttl=name)
