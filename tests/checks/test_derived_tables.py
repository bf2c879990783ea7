"""Tables whose rows follow from others: a row that is missing, changed or there twice is named by what it follows from.

The rows are changed through the platform's own writes, in its own name: no envelope tells of anything.
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
    """A home with rows in every table."""
    return every_table(tmp_path_factory.mktemp("every"))


def rewrite(lake: Lake, table: Table, change: Callable[[Rows], Rows]) -> None:
    """Put what a change makes of the rows in their place."""
    rows = lake.read(table).sort_by([(key, "ascending") for key in table.keys])
    made = pa.Table.from_pylist(change(rows.to_pylist()), schema=table.schema)
    shutil.rmtree(lake.path(table))
    lake.ensure(table)
    lake.append_once(table, made, {"test": 1}, None)


def _published(rows: Rows) -> Rows:
    """Without the newest that is listed."""
    return sorted(rows, key=lambda row: row["time"])[:-1]


SEEDS: dict[str, tuple[str, Table, Callable[[Rows], Rows], str]] = {
    "a published generation is not listed": (TIMESTAMPS, GENERATION_TIMESTAMPS, _published, "lacks 2026-11-01T12:"),
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
def test_what_does_not_follow_is_named(home: Path, tmp_path: Path, name: str) -> None:
    """The invariant that is broken says which row of which table."""
    invariant, table, change, said = SEEDS[name]
    lake = Lake(shutil.copytree(home / "lake", tmp_path / "lake"))
    assert [line for line in audit_derived_tables(lake) if line.violations] == []
    rewrite(lake, table, change)
    found = {line.invariant: line for line in audit_derived_tables(lake)}
    assert found[invariant].violations
    assert said in found[invariant].sample


def test_what_is_under_way_is_no_violation(home: Path, tmp_path: Path) -> None:
    """A change that is noted and not carried out, a stream set that is decided and not written, old sets collected."""
    lake = Lake(shutil.copytree(home / "lake", tmp_path / "lake"))
    rewrite(lake, CDC_TABLE_CHANGES, lambda rows: [*rows, _later(max(rows, key=lambda row: row["changed_at"]))])
    rewrite(lake, TABLET_LAYOUTS, lambda rows: [*rows, _next(rows[-1])])
    rewrite(lake, TABLET_TIMESTAMPS, lambda rows: sorted(rows, key=lambda row: row["timestamp"])[1:])
    assert [line for line in audit_derived_tables(lake) if line.violations] == []


def _later(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"changed_at": row["changed_at"] + HOUR, "what": "altered", "ttl_seconds": 99}


def _next(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"number": row["number"] + 1, "timestamp": row["timestamp"] + HOUR, "kind": "resized"}


def test_nothing_is_asked_of_what_is_empty(lake: Lake) -> None:
    """A new lake has no lines; a table without what it follows from is not judged by it."""
    assert audit_derived_tables(lake) == []


def test_every_table_is_a_source_or_follows_from_declared_ones() -> None:
    """What a table follows from is declared as well, and no circle is closed."""
    for name, table in TABLES.items():
        assert set(table.follows_from) <= set(TABLES), name
        seen, ahead = set(), list(table.follows_from)
        while ahead:
            seen.add(ahead[0])
            ahead = [*ahead[1:], *TABLES[ahead[0]].follows_from]
        assert name not in seen
