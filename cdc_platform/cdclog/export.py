"""Stored logs as another CQL server would hold them: statements that create their tables, and their rows.

`importing` and `scylla` write them into files or a server.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from cdc_platform.cdclog.consumer.reader import read_between
from cdc_platform.cdclog.consumer.retyped import find_retyped_columns
from cdc_platform.cdclog.ddl import load_table_schemas
from cdc_platform.cdclog.schema import WRITTEN_AT, log_table
from cdc_platform.cdclog.values import FIRST_MS, LAST_MS, log_rows_from_arrow
from cdc_platform.clock import Microseconds, us_from_datetime, us_from_ms
from cdc_platform.cql import (
    COPY_NULL,
    LOG_PRIMARY_KEY,
    Catalog,
    LogColumn,
    TableSchema,
    Value,
    format_copy_cell,
    format_plain_ddl,
    get_log_columns,
    quote_name,
)
from cdc_platform.delta import Lake
from cdc_platform.importing import CsvTable
from cdc_platform.metastore import read_cdc_tables

_ROWS_PER_READ = 50_000


@dataclass(frozen=True)
class StoredLog:
    """A log with rows.

    `ddl` are statements that create its types, its base table without CDC, and a plain table of the log's name, each
    IF NOT EXISTS. `rows` is the number of rows.
    """

    lake: Lake
    schema: TableSchema
    ddl: tuple[str, ...]
    rows: int

    @property
    def full_name(self) -> str:
        """`keyspace.table` of the log."""
        return f"{self.schema.keyspace}.{self.schema.log_name}"

    @cached_property
    def columns(self) -> tuple[LogColumn, ...]:
        """The columns as a server lists them: those of the key, then the others by name."""
        by_name = {log_column.name: log_column for log_column in get_log_columns(self.schema)}
        return tuple(by_name[name] for name in (*LOG_PRIMARY_KEY, *sorted(set(by_name) - set(LOG_PRIMARY_KEY))))

    @property
    def left_out(self) -> list[str]:
        """Return the retyped columns, which no server has: they were dropped, and added with another type."""
        return [field.name for _, field in find_retyped_columns(self.lake.stored_schema(log_table(self.schema)))]

    def values(self) -> Iterator[list[Value | None]]:
        """Yield the values of each row in the order of `columns`, oldest first."""
        names = [log_column.name for log_column in self.columns]
        for after, until in self._parts():
            rows = read_between(self.lake, self.schema, after, until)
            for row in log_rows_from_arrow(self.schema, rows):
                yield [row[name] for name in names]

    def _parts(self) -> Iterator[tuple[Microseconds, Microseconds]]:
        """Yield time intervals (µs) of about `_ROWS_PER_READ` rows each, from Delta's file statistics."""
        lows = sorted((low, rows) for low, _, rows in self.lake.file_bounds(log_table(self.schema), WRITTEN_AT))
        after, count = us_from_ms(FIRST_MS), 0
        for low, rows in lows:
            begin = Microseconds(us_from_datetime(low) - 1)
            if count >= _ROWS_PER_READ and begin > after:
                yield after, begin
                after, count = begin, 0
            count += rows
        yield after, us_from_ms(LAST_MS)


def list_stored_logs(lake: Lake) -> list[StoredLog]:
    """Return every log in the lake, by name.

    Raises:
        StateError: the definition of a table is damaged.
    """
    catalog = Catalog()
    logs = []
    for schema in load_table_schemas(catalog, read_cdc_tables(lake)):
        table = log_table(schema)
        if lake.exists(table):
            rows = sum(file.rows for file in lake.data_files(table))
            logs.append(StoredLog(lake, schema, tuple(format_plain_ddl(catalog, schema)), rows))
    return logs


def log_csv_tables(logs: Sequence[StoredLog]) -> list[CsvTable]:
    """Return the logs as files for COPY ... FROM."""
    return [
        CsvTable(
            log.full_name,
            _quoted_log_name(log),
            [quote_name(log_column.name) for log_column in log.columns],
            _csv_cells(log),
            COPY_NULL,
        )
        for log in logs
    ]


def _quoted_log_name(log: StoredLog) -> str:
    return f"{quote_name(log.schema.keyspace)}.{quote_name(log.schema.log_name)}"


def _csv_cells(log: StoredLog) -> Iterator[list[str]]:
    kinds = [log_column.type for log_column in log.columns]
    for values in log.values():
        yield [format_copy_cell(kind, value) for kind, value in zip(kinds, values, strict=True)]
