"""Convert columns of a stored log to the types that its base table has now.

ALTER TYPE appends fields to a user type and renames them; a field never changes its position, so an older value
holds the first fields. A column that was dropped and added with another type is another column.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from cdc_platform.cdclog.schema import arrow_type, find_stored_name, stored_columns, stored_type
from cdc_platform.cql import CqlType, ListType, MapType, SetType, TableSchema, TupleType, UserType

_Rows = TypeVar("_Rows", pa.Table, pa.RecordBatch)


def is_compatible_type(stored: pa.DataType, kind: CqlType) -> bool:
    """Return True if a stored column has values of a CQL type in its current form or before it was extended."""
    match kind:
        case UserType():
            count = stored.num_fields if pat.is_struct(stored) else 0
            return 0 < count <= len(kind.parts) and _all_compatible(stored, kind.parts[:count])
        case TupleType():
            return (
                pat.is_struct(stored) and stored.num_fields == len(kind.parts) and _all_compatible(stored, kind.parts)
            )
        case MapType():
            return (
                pat.is_map(stored)
                and is_compatible_type(stored.key_type, kind.key)
                and is_compatible_type(stored.item_type, kind.value)
            )
        case ListType() | SetType():
            return _is_list(stored) and is_compatible_type(stored.value_type, kind.element)
    return _scalar_type_name(stored) == _scalar_type_name(arrow_type(kind))


def has_new_fields(stored: pa.DataType, kind: CqlType) -> bool:
    """Return True if a compatible column must be rewritten to have all of the type's fields by name."""
    return any(True for _ in kind.user_types()) and _nested_field_names(stored) != _nested_field_names(arrow_type(kind))


def convert_log_rows(schema: TableSchema, log: _Rows) -> _Rows:
    """Return rows of a stored log with the current columns of its table.

    Values of user types get null for fields that were added since. A column stored with another type is omitted with
    its columns for deletions, since they belong to the column that was dropped.
    """
    lost: set[str] = set()
    for log_column, name in stored_columns(schema):
        if log_column.base is None or log_column.base.is_key:
            continue
        stored_name = find_stored_name(log_column, name, set(log.schema.names))
        if stored_name is None:
            continue
        kind, stored = stored_type(log_column.type), log.schema.field(stored_name).type
        if log_column.base.name in lost or not is_compatible_type(stored, kind):
            lost |= {log_column.base.name} if log_column.role == "value" else set()
            log = log.drop_columns([stored_name])
        elif has_new_fields(stored, kind):
            field = pa.field(stored_name, arrow_type(kind))
            log = log.set_column(
                log.schema.get_field_index(stored_name), field, convert_values(log.column(stored_name), field.type)
            )
    return log


def readable_schema(schema: TableSchema, wanted: pa.Schema, stored: pa.Schema) -> pa.Schema:
    """Return the stored columns of a log; those that now have another type keep their stored type."""
    kinds = {name: stored_type(log_column.type) for log_column, name in stored_columns(schema)}
    as_stored = {
        field.name
        for field in wanted
        if field.name in stored.names and field.name in kinds and any(True for _ in kinds[field.name].user_types())
    }
    as_stored |= {
        name for name in kinds if name in stored.names and not is_compatible_type(stored.field(name).type, kinds[name])
    }
    return pa.schema(
        [
            stored.field(field.name) if field.name in as_stored else field
            for field in wanted
            if field.name in stored.names
        ]
    )


def convert_values(values: Any, wanted: pa.DataType) -> Any:
    """Convert a column (an array or chunked array) to a type that `is_compatible_type` accepts.

    Fields of structs are matched by position. Casts match them by name, and crash the process if a map's keys are
    structs.
    """
    if isinstance(values, pa.ChunkedArray):
        return pa.chunked_array([convert_values(chunk, wanted) for chunk in values.chunks], wanted)
    if values.type == wanted or not values.type.num_fields:
        return values if values.type == wanted else values.cast(wanted)
    values = values.take(pa.array(np.arange(len(values))))  # removes the offset
    missing = values.is_null() if values.null_count else None
    if isinstance(values, pa.StructArray):
        fields = values.flatten()
        parts = [
            convert_values(fields[index], field.type) if index < len(fields) else pa.nulls(len(values), field.type)
            for index, field in enumerate(wanted)
        ]
        return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=missing)
    if isinstance(values, pa.MapArray):
        keys, items = convert_values(values.keys, wanted.key_type), convert_values(values.items, wanted.item_type)
        converted = pa.MapArray.from_arrays(values.offsets, keys, items, wanted)
    else:
        converted = pa.ListArray.from_arrays(values.offsets, convert_values(values.values, wanted.value_type), wanted)
    if missing is None:
        return converted
    return converted.take(pa.array(np.arange(len(values)), mask=missing.to_numpy(zero_copy_only=False)))


def _nested_field_names(kind: pa.DataType) -> list[object]:
    """Return the names of a struct's fields, with nested ones; of a list or map those of its parts."""
    if pat.is_struct(kind):
        return [(field.name, _nested_field_names(field.type)) for field in kind]
    if pat.is_map(kind):
        return [_nested_field_names(kind.key_type), _nested_field_names(kind.item_type)]
    return [_nested_field_names(kind.value_type)] if _is_list(kind) else []


def _all_compatible(stored: pa.DataType, kinds: tuple[CqlType, ...]) -> bool:
    return all(is_compatible_type(stored.field(index).type, kind) for index, kind in enumerate(kinds))


def _is_list(kind: pa.DataType) -> bool:
    return pat.is_list(kind) or pat.is_large_list(kind)


def _scalar_type_name(kind: pa.DataType) -> str:
    """Return the name of a scalar type, regardless of its layout."""
    return str(kind).removeprefix("large_").removesuffix("_view")
