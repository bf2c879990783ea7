"""Homes with generations that can expire, imported as cqlsh exports, with tables whose logs retained their rows."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.types as pat
from support.command_line import run
from support.files.export_files import NODES, generation, iso_time, streams_csv, timestamps_csv, v2_csv

from cdc_platform.clock import Clock, Microseconds, Milliseconds, datetime_from_us, us_from_ms
from cdc_platform.delta import Lake
from cdc_platform.lifecycle import ExpiryResult, expiry
from cdc_platform.metastore import cdc_tables
from cdc_platform.settings import Settings
from cdc_platform.tables import Table

HOUR_MS = Milliseconds(3_600_000)
DAY_MS = HOUR_MS * 24
START_MS = Milliseconds(1_767_225_600_000)  # 2026-01-01 00:00:00 UTC
TIMES_MS = tuple(START_MS + DAY_MS * number for number in range(4))
"""One generation per day."""
IDS = tuple(str(uuid.UUID(int=0x8D3F3F2E3C614B0E9A595A3F7C1DE100 + number)) for number in range(4))
SKEW_MS = Milliseconds(10_000)
GRACE_MS = HOUR_MS
RANGES = sum(len(node.tokens) for node in NODES)


def import_generations(folder: Path, count: int = 4) -> Path:
    """Create a home with the first generations of `TIMES_MS`, complete in the tables that nodes and readers read."""
    home = folder / "home"
    descriptions = {name: generation(name) for name in IDS[:count]}
    files = {
        "v2.csv": v2_csv(descriptions),
        "streams.csv": streams_csv(dict(zip(TIMES_MS, descriptions.values(), strict=False))),
        "times.csv": timestamps_csv(dict.fromkeys(TIMES_MS[:count])),
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8", newline="")
    answer = run("--home", home, "import", *(folder / name for name in files))
    assert answer.exit_code == 0, answer.stderr
    return home


def at(ms: Milliseconds) -> Clock:
    """Return a clock that is stopped at this time."""
    return Clock(us_from_ms(ms))


def expire(lake: Lake, now_ms: Milliseconds, settings: Settings = Settings()) -> ExpiryResult:  # noqa: B008 a constant
    """Mark what could be marked a grace period earlier, as an earlier run would, then run the expiry at `now_ms`."""
    mark(lake, Milliseconds(now_ms - settings.expiry_grace_ms), settings)
    return expiry.expire_generations(lake, at(now_ms), settings)


def mark(lake: Lake, now_ms: Milliseconds, settings: Settings = Settings()) -> int:  # noqa: B008 a constant
    """Mark what has expired at a time without removing it, as the hourly plan does."""
    clock = at(now_ms)
    return expiry.mark_expired(lake, clock, expiry.plan_expiry(lake, clock, settings))


def iso(ms: Milliseconds) -> str:
    """Return a time as the platform writes it."""
    return iso_time(ms)


def add_table(lake: Lake, ttl_seconds: int, *, name: str = "t", created_ms: Milliseconds = START_MS - DAY_MS) -> None:
    """Add a table that has a log since before the first generation, with this TTL from the start."""
    cdc_tables.add_cdc_table(
        lake, at(Milliseconds(START_MS + 30 * DAY_MS)), "ks", name, ttl_seconds=ttl_seconds, created_at_ms=created_ms
    )


def write(lake: Lake, table: Table, *rows: dict[str, Any]) -> None:
    """Write rows as any writer may leave them; integers in time columns are ms."""
    times = {field.name for field in table.schema if pat.is_timestamp(field.type)}
    converted = [
        {
            name: datetime_from_us(Microseconds(value * 1000)) if name in times and isinstance(value, int) else value
            for name, value in row.items()
        }
        for row in rows
    ]
    lake.merge(table, pa.Table.from_pylist(converted, schema=table.schema), update=True)
