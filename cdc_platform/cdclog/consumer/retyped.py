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
from cdc_platform.cdclog.schema import (
    EXACT,
    WRITTEN_AT,
    arrow_type,
    log_table,
    stored_columns,
    stored_type,
    with_stored_names,
)
from cdc_platform.cdclog.schema_evolution import convert_values, has_new_fields, is_compatible_type
from cdc_platform.clock import Clock, Microseconds, format_us
from cdc_platform.cql import Column, TableSchema, strip_comments
from cdc_platform.delta import Batches, Lake, TaskRows, TaskRunner, compute, read_file_batches, read_stored_schema
from cdc_platform.errors import ConflictError, StateError
from cdc_platform.metastore import cdc_tables
from cdc_platform.spark import frames
from cdc_platform.storage import parse_path
from cdc_platform.tables import Table

_MAX_ATTEMPTS = 5
_RETYPED_NAME = re.compile(r"(?P<name>.+)\$until_(?P<stamp>\d+T\d+Z)")


def retyped_column_name(name: str, now_us: Microseconds) -> str:
    """The name of a column whose values stand aside from now on (µs)."""
    return f"{name}$until_{format_us(now_us).translate(str.maketrans('', '', ':-.'))}"


def find_retyped_columns(log: pa.Schema) -> list[tuple[str, pa.Field]]:
    """The columns of a log as it is stored that stand aside, each behind the name that it had, oldest first."""
    found = [(match, field) for field in log if (match := _RETYPED_NAME.fullmatch(field.name)) is not None]
    return [(match["name"], field) for match, field in sorted(found, key=lambda each: each[0]["stamp"])]


def retype_sink_columns(lake: Lake, sink: Table, log: pa.Schema, schema: TableSchema) -> None:
    """Give columns of a copy that is there the names and types that they have in its log by now.

    A column whose type the copy alone has still, since its log lost it, stands aside as of the copy's newest row.

    Raises:
        ConflictError: another process writes to it.
    """
    there, names = read_stored_schema(lake, sink), dict[str, str]()
    for name, field in find_retyped_columns(log):
        known = there.field(name) if name in there.names else None
        if field.name not in there.names and name not in names and known is not None and known.type == field.type:
            names[name] = field.name
    left = pa.schema([field for field in there if field.name not in names])
    grown, other = compare_column_types(schema, left)
    if other:
        newest = compute.max(lake.read(sink, [WRITTEN_AT])[WRITTEN_AT].cast(pa.int64())).as_py()
        names |= {name: retyped_column_name(name, Microseconds(newest or 0)) for name in other}
    if names or grown:
        rewrite_columns(lake, sink, names, types=grown)


def compare_column_types(schema: TableSchema, there: pa.Schema) -> tuple[dict[str, pa.DataType], list[str]]:
    """Return what became of the columns of a stored log: the types of those that grew, and those of another type.

    The latter are named with what tells of their deletions.
    """
    grown, other, lost = dict[str, pa.DataType](), list[str](), set[str]()
    for each, name in stored_columns(schema):
        if each.base is None or name not in there.names:
            continue
        kind, stored = stored_type(each.type), there.field(name).type
        if each.base.name in lost or not is_compatible_type(stored, kind):
            other.append(name)
            lost.add(each.base.name)
        elif has_new_fields(stored, kind):
            grown[name] = arrow_type(kind)
    return grown, other


def rewrite_columns(
    lake: Lake,
    table: Table,
    names: Mapping[str, str],
    beside: Mapping[str, int] | None = None,
    types: Mapping[str, pa.DataType] = MappingProxyType({}),
) -> None:
    """Put every row of a log, or of a copy of it, where it is under new names of columns, by one commit.

    `types` are those of columns whose user types grew. Where another process writes to it meanwhile, as the upkeep of
    files does, it is done again with what is there then.

    Raises:
        ConflictError: others kept coming first.
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
    version, files = lake.version(table) or 0, lake.files(table, [])
    stands = read_stored_schema(lake, table)
    due = {name: kind for name, kind in types.items() if name in stands.names and stands.field(name).type != kind}
    if not due and not set(names) & set(stands.names):
        return  # another process has done it
    fields = [
        pa.field(names.get(field.name, field.name), due.get(field.name, field.type), field.nullable) for field in stands
    ]

    def renamed(number: int) -> Batches:
        # A file from before a column was added has none of it.
        there = [name for name in stands.names if name in pq.read_schema(parse_path(files[number]).source()).names]
        for batch in read_file_batches(files[number], there):
            columns = [
                convert_values(column, due[name]) if name in due else column
                for name, column in zip(there, batch.columns, strict=True)
            ]
            found = pa.RecordBatch.from_arrays(columns, names=[names.get(name, name) for name in there])
            yield _rename_exact_values(found, names)

    rows = TaskRows(len(files), renamed)
    wanted = replace(table, schema=pa.schema(fields))
    frames.replace_all_rows(TaskRunner.alone(), lake, wanted, rows, ("ingest:shape", version + 1), beside, of=version)


def _rename_exact_values(batch: pa.RecordBatch, names: Mapping[str, str]) -> pa.RecordBatch:
    """Rows in which the values that no native column holds stand under the columns' new names as well."""
    if EXACT not in batch.schema.names or batch.column(EXACT).null_count == batch.num_rows:
        return batch
    place = batch.schema.names.index(EXACT)
    pairs = [
        None if beside is None else [(names.get(name, name), text) for name, text in beside]
        for beside in batch.column(place).to_pylist()
    ]
    return batch.set_column(place, batch.schema.field(place), pa.array(pairs, batch.schema.field(place).type))


RETYPED_APPLICATION = "ingest:aside"
"""The application under which a log notes up to when (µs) rows have values under another name than their column's."""


def ensure_log_columns(lake: Lake, clock: Clock, schema: TableSchema, *, exact: bool) -> Table:
    """The table of the log with all columns that the schema's log has, as it stands then.

    Whoever calls has the turn of the log: rows that come in while others are rewritten would be lost.
    """
    wanted = log_table(schema, exact=exact)
    there = lake.columns(wanted)
    if there:
        names = _renamed(lake, schema, there)
        if names:
            rewrite_columns(lake, wanted, names)
        retyped = _retyped(lake, schema, there)
        if retyped:
            rewrite_columns(lake, wanted, retyped, {RETYPED_APPLICATION: _newest_us(lake, wanted)})
    try:
        return lake.widen(wanted)
    except StateError:
        grown, clash = compare_column_types(schema, read_stored_schema(lake, wanted))
        if not grown and not clash:
            raise
        names = {name: retyped_column_name(name, clock.now_us()) for name in clash}
        beside = {RETYPED_APPLICATION: _newest_us(lake, wanted)} if names else None
        rewrite_columns(lake, wanted, names, beside, grown)
        return lake.widen(wanted)


def _renamed(lake: Lake, schema: TableSchema, there: list[str]) -> dict[str, str]:
    """The key columns of the log that go by another name now, old to new, by what the table was told to be before."""
    keys = [key.name for key in _keys(schema)]
    if set(keys) <= set(there):
        return {}
    for before in _schemas_before(lake, schema):
        old = [key.name for key in _keys(before)]
        if set(old) <= set(there) and len(old) == len(keys):
            return {a: b for a, b in zip(old, keys, strict=True) if a != b and b not in there}
    return {}


def _retyped(lake: Lake, schema: TableSchema, there: list[str]) -> dict[str, str]:
    """The columns that were dropped and made with another type which Delta stores alike, as texts, old name to new.

    The new name has the time at which the type was noted. A log with rows from after that has its new values already.
    """
    known: list[tuple[Microseconds, TableSchema]] = []
    ddl = ""
    for each in cdc_tables.read_table_changes(lake):
        if each.full_name == schema.full_name and each.ddl is not None and strip_comments(each.ddl) != ddl:
            ddl, found = strip_comments(each.ddl), schema_from_change(each)
            known += [] if found is None else [(each.changed_at_us, found)]
    names: dict[str, tuple[str, Microseconds]] = {}
    for each, name in stored_columns(schema) if len(known) > 1 else ():
        if each.base is None or each.base.is_key or name not in there:
            continue
        since = _type_since(known, each.base)
        if since is not None and not any(
            old.startswith(f"{name}$until_") for old in there if old >= retyped_column_name(name, since)
        ):
            names[name] = retyped_column_name(name, since), since
    newest = _newest_us(lake, log_table(schema)) if names else Microseconds(0)
    return {name: aside for name, (aside, since) in names.items() if newest <= since}


def _type_since(known: Sequence[tuple[Microseconds, TableSchema]], column: Column) -> Microseconds | None:
    """From when on (µs) a column was noted with the type that it has; None where it never had another one."""
    kinds = [(at_us, each.column(column.name).type.cql) for at_us, each in known if each.has(column.name)]
    other = max((place for place, (_, kind) in enumerate(kinds) if kind != column.type.cql), default=None)
    return None if other is None or other + 1 == len(kinds) else kinds[other + 1][0]


def _keys(schema: TableSchema) -> tuple[Column, ...]:
    return (*with_stored_names(schema).partition_key, *with_stored_names(schema).clustering_key)


def _schemas_before(lake: Lake, schema: TableSchema) -> list[TableSchema]:
    """What the table was told to be, newest first."""
    said = [each for each in reversed(cdc_tables.read_table_changes(lake)) if each.full_name == schema.full_name]
    return [found for found in map(schema_from_change, said) if found is not None]


def _newest_us(lake: Lake, log: Table) -> Microseconds:
    """When the newest row of a log was written (µs); 0 where it has none."""
    newest = compute.max(lake.read(log, [WRITTEN_AT])[WRITTEN_AT].cast(pa.int64())).as_py()
    return Microseconds(newest or 0)
