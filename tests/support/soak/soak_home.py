"""The world of a soak: a home with a log, nodes that join and leave, writers, and tablets that split and merge."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet
from support.homes.v1_tables import nodes, old_cluster
from support.read_logs import ddl
from support.worlds.rehearsal import node_config

from cdc_platform.cdclog import append_batch, hourly, log_table, read_table_schema
from cdc_platform.cdclog.consumer import reader
from cdc_platform.clock import HOUR_US, MINUTE_US, Clock, Microseconds, ms_from_us, system_time_us
from cdc_platform.delta import JOIN_COMMANDS_LOCK, Lake, TaskRunner, shared_lock
from cdc_platform.generations import merge_tablet_ends, split_tablet_ends, uniform_tablet_ends
from cdc_platform.home_location import HomeLocation
from cdc_platform.lifecycle import run_join, tablets
from cdc_platform.metastore import JoinRequest, cdc_tables, inbox, read_nodes, replace_ring
from cdc_platform.metastore.tablets import read_live_layout
from cdc_platform_assets.partitions import hour_us_from_partition

SETTINGS = """two_phase_switch = true
repair_automatically = true
dagster_retention_ms = 604800000
log_retention_ms = 604800000
"""
"""Dagster's runs and logs stay for seven days, as old versions of tables do, so that a tenth of a year shows both."""
TABLET_HOURS = 24
"""The tablet-based table is written to once in this many hours."""
MAX_TOKENS = 6
_TTL_SECONDS = 86_400
_WRITES = pa.schema([("timestamp", pa.int64()), ("p", pa.int32()), ("k", pa.int32()), ("v", pa.int32())])


def build_world(home: HomeLocation, start_us: Microseconds) -> None:
    """Fill a new home: three V1 generations of an old cluster, and two tables with empty logs."""
    (home.path / "settings.toml").write_text(SETTINGS, encoding="utf-8")
    lake, clock = Lake(home.lake), Clock(start_us)
    times = [ms_from_us(Microseconds(start_us - HOUR_US * before)) for before in (3, 2, 1)]
    old_cluster(lake, times, members=nodes(3), tables=())
    for table in ("t", "tabs"):
        cdc_tables.add_cdc_table(
            lake, clock, "ks", table, ttl_seconds=_TTL_SECONDS, created_now=True, ddl=ddl("v", table=table)
        )
        lake.ensure(log_table(read_table_schema(lake, "ks", table)))


class World:
    """What people and clients do in a home. Every action can be repeated after a kill or a failure."""

    def __init__(self, home: HomeLocation, files: Path, start_us: Microseconds, draws: Any, max_nodes: int) -> None:
        self._home, self._files, self._start_us, self._draws = home, files, start_us, draws
        self._max_nodes = max_nodes
        self._lake = Lake(home.lake)

    def act(self, action: dict[str, Any]) -> None:
        """Do what an action of `Plan.actions` describes."""
        actions = {"join": self._join, "leave": self._leave, "write": self._write, "tablets": self._change_tablets}
        actions[action["kind"]](**{name: value for name, value in action.items() if name != "kind"})

    def join_by_command(self, generation_id: str) -> None:
        """Run a queued join as `cdc-platform bootstrap --finish` does."""
        lake = self._lake
        with shared_lock(lake, JOIN_COMMANDS_LOCK):
            run_join(
                TaskRunner.alone(), lake, Clock(), self._home.settings, generation_id, entry_point="bootstrap --finish"
            )

    def copy_by_command(self, partition: str) -> None:
        """Copy an hour of all logs."""
        lake = self._lake
        hourly.copy_hour(lake, Clock(), hourly.select_logs_to_copy(lake, Clock()), hour_us_from_partition(partition))

    def expected_rows(self, table: str, hours: int) -> int:
        """Return the number of rows that were written to a table's log in the first hours."""
        return sum(len(self._drawn_rows(table, hour)) for hour in range(hours) if _is_written(table, hour))

    def stored_rows(self, table: str) -> tuple[int, int]:
        """Return the numbers of rows in a table's log and in its hourly copy."""
        lake = self._lake
        schema = read_table_schema(lake, "ks", table)
        sink = reader.sink_table(schema, "hourly")
        log_rows, copied_rows = (lake.read(stored, ["cdc$time"]).num_rows for stored in (log_table(schema), sink))
        return log_rows, copied_rows

    def _join(self, number: int) -> None:
        tokens = 1 + self._draws("tokens", number).randrange(MAX_TOKENS)
        request = JoinRequest.model_validate(node_config(number + 10, tokens=tokens))
        inbox.queue_join(self._lake, Clock(), request)

    def _leave(self) -> None:
        """Take the oldest nodes out of the ring, as an import of a snapshot without them does."""
        lake = self._lake
        members = sorted(read_nodes(lake), key=lambda node: node.host_id.int)
        if len(members) > self._max_nodes:
            replace_ring(lake, members[-self._max_nodes :])

    def _write(self, hour: int) -> None:
        for table in ("t", "tabs"):
            if not _is_written(table, hour):
                continue
            path = self._files / f"{table}.parquet"
            parquet.write_table(pa.Table.from_pylist(self._drawn_rows(table, hour), schema=_WRITES), path)
            append_batch(self._lake, "ks", table, str(path), f"soak-{hour}", TaskRunner.alone())

    def _drawn_rows(self, table: str, hour: int) -> list[dict[str, int]]:
        draws: random.Random = self._draws("rows", table, hour)
        begin_us = self._start_us + HOUR_US * hour + MINUTE_US * 2
        return [
            {"timestamp": begin_us + draws.randrange(MINUTE_US * 5), "p": draws.randrange(100), "k": number, "v": hour}
            for number in range(1 + draws.randrange(20))
        ]

    def _change_tablets(self, count: int) -> None:
        lake, now, settings = self._lake, Clock(), self._home.settings
        tablets.finish_tablet_changes(lake, now)
        layout = read_live_layout(lake, "ks", "tabs")
        if layout is None:
            tablets.create_tablets(lake, now, settings, "ks", "tabs", uniform_tablet_ends(count))
            return
        ends = layout.last_tokens
        rule = split_tablet_ends if count >= len(ends) else merge_tablet_ends
        tablets.resize_tablets(lake, now, settings, "ks", "tabs", rule(ends, count))


def _is_written(table: str, hour: int) -> bool:
    """Return True if clients write to the table in this hour. Tablets exist from the middle of the first day on."""
    return table == "t" or (hour >= TABLET_HOURS and hour % TABLET_HOURS == 0)


def now_seconds() -> float:
    """Return the time of the moved clock in seconds."""
    return system_time_us() / 1_000_000
