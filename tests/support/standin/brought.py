"""Shared parts of tests of `ingest_table`: a table whose log has two generations, and an ingest in a new process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from support.standin.cluster import FIRST_MS, StandIn, description
from support.standin.live_log import LiveLog, keys_of
from support.standin.world import OBSERVER, time_uuid

from cdc_platform.cdclog import log_table
from cdc_platform.clock import HOUR_US, SECOND_US, Clock, Microseconds, Milliseconds, us_from_ms
from cdc_platform.delta import Lake, TaskRunner
from cdc_platform.home_location import open_home_location
from cdc_platform.ingest import IngestResult, ingest_table
from cdc_platform.scylla import ScyllaCluster, registry

SWITCH_MS = FIRST_MS + Milliseconds(3_600_000)
FIRST_US, SWITCH_US = us_from_ms(FIRST_MS), us_from_ms(SWITCH_MS)
NOW_US = Microseconds(SWITCH_US + HOUR_US)
HORIZON_US = Microseconds(NOW_US - 30 * SECOND_US)
DDL = "CREATE TABLE shop.t (p int, k int, v int, PRIMARY KEY (p, k)) WITH cdc = {'enabled': 'true', 'ttl': '0'};"
LOG = "shop.t_scylla_cdc_log"
GENERATIONS = {time: description(time_uuid(time)) for time in (FIRST_MS, SWITCH_MS)}


def with_secret_file(standin: StandIn, folder: Path) -> ScyllaCluster:
    """Register the stand-in with its secret in a file, since a running JVM gets no new environment variables."""
    secret = folder / "secret.toml"
    user, password = OBSERVER
    secret.write_text(f'user = "{user}"\npassword = "{password}"\n')
    secret.chmod(0o600)
    connection = standin.connection(user_env=None, password_env=None, credentials_file=str(secret))
    return registry.add_cluster(open_home_location(folder / "home"), "prod", connection)


def lake_of(cluster: ScyllaCluster) -> Lake:
    """Return the lake of the cluster's home."""
    return Lake(cluster.open_home().lake)


def rows_in(cluster: ScyllaCluster, log: LiveLog) -> pa.Table:
    """Return the lake's rows of the log."""
    return lake_of(cluster).read(log_table(log.schema))


def bring(
    cluster: ScyllaCluster, workers: TaskRunner, now_us: int = NOW_US, told: list[str] | None = None, **options: Any
) -> IngestResult:
    """Ingest as a new process would, which reads the cluster's registration again."""
    again = registry.find_cluster(open_home_location(cluster.home.parent.parent), cluster.name)
    on_message = (told if told is not None else []).append
    return ingest_table(again, Clock(Microseconds(now_us)), "shop", "t", workers, on_message=on_message, **options)


def keys_there(log: LiveLog) -> list[tuple[bytes, str, int]]:
    """Return the keys of all rows that the cluster's log has now, sorted."""
    names = ("cdc$stream_id", "cdc$time", "cdc$batch_seq_no")
    listed = ", ".join(f'"{name}"' for name in names)
    keys = log.world.rows(f"SELECT {listed} FROM {log.schema.keyspace}.{log.schema.log_name}")
    return sorted((bytes(stream), str(time), number) for stream, time, number in keys)


def assert_each_once(cluster: ScyllaCluster, log: LiveLog) -> None:
    """Assert that the lake has every row of the cluster's log once, and that these are all written rows."""
    assert keys_of(rows_in(cluster, log)) == keys_there(log) == log.written_keys()
