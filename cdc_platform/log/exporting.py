"""The logs of a home as another CQL server would have them: what makes their tables, and their rows.

Into what they go, files or a server, is left to who writes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from cdc_platform.clock import Microseconds, from_datetime, us_of
from cdc_platform.cql.catalog import Catalog
from cdc_platform.cql.copied import NULL, copied
from cdc_platform.cql.names import quoted
from cdc_platform.cql.schema import LOG_KEY, LogColumn, TableSchema, log_columns
from cdc_platform.cql.types import Value
from cdc_platform.cql.written import plain_ddl
from cdc_platform.lake.appended import stored_schema
from cdc_platform.lake.lake import Lake
from cdc_platform.log.ddl import known_tables
from cdc_platform.log.exact import FIRST_MS, LAST_MS
from cdc_platform.log.log_table import log_table
from cdc_platform.log.log_values import table_rows
from cdc_platform.log.reading.aside import aside
from cdc_platform.log.reading.reader import read_between
from cdc_platform.log.stored_names import WRITTEN_AT
from cdc_platform.records.cdc_tables import cdc_tables
from cdc_platform.sources.exporting import CsvFile

_ROWS_AT_ONCE = 50_000


@dataclass(frozen=True)
class StoredLog:
    """A log with rows. `made`: the statements that make its types, its base table without CDC, and a plain table of
    the log's name, each where it is not there; `rows`: how many there are.
    """

    lake: Lake
    schema: TableSchema
    made: tuple[str, ...]
    rows: int

    @property
    def full_name(self) -> str:
        """`keyspace.table` of the log."""
        return f"{self.schema.keyspace}.{self.schema.log_name}"

    @cached_property
    def columns(self) -> tuple[LogColumn, ...]:
        """The columns as a server lists them: the key's, then the others by name."""
        named = {each.name: each for each in log_columns(self.schema)}
        return tuple(named[name] for name in (*LOG_KEY, *sorted(set(named) - set(LOG_KEY))))

    @property
    def left_out(self) -> list[str]:
        """The columns that stand aside, which no server has: they were dropped, and made with another type."""
        return [field.name for _, field in aside(stored_schema(self.lake, log_table(self.schema)))]

    def values(self) -> Iterator[list[Value | None]]:
        """The values of each row in the order of `columns`, oldest first."""
        names = [each.name for each in self.columns]
        for after, until in self._parts():
            rows = read_between(self.lake, self.schema, after, until)
            for row in table_rows(self.schema, rows):
                yield [row[name] for name in names]

    def _parts(self) -> Iterator[tuple[Microseconds, Microseconds]]:
        """Times (µs) between which about as many rows lie as are held at once, by what Delta says of its files."""
        lows = sorted((low, rows) for low, _, rows in self.lake.file_bounds(log_table(self.schema), WRITTEN_AT))
        after, count = us_of(FIRST_MS), 0
        for low, rows in lows:
            begin = Microseconds(from_datetime(low) - 1)
            if count >= _ROWS_AT_ONCE and begin > after:
                yield after, begin
                after, count = begin, 0
            count += rows
        yield after, us_of(LAST_MS)


def stored_logs(lake: Lake) -> list[StoredLog]:
    """Every log that the lake has, by name.

    Raises:
        StateError: the definition of a table is damaged.
    """
    catalog = Catalog()
    found = []
    for schema in known_tables(catalog, cdc_tables(lake)):
        table = log_table(schema)
        if lake.exists(table):
            rows = sum(file.rows for file in lake.data_files(table))
            found.append(StoredLog(lake, schema, tuple(plain_ddl(catalog, schema)), rows))
    return found


def csv_files(logs: Sequence[StoredLog]) -> list[CsvFile]:
    """The logs as files that COPY ... FROM takes."""
    return [
        CsvFile(log.full_name, _copied_name(log), [quoted(each.name) for each in log.columns], _cells(log), NULL)
        for log in logs
    ]


def _copied_name(log: StoredLog) -> str:
    return f"{quoted(log.schema.keyspace)}.{quoted(log.schema.log_name)}"


def _cells(log: StoredLog) -> Iterator[list[str]]:
    kinds = [each.type for each in log.columns]
    for values in log.values():
        yield [copied(kind, value) for kind, value in zip(kinds, values, strict=True)]
