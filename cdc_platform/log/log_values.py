"""Log rows in Python and in Arrow: values in canonical form there, as a log's Delta table keeps them here.

It knows how each CQL type is kept; which columns there are is `log_table`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import date
from decimal import Decimal
from ipaddress import ip_address
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from cdc_platform.cql.schema import TableSchema, log_columns
from cdc_platform.cql.times import parse_duration
from cdc_platform.cql.types import CqlType, ListType, MapType, Scalar, SetType, TupleType, UserType, Value, timeuuid_us
from cdc_platform.errors import InputError
from cdc_platform.lake.tables import TIMESTAMP
from cdc_platform.log.log_table import WRITTEN_AT, log_table

_EPOCH = date(1970, 1, 1).toordinal()
_TO_TEXT = ("decimal", "duration", "inet", "timeuuid", "uuid", "varint")
_FROM_TEXT: dict[str, Callable[[str], Any]] = {
    "decimal": Decimal,
    "duration": parse_duration,
    "inet": ip_address,
    "timeuuid": UUID,
    "uuid": UUID,
    "varint": int,
}
_US_LIMIT = 2**63 // 1000


def rows_table(schema: TableSchema, rows: Sequence[dict[str, Value | None]]) -> pa.Table:
    """Log rows, each with its stream, in the columns of the log's Delta table.

    Raises:
        InputError: a timestamp is too far away for Delta, which counts µs.
    """
    arrays = {each.name: [arrow_value(each.type, row[each.name]) for row in rows] for each in log_columns(schema)}
    arrays[WRITTEN_AT] = [timeuuid_us(_uuid(row)) for row in rows]
    fields = log_table(schema).schema
    return pa.table([pa.array(arrays[field.name], field.type) for field in fields], schema=fields)


def _uuid(row: dict[str, Value | None]) -> UUID:
    time = row["cdc$time"]
    if not isinstance(time, UUID):
        raise InputError("a log row has no cdc$time; every row of a CDC log has one")
    return time


def table_rows(schema: TableSchema, table: pa.Table | pa.RecordBatch) -> Iterator[dict[str, Value | None]]:
    """The log rows of a log's Delta table, with values in canonical form; columns that it lacks are null."""
    columns = log_columns(schema)
    present = set(table.schema.names)
    lists = [
        canonical_values(each.type, table.column(each.name)) if each.name in present else [None] * table.num_rows
        for each in columns
    ]
    names = [each.name for each in columns]
    for values in zip(*lists, strict=True):
        yield dict(zip(names, values, strict=True))


def canonical_values(kind: CqlType, values: pa.ChunkedArray | pa.Array) -> list[Value | None]:
    """The canonical forms of a column of `arrow_type(kind)`.

    Raises:
        InputError: a text is none of a value of the type.
    """
    return [None if value is None else canonical_value(kind, value) for value in _python(values)]


def _python(values: pa.ChunkedArray | pa.Array) -> list[Any]:
    # Timestamps and dates that Python's datetime cannot hold are read as the integers that they are.
    if values.type == TIMESTAMP:
        return values.cast(pa.int64()).to_pylist()
    if values.type == pa.date32():
        return values.cast(pa.int32()).to_pylist()
    return values.to_pylist()


def arrow_value(kind: CqlType, value: Value | None) -> Any:
    """A canonical value as what Arrow takes for `arrow_type(kind)`."""
    if value is None:
        return None
    match kind:
        case Scalar():
            return _scalar_value(kind.name, value)
        case MapType():
            return [(arrow_value(kind.key, key), arrow_value(kind.value, inner)) for key, inner in value]
        case ListType() | SetType():
            return [arrow_value(kind.element, part) for part in value]
        case UserType():
            parts = zip(kind.fields, (*value, *[None] * (len(kind.fields) - len(value))), strict=True)
            return {name: arrow_value(of, part) for (name, of), part in parts}
        case TupleType():
            return {f"_{place}": arrow_value(of, value[place - 1]) for place, of in enumerate(kind.components, 1)}
    raise AssertionError(f"unreachable: {kind}")


def _scalar_value(name: str, value: Value) -> Any:
    if name in _TO_TEXT:
        return str(value)
    if name == "timestamp":
        if not -_US_LIMIT <= value <= _US_LIMIT:
            raise InputError(f"timestamp {value} ms is too far away for a Delta table, which counts microseconds")
        return value * 1000
    return value


def canonical_value(kind: CqlType, value: Any) -> Value | None:
    """The canonical form of what Arrow has for a value of `arrow_type(kind)`."""
    if value is None:
        return None
    match kind:
        case Scalar():
            return _scalar_of(kind, value)
        case MapType():
            pairs = value.items() if isinstance(value, dict) else value
            return kind.canonical({canonical_value(kind.key, key): canonical_value(kind.value, v) for key, v in pairs})
        case ListType() | SetType():
            return kind.canonical([canonical_value(kind.element, part) for part in value])
        case UserType():
            return tuple(canonical_value(of, value.get(name)) for name, of in kind.fields)
        case TupleType():
            return tuple(canonical_value(of, value[f"_{place}"]) for place, of in enumerate(kind.components, 1))
    raise AssertionError(f"unreachable: {kind}")


def _scalar_of(kind: Scalar, value: Any) -> Value:
    if kind.name in _FROM_TEXT:
        try:
            return _FROM_TEXT[kind.name](value)
        except (ValueError, ArithmeticError):
            raise kind.refuse(value) from None
    if kind.name == "timestamp":
        return (
            value if isinstance(value, int) else int(np.datetime64(value.replace(tzinfo=None), "us").astype(int))
        ) // 1000
    if kind.name == "date" and isinstance(value, date):
        return value.toordinal() - _EPOCH
    return kind.canonical(value)
