"""A home with two generations and a table whose log tests write to at chosen times."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from support.files.export_files import ID, OTHER_ID
from support.homes.imported import home_with_generations

from cdc_platform.cdclog import WRITTEN_AT, log_table, read_table_schema
from cdc_platform.cdclog.batch_encoder import encode_log_batch
from cdc_platform.cdclog.dataframe import get_stream_lookup
from cdc_platform.cdclog.schema import typed_writes_schema
from cdc_platform.clock import Clock, Microseconds, ms_from_us, parse_time_us
from cdc_platform.cql import TableSchema
from cdc_platform.delta import Lake
from cdc_platform.metastore import cdc_tables

START_US = parse_time_us("2026-01-31T12:10:00Z")
SWITCH_US = parse_time_us("2026-01-31T13:30:00Z")


def ddl(*columns: str, table: str = "t") -> str:
    """Return the definition of a table with these regular columns of type int."""
    regular = "".join(f"{name} int, " for name in columns)
    return f"CREATE TABLE ks.{table} (p int, k int, {regular}PRIMARY KEY (p, k)) WITH cdc = {{'enabled': 'true'}};"


def home_with_log(folder: Path) -> Path:
    """Create a home with two imported generations and `ks.t (p, k, v)`, whose log is empty."""
    home = home_with_generations(folder, {ID: ms_from_us(START_US), OTHER_ID: ms_from_us(SWITCH_US)})
    add_table(Lake(home / "lake"), "t")
    return home


def add_table(lake: Lake, table: str) -> None:
    """Create `ks.<table> (p, k, v)` with an empty log, created at the start of the first generation."""
    cdc_tables.add_cdc_table(
        lake, Clock(START_US), "ks", table, ttl_seconds=86_400, created_now=True, ddl=ddl("v", table=table)
    )
    lake.ensure(log_table(schema(lake, table)))


def schema(lake: Lake, table: str = "t") -> TableSchema:
    """Return the table's schema as the platform has it now."""
    return read_table_schema(lake, "ks", table)


def write(lake: Lake, times_us: Sequence[Microseconds], *, table: str = "t", value: str = "v") -> None:
    """Log inserts at these times (µs) in one commit; the value of each is its second within the hour."""
    table_schema = schema(lake, table)
    number = lake.transaction(log_table(table_schema), "writer") or 0
    typed = [
        {"operation": 2, "timestamp": when, "p": partition, "k": number, value: when // 1_000_000 % 3600}
        for partition, when in enumerate(times_us)
    ]
    batch = pa.RecordBatch.from_pylist(typed, schema=typed_writes_schema(table_schema))
    rows = pa.Table.from_batches([encode_log_batch(table_schema, batch, get_stream_lookup(lake, table_schema))])
    assert lake.append_once(log_table(table_schema), rows, {"writer": number + 1}, number or None)


def times_of(rows: pa.Table) -> list[int]:
    """Return the write times (µs) of log rows, sorted."""
    return sorted(rows[WRITTEN_AT].cast("int64").to_pylist())
