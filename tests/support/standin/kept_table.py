"""Shared parts of tests of a replicated table: an ingest, writes with their log rows, and the lake's rows."""

from __future__ import annotations

from typing import Any

import pytest
from support.standin.cluster import FIRST_MS
from support.standin.live_table import LiveTable, by_key
from support.standin.world import World, time_uuid

from cdc_platform.cdclog import INEXACT
from cdc_platform.clock import DAY_SECONDS, Clock, Microseconds, us_from_seconds
from cdc_platform.delta import Lake, TaskRunner
from cdc_platform.home_location import open_home_location
from cdc_platform.ingest import IngestResult, ReadPolicy, current_table, ingest_table
from cdc_platform.ingest.replica import snapshot as scanning
from cdc_platform.scylla import ScyllaCluster, registry

DAY_US = us_from_seconds(DAY_SECONDS)
AT_ONCE = ReadPolicy(Microseconds(0))


def small_slices(monkeypatch: pytest.MonkeyPatch, *, rows: int, sample: int, most: int) -> None:
    """Let a copy have up to `most` token ranges, one per `rows` rows, estimated from a `sample` of rows."""
    monkeypatch.setattr(scanning, "ROWS_A_RANGE", rows)
    monkeypatch.setattr(scanning, "_SAMPLE_ROWS", sample)
    monkeypatch.setattr(scanning, "MAX_RANGES", most)


def bring(cluster: ScyllaCluster, workers: TaskRunner, policy: ReadPolicy = AT_ONCE, **options: Any) -> IngestResult:
    """Ingest up to now as a new process would."""
    again = registry.find_cluster(open_home_location(cluster.home.parent.parent), cluster.name)
    return ingest_table(again, Clock(), "shop", "t", workers, policy=policy, **options)


def in_lake(cluster: ScyllaCluster, table: LiveTable) -> tuple[dict[Any, Any], set[Any]]:
    """Return the lake's rows by key, and the keys of the inexact ones."""
    lake = Lake(cluster.open_home().lake)
    rows = lake.read(current_table(table.schema)).to_pylist()
    rows_by_key = by_key(table.schema, rows)
    marked = {key for key, row in zip(rows_by_key, rows, strict=True) if row[INEXACT]}
    return rows_by_key, marked


def old(table: LiveTable, text: str) -> None:
    """Write with a timestamp two days ago, which no log records any more."""
    table.world.run(text.replace("USING", f"USING TIMESTAMP {Clock().now_us() - 2 * DAY_US}"))


def now(table: LiveTable, text: str, partition: dict[str, Any], *rows: dict[str, Any]) -> None:
    """Write, and log these rows."""
    at = Clock().now_us()
    table.world.run(text.replace("USING", f"USING TIMESTAMP {at}"))
    table.log(partition, at, list(rows))


def keep_id(world: World) -> None:
    """Restore the altered log's ID, which holds its creation time; the stand-in's server writes its own ID."""
    values = f"'shop', 't_scylla_cdc_log', {time_uuid(FIRST_MS)}"
    world.run(f"INSERT INTO system_schema.tables (keyspace_name, table_name, id) VALUES ({values})")
    world.schema_changed()
