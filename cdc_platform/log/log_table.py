"""The Delta table of a CDC log: its columns, and how values of CQL types are kept in them."""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa

from cdc_platform.cql.schema import LogColumn, TableSchema, log_columns
from cdc_platform.cql.types import CqlType, ListType, MapType, Scalar, SetType, TupleType, UserType
from cdc_platform.lake.tables import TIMESTAMP, Table, array_of, column
from cdc_platform.log.stored_names import EXACT, WRITTEN_AT, stored

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
        case Scalar():
            return _SCALARS.get(kind.name, pa.string())
        case MapType():
            return pa.map_(arrow_type(kind.key), arrow_type(kind.value))
        case ListType() | SetType():
            return array_of(arrow_type(kind.element))
        case UserType():
            return pa.struct([pa.field(name, arrow_type(part)) for name, part in kind.fields])
        case TupleType():
            return pa.struct([pa.field(f"_{place}", arrow_type(part)) for place, part in enumerate(kind.components, 1)])
    raise AssertionError(f"unreachable: {kind}")


def is_ordered_alike(kind: CqlType) -> bool:
    """Return True if the Delta column of a CQL type orders its values as CQL does."""
    return isinstance(kind, Scalar) and kind.name in _SCALARS


@lru_cache(maxsize=512)
def log_table(schema: TableSchema, *, exact: bool = False) -> Table:
    """The Delta table of a base table's log: the log's columns, with the time of the write behind its own ones.

    Columns have the names that Delta can tell apart, see `stored_names`. With `exact` there is a last one for values
    that no native column holds.
    """
    schema = stored(schema)
    fields = [_field(each) for each in log_columns(schema)]
    when = column(WRITTEN_AT, TIMESTAMP, "time of the write, µs; cdc$time holds the same")
    # Delta keeps the bounds of the first 32 columns of a file only.
    head = sum(each.base is None for each in log_columns(schema))
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


def _field(each: LogColumn) -> pa.Field:
    return column(each.name, arrow_type(each.type), _COMMENTS[each.role], null=each.role not in _NEVER_NULL)


def writes_schema(schema: TableSchema) -> pa.Schema:
    """The columns of typed writes to a table, by their names in Delta, a row a write, as `volume` takes them.

    `operation` (int8) is 1 to update, 2 to insert, 3 to delete the row, 4 to delete the partition, 5 or 6 to delete a
    range of rows; `timestamp` (int64, µs); `ttl` (int64, s; 0: none, null: that of the table). The columns behind are
    those of the log: a key, a value (null: not written), `cdc$deleted_X` (the column is set to null, or the collection
    overwritten), `cdc$deleted_elements_X`.

    A range begins with the row of the clustering columns that are given (5) or behind it (6), and ends with that of
    their `cdc$range_end_X` (`cdc$range_end` int8 7, or null) or before it (8); of either the first columns may be given
    alone, or none of them. Only tables with clustering columns have these columns.
    """
    schema = stored(schema)
    head = [pa.field("operation", pa.int8()), pa.field("timestamp", pa.int64()), pa.field("ttl", pa.int64())]
    roles = ("key", "value", "deleted", "deleted_elements")
    rest = [each for each in log_columns(schema) if each.role in roles]
    return pa.schema([*head, *(pa.field(each.name, arrow_type(each.type)) for each in rest), *_range_ends(schema)])


RANGE_END = "cdc$range_end"
"""A column of typed writes: how a range of rows ends, 7 with the row that is named or 8 before it."""


def end_column(name: str) -> str:
    """The column of typed writes with the value of a clustering column at the end of a range."""
    return f"{RANGE_END}_{name}"


def _range_ends(schema: TableSchema) -> list[pa.Field]:
    if not schema.clustering_key:
        return []
    keys = (pa.field(end_column(key.name), arrow_type(key.type)) for key in schema.clustering_key)
    return [pa.field(RANGE_END, pa.int8()), *keys]


def range_columns(schema: TableSchema) -> list[str]:
    """The columns of typed writes that only deletions of ranges have."""
    return [field.name for field in _range_ends(stored(schema))]
