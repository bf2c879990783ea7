"""What became of a table, by Delta's log alone: its columns as they are, and the rows that it got between versions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from cdc_platform.lake.commits import entry
from cdc_platform.lake.files import plain_path
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import Table
from cdc_platform.lake.translate import translated


def appended(lake: Lake, table: Table, after: int, upto: int) -> list[pa.Table] | None:
    """The rows that came behind one version up to another, a table a file, in the columns that each file has.

    None where it cannot be told: rows or columns were taken away meanwhile, or Delta's log has forgotten a commit.
    """
    folder = lake.path(table)
    paths: list[str] = []
    with translated(f"reading what was appended to {table.full_name}"):
        for version in range(after + 1, upto + 1):
            file = entry(folder, version)
            if not file.exists():
                return None
            for action in _actions(file):
                if "protocol" in action or action.get("remove", {}).get("dataChange", False):
                    return None
                added = action.get("add")
                if added is not None and added.get("dataChange", True):
                    paths.append(str(Path(folder, plain_path(added["path"]))))
        if not all(Path(path).exists() for path in paths):
            return None
        # Spark's timestamps would be read as nanoseconds, which end in 2262.
        return [pq.read_table(path, coerce_int96_timestamp_unit="us") for path in paths]


def stored_schema(lake: Lake, table: Table) -> pa.Schema:
    """The columns that the table has here, with their types, without reading a row; it has to exist."""
    with translated(f"opening {table.full_name}"):
        return pa.schema(DeltaTable(lake.path(table)).schema()).remove_metadata()


def _actions(file: Path) -> Iterator[dict[str, Any]]:
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                yield json.loads(line)
