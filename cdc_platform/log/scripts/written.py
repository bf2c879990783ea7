"""The log rows that a script has added to one table: the last ones in memory, those before them in a file of columns.

A block of the file has the columns of its time; it is told as the table has them now, by their names.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO

import pyarrow as pa
from pyarrow import ipc

from cdc_platform.cql.schema import TableSchema, log_columns
from cdc_platform.log.log_values import rows_table, table_rows
from cdc_platform.log.rows import Row

ROWS_A_BLOCK = 10_000


@dataclass
class _Block:
    """Some rows in the file: where they begin, how many they are, their columns, and the names that keys got later."""

    start: int
    size: int
    rows: int
    schema: TableSchema
    renames: list[Mapping[str, str]] = field(default_factory=list)


class Written:
    """Log rows of a table in the order of the script, of which it holds `ROWS_A_BLOCK` in memory."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._blocks: list[_Block] = []
        self._last: list[Row] = []

    def __len__(self) -> int:
        return sum(block.rows for block in self._blocks) + len(self._last)

    def __iter__(self) -> Iterator[Row]:
        """The rows, each with the columns that the log had when it was written."""
        for block in self._blocks:
            yield from self._rows(block)
        yield from self._last

    def add(self, schema: TableSchema, rows: Iterable[Row]) -> None:
        """Put rows with all columns that the log has now behind the others."""
        self._last += rows
        if len(self._last) >= ROWS_A_BLOCK:
            self._store(schema)

    def rename(self, renames: Mapping[str, str]) -> None:
        """Let columns have new names, by their old ones."""
        self._last[:] = [_renamed(row, renames) for row in self._last]
        for block in self._blocks:
            block.renames.append(renames)

    def until_now(self) -> Written:
        """The same rows, whatever is added to these later."""
        same = Written()
        same._file, same._last = self._file, list(self._last)
        same._blocks = [
            _Block(each.start, each.size, each.rows, each.schema, list(each.renames)) for each in self._blocks
        ]
        return same

    @property
    def blocks(self) -> int:
        """How many blocks there are, of `ROWS_A_BLOCK` rows and some more each; the last one is smaller."""
        return len(self._blocks) + bool(self._last)

    def table(self, schema: TableSchema, number: int) -> pa.Table:
        """The rows of a block in the columns of the log's Delta table, as it is now."""
        if number == len(self._blocks):
            return rows_table(schema, list(_fitting(schema, self._last)))
        block = self._blocks[number]
        if block.schema == schema and not block.renames:
            return self._table(block)
        return rows_table(schema, list(_fitting(schema, self._rows(block))))

    def _store(self, schema: TableSchema) -> None:
        """Move what is in memory to the file."""
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115
        table = rows_table(schema, list(_fitting(schema, self._last)))
        start = self._file.seek(0, 2)
        with ipc.new_stream(self._file, table.schema) as stream:
            stream.write_table(table)
        self._blocks.append(_Block(start, self._file.tell() - start, table.num_rows, schema))
        self._last.clear()

    def _table(self, block: _Block) -> pa.Table:
        assert self._file is not None
        self._file.seek(block.start)
        with ipc.open_stream(self._file.read(block.size)) as stream:
            return stream.read_all()

    def _rows(self, block: _Block) -> Iterator[Row]:
        for row in table_rows(block.schema, self._table(block)):
            for renames in block.renames:
                row = _renamed(row, renames)
            yield row


def _renamed(row: Row, renames: Mapping[str, str]) -> Row:
    return {renames.get(column, column): value for column, value in row.items()}


def _fitting(schema: TableSchema, rows: Iterable[Row]) -> Iterator[Row]:
    """The rows with the columns of the log as it is now; only those from before an ALTER have others."""
    names = [column.name for column in log_columns(schema)]
    due = set(names)
    return (row if row.keys() == due else {name: row.get(name) for name in names} for row in rows)
