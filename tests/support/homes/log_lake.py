"""Logs in a lake over two generations and over the split of a tablet-based table; read as rows and stored damaged."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from cdc_platform.cdclog import WRITTEN_AT, log_table, read_table_schema
from cdc_platform.cdclog.batch_encoder import encode_log_batch
from cdc_platform.cdclog.dataframe import get_stream_lookup
from cdc_platform.cdclog.schema import typed_writes_schema
from cdc_platform.clock import Clock, Microseconds, datetime_from_us, parse_time_us
from cdc_platform.delta import Lake
from cdc_platform.generations import uniform_tablet_ends
from cdc_platform.lifecycle import tablets
from cdc_platform.metastore import cdc_tables
from cdc_platform.settings import Settings

FIRST, SECOND = "2026-01-31T12:00:00Z", "2026-01-31T13:00:00Z"
START_US, SWITCH_US = parse_time_us(FIRST), parse_time_us(SECOND)
DDL = """CREATE TABLE ks.{} (p int, k int, v int, m map<int, text>, PRIMARY KEY (p, k))
    WITH cdc = {{'enabled': 'true'}};"""
BATCHES = 40
"""Writes to each log, half of them before the switch; every fourth write makes three log rows, the others one."""
ROWS = BATCHES // 4 * 6
Row = dict[str, Any]


def split(lake: Lake) -> None:
    """Create a table whose two tablets are split into four, with its log."""
    created, split = Clock(Microseconds(START_US + 5_000_000)), Clock(Microseconds(SWITCH_US - 65_000_000))
    tablets.create_tablets(lake, created, Settings(), "ks", "tabs", uniform_tablet_ends(2), ttl_seconds=86_400)
    tablets.split_tablets(lake, split, Settings(), "ks", "tabs", 4)
    cdc_tables.alter_cdc_table(lake, split, "ks", "tabs", ddl=DDL.format("tabs"))
    write(lake, "tabs")


def write(lake: Lake, table: str) -> None:
    """Log writes of both halves of the time, one file per half."""
    schema = read_table_schema(lake, "ks", table)
    streams = get_stream_lookup(lake, schema)
    for half, begin in enumerate((START_US, SWITCH_US)):
        typed = [_write(number, Microseconds(begin + number * 1000)) for number in range(BATCHES // 2)]
        batch = pa.RecordBatch.from_pylist(typed, schema=typed_writes_schema(schema))
        rows = pa.Table.from_batches([encode_log_batch(schema, batch, streams)])
        assert lake.append_once(log_table(schema), rows, {"writer": half + 1}, half or None)


def _write(number: int, at_us: Microseconds) -> Row:
    row = {"operation": 2, "timestamp": at_us, "p": number * 7, "k": number, "v": number}
    if number % 4:
        return row
    return row | {"ttl": 60, "m": [(1, "a")], "cdc$deleted_m": True}


def rows_of(lake: Lake, table: str = "t") -> list[Row]:
    """Return the rows of a log, oldest first."""
    order = [(WRITTEN_AT, "ascending"), ("cdc$batch_seq_no", "ascending")]
    return lake.read(log_table(read_table_schema(lake, "ks", table))).sort_by(order).to_pylist()


def put(lake: Lake, rows: list[Row], table: str = "t") -> None:
    """Replace all rows of a log."""
    declared = log_table(read_table_schema(lake, "ks", table))
    fields = pa.schema([field.with_nullable(True) for field in declared.schema.remove_metadata()])
    opened = DeltaTable(lake.path(declared))
    write_deltalake(opened, pa.Table.from_pylist(rows, schema=fields), mode="overwrite", schema_mode="overwrite")


def alone(rows: list[Row], *, late: bool = False) -> Row:
    """Return a row that is a batch by itself, from before the switch or after it."""
    return next(
        row
        for row in rows
        if row["cdc$batch_seq_no"] == 0
        and row["cdc$end_of_batch"]
        and (row[WRITTEN_AT] >= datetime_from_us(SWITCH_US)) == late
    )


def three(rows: list[Row]) -> list[Row]:
    """Return the rows of a batch of three."""
    at = next(index for index, row in enumerate(rows) if row["cdc$batch_seq_no"] == 2)
    return rows[at - 2 : at + 1]
