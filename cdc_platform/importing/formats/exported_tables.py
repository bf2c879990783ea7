"""The exported tables that an import reads, each declared once, and the reader that gives their rows typed values.

To import another table, declare it here and add the function that plans its writes to `importing.planner`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any

from cdc_platform.clock import format_ms
from cdc_platform.errors import InputError
from cdc_platform.generations import TopologyDescription
from cdc_platform.importing.formats.cql_values import (
    choice_parser,
    integer_parser,
    parse_committed,
    parse_description,
    parse_generation_streams,
    parse_generation_time,
    parse_range_streams,
    parse_stream_id,
    parse_text_set,
    parse_token,
    parse_token_set,
    parse_uuid,
)
from cdc_platform.importing.formats.text_tables import TextRows, copy_text, read_text_table
from cdc_platform.metastore import STREAM_CLOSED, STREAM_CURRENT, STREAM_OPENED
from cdc_platform.ring import MAX_IGNORE_MSB, MAX_RANGES, MAX_SHARD_COUNT

LOCAL_KEYS = ("cdc_local", "rewritten")
_parse_change_state = choice_parser({"1": STREAM_CLOSED, "2": STREAM_OPENED}, "1 (closed) or 2 (opened)")
_parse_stream_state = choice_parser(
    {"0": STREAM_CURRENT, "1": STREAM_CLOSED, "2": STREAM_OPENED}, "0 (current), 1 (closed) or 2 (opened)"
)
_REPEATING_TYPES = frozenset({"timestamp", "uuid", "text", "tinyint", "set<frozen<tuple<timestamp, timeuuid>>>"})
"""Types whose values repeat from row to row, so that parsing each text once saves most of the time."""


@dataclass(frozen=True)
class ExportedColumn:
    """A column of an exported table. `parse` turns its text into a value.

    `optional`: a file may lack the column, because versions differ. `nullable`: the value may be null, that is None.
    """

    name: str
    cql_type: str
    parse: Callable[[str], Any]
    optional: bool = False
    nullable: bool = False


@dataclass(frozen=True, eq=False)
class ExportedTable:
    """A table of the server as files contain it. A file with a header alone is an empty table.

    `key` identifies a row. `stored_in` is the table that its rows go into, if it has another name. `open_ended`: files
    may have further columns, which are ignored. `single_export`: what to do if two files have a row with the same key;
    None if they are merged.
    """

    name: str
    columns: tuple[ExportedColumn, ...]
    key: tuple[str, ...]
    stored_in: str | None = None
    open_ended: bool = False
    single_export: str | None = None

    @cached_property
    def positions(self) -> dict[str, int]:
        """Return the position of each column's value in a row."""
        return {column.name: position for position, column in enumerate(self.columns)}

    @cached_property
    def key_of(self) -> Callable[[tuple[Any, ...]], Any]:
        """Return the function from the values of a row to its key."""
        return itemgetter(*(self.positions[name] for name in self.key))

    @cached_property
    def required(self) -> frozenset[str]:
        """Return the columns that every file has."""
        return frozenset(column.name for column in self.columns if not column.optional)

    def matches(self, header: set[str]) -> bool:
        """Return True if these are the columns of a file of this table."""
        return self.required <= header and (self.open_ended or header <= self.positions.keys())

    def resembles(self, header: set[str]) -> bool:
        """Return True if these are probably columns of this table, though some are missing."""
        known = header & self.positions.keys()
        return 2 * len(known) > len(self.required) and (self.open_ended or header == known)


@dataclass(slots=True, eq=False)
class ExportedRow:
    """A row with typed values in the order of the table's columns; None for null and for columns the file lacks."""

    table: ExportedTable
    source: str
    line: int
    values: tuple[Any, ...]

    def get(self, name: str) -> Any:
        """Return the value of a column."""
        return self.values[self.table.positions[name]]

    def require(self, name: str) -> Any:
        """Return the value of a column that must not be null in this row.

        Raises:
            InputError: it is null.
        """
        value = self.get(name)
        if value is None:
            column = self.table.columns[self.table.positions[name]]
            return _parse(column.parse, f"{self.location}: {name}", "")
        return value

    @property
    def location(self) -> str:
        """Return the file and the line."""
        return f"{self.source}, line {self.line}"

    def describe_key(self) -> str:
        """Return the key as text, for messages."""
        columns = (self.table.columns[self.table.positions[name]] for name in self.table.key)
        values = ((column, self.get(column.name)) for column in columns)
        return ", ".join(
            f"{column.name} {_format_value(column, value)}" for column, value in values if value is not None
        )


def _format_value(column: ExportedColumn, value: Any) -> str:
    if column.cql_type == "timestamp":
        return format_ms(value)
    return f"0x{value.hex()}" if isinstance(value, bytes) else str(value)


class ExportedRows:
    """The rows of one table from all files, each key once."""

    def __init__(self) -> None:
        self._rows: dict[Any, ExportedRow] = {}

    def take(self) -> list[ExportedRow]:
        """Remove all rows and return them: their keys take as much memory as their values."""
        rows, self._rows = list(self._rows.values()), {}
        return rows

    def add(self, row: ExportedRow) -> None:
        """Add a row. A file has a key once; rows of several files with the same key are merged.

        Raises:
            InputError: the key is duplicated, or another file contradicts the row.
        """
        key = row.table.key_of(row.values)
        first = self._rows.setdefault(key, row)
        if first is row:
            return
        if first.source == row.source:
            raise InputError(f"{row.location}: duplicate row with {row.describe_key()}, first in line {first.line}")
        self._rows[key] = _merge_rows(first, row)


def _merge_rows(first: ExportedRow, other: ExportedRow) -> ExportedRow:
    """Return the row that two files have, with the values that either has: an older export may lack an expiry."""
    if first.table.single_export is not None:
        raise InputError(
            f"{other.location}: {other.describe_key()} is also in {first.location}; {first.table.single_export}"
        )
    for column, one, two in zip(first.table.columns, first.values, other.values, strict=True):
        if one is not None and two is not None and not _is_same(one, two):
            what = f"{other.location}: {other.describe_key()}: {column.name}"
            raise InputError(f"{what} contradicts {first.location}; export both again")
    values = tuple(two if one is None else one for one, two in zip(first.values, other.values, strict=True))
    return ExportedRow(first.table, first.source, first.line, values)


def _is_same(one: Any, other: Any) -> bool:
    return one.equals(other) if isinstance(one, TopologyDescription) else one == other


def read_exported_table(source: str, text: str) -> tuple[ExportedTable, Iterator[ExportedRow]]:
    """Return the table that a text's columns identify, and its rows. The text is CSV, printed by cqlsh, or JSON.

    Raises:
        InputError: the text is truncated, no known table has these columns, or a value is invalid.
    """
    header, rows = read_text_table(source, text)
    table = _identify_table(source, header)
    return table, _typed_rows(table, source, header, rows)


def _typed_rows(table: ExportedTable, source: str, header: list[str], rows: TextRows) -> Iterator[ExportedRow]:
    parsers = [(column.name, _cell_parser(column, present=column.name in header)) for column in table.columns]
    for line, cells in rows:
        values, name = [], ""
        try:
            for name, parse in parsers:
                values.append(parse(cells.get(name)))
        except InputError as error:
            raise InputError(f"{source}, line {line}: {name}: {error}") from None
        yield ExportedRow(table, source, line, tuple(values))


def _cell_parser(column: ExportedColumn, *, present: bool) -> Callable[[object], Any]:
    """Return the parser of a column's cells, which parses repeated texts once if the type's values repeat."""
    if not present:
        return lambda _: None
    cql_type, parse_text, nullable = column.cql_type, column.parse, column.nullable

    def parse(cell: object) -> Any:
        text = cell if type(cell) is str else copy_text(cell, cql_type)
        return None if nullable and not text else parse_text(text)

    if cql_type not in _REPEATING_TYPES:
        return parse
    values: dict[object, Any] = {}

    def parse_once(cell: object) -> Any:
        if type(cell) is not str:
            return parse(cell)
        if cell not in values:
            values[cell] = parse(cell)
        return values[cell]

    return parse_once


def _parse(parse: Callable[[str], Any], what: str, text: str) -> Any:
    try:
        return parse(text)
    except InputError as error:
        raise InputError(f"{what}: {error}") from None


def _identify_table(source: str, header: list[str]) -> ExportedTable:
    columns = set(header)
    if len(columns) < len(header):
        raise InputError(f"{source}: the header names a column twice: {', '.join(header)}")
    for table in EXPORTED_TABLES:
        if table.matches(columns):
            return table
    missing = {table: table.required - columns for table in EXPORTED_TABLES if table.resembles(columns)}
    if missing:
        fewest = min(map(len, missing.values()))
        similar = [table for table, names in missing.items() if len(names) == fewest]
        options = " or ".join(f"{', '.join(sorted(missing[table]))} of {table.name}" for table in similar)
        raise InputError(f"{source}: column {options} is missing; export all columns")
    raise InputError(
        f"{source}: the first row is no header of {', '.join(table.name for table in EXPORTED_TABLES)} but "
        f"{', '.join(header)[:80]!r}; export with: COPY ... TO ... WITH HEADER = true"
    )


_RANGE_STREAMS = ExportedColumn("streams", "set<blob>", parse_range_streams, nullable=True)
_RANGE_END = ExportedColumn("range_end", "bigint", parse_token, nullable=True)
_IGNORE_MSB = ExportedColumn("ignore_msb", "tinyint", integer_parser(0, MAX_IGNORE_MSB), nullable=True)
_ID = ExportedColumn("id", "uuid", parse_uuid)
_TIME = ExportedColumn("time", "timestamp", parse_generation_time)
_EXPIRED = ExportedColumn("expired", "timestamp", parse_generation_time, optional=True, nullable=True)
_KEYSPACE, _TABLE = ExportedColumn("keyspace_name", "text", str), ExportedColumn("table_name", "text", str)
_TIMESTAMP = ExportedColumn("timestamp", "timestamp", parse_generation_time)
_STREAM_ID = ExportedColumn("stream_id", "blob", parse_stream_id)
_LAST_TOKEN = ExportedColumn("last_token", "bigint", str)


def _partition_key(value: str, *, optional: bool) -> ExportedColumn:
    """Return the column `key` of a table with one partition."""
    return ExportedColumn("key", "text", choice_parser({value: value}, f"always {value}"), optional=optional)


DESCRIPTIONS_V2 = ExportedTable(
    "cdc_generation_descriptions_v2",
    # `num_ranges` is static: a generation without rows has it alone.
    (_ID, _RANGE_END, _IGNORE_MSB, ExportedColumn("num_ranges", "int", integer_parser(1, MAX_RANGES)), _RANGE_STREAMS),
    key=("id", "range_end"),
)
STREAMS_V2 = ExportedTable(
    "cdc_streams_descriptions_v2", (_TIME, _RANGE_END, _RANGE_STREAMS), key=("time", "range_end")
)
TIMESTAMPS = ExportedTable(
    "cdc_generation_timestamps", (_partition_key("timestamps", optional=True), _TIME, _EXPIRED), key=("time",)
)
DESCRIPTIONS_V1 = ExportedTable(
    "cdc_generation_descriptions",
    (
        _TIME,
        ExportedColumn("description", "list<frozen<tuple<bigint, frozen<list<blob>>, tinyint>>>", parse_description),
        _EXPIRED,
    ),
    key=("time",),
)
STREAMS_V1 = ExportedTable(
    "cdc_streams_descriptions",
    (_TIME, ExportedColumn("streams", "set<blob>", parse_generation_streams), _EXPIRED),
    key=("time",),
)
LOCAL = ExportedTable(
    "cdc_local",
    (
        ExportedColumn("key", "text", choice_parser({key: key for key in LOCAL_KEYS}, " or ".join(LOCAL_KEYS))),
        ExportedColumn("streams_timestamp", "timestamp", parse_generation_time, nullable=True),
        # Old versions have no `uuid`; no server has `host_id`.
        ExportedColumn("uuid", "uuid", parse_uuid, optional=True, nullable=True),
        ExportedColumn("host_id", "uuid", parse_uuid, optional=True),
    ),
    key=("host_id", "key"),
    single_export="import the nodes' exports one by one, each with its --node HOST_ID",
)
TABLET_TIMESTAMPS = ExportedTable(
    "cdc_timestamps", (_KEYSPACE, _TABLE, _TIMESTAMP), key=("keyspace_name", "table_name", "timestamp")
)
TABLET_STREAMS = ExportedTable(
    "cdc_streams",
    (_KEYSPACE, _TABLE, _TIMESTAMP, ExportedColumn("stream_state", "tinyint", _parse_stream_state), _STREAM_ID),
    key=("keyspace_name", "table_name", "timestamp", "stream_state", "stream_id"),
)
DESCRIPTIONS_V3 = ExportedTable(
    "cdc_generations_v3",
    (ExportedColumn("key", "text", str), _ID, _RANGE_END, _IGNORE_MSB, _RANGE_STREAMS),
    key=("id", "range_end"),
    stored_in="cdc_generation_descriptions_v2",
)
STREAMS_STATE = ExportedTable(
    "cdc_streams_state",
    (
        ExportedColumn("table_id", "uuid", parse_uuid),
        _LAST_TOKEN,
        # A set without streams has its static timestamp alone.
        ExportedColumn("stream_id", "blob", parse_stream_id, nullable=True),
        _TIMESTAMP,
    ),
    key=("table_id", "timestamp", "stream_id"),
)
STREAMS_HISTORY = ExportedTable(
    "cdc_streams_history",
    (
        ExportedColumn("table_id", "uuid", parse_uuid),
        _TIMESTAMP,
        ExportedColumn("stream_state", "tinyint", _parse_change_state),
        _LAST_TOKEN,
        _STREAM_ID,
    ),
    key=("table_id", "timestamp", "stream_state", "stream_id"),
)
TOPOLOGY = ExportedTable(
    "topology",
    (
        _partition_key("topology", optional=True),
        ExportedColumn("host_id", "uuid", parse_uuid),
        ExportedColumn("node_state", "text", str),
        ExportedColumn("tokens", "set<varint>", parse_token_set, nullable=True),
        ExportedColumn("shard_count", "int", integer_parser(1, MAX_SHARD_COUNT), nullable=True),
        ExportedColumn("ignore_msb", "int", integer_parser(0, MAX_IGNORE_MSB), nullable=True),
        ExportedColumn("rpc_address", "inet", str, optional=True, nullable=True),
        ExportedColumn("datacenter", "text", str, optional=True, nullable=True),
        ExportedColumn("rack", "text", str, optional=True, nullable=True),
        ExportedColumn("supported_features", "set<text>", parse_text_set, optional=True, nullable=True),
        ExportedColumn("transition_state", "text", str, optional=True, nullable=True),
        ExportedColumn(
            "committed_cdc_generations",
            "set<frozen<tuple<timestamp, timeuuid>>>",
            parse_committed,
            optional=True,
            nullable=True,
        ),
    ),
    key=("host_id",),
    open_ended=True,
)
SCHEMA_TABLES = ExportedTable("tables", (_ID, _KEYSPACE, _TABLE), key=("id",), open_ended=True)

EXPORTED_TABLES = (
    *(DESCRIPTIONS_V2, STREAMS_V2, TIMESTAMPS, DESCRIPTIONS_V1, STREAMS_V1, LOCAL, TABLET_TIMESTAMPS, TABLET_STREAMS),
    *(DESCRIPTIONS_V3, TOPOLOGY, STREAMS_STATE, STREAMS_HISTORY, SCHEMA_TABLES),
)
"""All tables, in the order in which a file's columns are compared with them."""
