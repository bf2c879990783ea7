"""Read the rows of an open table: small tables and partitions from their files, others by a query.

Reading a few small files and filtering them in memory takes a fraction of a millisecond; planning a query takes ten.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa
from deltalake import QueryBuilder

from cdc_platform.delta import file_cache, files
from cdc_platform.delta.conform import (
    fill_columns,
    get_empty_rows,
    read_file_rows,
    read_rows_by_partition,
    split_by_column,
)
from cdc_platform.delta.files import DataFile, Filter, filter_rows, filters_sql, quote_column
from cdc_platform.delta.open_table import OpenTable, open_table
from cdc_platform.tables import Table

# Reading this much takes no longer than planning a query for one row of it.
_SMALL_BYTES, _SMALL_FILES = 1 << 18, 64


def read_rows(opened: OpenTable, schema: pa.Schema, filters: Sequence[Filter] = ()) -> pa.Table:
    """Return the rows that pass all (normal) filters, in the columns and types of a schema, unordered."""
    needed = {*schema.names, *(name for name, _, _ in filters)}
    small = _read_small_part(opened, filters, needed)
    if small is None or not needed <= set(small.schema.names):
        return _query_rows(opened, schema, filters)
    return _cast_rows(filter_rows(small, filters).select(schema.names), schema)


def read_small_table(opened: OpenTable) -> pa.Table | None:
    """Return all rows of a small table in its columns, read once per version; None if it is not small.

    Return None as well if the rows cannot be read, as with a damaged file; the caller's own read reports the error.
    """
    return opened.derive("rows", lambda: _read_if_small(opened))


def read_partitions(
    opened: OpenTable, table: Table, columns: Sequence[str], chosen: Sequence[DataFile], *, are_all: bool
) -> dict[Any, pa.Table]:
    """Return columns of the rows of files by the value of the one partition column.

    `are_all` means that these are all files of the table.
    """
    (key,) = table.partition_by
    if are_all and len(chosen) > _SMALL_FILES and not file_cache.fits_in_cache(chosen):
        return split_by_column(key, opened.with_data_files().to_pyarrow_table(columns=[key, *columns]))
    # Read the files directly: deltalake would first make a dataset of all files of the table.
    if len(chosen) > _SMALL_FILES:
        return split_by_column(key, read_file_rows(table, [key, *columns], chosen))
    return read_rows_by_partition(table, columns, chosen)


def read_rows_at_version(folder: str, version: int) -> pa.Table:
    """Return all rows of a version of a table, in the columns of that version, unordered; raises as `open_table`."""
    # Imported late: it takes half as long to load as everything else here.
    from pyarrow import dataset

    # By default Arrow reads Spark's timestamps in nanoseconds, which end in 2262.
    options = dataset.ParquetReadOptions(coerce_int96_timestamp_unit="us")
    opened = open_table(folder, version)
    files.list_paths(opened)  # deltalake would read files outside the folder
    return opened.delta.to_pyarrow_dataset(parquet_read_options=options).to_table()


def _read_small_part(opened: OpenTable, filters: Sequence[Filter], columns: Collection[str]) -> pa.Table | None:
    """Return the rows of the partitions that pass the filters, with at least these columns; None if not small."""
    names = opened.partition_columns()
    if not any(name in names for name, _, _ in filters) or files.list_unsupported_features(opened):
        return read_small_table(opened)
    chosen = files.list_partition_files(opened, names, filters)
    if not _are_small([file.bytes for file in chosen]):
        return None
    try:
        return _read_files(opened, chosen, columns)
    except Exception:  # noqa: BLE001 the query reports the error
        return None


def _read_if_small(opened: OpenTable) -> pa.Table | None:
    if not _are_small(files.list_sizes(opened)):
        return None
    try:
        data_files = files.list_partition_files(opened, opened.partition_columns())
        # The log does not distinguish a null partition value from an empty string.
        if files.list_unsupported_features(opened) or any(None in file.partition for file in data_files):
            return _query_rows(opened, _get_nullable_schema(opened), ())
        return _read_files(opened, data_files)
    except Exception:  # noqa: BLE001 deltalake passes on exceptions of any class
        return None


def _are_small(sizes: Sequence[int]) -> bool:
    return len(sizes) <= _SMALL_FILES and sum(sizes) <= _SMALL_BYTES


def _read_files(opened: OpenTable, chosen: Sequence[DataFile], columns: Collection[str] | None = None) -> pa.Table:
    """Return the rows of these files in the table's columns, restricted to `columns` if given."""
    schema = pa.schema([field for field in _get_nullable_schema(opened) if columns is None or field.name in columns])
    names = opened.partition_columns()
    parts = (
        _conform_file_rows(file_cache.read_file(file.path), schema, dict(zip(names, file.partition, strict=True)))
        for file in chosen
    )
    return pa.concat_tables([get_empty_rows(schema), *parts])


def _get_nullable_schema(opened: OpenTable) -> pa.Schema:
    """Return the table's schema without NOT NULL: a foreign writer may have left nulls, which `read_rows` refuses."""
    return pa.schema([field.with_nullable(True) for field in opened.schema()])


def _conform_file_rows(rows: pa.Table, schema: pa.Schema, values: Mapping[str, Any]) -> pa.Table:
    """Convert the rows of a file, with these partition values, to the table's current columns and types."""
    if rows.schema.equals(schema):
        return rows
    return _cast_rows(pa.table(fill_columns(rows, schema, values), names=schema.names), schema)


def _cast_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast rows to a schema; skip columns that have its types already, since Arrow runs a query for each cast."""
    same = rows.schema.types == schema.types
    if not same or any(rows[field.name].null_count for field in schema if not field.nullable):
        return rows.cast(schema)
    return pa.Table.from_arrays(rows.columns, schema=schema)


def _query_rows(opened: OpenTable, schema: pa.Schema, filters: Sequence[Filter]) -> pa.Table:
    files.list_paths(opened)  # deltalake would read files outside the folder
    # Avoid deltalake's pyarrow dataset: its file statistics have a string type that pyarrow cannot compare.
    query = f"SELECT {', '.join(map(quote_column, schema.names))} FROM t WHERE {filters_sql(filters)}"
    return pa.table(QueryBuilder().register("t", opened.with_data_files()).execute(query).read_all()).cast(schema)
