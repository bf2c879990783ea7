"""What became of a table, by Delta's log alone: its columns as they are, and the rows that it got between versions."""

from __future__ import annotations

import json

import pyarrow as pa

from cdc_platform.lake import files
from cdc_platform.lake.commits import entry
from cdc_platform.lake.files import ForeignPath, plain_path
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import Table
from cdc_platform.lake.translate import translated
from cdc_platform.places import place_of


def appended(lake: Lake, table: Table, after: int, upto: int) -> list[pa.Table] | None:
    """The rows that came behind one version up to another, a table a file, in the columns that each file has.

    None where it cannot be told: rows or columns were taken away meanwhile, or Delta's log has forgotten a commit.
    """
    paths = added_files(lake, table, after, upto)
    if paths is None:
        return None
    types = stored_schema(lake, table)
    try:
        return [file_rows(path, types) for path in paths]
    except FileNotFoundError:
        return None


def added_files(lake: Lake, table: Table, after: int, upto: int) -> list[str] | None:
    """The files with the rows that `appended` has, of which none is opened; None as there."""
    folder = lake.path(table)
    paths: list[str] = []
    with translated(f"reading what was appended to {table.full_name}"):
        for version in range(after + 1, upto + 1):
            try:
                lines = entry(folder, version).read().decode().splitlines()
            except FileNotFoundError:
                return None
            for action in (json.loads(line) for line in lines if line.strip()):
                if "protocol" in action or action.get("remove", {}).get("dataChange", False):
                    return None
                added = action.get("add")
                if added is not None and added.get("dataChange", True):
                    try:
                        paths.append(str(place_of(folder) / plain_path(added["path"])))
                    except ForeignPath:  # the table as a whole says whether its rows are in it
                        return None
    return paths


def files_at(lake: Lake, table: Table, version: int) -> list[str]:
    """The files that a version of a table has."""
    folder = lake.path(table)
    with translated(f"opening version {version} of {table.full_name}"):
        return files.paths(files.opened(folder, version))


def file_size(path: str) -> int:
    """How many rows a file has; raises FileNotFoundError where it is gone."""
    with translated(f"opening {path}"), files.parquet(place_of(path)) as parquet:
        return parquet.metadata.num_rows


def stored_schema(lake: Lake, table: Table) -> pa.Schema:
    """The columns that the table has here, with their types, without reading a row; it has to exist."""
    with translated(f"opening {table.full_name}"):
        return pa.schema(files.opened(lake.path(table)).schema()).remove_metadata()


def file_rows(path: str, types: pa.Schema) -> pa.Table:
    """The rows of a file, in its columns, as the table of these types has them: engines write one type in several ways.

    Raises:
        FileNotFoundError: it is gone.
    """
    with translated(f"reading {path}"), files.parquet(place_of(path)) as parquet:
        rows = parquet.read()
    known = set(types.names)
    names = rows.schema.names
    return pa.table([rows[name].cast(types.field(name).type) if name in known else rows[name] for name in names], names)
