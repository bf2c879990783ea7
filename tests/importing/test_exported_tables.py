"""Every declared table in every text form, with missing columns, wrong types, duplicate keys and no rows."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence

import pytest
from support.files.cqlsh_forms import as_json_lines, as_json_list, as_json_table, as_printed
from support.files.export_files import ID, LATER_MS, TIME_MS, cql_time

from cdc_platform.errors import InputError
from cdc_platform.importing.formats.exported_tables import (
    EXPORTED_TABLES,
    ExportedColumn,
    ExportedTable,
    read_exported_table,
)
from cdc_platform.importing.formats.exports import parse_exports

BLOB = "0x7fb9f781956cea08c651295720000001"
BY_COLUMN = {
    "id": ID,
    "table_id": ID,
    "uuid": ID,
    "host_id": "11111111-1111-4111-8111-111111111111",
    "time": cql_time(TIME_MS),
    "timestamp": cql_time(TIME_MS),
    "expired": cql_time(LATER_MS),
    "streams_timestamp": cql_time(TIME_MS),
    "range_end": "5",
    "last_token": "5",
    "num_ranges": "1",
    "ignore_msb": "12",
    "shard_count": "4",
    "streams": f"{{{BLOB}}}",
    "stream_id": BLOB,
    "stream_state": "1",
    "description": f"[(5, [{BLOB}], 12)]",
    "keyspace_name": "ks",
    "table_name": "t",
    "node_state": "normal",
    "tokens": "{5}",
    "rpc_address": "127.0.0.1",
    "datacenter": "dc1",
    "rack": "r1",
    "transition_state": "x",
    "supported_features": "{A}",
    "committed_cdc_generations": f"{{('{cql_time(TIME_MS)}', {ID})}}",
}
KEYS = {"cdc_generation_timestamps": "timestamps", "cdc_local": "cdc_local", "topology": "topology"}
FORMS: list[Callable[[str], str]] = [str, as_printed, as_json_table, as_json_lines, as_json_list]
TABLES = [pytest.param(table, id=table.name) for table in EXPORTED_TABLES]


def cells(table: ExportedTable) -> dict[str, str]:
    """Return a valid row of the table, as text."""
    key = {"key": KEYS.get(table.name, "cdc_generations")}
    return {column.name: (BY_COLUMN | key)[column.name] for column in table.columns}


def file(rows: Sequence[dict[str, str]], header: Sequence[str]) -> str:
    """Return a CSV file of these rows."""
    text = io.StringIO()
    writer = csv.DictWriter(text, header, extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def cases(chosen: Callable[[ExportedColumn], bool]) -> list[object]:
    """Return every table with each of its selected columns."""
    return [
        pytest.param(table, column, id=f"{table.name}-{column.name}")
        for table in EXPORTED_TABLES
        for column in table.columns
        if chosen(column)
    ]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("table", TABLES)
def test_row_has_the_declared_columns(table: ExportedTable, form: Callable[[str], str]) -> None:
    """The columns identify the table, in any order, and every form gives the same typed values."""
    row = cells(table)
    plain = [*read_exported_table("a", file([row], list(row)))[1]]
    recognized, rows = read_exported_table("a", form(file([row], list(row)[::-1])))
    assert recognized is table
    assert [[*map(repr, parsed_row.values)] for parsed_row in rows] == [
        [*map(repr, parsed_row.values)] for parsed_row in plain
    ]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("table", "column"), cases(lambda column: not column.optional))
def test_missing_column_is_named(table: ExportedTable, column: ExportedColumn, form: Callable[[str], str]) -> None:
    """Unless the other columns are those of another table, the message names the column and the table."""
    header = [name for name in table.positions if name != column.name]
    text = form(file([cells(table)], header))
    if any(other.matches(set(header)) for other in EXPORTED_TABLES):
        assert read_exported_table("a", text)[0] is not table
        return
    with pytest.raises(InputError, match=rf"^a: column .*{column.name} of {table.name}.* is missing; export all"):
        read_exported_table("a", text)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("table", "column"), cases(lambda column: column.optional))
def test_optional_column_may_be_missing(
    table: ExportedTable, column: ExportedColumn, form: Callable[[str], str]
) -> None:
    """Its value is None."""
    header = [name for name in table.positions if name != column.name]
    recognized, rows = read_exported_table("a", form(file([cells(table)], header)))
    assert recognized is table
    assert [row.get(column.name) for row in rows] == [None]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("table", "column"), cases(lambda column: column.parse is not str))
def test_value_of_another_type_is_refused(
    table: ExportedTable, column: ExportedColumn, form: Callable[[str], str]
) -> None:
    """The message names the file, the line, the column and the value. A set of text takes any word."""
    if column.cql_type == "set<text>" or column.name == "committed_cdc_generations":
        return
    bad = cells(table) | {column.name: "wrong"}
    text = form(file([bad], list(bad)))
    line = "row 1" if form is as_json_list else r"line \d"
    with pytest.raises(InputError, match=rf"^a, (line 1|{line}): {column.name}: .*wrong"):
        list(read_exported_table("a", text)[1])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("table", TABLES)
def test_duplicate_key_is_refused(table: ExportedTable, form: Callable[[str], str]) -> None:
    """A file has each key once; the message names the key and the line of the first row."""
    row = cells(table)
    with pytest.raises(InputError, match=rf"^a, line \d+: duplicate row with .*{table.key[-1]} .*, first in line \d+$"):
        parse_exports([("a", form(file([row, row], list(row))))])


@pytest.mark.parametrize("form", [str, as_printed])
@pytest.mark.parametrize("table", TABLES)
def test_header_without_rows_is_an_empty_table(table: ExportedTable, form: Callable[[str], str]) -> None:
    """The table is known to be empty, and has no content."""
    exports = parse_exports([("a", form(file([], list(table.positions))))])
    assert exports.exported_tables == {table.stored_in or table.name}
    content = (exports.descriptions, exports.streams, exports.timestamps, exports.v1.local, exports.tablets.sets)
    assert not any(map(len, (*content, exports.tablets.times, exports.topology.nodes)))
