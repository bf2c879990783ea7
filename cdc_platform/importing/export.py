"""Export ScyllaDB's own tables of a home as files that `cqlsh COPY ... FROM` and `import` read.

Each table is one file in the form of `COPY ... TO ... WITH HEADER = true`; a script loads them all. It loads timestamps
last, because readers read a generation once its timestamp is present. The ring is exported as a snapshot.
"""

from __future__ import annotations

import csv
import hashlib
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
"""The tables that any client can write, in load order: markers after the rows that they mark."""
_LONGEST_NAME = 200
"""Characters of a log's name in that of its file; of a longer name the file has the beginning, and a hash."""
LOAD_SCRIPT_FILE, RING_FILE = "load.cql", "ring.json"
LOGS_FOLDER = "logs"
"""The folder of logs within an export. `import` does not support logs and does not descend into subfolders."""
_CellFormatter = Callable[[Any], str]


@dataclass(frozen=True)
class ExportedFile:
    """A written file: its name, its content, its rows, and how many of them cqlsh may read differently."""

    name: str
    of: str
    rows: int
    read_otherwise: int = 0


@dataclass(frozen=True)
class CsvTable:
    """An extra table to write: its content, CQL name, CQL columns, rows of cells, and the text for null."""

    of: str
    table: str
    columns: Sequence[str]
    rows: Iterable[Sequence[str]]
    null: str


def export_files(
    lake: Lake,
    folder: Path,
    logs: Sequence[CsvTable] = (),
    ddl: Sequence[str] = (),
    *,
    home: Path | None = None,
) -> list[ExportedFile]:
    """Create `folder` with all files, or nothing at all. The same home yields the same bytes.

    A table that the home lacks yields no file; an empty table yields a header, so that unknown stays unknown. `logs`
    are written too, with their CREATE statements (`ddl`) in a file of their own.

    Raises:
        InputError: the folder exists, or is inside the home (`home`).
        StateError: the home has nothing to export, or a table differs from its commits.
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
            raise StateError("nothing to export: the home has no generation, no stream set and no ring")
        if logs:
            (draft / LOGS_FOLDER).mkdir()
            (draft / LOGS_FOLDER / "tables.cql").write_text("".join(f"{line}\n" for line in ddl), encoding="utf-8")
            written.append(ExportedFile(f"{LOGS_FOLDER}/tables.cql", "the definitions of their tables", len(ddl)))
        written += [_write_log(log, draft) for log in logs]
        (draft / LOAD_SCRIPT_FILE).write_text(_build_load_script(lake, logs), encoding="utf-8")
    return written


def csv_file_name(table: Table) -> str:
    """Return the name of a table's file."""
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
    count, ambiguous, name = 0, 0, _log_file_name(log)
    with (folder / name).open("w", encoding="utf-8", newline="") as file:
        # Escape quotes as cqlsh does: with a backslash, not with a second quote.
        writer = csv.writer(file, doublequote=False, escapechar="\\")
        writer.writerow([name.strip('"') for name in log.columns])
        for row in log.rows:
            writer.writerow(row)
            count += 1
            ambiguous += any(map(is_ambiguous_copy_cell, row))
    return ExportedFile(name, log.of, count, ambiguous)


def _log_file_name(log: CsvTable) -> str:
    name = log.of
    if len(name) > _LONGEST_NAME:
        name = f"{name[:_LONGEST_NAME]}.{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    return f"{LOGS_FOLDER}/{name}.csv"


def _column_names(table: Table) -> list[str]:
    """Return the columns in a server's order: the key's, then the others by name."""
    return [*table.keys, *sorted(set(table.schema.names) - set(table.keys))]


def _sorted_rows(lake: Lake, table: Table) -> Iterator[dict[str, Any]]:
    """Yield the rows sorted by key, reading one generation at a time where the table is partitioned by generation."""
    for filters in partition_filters(lake, table):
        yield from lake.read(table, filters=filters).sort_by([(key, "ascending") for key in table.keys]).to_pylist()


def partition_filters(lake: Lake, table: Table) -> Iterable[list[tuple[str, str, Any]]]:
    """Return one filter per partition, so that a caller reads one generation at a time; one empty filter otherwise."""
    if not table.partition_by:
        return [[]]
    (column,) = table.partition_by
    return [[(column, "=", value)] for value in sorted(part.key[0] for part in lake.partitions(table))]


def _cell_formatter(table: Table, name: str) -> _CellFormatter:
    """Return the function that formats a column's values for a file."""
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
    """Format a set as a server returns it: in unsigned byte order, whatever order the lake stores."""
    return "{" + ", ".join(map(_format_blob, sorted(values))) + "}"


def _format_description(entries: Sequence[dict[str, Any]]) -> str:
    """Format the description of a V1 generation, a list whose streams are lists in shard order."""
    ranges = (
        f"({item['token_range_end']}, [{', '.join(map(_format_blob, item['streams']))}], {item['sharding_ignore_msb']})"
        for item in entries
    )
    return "[" + ", ".join(ranges) + "]"


def _build_load_script(lake: Lake, logs: Sequence[CsvTable]) -> str:
    """Return the CQL script that loads all files: logs before the timestamps that make them visible to readers."""
    table_files = [
        (table.full_name, ", ".join(_column_names(table)), csv_file_name(table), "")
        for table in LOADED_TABLES
        if lake.exists(table)
    ]
    log_files = [(log.table, ", ".join(log.columns), _log_file_name(log), f" AND NULL = '{log.null}'") for log in logs]
    return "".join(
        f"COPY {name} ({columns}) FROM '{file}' WITH HEADER = true{more};\n"
        for name, columns, file, more in (*log_files, *table_files)
    )
