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
"""The one column that ScyllaDB's log never has: the time in `cdc$time` as a timestamp, by which files are skipped."""
EXACT = "cdc$exact"
"""A column that a log has once a value was kept that no native column holds: see `exact`."""

GENERATION = "cdc$generation"
"""A column of sinks: when the generation or stream set began of which a reader has read the row."""

INEXACT = "cdc$inexact"
"""A column of a live cluster's table that is kept: whether some of a row rests on what CQL does not tell exactly."""
AS_OF_APPLICATION, INEXACT_APPLICATION = "current:as-of", "current:inexact"
"""The applications under which such a table notes as of when (µs) it is, and how many of its rows are inexact."""


GAP_APPLICATION = "ingest:gap"
"""The application under which a log notes up to when (µs) rows of it may have died unread; see `records.log_gaps`."""


@lru_cache(maxsize=512)
def with_stored_names(schema: TableSchema) -> TableSchema:
    """The schema with the names that its log has in Delta; itself where no names differ by case alone."""
    heads = [each.name for each in get_log_columns(schema) if each.base is None]
    names = _distinct_names([column.name for column in schema.columns], taken=(WRITTEN_AT, EXACT, GENERATION, *heads))
    columns = tuple(
        replace(column, name=names[column.name], type=stored_type(column.type)) for column in schema.columns
    )
    return schema if columns == schema.columns else replace(schema, columns=columns)


def stored_type(kind: CqlType) -> CqlType:
    """The type with the names that fields of user types have in Delta."""
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
    """The names under which a column or field may be in a table that was written when it had other neighbours."""
    return name, case_marked_name(name)


def case_marked_name(name: str) -> str:
    """A name with which of its letters are capitals."""
    return f"{name}${sum(1 << place for place, letter in enumerate(name) if letter != letter.lower()):x}"


def stored_columns(schema: TableSchema) -> list[tuple[LogColumn, str]]:
    """The columns of a table's log in the order of its Delta table, each with its name there."""
    names = dict(zip((column.name for column in with_stored_names(schema).columns), schema.columns, strict=True))
    by_role = {(each.base.name if each.base else each.name, each.role): each for each in get_log_columns(schema)}
    return [
        (by_role[names[each.base.name].name if each.base else each.name, each.role], each.name)
        for each in get_log_columns(with_stored_names(schema))
    ]


def find_stored_name(each: LogColumn, name: str, present: Collection[str]) -> str | None:
    """The name that a column has among those of a table, which may be of a time when other columns were beside it."""
    if each.base is None or name in present:
        return name if name in present else None
    prefix = each.name.removesuffix(each.base.name)
    known = (prefix + other for other in candidate_names(each.base.name))
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
"""What is not here is text, in the form that JSON has: UUIDs, addresses, decimals, integers of any size, durations."""
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
    """The Arrow type that values of a CQL type have in a log's Delta table."""
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
            return pa.struct([pa.field(f"_{place}", arrow_type(part)) for place, part in enumerate(kind.components, 1)])
    raise AssertionError(f"unreachable: {kind}")


def has_same_order(kind: CqlType) -> bool:
    """Return True if the Delta column of a CQL type orders its values as CQL does."""
    return isinstance(kind, ScalarType) and kind.name in _SCALARS


@lru_cache(maxsize=512)
def log_table(schema: TableSchema, *, exact: bool = False) -> Table:
    """The Delta table of a base table's log: the log's columns, with the time of the write behind its own ones.

    Columns have the names that Delta can tell apart, see `stored_names`. With `exact` there is a last one for values
    that no native column holds.
    """
    schema = with_stored_names(schema)
    fields = [_log_field(each) for each in get_log_columns(schema)]
    when = column(WRITTEN_AT, TIMESTAMP, "time of the write, µs; cdc$time holds the same")
    # Delta keeps the bounds of the first 32 columns of a file only.
    head = sum(each.base is None for each in get_log_columns(schema))
    return Table(
        schema.keyspace,
        schema.log_name,
        pa.schema([*fields[:head], when, *fields[head:], *([EXACT_COLUMN] if exact else [])]),
        keys=("cdc$stream_id", "cdc$time", "cdc$batch_seq_no"),
        comment=f"CDC log of {schema.full_name}",
    )


EXACT_COLUMN = column(
    EXACT,
    pa.map_(pa.string(), pa.string()),
    "by column: the value as JSON, where the column has but the nearest date or timestamp that all readers have",
    null=True,
)


def _log_field(each: LogColumn) -> pa.Field:
    return column(each.name, arrow_type(each.type), _COMMENTS[each.role], null=each.role not in _NEVER_NULL)


def typed_writes_schema(schema: TableSchema) -> pa.Schema:
    """The columns of typed writes to a table, by their names in Delta, a row a write, as `volume` takes them.

    `operation` (int8) is 1 to update, 2 to insert, 3 to delete the row, 4 to delete the partition, 5 or 6 to delete a
    range of rows; `timestamp` (int64, µs); `ttl` (int64, s; 0: none, null: that of the table). The columns behind are
    those of the log: a key, a value (null: not written), `cdc$deleted_X` (the column is set to null, or the collection
    overwritten), `cdc$deleted_elements_X`.

    A range begins with the row of the clustering columns that are given (5) or behind it (6), and ends with that of
    their `cdc$range_end_X` (`cdc$range_end` int8 7, or null) or before it (8); of either the first columns may be given
    alone, or none of them. Only tables with clustering columns have these columns.
    """
    schema = with_stored_names(schema)
    head = [pa.field("operation", pa.int8()), pa.field("timestamp", pa.int64()), pa.field("ttl", pa.int64())]
    roles = ("key", "value", "deleted", "deleted_elements")
    rest = [each for each in get_log_columns(schema) if each.role in roles]
    return pa.schema(
        [*head, *(pa.field(each.name, arrow_type(each.type)) for each in rest), *_range_end_fields(schema)]
    )


RANGE_END = "cdc$range_end"
"""A column of typed writes: how a range of rows ends, 7 with the row that is named or 8 before it."""


def range_end_column(name: str) -> str:
    """The column of typed writes with the value of a clustering column at the end of a range."""
    return f"{RANGE_END}_{name}"


def _range_end_fields(schema: TableSchema) -> list[pa.Field]:
    if not schema.clustering_key:
        return []
    keys = (pa.field(range_end_column(key.name), arrow_type(key.type)) for key in schema.clustering_key)
    return [pa.field(RANGE_END, pa.int8()), *keys]


def range_end_columns(schema: TableSchema) -> list[str]:
    """The columns of typed writes that only deletions of ranges have."""
    return [field.name for field in _range_end_fields(with_stored_names(schema))]
