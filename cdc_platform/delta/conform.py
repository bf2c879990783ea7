"""Conform rows to a table's declared columns and types before a write, and read data files in that shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from cdc_platform.delta import file_cache
from cdc_platform.delta.files import DataFile
from cdc_platform.errors import InputError, StateError
from cdc_platform.tables import Table

# Grouping takes Arrow a millisecond even for few rows.
_FEW_ROWS = 64


@lru_cache(maxsize=1 << 8)
def get_empty_rows(schema: pa.Schema) -> pa.Table:
    """Return an empty table of a schema, cached.

    Making it takes Arrow as long as reading some rows, and most homes lack a dozen tables.
    """
    return schema.empty_table()


def conform_rows(table: Table, rows: pa.Table) -> pa.Table:
    """Return the rows with the table's columns in order and its types; missing nullable columns are null.

    Raises:
        InputError: an unknown column, a value that the type cannot hold, a null in a NOT NULL column.
    """
    unknown = set(rows.schema.names) - set(table.schema.names)
    if unknown:
        raise InputError(
            f"{table.full_name} has no column {', '.join(sorted(unknown))}; it has {', '.join(table.schema.names)}"
        )
    return pa.table([_conform_column(table, rows, declared) for declared in table.schema], schema=table.schema)


def _conform_column(table: Table, rows: pa.Table, declared: pa.Field) -> pa.ChunkedArray:
    name = f"{table.full_name}.{declared.name}"
    if declared.name in rows.schema.names:
        try:
            values = rows[declared.name].cast(declared.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise InputError(f"{name} takes {declared.type}, not {rows[declared.name].type}: {error}") from None
    else:
        values = pa.chunked_array([pa.nulls(rows.num_rows, declared.type)])
    nulls = values.null_count if not declared.nullable else 0
    if pat.is_list(declared.type):
        nulls += sum(chunk.flatten().null_count for chunk in values.chunks)
    if nulls:
        raise InputError(f"{name} may not be null, and is in {nulls} of {rows.num_rows} rows")
    return values


def strip_comments(rows: pa.Table) -> pa.Table:
    """Return the rows without column comments, so that a table with older comments accepts them and retains its own."""
    return pa.Table.from_arrays(rows.columns, schema=_without_comments(rows.schema))


@lru_cache(maxsize=1 << 8)
def _without_comments(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.remove_metadata() for field in schema])


def refuse_append_only(table: Table) -> None:
    """Raise StateError if the table is append-only.

    Raises:
        StateError: it is.
    """
    if table.is_append_only:
        raise StateError(f"{table.full_name} is append-only; existing rows are never changed or removed")


def refuse_repeated_keys(table: Table, rows: pa.Table) -> None:
    """Raise InputError if two rows have the same key.

    Raises:
        InputError: names the most frequent key.
    """
    keys = rows.select(list(table.keys))
    if rows.num_rows <= _FEW_ROWS and len({tuple(row.values()) for row in keys.to_pylist()}) == rows.num_rows:
        return
    counted = keys.group_by(list(table.keys)).aggregate([([], "count_all")])
    if counted.num_rows == rows.num_rows:
        return
    first = counted.sort_by([("count_all", "descending")]).slice(0, 1).to_pylist()[0]
    count = first.pop("count_all")
    raise InputError(f"{table.full_name}: key {first} appears {count} times in one write; keys must be unique")


def fill_columns(rows: pa.Table | pa.RecordBatch, schema: pa.Schema, values: Mapping[str, Any]) -> list[Any]:
    """Return the columns of a schema for a file's rows; `values` are the values of its partition columns.

    A column that was added after the file was written is null.
    """
    names, count = rows.schema.names, rows.num_rows

    def of(field: pa.Field) -> Any:
        if field.name in values:
            return pa.repeat(pa.scalar(values[field.name], field.type), count)
        return rows.column(field.name) if field.name in names else pa.nulls(count, field.type)

    return [of(field) for field in schema]


def read_file_rows(table: Table, columns: Sequence[str], data_files: Sequence[DataFile]) -> pa.Table:
    """Return columns of the rows of files, including partition columns, which are only in the files' paths."""
    return _concat_parts(table, columns, data_files, _read_parts(table, columns, data_files))


def read_rows_by_partition(table: Table, columns: Sequence[str], data_files: Sequence[DataFile]) -> dict[Any, pa.Table]:
    """Return the rows of files by the value of the one partition column, without merging and splitting them."""
    by_value: dict[Any, tuple[list[DataFile], list[pa.Table]]] = {}
    # Read all files together: in a store each read waits.
    for file, part in zip(data_files, _read_parts(table, columns, data_files), strict=True):
        files, parts = by_value.setdefault(file.partition[0], ([], []))
        files.append(file)
        parts.append(part)
    return {value: _concat_parts(table, columns, files, parts) for value, (files, parts) in by_value.items()}


def _read_parts(table: Table, columns: Sequence[str], data_files: Sequence[DataFile]) -> list[pa.Table]:
    """Return the rows of each file, in those of the columns that are in it."""
    return file_cache.read_files(
        [file.path for file in data_files], [name for name in columns if name not in table.partition_by]
    )


def _concat_parts(
    table: Table, columns: Sequence[str], data_files: Sequence[DataFile], parts: Sequence[pa.Table]
) -> pa.Table:
    schema = pa.schema([table.schema.field(name).with_nullable(True) for name in columns])
    stored = [name for name in columns if name not in table.partition_by]
    if not parts:
        return schema.empty_table()
    kinds = pa.schema([schema.field(name) for name in stored])
    # Older files have more nullable columns, and deltalake's files have string views.
    rows = pa.concat_tables([part if part.schema.equals(kinds) else part.cast(kinds) for part in parts])
    of_file = np.repeat(np.arange(len(parts)), [part.num_rows for part in parts])
    for index, name in enumerate(table.partition_by):
        values = pa.array([file.partition[index] for file in data_files], table.schema.field(name).type)
        rows = rows.append_column(name, values.take(pa.array(of_file)))
    return rows.select(list(columns)).cast(schema)


def split_by_column(column: str, rows: pa.Table) -> dict[Any, pa.Table]:
    """Split rows by their values of a column, in their order, without that column."""
    # Combine chunks first: selecting rows from a table with a chunk per file visits every chunk.
    encoded = rows[column].combine_chunks().dictionary_encode()
    codes = np.asarray(encoded.indices)
    sorted_rows = rows.drop_columns(column).combine_chunks().take(pa.array(np.argsort(codes, kind="stable")))
    counts = np.bincount(codes, minlength=len(encoded.dictionary)).tolist()
    starts = np.cumsum([0, *counts]).tolist()
    values = encoded.dictionary.to_pylist()
    return {value: sorted_rows.slice(start, count) for value, start, count in zip(values, starts, counts, strict=False)}
