"""A table whose declared comments changed since it was created accepts every kind of write and retains its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from cdc_platform.clock import Milliseconds, datetime_from_ms
from cdc_platform.delta import Lake
from cdc_platform.tables import Table
from cdc_platform.tables.schema import TIMESTAMP, column


def declare(comment: str, *, partition_by: tuple[str, ...] = ()) -> Table:
    """Return a table with this comment on everything."""
    names = {"name": pa.string(), "at": TIMESTAMP, "count": pa.int64()}
    schema = pa.schema([column(name, kind, comment) for name, kind in names.items()])
    return Table("platform", "commented", schema, ("name", "at"), comment, partition_by)


def rows(table: Table, *counts: int) -> pa.Table:
    """Return one row per count, in the table's schema with its comments."""
    return pa.Table.from_pylist(
        [
            {"name": f"n{count // 10}", "at": datetime_from_ms(Milliseconds(count // 10)), "count": count}
            for count in counts
        ],
        schema=table.schema,
    )


@pytest.mark.files
@pytest.mark.parametrize("partition_by", [(), ("name",), ("at",)])
def test_every_write_retains_the_comments(tmp_path: Path, partition_by: tuple[str, ...]) -> None:
    """Appends, merges, replacements and deletions retain the comments; the final rows are exactly the written ones."""
    before, now = (declare(comment, partition_by=partition_by) for comment in ("as it was", "reworded"))
    lake = Lake(tmp_path)
    lake.merge(before, rows(before, 10), update=False)
    created = comments(lake, before)
    lake = Lake(tmp_path)
    lake.ensure(now)
    lake.widen(now)
    lake.merge(now, rows(now, 20), update=False)
    lake.merge(now, rows(now, 11, 30), update=True)
    lake.append_once(now, rows(now, 40), {"an application": 1}, None)
    lake.transact(now, lambda old: pa.concat_tables([old, rows(now, 50)]), whole=True)
    lake.raise_column(now, rows(now, 55), "count")
    lake.delete(now, [("name", "=", "n3")])
    assert sorted(lake.read(now)["count"].to_pylist()) == [11, 20, 40, 55]
    assert comments(lake, now) == created
    assert set(created[1].values()) == {"as it was"}


def comments(lake: Lake, table: Table) -> tuple[str | None, dict[str, Any]]:
    """Return the description and the column comments in Delta's log."""
    opened = DeltaTable(lake.path(table))
    return opened.metadata().description, {
        field.name: field.metadata.get("comment") for field in opened.schema().fields
    }
