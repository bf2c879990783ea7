"""Read the contents of a lake for comparison: all rows of its tables, in key order."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from cdc_platform.delta import Lake
from cdc_platform.tables import TABLES, Table

BY_THE_MACHINE = frozenset({"machine_marked_at"})
"""Columns that take the machine's time, whatever clock a command gets."""


def contents(
    home_or_lake: Lake | Path, tables: Iterable[Table] = tuple(TABLES.values()), *, without: Collection[str] = ()
) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of a lake or of a home's lake, by table; `without` names columns that hold write times."""
    lake = home_or_lake if isinstance(home_or_lake, Lake) else Lake(home_or_lake / "lake")
    rows_by_table = {}
    for table in tables:
        # A key is never omitted, since rows are compared in key order.
        columns = [name for name in table.schema.names if name not in {*without, *BY_THE_MACHINE}]
        rows = lake.read(table, columns).sort_by([(key, "ascending") for key in table.keys])
        rows_by_table[table.full_name] = rows.to_pylist()
    return rows_by_table
