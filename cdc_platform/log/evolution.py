"""Columns of a log as they were stored at any time, in the types that its base table has now.

ALTER TYPE appends fields to a user type and renames them, and a field's place never changes: an older value has the
first fields, by their places. A column that was dropped and added with another type is another column.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from cdc_platform.cql.schema import TableSchema
from cdc_platform.cql.types import CqlType, ListType, MapType, SetType, TupleType, UserType
from cdc_platform.log.log_table import arrow_type
from cdc_platform.log.stored_names import place_of, stored_columns, stored_type

_Rows = TypeVar("_Rows", pa.Table, pa.RecordBatch)


def holds(stored: pa.DataType, kind: CqlType) -> bool:
    """Return True if a stored column has values of a CQL type, as the type is now or as it was before it grew."""
    match kind:
        case UserType():
            count = stored.num_fields if pat.is_struct(stored) else 0
            return 0 < count <= len(kind.parts) and _all_hold(stored, kind.parts[:count])
        case TupleType():
            return pat.is_struct(stored) and stored.num_fields == len(kind.parts) and _all_hold(stored, kind.parts)
        case MapType():
            return pat.is_map(stored) and holds(stored.key_type, kind.key) and holds(stored.item_type, kind.value)
        case ListType() | SetType():
            return _is_list(stored) and holds(stored.value_type, kind.element)
    return _plain(stored) == _plain(arrow_type(kind))


def is_grown(stored: pa.DataType, kind: CqlType) -> bool:
    """Return True if a column that `holds` a CQL type has to be written again to have all of its fields by name."""
    return any(True for _ in kind.user_types()) and _fields(stored) != _fields(arrow_type(kind))


def as_declared(schema: TableSchema, log: _Rows) -> _Rows:
    """Return rows of a stored log with the columns that are its table's now.

    Values of user types get the fields that were added since, which are null. A column that is stored with another
    type is left out, with what tells of its deletions: they are those of the column that was dropped.
    """
    lost: set[str] = set()
    for each, name in stored_columns(schema):
        if each.base is None or each.base.is_key:
            continue
        place = place_of(each, name, set(log.schema.names))
        if place is None:
            continue
        kind, stored = stored_type(each.type), log.schema.field(place).type
        if each.base.name in lost or not holds(stored, kind):
            lost |= {each.base.name} if each.role == "value" else set()
            log = log.drop_columns([place])
        elif is_grown(stored, kind):
            field = pa.field(place, arrow_type(kind))
            log = log.set_column(log.schema.get_field_index(place), field, fitted(log.column(place), field.type))
    return log


def readable(schema: TableSchema, wanted: pa.Schema, stored: pa.Schema) -> pa.Schema:
    """Return the columns of a log that are stored, those that have another type now in the one that they have."""
    kinds = {name: stored_type(each.type) for each, name in stored_columns(schema)}
    own = {
        field.name
        for field in wanted
        if field.name in stored.names and field.name in kinds and any(True for _ in kinds[field.name].user_types())
    }
    own |= {name for name in kinds if name in stored.names and not holds(stored.field(name).type, kinds[name])}
    return pa.schema(
        [stored.field(field.name) if field.name in own else field for field in wanted if field.name in stored.names]
    )


def fitted(values: Any, wanted: pa.DataType) -> Any:
    """Return a column (an array, or chunks of one) in a type that `holds` accepts it for.

    Fields of structs go by their places. Casts go by their names, and end the process where a map's keys are structs.
    """
    if isinstance(values, pa.ChunkedArray):
        return pa.chunked_array([fitted(chunk, wanted) for chunk in values.chunks], wanted)
    if values.type == wanted or not values.type.num_fields:
        return values if values.type == wanted else values.cast(wanted)
    values = values.take(pa.array(np.arange(len(values))))  # without an offset
    missing = values.is_null() if values.null_count else None
    if isinstance(values, pa.StructArray):
        known = values.flatten()
        parts = [
            fitted(known[place], field.type) if place < len(known) else pa.nulls(len(values), field.type)
            for place, field in enumerate(wanted)
        ]
        return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=missing)
    if isinstance(values, pa.MapArray):
        keys, items = fitted(values.keys, wanted.key_type), fitted(values.items, wanted.item_type)
        made = pa.MapArray.from_arrays(values.offsets, keys, items, wanted)
    else:
        made = pa.ListArray.from_arrays(values.offsets, fitted(values.values, wanted.value_type), wanted)
    if missing is None:
        return made
    return made.take(pa.array(np.arange(len(values)), mask=missing.to_numpy(zero_copy_only=False)))


def _fields(kind: pa.DataType) -> list[object]:
    """The names of the fields of a struct, each with those in it; of a list or map what its parts have."""
    if pat.is_struct(kind):
        return [(field.name, _fields(field.type)) for field in kind]
    if pat.is_map(kind):
        return [_fields(kind.key_type), _fields(kind.item_type)]
    return [_fields(kind.value_type)] if _is_list(kind) else []


def _all_hold(stored: pa.DataType, kinds: tuple[CqlType, ...]) -> bool:
    return all(holds(stored.field(place).type, kind) for place, kind in enumerate(kinds))


def _is_list(kind: pa.DataType) -> bool:
    return pat.is_list(kind) or pat.is_large_list(kind)


def _plain(kind: pa.DataType) -> str:
    """A scalar type by its name, however its values are laid out."""
    return str(kind).removeprefix("large_").removesuffix("_view")
