"""Schema of a CDC log's Delta table: column names, Arrow types and the columns of typed writes.

CQL distinguishes names by case and Delta does not. A name stays as it is unless another name of the same table or
user type differs from it by case alone; then names with capitals get a `$` and a hexadecimal mask of their capitals
(bit n for letter n). `ddl` is a module of its own because the CQL grammar is slow to load.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache

import pyarrow as pa

from cdc_platform.cql import (
    CqlType,
    ListType,
    LogColumn,
    MapType,
    ScalarType,
    SetType,
    TableSchema,
    TupleType,
    UserType,
    get_log_columns,
)
from cdc_platform.tables import TIMESTAMP, Table, array_type, column

WRITTEN_AT = "cdc$timestamp"
"""The only column that ScyllaDB's log lacks: the time in `cdc$time` as a timestamp, used to skip files."""
EXACT = "cdc$exact"
"""A column of logs with values that native columns cannot hold; see `values`."""

GENERATION = "cdc$generation"
"""A column of sinks: the start of the generation or stream set from which a reader read the row."""

CHANGES_SUFFIX = "$changes"
"""Follows a table's name in that of its view of changes; no name of CQL has a `$`."""
INEXACT = "cdc$inexact"
"""A column of an ingested live table: whether part of a row relies on data that CQL returns inexactly."""
AS_OF_APPLICATION, INEXACT_APPLICATION = "current:as-of", "current:inexact"
"""The applications under which such a table notes as of when (µs) it is, and how many of its rows are inexact."""


GAP_APPLICATION = "ingest:gap"
"""The application under which a log records up to when (µs) rows may have expired unread; see `metastore.log_gaps`."""


@lru_cache(maxsize=512)
def with_stored_names(schema: TableSchema) -> TableSchema:
    """Return the schema with the names of its log in Delta; unchanged if no names differ by case alone."""
    heads = [log_column.name for log_column in get_log_columns(schema) if log_column.base is None]
    names = _distinct_names([column.name for column in schema.columns], taken=(WRITTEN_AT, EXACT, GENERATION, *heads))
    columns = tuple(
        replace(column, name=names[column.name], type=stored_type(column.type)) for column in schema.columns
    )
    return schema if columns == schema.columns else replace(schema, columns=columns)


def stored_type(kind: CqlType) -> CqlType:
    """Return the type with the Delta names of user type fields."""
    match kind:
        case MapType():
            return replace(kind, key=stored_type(kind.key), value=stored_type(kind.value))
        case ListType() | SetType():
            return replace(kind, element=stored_type(kind.element))
        case TupleType():
            return TupleType(tuple(map(stored_type, kind.components)))
        case UserType():
            names = _distinct_names(kind.field_names)
            return replace(kind, fields=tuple((names[name], stored_type(part)) for name, part in kind.fields))
    return kind


def candidate_names(name: str) -> tuple[str, ...]:
    """Return the names that a column or field may have in a table written when it had other neighbours."""
    return name, case_marked_name(name)


def case_marked_name(name: str) -> str:
    """Return a name with a mask of its capitals."""
    return f"{name}${sum(1 << position for position, letter in enumerate(name) if letter != letter.lower()):x}"


def stored_columns(schema: TableSchema) -> list[tuple[LogColumn, str]]:
    """Return the columns of a table's log in the order of its Delta table, each with its Delta name."""
    names = dict(zip((column.name for column in with_stored_names(schema).columns), schema.columns, strict=True))
    by_role = {
        (log_column.base.name if log_column.base else log_column.name, log_column.role): log_column
        for log_column in get_log_columns(schema)
    }
    return [
        (
            by_role[names[log_column.base.name].name if log_column.base else log_column.name, log_column.role],
            log_column.name,
        )
        for log_column in get_log_columns(with_stored_names(schema))
    ]


def find_stored_name(column: LogColumn, name: str, present: Collection[str]) -> str | None:
    """Return a column's name in a table that may have been written when it had other columns; None if absent."""
    if column.base is None or name in present:
        return name if name in present else None
    prefix = column.name.removesuffix(column.base.name)
    known = (prefix + other for other in candidate_names(column.base.name))
    return next((other for other in known if other in present), None)


def _distinct_names(names: Iterable[str], taken: Iterable[str] = ()) -> Mapping[str, str]:
    listed, reserved = list(names), {name.lower() for name in taken}
    counts = Counter(name.lower() for name in listed)

    def apart(name: str) -> str:
        alone = counts[name.lower()] == 1 or name == name.lower()
        return name if alone and name.lower() not in reserved else case_marked_name(name)

    return {name: apart(name) for name in listed}


_SCALARS: dict[str, pa.DataType] = {
    "ascii": pa.string(),
    "bigint": pa.int64(),
    "blob": pa.binary(),
    "boolean": pa.bool_(),
    "counter": pa.int64(),
    "date": pa.date32(),
    "double": pa.float64(),
    "float": pa.float32(),
    "int": pa.int32(),
    "smallint": pa.int16(),
    "text": pa.string(),
    "time": pa.int64(),
    "timestamp": TIMESTAMP,
    "tinyint": pa.int8(),
}
"""Other types are text, in their JSON form: UUIDs, addresses, decimals, varints, durations."""
_COMMENTS = {
    "stream_id": "stream of the row: that of the base row's partition key at the time of the write",
    "time": "timeuuid of the write; rows of one batch share it",
    "batch_seq_no": "place of the row in its batch, from 0",
    "operation": "0 pre-image, 1 update, 2 insert, 3 row and 4 partition delete, 5 to 8 range bounds, 9 post-image",
    "ttl": "seconds that the written cells live; null: for ever",
    "end_of_batch": "true in the last row of a batch",
    "key": "key column of the base table",
    "value": "value written, or elements added",
    "deleted": "true: the column, or the whole collection before this write, was deleted",
    "deleted_elements": "keys of the elements that were deleted",
}
_NEVER_NULL = ("stream_id", "time", "batch_seq_no", "operation")


def arrow_type(kind: CqlType) -> pa.DataType:
    """Return the Arrow type of a CQL type's values in a log's Delta table."""
    match kind:
        case ScalarType():
            return _SCALARS.get(kind.name, pa.string())
        case MapType():
            return pa.map_(arrow_type(kind.key), arrow_type(kind.value))
        case ListType() | SetType():
            return array_type(arrow_type(kind.element))
        case UserType():
            return pa.struct([pa.field(name, arrow_type(part)) for name, part in kind.fields])
        case TupleType():
            return pa.struct(
                [pa.field(f"_{position}", arrow_type(part)) for position, part in enumerate(kind.components, 1)]
            )
    raise AssertionError(f"unreachable: {kind}")


def has_same_order(kind: CqlType) -> bool:
    """Return True if the Delta column of a CQL type orders its values as CQL does."""
    return isinstance(kind, ScalarType) and kind.name in _SCALARS


@lru_cache(maxsize=512)
def log_table(schema: TableSchema, *, exact: bool = False) -> Table:
    """Return the Delta table of a base table's log, with the time of the write after the log's own metadata columns.

    Columns have names that Delta can distinguish, see `with_stored_names`. With `exact` the last column is for values
    that native columns cannot hold.
    """
    schema = with_stored_names(schema)
    fields = [_log_field(log_column) for log_column in get_log_columns(schema)]
    written_at = column(WRITTEN_AT, TIMESTAMP, "time of the write, µs; cdc$time holds the same")
    # Delta stores bounds only for the first 32 columns of a file.
    head = sum(log_column.base is None for log_column in get_log_columns(schema))
    return Table(
        schema.keyspace,
        schema.log_name,
        pa.schema([*fields[:head], written_at, *fields[head:], *([EXACT_COLUMN] if exact else [])]),
        keys=("cdc$stream_id", "cdc$time", "cdc$batch_seq_no"),
        comment=f"CDC log of {schema.full_name}",
    )


EXACT_COLUMN = column(
    EXACT,
    pa.map_(pa.string(), pa.string()),
    "by column: the value as JSON, where the column has but the nearest date or timestamp that all readers have",
    null=True,
)


def _log_field(log_column: LogColumn) -> pa.Field:
    return column(
        log_column.name,
        arrow_type(log_column.type),
        _COMMENTS[log_column.role],
        null=log_column.role not in _NEVER_NULL,
    )


def typed_writes_schema(schema: TableSchema) -> pa.Schema:
    """Return the columns of typed writes to a table, by their Delta names, one row per write.

    `operation` (int8) is 1 to update, 2 to insert, 3 to delete the row, 4 to delete the partition, 5 or 6 to delete a
    range of rows; `timestamp` (int64, µs); `ttl` (int64, s; 0: none, null: that of the table). The other columns are
    those of the log: a key, a value (null: not written), `cdc$deleted_X` (the column is set to null, or the collection
    overwritten), `cdc$deleted_elements_X`.

    A range begins with the row of the given clustering columns (5) or after it (6). It ends with that of their
    `cdc$range_end_X` (`cdc$range_end` int8 7, or null) or before it (8). Each bound may have only the first columns, or
    none. Only tables with clustering columns have these columns.
    """
    schema = with_stored_names(schema)
    head = [pa.field("operation", pa.int8()), pa.field("timestamp", pa.int64()), pa.field("ttl", pa.int64())]
    roles = ("key", "value", "deleted", "deleted_elements")
    rest = [log_column for log_column in get_log_columns(schema) if log_column.role in roles]
    return pa.schema(
        [
            *head,
            *(pa.field(log_column.name, arrow_type(log_column.type)) for log_column in rest),
            *_range_end_fields(schema),
        ]
    )


RANGE_END = "cdc$range_end"
"""A column of typed writes: a range of rows ends with the named row (7) or before it (8)."""


def range_end_column(name: str) -> str:
    """Return the column of typed writes with a clustering column's value at the end of a range."""
    return f"{RANGE_END}_{name}"


def _range_end_fields(schema: TableSchema) -> list[pa.Field]:
    if not schema.clustering_key:
        return []
    keys = (pa.field(range_end_column(key.name), arrow_type(key.type)) for key in schema.clustering_key)
    return [pa.field(RANGE_END, pa.int8()), *keys]


def range_end_columns(schema: TableSchema) -> list[str]:
    """Return the columns of typed writes that only range deletions use."""
    return [field.name for field in _range_end_fields(with_stored_names(schema))]
