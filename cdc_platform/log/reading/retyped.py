"""Gives the Delta table of a log the columns that its base table has now, and loses none that it had.

A column that came is added, one that went stays. A key column that was renamed is renamed in all rows; one that came
back with another type stands beside the old one, which keeps its values under a name that says until when it was. One
whose user type grew is the same column: older rows have null in the fields that were added.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from cdc_platform.clock import Clock, Microseconds
from cdc_platform.cql.schema import Column, TableSchema
from cdc_platform.cql.written import without_notes
from cdc_platform.errors import StateError
from cdc_platform.lake.appended import stored_schema
from cdc_platform.lake.arrow import compute
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import Table
from cdc_platform.log.ddl import schema_as_told
from cdc_platform.log.log_table import log_table
from cdc_platform.log.reading.aside import changed, rename, until_now
from cdc_platform.log.stored_names import WRITTEN_AT, stored, stored_columns
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
            rename(lake, wanted, names)
        retyped = _retyped(lake, schema, there)
        if retyped:
            rename(lake, wanted, retyped, {ASIDE: _newest_us(lake, wanted)})
    try:
        return lake.widen(wanted)
    except StateError:
        grown, clash = changed(schema, stored_schema(lake, wanted))
        if not grown and not clash:
            raise
        names = {name: until_now(name, clock.now_us()) for name in clash}
        beside = {ASIDE: _newest_us(lake, wanted)} if names else None
        rename(lake, wanted, names, beside, grown)
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
    for each in cdc_tables.changes(lake):
        if each.full_name == schema.full_name and each.ddl is not None and without_notes(each.ddl) != ddl:
            ddl, found = without_notes(each.ddl), schema_as_told(each)
            known += [] if found is None else [(each.changed_at_us, found)]
    names: dict[str, tuple[str, Microseconds]] = {}
    for each, name in stored_columns(schema) if len(known) > 1 else ():
        if each.base is None or each.base.is_key or name not in there:
            continue
        since = _type_since(known, each.base)
        if since is not None and not any(
            old.startswith(f"{name}$until_") for old in there if old >= until_now(name, since)
        ):
            names[name] = until_now(name, since), since
    newest = _newest_us(lake, log_table(schema)) if names else Microseconds(0)
    return {name: aside for name, (aside, since) in names.items() if newest <= since}


def _type_since(known: Sequence[tuple[Microseconds, TableSchema]], column: Column) -> Microseconds | None:
    """From when on (µs) a column was noted with the type that it has; None where it never had another one."""
    kinds = [(at_us, each.column(column.name).type.cql) for at_us, each in known if each.has(column.name)]
    other = max((place for place, (_, kind) in enumerate(kinds) if kind != column.type.cql), default=None)
    return None if other is None or other + 1 == len(kinds) else kinds[other + 1][0]


def _keys(schema: TableSchema) -> tuple[Column, ...]:
    return (*stored(schema).partition_key, *stored(schema).clustering_key)


def _schemas_before(lake: Lake, schema: TableSchema) -> list[TableSchema]:
    """What the table was told to be, newest first."""
    said = [each for each in reversed(cdc_tables.changes(lake)) if each.full_name == schema.full_name]
    return [found for found in map(schema_as_told, said) if found is not None]


def _newest_us(lake: Lake, log: Table) -> Microseconds:
    """When the newest row of a log was written (µs); 0 where it has none."""
    newest = compute.max(lake.read(log, [WRITTEN_AT])[WRITTEN_AT].cast(pa.int64())).as_py()
    return Microseconds(newest or 0)
