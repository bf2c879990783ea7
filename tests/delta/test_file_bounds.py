"""A deep check compares a file's values with the statistics in Delta's log, because readers skip files by them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from cdc_platform.delta import Lake, TableVerification, verify_tables

TIMES = pa.timestamp("us", tz="UTC")
_Change = Callable[[dict[str, Any]], object]
# The first time of the year 1 and the last time of the year 9999.
_EDGES = (-62_135_596_800_000_000, 253_402_300_799_999_999)
ROWS = pa.table(
    {
        "number": pa.array([3, None, -(2**63), 2**63 - 1], pa.int64()),
        "text": ["a" * 300, "ä", "", None],
        "at": pa.array([*_EDGES, 1, None], pa.int64()).cast(TIMES),
        "flag": [True, None, False, True],
        "part": [math.nan, -0.0, 1.5, math.inf],
        "bytes": [b"\xff", b"", None, b"a"],
        "many": [[1], None, [], [2]],
    }
)


def verified(tmp_path: Path, change: _Change | None = None) -> TableVerification:
    """Return the verification of a table with these rows after a change to its file's statistics in the log."""
    folder = tmp_path / "lake" / "ks" / "t"
    write_deltalake(folder, ROWS)
    entry = folder / "_delta_log" / f"{0:020d}.json"
    lines = [json.loads(line) for line in entry.read_text(encoding="utf-8").splitlines()]
    (added,) = (line["add"] for line in lines if "add" in line)
    statistics = json.loads(added["stats"])
    if change is not None:
        change(statistics)
    added["stats"] = json.dumps(statistics)
    entry.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    (result,) = verify_tables(Lake(tmp_path / "lake"), deep=True)
    assert DeltaTable(folder).to_pyarrow_table().num_rows == ROWS.num_rows
    return result


@pytest.mark.parametrize(
    "change",
    [
        None,
        lambda statistics: statistics["minValues"].update(text=""),
        lambda statistics: statistics["maxValues"].update(number=2**63 - 1, text="ö"),
        lambda statistics: statistics["maxValues"].update(at="9999-12-31T23:59:59.999Z"),
        lambda statistics: [statistics.pop(name) for name in ("minValues", "maxValues", "nullCount")],
    ],
    ids=["as it was written", "a lower bound", "higher ones", "cut off at the millisecond", "nothing said"],
)
def test_bounds_that_hold_are_no_complaint(tmp_path: Path, change: _Change | None) -> None:
    """Accept exact bounds at the edges of each type, wider bounds, Spark's bounds, and no bounds."""
    result = verified(tmp_path, change)
    assert (result.damage, result.unexpected, result.broken, result.partitions) == ([], [], {}, 1)


@pytest.mark.parametrize(
    ("column", "change"),
    [
        ("number", lambda statistics: statistics["minValues"].update(number=-(2**63) + 1)),
        ("number", lambda statistics: statistics["maxValues"].update(number=2**63 - 2)),
        ("text", lambda statistics: statistics["maxValues"].update(text="a" * 300)),
        ("at", lambda statistics: statistics["maxValues"].update(at="9999-12-31T23:59:59.998Z")),
        ("flag", lambda statistics: statistics["minValues"].update(flag=True)),
        ("flag", lambda statistics: statistics["nullCount"].update(flag=0)),
        ("bytes", lambda statistics: statistics["nullCount"].update(bytes=2)),
    ],
)
def test_bounds_that_do_not_hold_are_named(tmp_path: Path, column: str, change: _Change) -> None:
    """Name the table, version, file and column of a wrong bound, even if every row is the one that was written."""
    result = verified(tmp_path, change)
    assert (result.damage, list(result.broken)) == ([], [""])
    (statistics,) = result.unexpected
    assert statistics.startswith(
        "ks.t does not match the statistics in its log, by which readers skip files, in version 0: part-"
    )
    assert f".parquet, where {column} has " in statistics
