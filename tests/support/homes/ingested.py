"""A home with a registered cluster whose logs were ingested up to a time, without a CQL server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from cdc_platform.clock import SECOND_US, Clock, Microseconds, datetime_from_us
from cdc_platform.delta import Lake, WriteSource, write_as
from cdc_platform.home_location import HomeLocation, open_home_location
from cdc_platform.metastore import INGEST_CONSUMER, cdc_tables
from cdc_platform.scylla import Connection, ScyllaCluster, registry
from cdc_platform.tables import CONSUMERS

POSITION_US = Microseconds(1_790_000_000 * SECOND_US)
TTL_SECONDS = 400


@dataclass(frozen=True)
class ReadLog:
    """A table with CDC, its TTL (s), and how many windows of its log were read (None: it was never ingested)."""

    table: str
    ttl_seconds: int = TTL_SECONDS
    windows: int | None = 3
    position_us: int = POSITION_US
    enabled: bool = True
    reader: str = INGEST_CONSUMER


def ingested_home(path: Path | str, logs: Sequence[ReadLog], name: str = "prod") -> tuple[HomeLocation, ScyllaCluster]:
    """Register a cluster whose home has these tables of the keyspace `shop`; return both."""
    home = open_home_location(path)
    cluster = registry.add_cluster(home, name, Connection(contacts=("127.0.0.1:1",)))
    lake = Lake(cluster.open_home().lake)
    clock = Clock(Microseconds(POSITION_US - 3_600 * SECOND_US))
    with write_as(WriteSource.OBSERVED):
        for log in logs:
            options = {"ttl_seconds": log.ttl_seconds, "enabled": log.enabled, "observed": True}
            cdc_tables.add_cdc_table(lake, clock, "shop", log.table, **options)
        read_up_to(lake, logs)
    return home, cluster


def read_up_to(lake: Lake, logs: Sequence[ReadLog]) -> None:
    """Set the positions of the readers of logs."""
    rows = [
        {
            "name": log.reader,
            "keyspace_name": "shop",
            "table_name": log.table,
            "set_timestamp": None,
            "position": datetime_from_us(Microseconds(log.position_us)),
            "window_number": log.windows,
            "updated_at": datetime_from_us(Microseconds(log.position_us)),
        }
        for log in logs
        if log.windows is not None
    ]
    with write_as(WriteSource.OBSERVED):
        lake.merge(CONSUMERS, pa.Table.from_pylist(rows, schema=CONSUMERS.schema), update=True)
