"""Log rows in Python and in Arrow: values in canonical form there, as a log's Delta table keeps them here.

It knows how each CQL type is kept; which columns there are is `log_table`'s.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from cdc_platform.clock import Microseconds, Milliseconds, ms_of, us_of
from cdc_platform.cql.schema import LogColumn, TableSchema
from cdc_platform.cql.types import CqlType, ListType, MapType, Scalar, SetType, TupleType, UserType, Value, timeuuid_us
from cdc_platform.errors import InputError
from cdc_platform.lake.tables import TIMESTAMP
from cdc_platform.log.evolution import as_declared
from cdc_platform.log.exact import OF_TEXT, decoded, encoded, is_far, may_be_far, nearest, to_text
from cdc_platform.log.log_table import log_table
from cdc_platform.log.stored_names import EXACT, WRITTEN_AT, marked, place_of, stored_columns, stored_type

_EPOCH = date(1970, 1, 1).toordinal()
Row = Mapping[str, Value | None]


def rows_table(schema: TableSchema, rows: Sequence[Row], *, exact: bool = False) -> pa.Table:
    """Log rows, each with its stream, in the columns of the log's Delta table.

    Dates and timestamps that not every reader has are the nearest of those that it has, and as they are in a column of
    their own, which there is where a value needs it, or with `exact`.
    """
    columns = stored_columns(schema)
    beside = _beside(columns, rows)
    fields = log_table(schema, exact=exact or any(beside)).schema
    arrays = {name: _arrow_values(stored_type(each.type), [row[each.name] for row in rows]) for each, name in columns}
    arrays[WRITTEN_AT] = [timeuuid_us(_uuid(row)) for row in rows]
    arrays[EXACT] = [list(found.items()) or None for found in beside]
    return pa.table([pa.array(arrays[field.name], field.type) for field in fields], schema=fields)


def _arrow_values(kind: CqlType, values: list[Value | None]) -> list[Any]:
    if isinstance(kind, Scalar) and kind.name not in (*OF_TEXT, "date", "timestamp"):
        return values
    return [None if value is None else arrow_value(kind, value) for value in values]


def _beside(columns: Sequence[tuple[LogColumn, str]], rows: Sequence[Row]) -> list[dict[str, str]]:
    """Of each row, the values that its native columns do not hold, by the names of those."""
    wide = [(each, name) for each, name in columns if may_be_far(each.type)]
    if not wide:
        return [{}] * len(rows)
    return [
        {name: encoded(each.type, row[each.name]) for each, name in wide if is_far(each.type, row[each.name])}
        for row in rows
    ]


def _uuid(row: Row) -> UUID:
    time = row["cdc$time"]
    if not isinstance(time, UUID):
        raise InputError("a log row has no cdc$time; every row of a CDC log has one")
    return time


def table_rows(schema: TableSchema, table: pa.Table | pa.RecordBatch) -> Iterator[dict[str, Value | None]]:
    """The log rows of a log's Delta table, with values in canonical form; columns that it lacks are null."""
    table = as_declared(schema, table)
    columns, present = stored_columns(schema), set(table.schema.names)
    places = [place_of(each, name, present) for each, name in columns]
    lists = [
        [None] * table.num_rows if place is None else canonical_values(stored_type(each.type), table.column(place))
        for (each, _), place in zip(columns, places, strict=True)
    ]
    by_place = {place: index for index, place in enumerate(places) if place is not None}
    for number, beside in _exact(table):
        for place, text in beside:
            if place in by_place:
                index = by_place[place]
                lists[index][number] = decoded(columns[index][0].type, text)
    names = [each.name for each, _ in columns]
    for values in zip(*lists, strict=True):
        yield dict(zip(names, values, strict=True))


def exact_values(table: pa.Table | pa.RecordBatch) -> dict[str, dict[int, str]]:
    """By column of a log's Delta table and by row, the values as JSON of which the column has but the nearest."""
    found: dict[str, dict[int, str]] = {}
    if EXACT in table.schema.names and table.column(EXACT).null_count < table.num_rows:
        for number, beside in _exact(table):
            for place, text in beside:
                found.setdefault(place, {})[number] = text
    return found


def _exact(table: pa.Table | pa.RecordBatch) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    if EXACT in table.schema.names:
        for number, beside in enumerate(table.column(EXACT).to_pylist()):
            if beside:
                yield number, list(beside.items() if isinstance(beside, dict) else beside)


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
            return _scalar_value(kind, value)
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


def _scalar_value(kind: Scalar, value: Value) -> Any:
    if kind.name in OF_TEXT:
        return to_text(kind.name, value)
    if kind.name == "date":
        return nearest(kind, value)
    return us_of(Milliseconds(nearest(kind, value))) if kind.name == "timestamp" else value


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
            # By their places: a field may have been written under another name, or when it was not there yet.
            parts = (*value.values(), *[None] * (len(kind.fields) - len(value)))
            return tuple(canonical_value(of, part) for (_, of), part in zip(kind.fields, parts, strict=True))
        case TupleType():
            return tuple(canonical_value(of, value[f"_{place}"]) for place, of in enumerate(kind.components, 1))
    raise AssertionError(f"unreachable: {kind}")


def field_name(names: Collection[str], name: str) -> str | None:
    """The name that a field of a user type has in values that were written at any time; None: they have none."""
    plain = name.rpartition("$")[0]
    other = plain if plain and marked(plain) == name else marked(name)
    return name if name in names else other if other in names else None


def _scalar_of(kind: Scalar, value: Any) -> Value:
    if kind.name in OF_TEXT:
        try:
            return OF_TEXT[kind.name](value)
        except (ValueError, ArithmeticError):
            raise kind.refuse(value) from None
    if kind.name == "timestamp":
        us = value if isinstance(value, int) else np.datetime64(value.replace(tzinfo=None), "us").astype(int)
        return ms_of(Microseconds(us))
    if kind.name == "date" and isinstance(value, date):
        return value.toordinal() - _EPOCH
    return kind.canonical(value)
