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
"""The days (since 1970) that every reader of Delta tables has."""
LAST_MS = Milliseconds((2**63 - 1) // MILLISECOND_NS)
FIRST_MS = -LAST_MS
"""The milliseconds (since 1970) that every reader has: from 1677-09-21 to 2262-04-11."""
TEXT_PARSERS: Mapping[str, Callable[[str], Any]] = {
    "decimal": Decimal,
    "duration": parse_duration,
    "inet": ip_address,
    "timeuuid": UUID,
    "uuid": UUID,
    "varint": parse_integer,
}
"""The types whose values are text in Delta, and how they are read back from it."""
_BOUNDS = {"date": (FIRST_DAY, LAST_DAY), "timestamp": (FIRST_MS, LAST_MS)}


def clamp_value(kind: ScalarType, value: int) -> int:
    """The nearest date (days) or timestamp (ms) that a native column holds."""
    low, high = _BOUNDS[kind.name]
    return min(max(value, low), high)


def clamp_values(name: str, values: np.ndarray) -> np.ndarray:
    """As `clamp_value`, of many (int64), by the type's name."""
    return np.clip(values, *_BOUNDS[name])


def may_be_out_of_range(kind: CqlType) -> bool:
    """Whether a type is, or has in it, dates or timestamps."""
    return (isinstance(kind, ScalarType) and kind.name in _BOUNDS) or any(map(may_be_out_of_range, kind.parts))


def is_out_of_range(kind: CqlType, value: Value | None) -> bool:
    """Whether a canonical value is, or has in it, one that no native column holds."""
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
    """A value of one of the types in `TEXT_PARSERS` as Delta has it."""
    return format_integer(value) if name == "varint" else str(value)


def encode_exact_value(kind: CqlType, value: Value) -> str:
    """A canonical value as JSON: dates and timestamps as integers, blobs in hexadecimal, what has parts as arrays."""
    return json.dumps(_to_json(kind, value))


def decode_exact_value(kind: CqlType, text: str) -> Value:
    """The canonical value of what `encode_exact_value` made."""
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
    """Log rows, each with its stream, in the columns of the log's Delta table.

    Dates and timestamps that not every reader has are the nearest of those that it has, and as they are in a column of
    their own, which there is where a value needs it, or with `exact`.
    """
    columns = stored_columns(schema)
    beside = _out_of_range_values(columns, rows)
    fields = log_table(schema, exact=exact or any(beside)).schema
    arrays = {
        name: _to_arrow_values(stored_type(each.type), [row[each.name] for row in rows]) for each, name in columns
    }
    arrays[WRITTEN_AT] = [us_from_timeuuid(_row_timeuuid(row)) for row in rows]
    arrays[EXACT] = [list(found.items()) or None for found in beside]
    return pa.table([pa.array(arrays[field.name], field.type) for field in fields], schema=fields)


def _to_arrow_values(kind: CqlType, values: list[Value | None]) -> list[Any]:
    if isinstance(kind, ScalarType) and kind.name not in (*TEXT_PARSERS, "date", "timestamp"):
        return values
    return [None if value is None else to_arrow_value(kind, value) for value in values]


def _out_of_range_values(
    columns: Sequence[tuple[LogColumn, str]], rows: Sequence[LogRowMapping]
) -> list[dict[str, str]]:
    """Of each row, the values that its native columns do not hold, by the names of those."""
    wide = [(each, name) for each, name in columns if may_be_out_of_range(each.type)]
    if not wide:
        return [{}] * len(rows)
    return [
        {
            name: encode_exact_value(each.type, row[each.name])
            for each, name in wide
            if is_out_of_range(each.type, row[each.name])
        }
        for row in rows
    ]


def _row_timeuuid(row: LogRowMapping) -> UUID:
    time = row["cdc$time"]
    if not isinstance(time, UUID):
        raise InputError("a log row has no cdc$time; every row of a CDC log has one")
    return time


def log_rows_from_arrow(schema: TableSchema, table: pa.Table | pa.RecordBatch) -> Iterator[dict[str, Value | None]]:
    """The log rows of a log's Delta table, with values in canonical form; columns that it lacks are null."""
    table = convert_log_rows(schema, table)
    columns, present = stored_columns(schema), set(table.schema.names)
    places = [find_stored_name(each, name, present) for each, name in columns]
    lists = [
        [None] * table.num_rows if place is None else to_canonical_values(stored_type(each.type), table.column(place))
        for (each, _), place in zip(columns, places, strict=True)
    ]
    by_place = {place: index for index, place in enumerate(places) if place is not None}
    for number, beside in _iter_exact_values(table):
        for place, text in beside:
            if place in by_place:
                index = by_place[place]
                lists[index][number] = decode_exact_value(columns[index][0].type, text)
    names = [each.name for each, _ in columns]
    for values in zip(*lists, strict=True):
        yield dict(zip(names, values, strict=True))


def read_exact_values(table: pa.Table | pa.RecordBatch) -> dict[str, dict[int, str]]:
    """By column of a log's Delta table and by row, the values as JSON of which the column has but the nearest."""
    found: dict[str, dict[int, str]] = {}
    if EXACT in table.schema.names and table.column(EXACT).null_count < table.num_rows:
        for number, beside in _iter_exact_values(table):
            for place, text in beside:
                found.setdefault(place, {})[number] = text
    return found


def _iter_exact_values(table: pa.Table | pa.RecordBatch) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    if EXACT in table.schema.names:
        for number, beside in enumerate(table.column(EXACT).to_pylist()):
            if beside:
                yield number, list(beside.items() if isinstance(beside, dict) else beside)


def to_canonical_values(kind: CqlType, values: pa.ChunkedArray | pa.Array) -> list[Value | None]:
    """The canonical forms of a column of `arrow_type(kind)`.

    Raises:
        InputError: a text is none of a value of the type.
    """
    return [None if value is None else to_canonical_value(kind, value) for value in _to_python(values)]


def _to_python(values: pa.ChunkedArray | pa.Array) -> list[Any]:
    # Timestamps and dates that Python's datetime cannot hold are read as the integers that they are.
    if values.type == TIMESTAMP:
        return values.cast(pa.int64()).to_pylist()
    if values.type == pa.date32():
        return values.cast(pa.int32()).to_pylist()
    return values.to_pylist()


def to_arrow_value(kind: CqlType, value: Value | None) -> Any:
    """A canonical value as what Arrow takes for `arrow_type(kind)`."""
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
            return {name: to_arrow_value(of, part) for (name, of), part in parts}
        case TupleType():
            return {f"_{place}": to_arrow_value(of, value[place - 1]) for place, of in enumerate(kind.components, 1)}
    raise AssertionError(f"unreachable: {kind}")


def _scalar_to_arrow(kind: ScalarType, value: Value) -> Any:
    if kind.name in TEXT_PARSERS:
        return value_to_text(kind.name, value)
    if kind.name == "date":
        return clamp_value(kind, value)
    return us_from_ms(Milliseconds(clamp_value(kind, value))) if kind.name == "timestamp" else value


def to_canonical_value(kind: CqlType, value: Any) -> Value | None:
    """The canonical form of what Arrow has for a value of `arrow_type(kind)`."""
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
            # By their places: a field may have been written under another name, or when it was not there yet.
            parts = (*value.values(), *[None] * (len(kind.fields) - len(value)))
            return tuple(to_canonical_value(of, part) for (_, of), part in zip(kind.fields, parts, strict=True))
        case TupleType():
            return tuple(to_canonical_value(of, value[f"_{place}"]) for place, of in enumerate(kind.components, 1))
    raise AssertionError(f"unreachable: {kind}")


def find_field_name(names: Collection[str], name: str) -> str | None:
    """The name that a field of a user type has in values that were written at any time; None: they have none."""
    plain = name.rpartition("$")[0]
    other = plain if plain and case_marked_name(plain) == name else case_marked_name(name)
    return name if name in names else other if other in names else None


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
