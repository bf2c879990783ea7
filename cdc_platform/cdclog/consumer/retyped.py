"""Columns of a log whose type changed: old values move to a column named with the end of their validity.

Copies of a log have the same columns as the log, whenever they were made.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType

import pyarrow as pa
import pyarrow.parquet as pq

from cdc_platform.cdclog.ddl import schema_from_change
from cdc_platform.cdclog.log_rows import newest_row_us
from cdc_platform.cdclog.schema import (
    EXACT,
    arrow_type,
    log_table,
    stored_columns,
    stored_type,
    with_stored_names,
)
from cdc_platform.cdclog.schema_evolution import convert_values, has_new_fields, is_compatible_type
from cdc_platform.clock import Clock, Microseconds, format_us
from cdc_platform.cql import Column, TableSchema, strip_comments
from cdc_platform.delta import Batches, Lake, TaskRows, TaskRunner, read_file_batches
from cdc_platform.errors import ConflictError, StateError
from cdc_platform.metastore import cdc_tables
from cdc_platform.spark import frames
from cdc_platform.storage import parse_path
from cdc_platform.tables import Table

_MAX_ATTEMPTS = 5
_RETYPED_NAME = re.compile(r"(?P<name>.+)\$until_(?P<stamp>\d+T\d+Z)")


def retyped_column_name(name: str, now_us: Microseconds) -> str:
    """Return the name of the column that holds a column's old values when it is retyped at `now_us` (µs)."""
    return f"{name}$until_{format_us(now_us).translate(str.maketrans('', '', ':-.'))}"


def find_retyped_columns(log: pa.Schema) -> list[tuple[str, pa.Field]]:
    """Return the retyped columns of a stored log, each after its original name, oldest first."""
    matches = [(match, field) for field in log if (match := _RETYPED_NAME.fullmatch(field.name)) is not None]
    return [(match["name"], field) for match, field in sorted(matches, key=lambda match: match[0]["stamp"])]


def retype_sink_columns(lake: Lake, sink: Table, log: pa.Schema, schema: TableSchema) -> None:
    """Rename and retype the columns of an existing copy as in its log.

    If only the copy still has a column's old type, since the log lost the column, it is retyped as of the copy's newest
    row.

    Raises:
        ConflictError: another process writes to it.
    """
    stored, names = lake.stored_schema(sink), dict[str, str]()
    for name, field in find_retyped_columns(log):
        known = stored.field(name) if name in stored.names else None
        if field.name not in stored.names and name not in names and known is not None and known.type == field.type:
            names[name] = field.name
    remaining = pa.schema([field for field in stored if field.name not in names])
    grown, retyped = compare_column_types(schema, remaining)
    if retyped:
        newest = newest_row_us(lake, sink)
        names |= {name: retyped_column_name(name, newest) for name in retyped}
    if names or grown:
        rewrite_columns(lake, sink, names, types=grown)


def compare_column_types(schema: TableSchema, stored_schema: pa.Schema) -> tuple[dict[str, pa.DataType], list[str]]:
    """Return how the columns of a stored log changed: the new types of extended ones, and the names of retyped ones.

    The latter include their columns for deletions.
    """
    grown, retyped, lost = dict[str, pa.DataType](), list[str](), set[str]()
    for log_column, name in stored_columns(schema):
        if log_column.base is None or name not in stored_schema.names:
            continue
        kind, stored = stored_type(log_column.type), stored_schema.field(name).type
        if log_column.base.name in lost or not is_compatible_type(stored, kind):
            retyped.append(name)
            lost.add(log_column.base.name)
        elif has_new_fields(stored, kind):
            grown[name] = arrow_type(kind)
    return grown, retyped


def rewrite_columns(
    lake: Lake,
    table: Table,
    names: Mapping[str, str],
    beside: Mapping[str, int] | None = None,
    types: Mapping[str, pa.DataType] = MappingProxyType({}),
) -> None:
    """Rename columns of a log, or of a copy of it, by rewriting all rows in one commit.

    `types` are those of columns whose user types were extended. It is retried on the new version if another process,
    such as file maintenance, writes meanwhile.

    Raises:
        ConflictError: other writers won every attempt.
    """
    for _ in range(_MAX_ATTEMPTS - 1):
        with suppress(ConflictError):
            return _rewrite_columns_once(lake, table, names, types, beside)
    return _rewrite_columns_once(lake, table, names, types, beside)


def _rewrite_columns_once(
    lake: Lake,
    table: Table,
    names: Mapping[str, str],
    types: Mapping[str, pa.DataType],
    beside: Mapping[str, int] | None,
) -> None:
    version, files = lake.version(table) or 0, [file.path for file in lake.data_files(table)]
    stored = lake.stored_schema(table)
    changed_types = {
        name: kind for name, kind in types.items() if name in stored.names and stored.field(name).type != kind
    }
    if not changed_types and not set(names) & set(stored.names):
        return  # another process has already renamed them
    fields = [
        pa.field(names.get(field.name, field.name), changed_types.get(field.name, field.type), field.nullable)
        for field in stored
    ]

    def renamed(number: int) -> Batches:
        # A file from before a column was added lacks the column.
        present = [name for name in stored.names if name in pq.read_schema(parse_path(files[number]).source()).names]
        for batch in read_file_batches(files[number], present):
            columns = [
                convert_values(column, changed_types[name]) if name in changed_types else column
                for name, column in zip(present, batch.columns, strict=True)
            ]
            renamed_batch = pa.RecordBatch.from_arrays(columns, names=[names.get(name, name) for name in present])
            yield _rename_exact_values(renamed_batch, names)

    rows = TaskRows(len(files), renamed)
    rewritten = replace(table, schema=pa.schema(fields))
    frames.replace_all_rows(
        TaskRunner.alone(), lake, rewritten, rows, ("ingest:shape", version + 1), beside, of=version
    )


def _rename_exact_values(batch: pa.RecordBatch, names: Mapping[str, str]) -> pa.RecordBatch:
    """Rename the columns in the exact values of a batch as well."""
    if EXACT not in batch.schema.names or batch.column(EXACT).null_count == batch.num_rows:
        return batch
    index = batch.schema.names.index(EXACT)
    pairs = [
        None if values is None else [(names.get(name, name), text) for name, text in values]
        for values in batch.column(index).to_pylist()
    ]
    return batch.set_column(index, batch.schema.field(index), pa.array(pairs, batch.schema.field(index).type))


RETYPED_APPLICATION = "ingest:aside"
"""The application under which a log records up to when (µs) rows have values in retyped columns."""


def ensure_log_columns(lake: Lake, clock: Clock, schema: TableSchema, *, exact: bool) -> Table:
    """Return the table of the log with all columns of the schema's log, after changing it as needed.

    The caller must hold the lock of the log, because rows that are appended during a rewrite would be lost.
    """
    table = log_table(schema, exact=exact)
    existing = lake.stored_schema(table).names
    if existing:
        names = _renamed(lake, schema, existing)
        if names:
            rewrite_columns(lake, table, names)
        retyped = _retyped(lake, schema, existing)
        if retyped:
            rewrite_columns(lake, table, retyped, {RETYPED_APPLICATION: newest_row_us(lake, table)})
    try:
        return lake.widen(table)
    except StateError:
        grown, clash = compare_column_types(schema, lake.stored_schema(table))
        if not grown and not clash:
            raise
        names = {name: retyped_column_name(name, clock.now_us()) for name in clash}
        transactions = {RETYPED_APPLICATION: newest_row_us(lake, table)} if names else None
        rewrite_columns(lake, table, names, transactions, grown)
        return lake.widen(table)


def _renamed(lake: Lake, schema: TableSchema, names_in_log: list[str]) -> dict[str, str]:
    """Return the renamed key columns of the log, old to new, according to the table's previous definitions."""
    keys = [key.name for key in _keys(schema)]
    if set(keys) <= set(names_in_log):
        return {}
    for previous in _schemas_before(lake, schema):
        old = [key.name for key in _keys(previous)]
        if set(old) <= set(names_in_log) and len(old) == len(keys):
            return {a: b for a, b in zip(old, keys, strict=True) if a != b and b not in names_in_log}
    return {}


def _retyped(lake: Lake, schema: TableSchema, names_in_log: list[str]) -> dict[str, str]:
    """Return columns that were dropped and added with another type that Delta stores alike, as text; old to new name.

    The new name has the time at which the type was recorded. A log with later rows has its new values already.
    """
    known: list[tuple[Microseconds, TableSchema]] = []
    ddl = ""
    for item in cdc_tables.read_table_changes(lake):
        if item.full_name == schema.full_name and item.ddl is not None and strip_comments(item.ddl) != ddl:
            ddl, parsed = strip_comments(item.ddl), schema_from_change(item)
            known += [] if parsed is None else [(item.changed_at_us, parsed)]
    names: dict[str, tuple[str, Microseconds]] = {}
    for item, name in stored_columns(schema) if len(known) > 1 else ():
        if item.base is None or item.base.is_key or name not in names_in_log:
            continue
        since = _type_since(known, item.base)
        if since is not None and not any(
            old.startswith(f"{name}$until_") for old in names_in_log if old >= retyped_column_name(name, since)
        ):
            names[name] = retyped_column_name(name, since), since
    newest = newest_row_us(lake, log_table(schema)) if names else Microseconds(0)
    return {name: retyped for name, (retyped, since) in names.items() if newest <= since}


def _type_since(known: Sequence[tuple[Microseconds, TableSchema]], column: Column) -> Microseconds | None:
    """Return since when (µs) a column is recorded with its current type; None if it never had another one."""
    kinds = [
        (at_us, definition.column(column.name).type.cql) for at_us, definition in known if definition.has(column.name)
    ]
    last_other = max((index for index, (_, kind) in enumerate(kinds) if kind != column.type.cql), default=None)
    return None if last_other is None or last_other + 1 == len(kinds) else kinds[last_other + 1][0]


def _keys(schema: TableSchema) -> tuple[Column, ...]:
    return (*with_stored_names(schema).partition_key, *with_stored_names(schema).clustering_key)


def _schemas_before(lake: Lake, schema: TableSchema) -> list[TableSchema]:
    """Return the recorded definitions of the table, newest first."""
    changes = [
        change for change in reversed(cdc_tables.read_table_changes(lake)) if change.full_name == schema.full_name
    ]
    return [parsed for parsed in map(schema_from_change, changes) if parsed is not None]
