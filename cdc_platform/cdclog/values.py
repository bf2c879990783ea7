"""Convert log rows between canonical values and Arrow, with JSON for values that Delta cannot represent.

Every reader of Delta supports dates of the years 1 to 9999 and timestamps that fit 64 bits of nanoseconds (Spark
writes INT96). CQL has 32 bits of days and 64 bits of milliseconds: the native column holds the nearest value, and
`cdc$exact` the exact one as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import date
from decimal import Decimal
from ipaddress import ip_address
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from cdc_platform.cdclog.schema import (
    EXACT,
    WRITTEN_AT,
    case_marked_name,
    find_stored_name,
    log_table,
    stored_columns,
    stored_type,
)
from cdc_platform.cdclog.schema_evolution import convert_log_rows
from cdc_platform.clock import MILLISECOND_NS, Microseconds, Milliseconds, ms_from_us, us_from_ms
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
    Value,
    days_from_date,
    format_integer,
    parse_duration,
    parse_integer,
    us_from_timeuuid,
)
from cdc_platform.errors import InputError
from cdc_platform.tables import TIMESTAMP

FIRST_DAY = days_from_date(1, 1, 1)
LAST_DAY = days_from_date(9999, 12, 31)
"""The last day (since 1970) that every reader of Delta tables supports."""
LAST_MS = Milliseconds((2**63 - 1) // MILLISECOND_NS)
FIRST_MS = -LAST_MS
"""The first millisecond (since 1970) that every reader supports; the range is 1677-09-21 to 2262-04-11."""
TEXT_PARSERS: Mapping[str, Callable[[str], Any]] = {
    "decimal": Decimal,
    "duration": parse_duration,
    "inet": ip_address,
    "timeuuid": UUID,
    "uuid": UUID,
    "varint": parse_integer,
}
"""The types whose values are text in Delta, with their parsers."""
_BOUNDS = {"date": (FIRST_DAY, LAST_DAY), "timestamp": (FIRST_MS, LAST_MS)}


def clamp_value(kind: ScalarType, value: int) -> int:
    """Return the nearest date (days) or timestamp (ms) that a native column holds."""
    low, high = _BOUNDS[kind.name]
    return min(max(value, low), high)


def clamp_values(name: str, values: np.ndarray) -> np.ndarray:
    """Do as `clamp_value` for many values (int64), by the type's name."""
    return np.clip(values, *_BOUNDS[name])


def may_be_out_of_range(kind: CqlType) -> bool:
    """Return True if a type is, or contains, a date or timestamp."""
    return (isinstance(kind, ScalarType) and kind.name in _BOUNDS) or any(map(may_be_out_of_range, kind.parts))


def is_out_of_range(kind: CqlType, value: Value | None) -> bool:
    """Return True if a canonical value is, or contains, a value that no native column holds."""
    if value is None:
        return False
    match kind:
        case ScalarType():
            return kind.name in _BOUNDS and clamp_value(kind, value) != value
        case MapType():
            return any(is_out_of_range(kind.key, key) or is_out_of_range(kind.value, inner) for key, inner in value)
        case ListType() | SetType():
            return may_be_out_of_range(kind.element) and any(is_out_of_range(kind.element, part) for part in value)
    return any(is_out_of_range(part, inner) for part, inner in zip(kind.parts, value, strict=False))


def value_to_text(name: str, value: Value) -> str:
    """Return a value of one of the types in `TEXT_PARSERS` as Delta stores it."""
    return format_integer(value) if name == "varint" else str(value)


def encode_exact_value(kind: CqlType, value: Value) -> str:
    """Encode a canonical value as JSON: dates and timestamps as integers, blobs as hex, composites as arrays."""
    return json.dumps(_to_json(kind, value))


def decode_exact_value(kind: CqlType, text: str) -> Value:
    """Decode the canonical value from the result of `encode_exact_value`."""
    return _from_json(kind, json.loads(text))


def _to_json(kind: CqlType, value: Value | None) -> Any:
    if value is None:
        return None
    match kind:
        case ScalarType():
            if kind.name in TEXT_PARSERS:
                return value_to_text(kind.name, value)
            return value.hex() if kind.name == "blob" else value
        case MapType():
            return [[_to_json(kind.key, key), _to_json(kind.value, inner)] for key, inner in value]
        case ListType() | SetType():
            return [_to_json(kind.element, part) for part in value]
    return [_to_json(part, inner) for part, inner in zip(kind.parts, value, strict=False)]


def _from_json(kind: CqlType, data: Any) -> Value | None:
    if data is None:
        return None
    match kind:
        case ScalarType():
            if kind.name == "blob":
                return bytes.fromhex(data)
            return TEXT_PARSERS[kind.name](data) if kind.name in TEXT_PARSERS else kind.canonical(data)
        case MapType():
            return kind.canonical([(_from_json(kind.key, key), _from_json(kind.value, inner)) for key, inner in data])
        case ListType() | SetType():
            return kind.canonical([_from_json(kind.element, part) for part in data])
    return tuple(_from_json(part, inner) for part, inner in zip(kind.parts, data, strict=False))


_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
LogRowMapping = Mapping[str, Value | None]


def log_rows_to_arrow(schema: TableSchema, rows: Sequence[LogRowMapping], *, exact: bool = False) -> pa.Table:
    """Return log rows, each with its stream, in the columns of the log's Delta table.

    Dates and timestamps that not every reader supports become the nearest supported ones. A separate column has their
    exact values; it exists if a value needs it, or with `exact`.
    """
    columns = stored_columns(schema)
    exact_values = _out_of_range_values(columns, rows)
    fields = log_table(schema, exact=exact or any(exact_values)).schema
    arrays = {
        name: _to_arrow_values(stored_type(log_column.type), [row[log_column.name] for row in rows])
        for log_column, name in columns
    }
    arrays[WRITTEN_AT] = [us_from_timeuuid(_row_timeuuid(row)) for row in rows]
    arrays[EXACT] = [list(values.items()) or None for values in exact_values]
    return pa.table([pa.array(arrays[field.name], field.type) for field in fields], schema=fields)


def _to_arrow_values(kind: CqlType, values: list[Value | None]) -> list[Any]:
    if isinstance(kind, ScalarType) and kind.name not in (*TEXT_PARSERS, "date", "timestamp"):
        return values
    return [None if value is None else to_arrow_value(kind, value) for value in values]


def _out_of_range_values(
    columns: Sequence[tuple[LogColumn, str]], rows: Sequence[LogRowMapping]
) -> list[dict[str, str]]:
    """Return for each row the values that its native columns cannot hold, by the columns' names."""
    wide = [(log_column, name) for log_column, name in columns if may_be_out_of_range(log_column.type)]
    if not wide:
        return [{}] * len(rows)
    return [
        {
            name: encode_exact_value(log_column.type, row[log_column.name])
            for log_column, name in wide
            if is_out_of_range(log_column.type, row[log_column.name])
        }
        for row in rows
    ]


def _row_timeuuid(row: LogRowMapping) -> UUID:
    time = row["cdc$time"]
    if not isinstance(time, UUID):
        raise InputError("a log row has no cdc$time; every row of a CDC log has one")
    return time


def log_rows_from_arrow(schema: TableSchema, table: pa.Table | pa.RecordBatch) -> Iterator[dict[str, Value | None]]:
    """Yield the log rows of a log's Delta table, with canonical values; missing columns are null."""
    table = convert_log_rows(schema, table)
    columns, present = stored_columns(schema), set(table.schema.names)
    stored_names = [find_stored_name(log_column, name, present) for log_column, name in columns]
    lists = [
        [None] * table.num_rows
        if stored_name is None
        else to_canonical_values(stored_type(log_column.type), table.column(stored_name))
        for (log_column, _), stored_name in zip(columns, stored_names, strict=True)
    ]
    indices = {stored_name: index for index, stored_name in enumerate(stored_names) if stored_name is not None}
    for number, exact_values in _iter_exact_values(table):
        for stored_name, text in exact_values:
            if stored_name in indices:
                index = indices[stored_name]
                lists[index][number] = decode_exact_value(columns[index][0].type, text)
    names = [log_column.name for log_column, _ in columns]
    for values in zip(*lists, strict=True):
        yield dict(zip(names, values, strict=True))


def read_exact_values(table: pa.Table | pa.RecordBatch) -> dict[str, dict[int, str]]:
    """Return by column and row of a log's Delta table the exact values, as JSON, that the columns approximate."""
    by_column: dict[str, dict[int, str]] = {}
    if EXACT in table.schema.names and table.column(EXACT).null_count < table.num_rows:
        for number, values in _iter_exact_values(table):
            for name, text in values:
                by_column.setdefault(name, {})[number] = text
    return by_column


def _iter_exact_values(table: pa.Table | pa.RecordBatch) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    if EXACT in table.schema.names:
        for number, values in enumerate(table.column(EXACT).to_pylist()):
            if values:
                yield number, list(values.items() if isinstance(values, dict) else values)


def to_canonical_values(kind: CqlType, values: pa.ChunkedArray | pa.Array) -> list[Value | None]:
    """Return the canonical values of a column of `arrow_type(kind)`.

    Raises:
        InputError: a text is not a value of the type.
    """
    return [None if value is None else to_canonical_value(kind, value) for value in _to_python(values)]


def _to_python(values: pa.ChunkedArray | pa.Array) -> list[Any]:
    # Read timestamps and dates as integers, since Python's datetime cannot hold all of them.
    if values.type == TIMESTAMP:
        return values.cast(pa.int64()).to_pylist()
    if values.type == pa.date32():
        return values.cast(pa.int32()).to_pylist()
    return values.to_pylist()


def to_arrow_value(kind: CqlType, value: Value | None) -> Any:
    """Convert a canonical value to the form that Arrow accepts for `arrow_type(kind)`."""
    if value is None:
        return None
    match kind:
        case ScalarType():
            return _scalar_to_arrow(kind, value)
        case MapType():
            return [(to_arrow_value(kind.key, key), to_arrow_value(kind.value, inner)) for key, inner in value]
        case ListType() | SetType():
            return [to_arrow_value(kind.element, part) for part in value]
        case UserType():
            parts = zip(kind.fields, (*value, *[None] * (len(kind.fields) - len(value))), strict=True)
            return {name: to_arrow_value(part_type, part) for (name, part_type), part in parts}
        case TupleType():
            return {
                f"_{position}": to_arrow_value(part_type, value[position - 1])
                for position, part_type in enumerate(kind.components, 1)
            }
    raise AssertionError(f"unreachable: {kind}")


def _scalar_to_arrow(kind: ScalarType, value: Value) -> Any:
    if kind.name in TEXT_PARSERS:
        return value_to_text(kind.name, value)
    if kind.name == "date":
        return clamp_value(kind, value)
    return us_from_ms(Milliseconds(clamp_value(kind, value))) if kind.name == "timestamp" else value


def to_canonical_value(kind: CqlType, value: Any) -> Value | None:
    """Convert an Arrow value of `arrow_type(kind)` to its canonical form."""
    if value is None:
        return None
    match kind:
        case ScalarType():
            return _scalar_to_canonical(kind, value)
        case MapType():
            pairs = value.items() if isinstance(value, dict) else value
            return kind.canonical(
                {to_canonical_value(kind.key, key): to_canonical_value(kind.value, v) for key, v in pairs}
            )
        case ListType() | SetType():
            return kind.canonical([to_canonical_value(kind.element, part) for part in value])
        case UserType():
            # Match by position: a field may have been renamed, or added later.
            parts = (*value.values(), *[None] * (len(kind.fields) - len(value)))
            return tuple(
                to_canonical_value(part_type, part) for (_, part_type), part in zip(kind.fields, parts, strict=True)
            )
        case TupleType():
            return tuple(
                to_canonical_value(part_type, value[f"_{position}"])
                for position, part_type in enumerate(kind.components, 1)
            )
    raise AssertionError(f"unreachable: {kind}")


def find_field_name(names: Collection[str], name: str) -> str | None:
    """Return a user type field's name in values written at any time; None if they lack it."""
    plain = name.rpartition("$")[0]
    alternative = plain if plain and case_marked_name(plain) == name else case_marked_name(name)
    return name if name in names else alternative if alternative in names else None


def _scalar_to_canonical(kind: ScalarType, value: Any) -> Value:
    if kind.name in TEXT_PARSERS:
        try:
            return TEXT_PARSERS[kind.name](value)
        except (ValueError, ArithmeticError):
            raise kind.refuse(value) from None
    if kind.name == "timestamp":
        us = value if isinstance(value, int) else np.datetime64(value.replace(tzinfo=None), "us").astype(int)
        return ms_from_us(Microseconds(us))
    if kind.name == "date" and isinstance(value, date):
        return value.toordinal() - _EPOCH_ORDINAL
    return kind.canonical(value)
