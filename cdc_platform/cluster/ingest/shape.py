"""Gives the Delta table of a log the columns that its base table has now, and loses none that it had.

A column that came is added, one that went stays. A key column that was renamed is renamed in all rows; one that came
back with another type stands beside the old one, which keeps its values under a name that says until when it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq

from cdc_platform.clock import Clock, Microseconds, format_us
from cdc_platform.cql.schema import Column, TableSchema
from cdc_platform.errors import StateError
from cdc_platform.lake import frames
from cdc_platform.lake.arrow import compute
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import Table
from cdc_platform.lake.volume import Batches, TaskRows, Workers, file_batches
from cdc_platform.log.ddl import schema_as_told
from cdc_platform.log.log_table import WRITTEN_AT, log_table
from cdc_platform.log.stored_names import stored
from cdc_platform.places import place_of
from cdc_platform.records import cdc_tables

ASIDE = "ingest:aside"
"""The application under which a log notes up to when (µs) rows have values under another name than their column's."""


def fitted(lake: Lake, clock: Clock, schema: TableSchema, *, exact: bool) -> Table:
    """The table of the log with all columns that the schema's log has, as it stands then.

    Whoever calls has the turn of the log: rows that come in while others are rewritten would be lost.
    """
    wanted = log_table(schema, exact=exact)
    there = lake.columns(wanted)
    if there:
        names = _renamed(lake, schema, there)
        if names:
            _rewrite(lake, wanted, names)
    try:
        return lake.widen(wanted)
    except StateError:
        clash = _clashing(lake, wanted)
        if not clash:
            raise
        stamp = format_us(clock.now_us()).translate(str.maketrans("", "", ":-."))
        _rewrite(lake, wanted, {name: f"{name}$until_{stamp}" for name in clash}, {ASIDE: _newest_us(lake, wanted)})
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


def _keys(schema: TableSchema) -> tuple[Column, ...]:
    return (*stored(schema).partition_key, *stored(schema).clustering_key)


def _schemas_before(lake: Lake, schema: TableSchema) -> list[TableSchema]:
    """What the table was told to be, newest first."""
    said = [each for each in reversed(cdc_tables.changes(lake)) if each.full_name == schema.full_name]
    return [found for found in map(schema_as_told, said) if found is not None]


def _clashing(lake: Lake, wanted: Table) -> list[str]:
    """The columns that are there with another type than is wanted."""
    there = lake.columns(wanted)
    return [field.name for field in wanted.schema if field.name in there and not _fits(lake, wanted, field)]


def _fits(lake: Lake, wanted: Table, field: pa.Field) -> bool:
    try:
        lake.widen(replace(wanted, schema=pa.schema([field]), keys=()))
    except StateError:
        return False
    return True


def _newest_us(lake: Lake, log: Table) -> Microseconds:
    """When the newest row of a log was written (µs); 0 where it has none."""
    newest = compute.max(lake.read(log, [WRITTEN_AT])[WRITTEN_AT].cast(pa.int64())).as_py()
    return Microseconds(newest or 0)


def _rewrite(lake: Lake, wanted: Table, names: dict[str, str], beside: Mapping[str, int] | None = None) -> None:
    """Put every row of the log where it is under these new names of columns, by one commit."""
    stands = lake.widen(replace(wanted, schema=pa.schema([wanted.schema.field("cdc$stream_id")]), keys=()))
    fields = [field.with_name(names.get(field.name, field.name)) for field in stands.schema]
    files = lake.files(wanted, [])

    def renamed(number: int) -> Batches:
        # A file from before a column was added has none of it.
        there = [name for name in stands.schema.names if name in pq.read_schema(place_of(files[number]).source()).names]
        for batch in file_batches(files[number], there):
            yield batch.rename_columns([names.get(name, name) for name in there])

    rows = TaskRows(len(files), renamed)
    version = lake.version(wanted) or 0
    table = replace(wanted, schema=pa.schema(fields))
    frames.replace_all(Workers.alone(), lake, table, rows, ("ingest:shape", version + 1), beside)
