"""What became of a table, by Delta's log alone: its columns as they are, and the rows that it got between versions."""

from __future__ import annotations

import json

import pyarrow as pa

from cdc_platform.lake import files
from cdc_platform.lake.commits import entry
from cdc_platform.lake.files import plain_path
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import Table
from cdc_platform.lake.translate import translated
from cdc_platform.places import Place, place_of


def appended(lake: Lake, table: Table, after: int, upto: int) -> list[pa.Table] | None:
    """The rows that came behind one version up to another, a table a file, in the columns that each file has.

    None where it cannot be told: rows or columns were taken away meanwhile, or Delta's log has forgotten a commit.
    """
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
                    paths.append(plain_path(added["path"]))
        try:
            return [_rows(place_of(folder) / path) for path in paths]
        except FileNotFoundError:
            return None


def stored_schema(lake: Lake, table: Table) -> pa.Schema:
    """The columns that the table has here, with their types, without reading a row; it has to exist."""
    with translated(f"opening {table.full_name}"):
        return pa.schema(files.opened(lake.path(table)).schema()).remove_metadata()


def _rows(file: Place) -> pa.Table:
    with files.parquet(file) as parquet:
        return parquet.read()
