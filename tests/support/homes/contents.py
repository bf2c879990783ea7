"""What a lake holds, to be held against what another one holds: every row of its tables, in the order of their keys."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from cdc_platform.delta import Lake
from cdc_platform.tables import TABLES, Table

BY_THE_MACHINE = frozenset({"machine_marked_at"})
"""Columns that no clock which is handed in reaches."""


def contents(
    place: Lake | Path, tables: Iterable[Table] = tuple(TABLES.values()), *, without: Collection[str] = ()
) -> dict[str, list[dict[str, Any]]]:
    """The rows of a lake, or of the lake of a home, by table; `without` are columns that say when rows were written."""
    lake = place if isinstance(place, Lake) else Lake(place / "lake")
    found = {}
    for table in tables:
        # A key is never left out: rows are compared in its order.
        columns = [name for name in table.schema.names if name not in {*without, *BY_THE_MACHINE}]
        rows = lake.read(table, columns).sort_by([(key, "ascending") for key in table.keys])
        found[table.full_name] = rows.to_pylist()
    return found
