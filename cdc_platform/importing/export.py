"""Export ScyllaDB's own tables of a home as files that `cqlsh COPY ... FROM` and `import` read.

One file per table in the form of `COPY ... TO ... WITH HEADER = true`, and a script that loads them. Timestamps
come last in it, since readers read a generation once its timestamp is there. The ring is a snapshot.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdc_platform.clock import cql_timestamp_literal, ms_from_datetime
from cdc_platform.cql import is_ambiguous_copy_cell
from cdc_platform.delta import Lake, assert_tables_as_committed
from cdc_platform.errors import StateError
from cdc_platform.importing.formats.ring_snapshot import snapshot_from_node
from cdc_platform.metastore import read_current_ring
from cdc_platform.storage import atomic
from cdc_platform.tables import (
    CDC_LOCAL,
    GENERATION_DESCRIPTIONS,
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
    NODES,
    STREAMS_DESCRIPTIONS,
    STREAMS_DESCRIPTIONS_V2,
    TABLET_STREAMS,
    TABLET_TIMESTAMPS,
    Table,
)

LOADED_TABLES = (
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_DESCRIPTIONS,
    STREAMS_DESCRIPTIONS,
    STREAMS_DESCRIPTIONS_V2,
    TABLET_STREAMS,
    TABLET_TIMESTAMPS,
    GENERATION_TIMESTAMPS,
)
"""The tables that every client can write, in the order in which they are loaded: marks behind what they mark."""
LOAD_SCRIPT_FILE, RING_FILE = "load.cql", "ring.json"
LOGS_FOLDER = "logs"
"""The folder of logs within an export: `import`, which knows no logs, does not look into folders of folders."""
_CellFormatter = Callable[[Any], str]


@dataclass(frozen=True)
class ExportedFile:
    """A file that was written: its name, what it is of, its rows, and how many of them cqlsh may read otherwise."""

    name: str
    of: str
    rows: int
    read_otherwise: int = 0


@dataclass(frozen=True)
class CsvTable:
    """A table to be written beside ScyllaDB's own: what it is of, its name and columns in CQL, cells, what null is."""

    of: str
    table: str
    columns: Sequence[str]
    rows: Iterable[Sequence[str]]
    null: str


def export_files(
    lake: Lake, folder: Path, logs: Sequence[CsvTable] = (), made: Sequence[str] = (), *, home: Path | None = None
) -> list[ExportedFile]:
    """Write the files into `folder`, which is made: all of them or none. The same home gives the same bytes.

    A table that the home does not have is no file, one without rows a header: what was not brought in stays unknown.
    `logs` are written too, with the statements that make their tables in a file of their own.

    Raises:
        InputError: the folder is there, or lies in the home (`home`).
        StateError: the home holds nothing that could be exported, or a table is not what was committed.
    """
    atomic.assert_path_free(folder, home, folder=True)
    assert_tables_as_committed(
        lake, {table.full_name for table in (*LOADED_TABLES, CDC_LOCAL, NODES)} | {log.of for log in logs}, "an export"
    )
    with atomic.new_folder(folder, home=home) as draft:
        written = [_write_table(lake, table, draft) for table in (*LOADED_TABLES, CDC_LOCAL) if lake.exists(table)]
        if nodes := sorted(read_current_ring(lake).nodes, key=lambda node: str(node.host_id)):
            snapshot = [snapshot_from_node(node) for node in nodes]
            (draft / RING_FILE).write_text(json.dumps(snapshot, indent=2) + "\n", encoding="utf-8")
            written.append(ExportedFile(RING_FILE, "the ring as it stands", len(nodes)))
        if not written:
            raise StateError("the home holds no generation, no stream set and no ring: there is nothing to export")
        if logs:
            (draft / LOGS_FOLDER).mkdir()
            (draft / LOGS_FOLDER / "tables.cql").write_text("".join(f"{line}\n" for line in made), encoding="utf-8")
            written.append(ExportedFile(f"{LOGS_FOLDER}/tables.cql", "what makes their tables", len(made)))
        written += [_write_log(log, draft) for log in logs]
        (draft / LOAD_SCRIPT_FILE).write_text(_build_load_script(lake, logs), encoding="utf-8")
    return written


def csv_file_name(table: Table) -> str:
    """The name of a table's file."""
    return f"{table.full_name}.csv"


def _write_table(lake: Lake, table: Table, folder: Path) -> ExportedFile:
    names = _column_names(table)
    cells = [_cell_formatter(table, name) for name in names]
    rows = 0
    with (folder / csv_file_name(table)).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        for row in _sorted_rows(lake, table):
            values = [(row[name], cell) for name, cell in zip(names, cells, strict=True)]
            writer.writerow(["" if value is None else cell(value) for value, cell in values])
            rows += 1
    return ExportedFile(csv_file_name(table), table.full_name, rows)


def _write_log(log: CsvTable, folder: Path) -> ExportedFile:
    count, otherwise, name = 0, 0, _log_file_name(log)
    with (folder / name).open("w", encoding="utf-8", newline="") as file:
        # As cqlsh reads: a backslash before a quote, not a second quote.
        writer = csv.writer(file, doublequote=False, escapechar="\\")
        writer.writerow([name.strip('"') for name in log.columns])
        for row in log.rows:
            writer.writerow(row)
            count += 1
            otherwise += any(map(is_ambiguous_copy_cell, row))
    return ExportedFile(name, log.of, count, otherwise)


def _log_file_name(log: CsvTable) -> str:
    return f"{LOGS_FOLDER}/{log.of}.csv"


def _column_names(table: Table) -> list[str]:
    """The columns as a server lists them: the key's, then the others by name."""
    return [*table.keys, *sorted(set(table.schema.names) - set(table.keys))]


def _sorted_rows(lake: Lake, table: Table) -> Iterator[dict[str, Any]]:
    """The rows by their keys; a generation at a time, where a table keeps each in a part of its own."""
    for filters in partition_filters(lake, table):
        yield from lake.read(table, filters=filters).sort_by([(key, "ascending") for key in table.keys]).to_pylist()


def partition_filters(lake: Lake, table: Table) -> Iterable[list[tuple[str, str, Any]]]:
    """The filters that read a table a generation at a time, where it keeps each in a part of its own."""
    if not table.partition_by:
        return [[]]
    (column,) = table.partition_by
    return [[(column, "=", value)] for value in sorted(part.key[0] for part in lake.slices(table))]


def _cell_formatter(table: Table, name: str) -> _CellFormatter:
    """How the values of a column stand in a file."""
    kind = table.schema.field(name).type
    if name == "streams":
        return _format_blob_set
    if name == "description":
        return _format_description
    if str(kind).startswith("timestamp"):
        return lambda moment: cql_timestamp_literal(ms_from_datetime(moment))
    return _format_blob if str(kind) == "binary" else str


def _format_blob(value: bytes) -> str:
    return f"0x{value.hex()}"


def _format_blob_set(values: Sequence[bytes]) -> str:
    """A set as a server hands it out: in the order of unsigned bytes, whatever order the lake keeps."""
    return "{" + ", ".join(map(_format_blob, sorted(values))) + "}"


def _format_description(entries: Sequence[dict[str, Any]]) -> str:
    """The list of a generation of the first format, whose streams are lists in the order of shards."""
    told = (
        f"({each['token_range_end']}, [{', '.join(map(_format_blob, each['streams']))}], {each['sharding_ignore_msb']})"
        for each in entries
    )
    return "[" + ", ".join(told) + "]"


def _build_load_script(lake: Lake, logs: Sequence[CsvTable]) -> str:
    """What loads all of it: logs before the timestamps by which readers find them."""
    loaded = [
        (table.full_name, ", ".join(_column_names(table)), csv_file_name(table), "")
        for table in LOADED_TABLES
        if lake.exists(table)
    ]
    of_logs = [(log.table, ", ".join(log.columns), _log_file_name(log), f" AND NULL = '{log.null}'") for log in logs]
    return "".join(
        f"COPY {name} ({columns}) FROM '{file}' WITH HEADER = true{more};\n"
        for name, columns, file, more in (*of_logs, *loaded)
    )
