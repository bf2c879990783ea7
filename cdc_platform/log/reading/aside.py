"""Columns of a log that got another type: what was there before stands aside, under a name that says until when it was.

Copies of a log have the same columns as it has, whenever they were made.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType

import pyarrow as pa
import pyarrow.parquet as pq

from cdc_platform.clock import Microseconds, format_us
from cdc_platform.cql.schema import TableSchema
from cdc_platform.errors import ConflictError
from cdc_platform.lake import frames
from cdc_platform.lake.appended import stored_schema
from cdc_platform.lake.arrow import compute
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import Table
from cdc_platform.lake.volume import Batches, TaskRows, Workers, file_batches
from cdc_platform.log.evolution import fitted, holds, is_grown
from cdc_platform.log.log_table import arrow_type
from cdc_platform.log.stored_names import EXACT, WRITTEN_AT, stored_columns, stored_type
from cdc_platform.places import place_of

_TRIES = 5
_UNTIL = re.compile(r"(?P<name>.+)\$until_(?P<stamp>\d+T\d+Z)")


def until_now(name: str, now_us: Microseconds) -> str:
    """The name of a column whose values stand aside from now on (µs)."""
    return f"{name}$until_{format_us(now_us).translate(str.maketrans('', '', ':-.'))}"


def aside(log: pa.Schema) -> list[tuple[str, pa.Field]]:
    """The columns of a log as it is stored that stand aside, each behind the name that it had, oldest first."""
    found = [(match, field) for field in log if (match := _UNTIL.fullmatch(field.name)) is not None]
    return [(match["name"], field) for match, field in sorted(found, key=lambda each: each[0]["stamp"])]


def put_aside(lake: Lake, sink: Table, log: pa.Schema, schema: TableSchema) -> None:
    """Give columns of a copy that is there the names and types that they have in its log by now.

    A column whose type the copy alone has still, since its log lost it, stands aside as of the copy's newest row.

    Raises:
        ConflictError: another process writes to it.
    """
    there, names = stored_schema(lake, sink), dict[str, str]()
    for name, field in aside(log):
        known = there.field(name) if name in there.names else None
        if field.name not in there.names and name not in names and known is not None and known.type == field.type:
            names[name] = field.name
    left = pa.schema([field for field in there if field.name not in names])
    grown, other = changed(schema, left)
    if other:
        newest = compute.max(lake.read(sink, [WRITTEN_AT])[WRITTEN_AT].cast(pa.int64())).as_py()
        names |= {name: until_now(name, Microseconds(newest or 0)) for name in other}
    if names or grown:
        rename(lake, sink, names, types=grown)


def changed(schema: TableSchema, there: pa.Schema) -> tuple[dict[str, pa.DataType], list[str]]:
    """Return what became of the columns of a stored log: the types of those that grew, and those of another type.

    The latter are named with what tells of their deletions.
    """
    grown, other, lost = dict[str, pa.DataType](), list[str](), set[str]()
    for each, name in stored_columns(schema):
        if each.base is None or name not in there.names:
            continue
        kind, stored = stored_type(each.type), there.field(name).type
        if each.base.name in lost or not holds(stored, kind):
            other.append(name)
            lost.add(each.base.name)
        elif is_grown(stored, kind):
            grown[name] = arrow_type(kind)
    return grown, other


def rename(
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
    for _ in range(_TRIES - 1):
        with suppress(ConflictError):
            return _renamed(lake, table, names, types, beside)
    return _renamed(lake, table, names, types, beside)


def _renamed(
    lake: Lake,
    table: Table,
    names: Mapping[str, str],
    types: Mapping[str, pa.DataType],
    beside: Mapping[str, int] | None,
) -> None:
    version, files = lake.version(table) or 0, lake.files(table, [])
    stands = stored_schema(lake, table)
    due = {name: kind for name, kind in types.items() if name in stands.names and stands.field(name).type != kind}
    if not due and not set(names) & set(stands.names):
        return  # another process has done it
    fields = [
        pa.field(names.get(field.name, field.name), due.get(field.name, field.type), field.nullable) for field in stands
    ]

    def renamed(number: int) -> Batches:
        # A file from before a column was added has none of it.
        there = [name for name in stands.names if name in pq.read_schema(place_of(files[number]).source()).names]
        for batch in file_batches(files[number], there):
            columns = [
                fitted(column, due[name]) if name in due else column
                for name, column in zip(there, batch.columns, strict=True)
            ]
            found = pa.RecordBatch.from_arrays(columns, names=[names.get(name, name) for name in there])
            yield _exact_renamed(found, names)

    rows = TaskRows(len(files), renamed)
    wanted = replace(table, schema=pa.schema(fields))
    frames.replace_all(Workers.alone(), lake, wanted, rows, ("ingest:shape", version + 1), beside, of=version)


def _exact_renamed(batch: pa.RecordBatch, names: Mapping[str, str]) -> pa.RecordBatch:
    """Rows in which the values that no native column holds stand under the columns' new names as well."""
    if EXACT not in batch.schema.names or batch.column(EXACT).null_count == batch.num_rows:
        return batch
    place = batch.schema.names.index(EXACT)
    pairs = [
        None if beside is None else [(names.get(name, name), text) for name, text in beside]
        for beside in batch.column(place).to_pylist()
    ]
    return batch.set_column(place, batch.schema.field(place), pa.array(pairs, batch.schema.field(place).type))
