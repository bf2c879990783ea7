"""Change the rows of a table as a foreign program does: with plain deltalake, past the platform's rules."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from cdc_platform.checks import ROWS_AS_COMMITTED, audit_stored
from cdc_platform.delta import Lake, verify_tables
from cdc_platform.tables import Table


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Return the rows as another reader of Delta sees them."""
    return pa.table(DeltaTable(folder).to_pyarrow_table()).to_pylist()


def rewrite(folder: Path, rows: list[dict[str, Any]]) -> None:
    """Replace all rows by these."""
    opened = DeltaTable(folder)
    if opened.metadata().configuration.get("delta.appendOnly") == "true":
        opened.alter.set_table_properties({"delta.appendOnly": "false"})
    write_deltalake(opened, pa.Table.from_pylist(rows, schema=pa.schema(opened.schema())), mode="overwrite")


def changed_row(folder: Path) -> None:
    """Update the last column of the first row whose constraints permit another value."""
    first, *rest = rows_of(folder)
    for name, value in reversed(first.items()):
        try:
            return rewrite(folder, [first | {name: _other(value)}, *rest])
        except (DeltaError, pa.ArrowException, KeyError):
            continue
    raise AssertionError(f"nothing in {folder} could be changed")


def doubled_row(folder: Path) -> None:
    """Insert the first row once more."""
    schema = pa.schema(DeltaTable(folder).schema())
    write_deltalake(folder, pa.Table.from_pylist(rows_of(folder)[:1], schema=schema), mode="append")


def removed_row(folder: Path) -> None:
    """Delete the first row."""
    rewrite(folder, rows_of(folder)[1:])


CHANGES: dict[str, Callable[[Path], None]] = {
    "an UPDATE": changed_row,
    "a doubled row": doubled_row,
    "a DELETE": removed_row,
}
"""Every change, by name."""


def complaint_about(lake: Lake, table: Table) -> str:
    """Return what `check` reports about the rows of a table."""
    failed = [
        result for result in audit_stored(verify_tables(lake, deep=True)) if result.invariant == ROWS_AS_COMMITTED
    ]
    (message,) = [result.sample for result in failed]
    assert message.startswith(table.full_name), f"check says of {table.full_name}: {message}"
    return message


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, datetime):
        return value + timedelta(hours=1)
    if isinstance(value, list) and value:
        return value[::-1] if value[::-1] != value else [*value, *value[:1]]
    return {int: lambda: value + 1, str: lambda: value + "x", bytes: lambda: value + b"x"}[type(value)]()
