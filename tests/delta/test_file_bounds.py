"""What Delta's log says of a file's values is held against them when the file is read: readers go by it."""

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
# A time of the year 9999 at its end, and of the first.
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
    """What is found of a table with these rows, of whose file the log says something else."""
    folder = tmp_path / "lake" / "ks" / "t"
    write_deltalake(folder, ROWS)
    entry = folder / "_delta_log" / f"{0:020d}.json"
    lines = [json.loads(line) for line in entry.read_text(encoding="utf-8").splitlines()]
    (added,) = (line["add"] for line in lines if "add" in line)
    said = json.loads(added["stats"])
    if change is not None:
        change(said)
    added["stats"] = json.dumps(said)
    entry.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    (found,) = verify_tables(Lake(tmp_path / "lake"), deep=True)
    assert DeltaTable(folder).to_pyarrow_table().num_rows == ROWS.num_rows
    return found


@pytest.mark.parametrize(
    "change",
    [
        None,
        lambda said: said["minValues"].update(text=""),
        lambda said: said["maxValues"].update(number=2**63 - 1, text="ö"),
        lambda said: said["maxValues"].update(at="9999-12-31T23:59:59.999Z"),
        lambda said: [said.pop(name) for name in ("minValues", "maxValues", "nullCount")],
    ],
    ids=["as it was written", "a lower bound", "higher ones", "cut off at the millisecond", "nothing said"],
)
def test_bounds_that_hold_are_no_complaint(tmp_path: Path, change: _Change | None) -> None:
    """Exact ones at the edges of each type, wider ones, Spark's, and none at all."""
    found = verified(tmp_path, change)
    assert (found.damage, found.unexpected, found.broken, found.partitions) == ([], [], {}, 1)


@pytest.mark.parametrize(
    ("column", "change"),
    [
        ("number", lambda said: said["minValues"].update(number=-(2**63) + 1)),
        ("number", lambda said: said["maxValues"].update(number=2**63 - 2)),
        ("text", lambda said: said["maxValues"].update(text="a" * 300)),
        ("at", lambda said: said["maxValues"].update(at="9999-12-31T23:59:59.998Z")),
        ("flag", lambda said: said["minValues"].update(flag=True)),
        ("flag", lambda said: said["nullCount"].update(flag=0)),
        ("bytes", lambda said: said["nullCount"].update(bytes=2)),
    ],
)
def test_bounds_that_do_not_hold_are_named(tmp_path: Path, column: str, change: _Change) -> None:
    """With the table, the version, the file and the column, though every row is the one that was written."""
    found = verified(tmp_path, change)
    assert (found.damage, list(found.broken)) == ([], [""])
    (said,) = found.unexpected
    assert said.startswith(
        "ks.t does not match the statistics in its log, by which readers skip files, in version 0: part-"
    )
    assert f".parquet, where {column} has " in said
