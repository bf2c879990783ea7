"""Tables derived from others: a missing, changed or duplicate row is reported by the table that it derives from.

The rows are changed through the platform's own writes, so no commit's information reveals the change.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.homes.every_table import every_table

from cdc_platform.checks import DERIVED_TABLE_FAMILY, audit_derived_tables
from cdc_platform.delta import Lake
from cdc_platform.tables import (
    CDC_LOCAL,
    CDC_TABLE_CHANGES,
    CDC_TABLES,
    GENERATION_TIMESTAMPS,
    GENERATIONS,
    STREAM_FINGERPRINTS,
    TABLES,
    TABLET_LAYOUTS,
    TABLET_TIMESTAMPS,
    Table,
)

TIMESTAMPS, CHANGES, SETS, NODES, FINGERPRINTS = DERIVED_TABLE_FAMILY.invariants
HOUR, TIME = timedelta(hours=1), datetime(2026, 1, 1, tzinfo=UTC)
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a home with rows in every table."""
    return every_table(tmp_path_factory.mktemp("every"))


def rewrite(lake: Lake, table: Table, change: Callable[[Rows], Rows]) -> None:
    """Replace a table's rows by what the change makes of them."""
    rows = lake.read(table).sort_by([(key, "ascending") for key in table.keys])
    changed_rows = pa.Table.from_pylist(change(rows.to_pylist()), schema=table.schema)
    shutil.rmtree(lake.path(table))
    lake.ensure(table)
    lake.append_once(table, changed_rows, {"test": 1}, None)


def _without_newest(rows: Rows) -> Rows:
    """Drop the newest published generation."""
    return sorted(rows, key=lambda row: row["time"])[:-1]


SEEDS: dict[str, tuple[str, Table, Callable[[Rows], Rows], str]] = {
    "a published generation is not listed": (
        TIMESTAMPS,
        GENERATION_TIMESTAMPS,
        _without_newest,
        "lacks 2026-11-01T12:",
    ),
    "a generation is listed twice": (TIMESTAMPS, GENERATION_TIMESTAMPS, lambda rows: [*rows, rows[-1]], "2 times"),
    "a table is gone": (CHANGES, CDC_TABLES, lambda rows: rows[1:], "shop.carts in another state than its changes"),
    "a table is there twice": (CHANGES, CDC_TABLES, lambda rows: [rows[0], *rows], "shop.carts in another state"),
    "a TTL is another one": (
        CHANGES,
        CDC_TABLES,
        lambda rows: [row | {"ttl_seconds": 7} for row in rows],
        "cdc_tables has shop.",
    ),
    "a stream set has another time": (
        SETS,
        TABLET_TIMESTAMPS,
        lambda rows: [row | {"timestamp": row["timestamp"] - HOUR} for row in rows],
        "and nobody decided,",
    ),
    "a stream set is there twice": (SETS, TABLET_TIMESTAMPS, lambda rows: [*rows, rows[0]], "has twice the set"),
    "a node keeps another time": (
        NODES,
        CDC_LOCAL,
        lambda rows: [
            row | {"streams_timestamp": row["streams_timestamp"] and row["streams_timestamp"] + HOUR} for row in rows
        ],
        "; the ledger has",
    ),
    "a fingerprint is of another stream": (
        FINGERPRINTS,
        STREAM_FINGERPRINTS,
        lambda rows: [row | {"fingerprints": bytes(len(row["fingerprints"]))} for row in rows],
        "not as its streams are",
    ),
    "the ledger has another time": (
        TIMESTAMPS,
        GENERATIONS,
        lambda rows: [row | {"time": row["time"] + HOUR} for row in rows],
        "lacks",
    ),
}


@pytest.mark.parametrize("name", SEEDS)
def test_a_row_that_contradicts_its_source_is_reported(home: Path, tmp_path: Path, name: str) -> None:
    """The broken invariant names the row and its table."""
    invariant, table, change, sample = SEEDS[name]
    lake = Lake(shutil.copytree(home / "lake", tmp_path / "lake"))
    assert [line for line in audit_derived_tables(lake) if line.violations] == []
    rewrite(lake, table, change)
    findings = {line.invariant: line for line in audit_derived_tables(lake)}
    assert findings[invariant].violations
    assert sample in findings[invariant].sample


def test_unfinished_changes_are_no_violation(home: Path, tmp_path: Path) -> None:
    """A recorded but unapplied change, a decided but unwritten stream set, and collected old sets are no violations."""
    lake = Lake(shutil.copytree(home / "lake", tmp_path / "lake"))
    rewrite(lake, CDC_TABLE_CHANGES, lambda rows: [*rows, _altered_later(max(rows, key=lambda row: row["changed_at"]))])
    rewrite(lake, TABLET_LAYOUTS, lambda rows: [*rows, _next_layout(rows[-1])])
    rewrite(lake, TABLET_TIMESTAMPS, lambda rows: sorted(rows, key=lambda row: row["timestamp"])[1:])
    assert [line for line in audit_derived_tables(lake) if line.violations] == []


def _altered_later(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"changed_at": row["changed_at"] + HOUR, "what": "altered", "ttl_seconds": 99}


def _next_layout(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"number": row["number"] + 1, "timestamp": row["timestamp"] + HOUR, "kind": "resized"}


def test_an_empty_lake_has_no_findings(lake: Lake) -> None:
    """A new lake has no findings; a table whose source is empty is not judged."""
    assert audit_derived_tables(lake) == []


def test_every_derived_table_has_declared_sources() -> None:
    """Every source of a table is declared as well, and the sources form no cycle."""
    for name, table in TABLES.items():
        assert set(table.follows_from) <= set(TABLES), name
        visited, queue = set(), list(table.follows_from)
        while queue:
            visited.add(queue[0])
            queue = [*queue[1:], *TABLES[queue[0]].follows_from]
        assert name not in visited
