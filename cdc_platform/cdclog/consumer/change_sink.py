"""Sinks of consumers that store changes (`cdclog.changes`) instead of log rows, as columns are added and types grow."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.types as pat

from cdc_platform.cdclog.changes import LoggedImages, changes_from_log
from cdc_platform.cdclog.consumer.retyped import rewrite_columns
from cdc_platform.cdclog.schema_evolution import convert_values
from cdc_platform.cdclog.values import find_field_name
from cdc_platform.cql import TableSchema
from cdc_platform.delta import Lake
from cdc_platform.errors import StateError
from cdc_platform.tables import Table

ROW_COLUMNS = ("before", "after", "changes", "key", "range")
"""The columns whose fields are columns of the base table."""


def has_changes(lake: Lake, sink: Table) -> bool | None:
    """Return True if a sink has changes, False if it has log rows; None if it does not exist."""
    names = lake.stored_schema(sink).names
    return "cdc$operation" not in names if names else None


def prepare_change_sink(lake: Lake, sink: Table) -> Table:
    """Return the sink with all columns that it has and needs, after changing the stored table accordingly.

    Columns that the base table lost stay with their values.

    Raises:
        StateError: a column of the base table now has another type, or differs from another one by case alone.
        ConflictError: another process writes to it.
    """
    stored = lake.stored_schema(sink)
    if not stored.names:
        return lake.widen(sink)
    grown: dict[str, pa.DataType] = {}
    for name in ROW_COLUMNS:
        if name in stored.names and name in sink.schema.names:
            kind = _merged_type(sink, name, stored.field(name).type, sink.schema.field(name).type)
            if kind != stored.field(name).type:
                grown[name] = kind
    if grown:
        rewrite_columns(lake, sink, {}, types=grown)
        stored = lake.stored_schema(sink)
    fields = [stored.field(field.name) if field.name in stored.names else field for field in sink.schema]
    return lake.widen(replace(sink, schema=pa.schema(fields)))


def changes_for_sink(schema: TableSchema, log: pa.Table, images: LoggedImages, sink: Table) -> pa.Table:
    """Return the changes of a log's rows with the types of a prepared sink."""
    changes = changes_from_log(schema, log, images)
    for name in ROW_COLUMNS:
        if name in changes.schema.names:
            index, field = changes.schema.get_field_index(name), sink.schema.field(name)
            values = changes.column(name).combine_chunks()
            changes = changes.set_column(index, field, _with_fields(values, field.type))
    return changes


def _merged_type(sink: Table, path: str, stored: pa.DataType, due: pa.DataType) -> pa.DataType:
    """Return the stored struct with the fields that it lacks at its end; existing fields may have grown."""
    wanted = {field.name: field for field in due}
    fields, matched = list[pa.Field](), set[str]()
    for field in stored:
        name = find_field_name(wanted, field.name)
        kind = field.type if name is None else _grown_type(sink, f"{path}.{name}", field.type, wanted[name].type)
        matched |= set() if name is None else {name}
        fields.append(pa.field(field.name, kind))
    fields += [field for name, field in wanted.items() if name not in matched]
    lowered = [field.name.lower() for field in fields]
    if len(set(lowered)) < len(lowered):
        raise _another_name(sink, f"columns in {path} differ by case alone now")
    return pa.struct(fields)


def _grown_type(sink: Table, path: str, stored: pa.DataType, due: pa.DataType) -> pa.DataType:
    """Return the current type of a column whose stored type is the same, or has fewer fields of user types."""
    if stored == due:
        return stored
    if not _extends(stored, due):
        raise _another_name(sink, f"{path} is {stored} there and {due} now")
    return due


def _extends(stored: pa.DataType, due: pa.DataType) -> bool:
    if pat.is_struct(stored) and pat.is_struct(due):
        count = stored.num_fields
        return count <= due.num_fields and all(
            _extends(stored.field(index).type, due.field(index).type) for index in range(count)
        )
    if pat.is_map(stored) and pat.is_map(due):
        return _extends(stored.key_type, due.key_type) and _extends(stored.item_type, due.item_type)
    if pat.is_list(stored) and pat.is_list(due):
        return _extends(stored.value_type, due.value_type)
    return stored == due


def _another_name(sink: Table, what: str) -> StateError:
    return StateError(
        f"the changes in {sink.full_name} cannot go on: {what}; read them under another name with: "
        f"cdc-platform consume TABLE --name NAME --changes"
    )


def _with_fields(values: pa.StructArray, kind: pa.StructType) -> pa.StructArray:
    """Return structs with the fields of another struct, by name; missing ones are null."""
    if values.type == kind:
        return values
    present = dict(zip((field.name for field in values.type), values.flatten(), strict=True))
    names = [find_field_name(present, field.name) for field in kind]
    arrays = [
        pa.nulls(len(values), field.type) if name is None else convert_values(present[name], field.type)
        for name, field in zip(names, kind, strict=True)
    ]
    return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=values.is_null())
