"""The rows about operations that read all of something, in a home of 2,000 generations, 500 tables and 24,000 hours.

Each is measured warm in one process, by turns with its floor: the same in a small home, or what it must read at least.
A ratio states the growth, and the docs state what the operation reads.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
from dagster import AssetKey, AssetMaterialization, DagsterInstance, SkipReason, build_sensor_context
from dagster._core.instance import RUNLESS_RUN_ID
from dagster._core.storage.event_log.sqlite.sqlite_event_log import INDEX_SHARD_NAME, SqliteEventLogStorage
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import ModuleTarget
from dagster_graphql.schema import create_schema
from deltalake import DeltaTable
from sqlalchemy import create_engine

from bench.many import ANOTHER_RING, FEW, MANY, SOME, imported
from bench.measure import Result, paired
from bench.session import CLOCK, Bench
from cdc_platform.cdclog import commit_script, hourly, log_table, read_table_schema
from cdc_platform.clock import (
    HOUR_US,
    MINUTE_US,
    Clock,
    Microseconds,
    datetime_from_us,
    format_us,
    us_from_ms,
)
from cdc_platform.dagster_home import CLOCK_VARIABLE, prepare_dagster_home
from cdc_platform.definitions import defs
from cdc_platform.delta import Lake
from cdc_platform.home import Home, open_home
from cdc_platform.home.maintenance import preview_tables
from cdc_platform.home_location import HOME_VARIABLE, HomeLocation
from cdc_platform.lifecycle import expiry, repair
from cdc_platform.metastore import cdc_tables
from cdc_platform.metrics import HomeMetrics, format_metrics
from cdc_platform.reporting import read_generation_writes
from cdc_platform.settings import Settings
from cdc_platform.tables import (
    CONSUMED_HOURS,
    GENERATION_DESCRIPTIONS_V2,
    STREAMS_DESCRIPTIONS_V2,
    TOPOLOGY_DESCRIPTIONS,
)
from cdc_platform.timeline import GenerationKeys, Timeline, get_generation_names
from cdc_platform_assets.catalog_sync import table_contents
from cdc_platform_assets.catalog_sync.definitions import catalogue
from cdc_platform_assets.catalog_sync.sync import sync_catalog
from cdc_platform_assets.data_versions import DATA_VERSION_TAG, data_version_from_digest
from cdc_platform_assets.partitions import HOURS_NAME
from cdc_platform_resources.clock import ClockResource
from cdc_platform_resources.home import HomeResource

_SIZES = (MANY, 500, 24_000)
"""Generations, tables with logs, and copied hours of the large home. `CDC_PLATFORM_BENCH_BOUNDED` changes them."""
if _given := os.environ.get("CDC_PLATFORM_BENCH_BOUNDED"):
    _SIZES = tuple(map(int, _given.split(",")))
FEW_TABLES, FEW_HOURS = 5, 24
_HOURS_KEY = AssetKey(["platform", "consumed_hours"])
_SCHEMA = create_schema()
_DDL = "CREATE TABLE ks.{} (p int, k int, v int, PRIMARY KEY (p, k)) WITH cdc = {{'enabled': 'true'}};"
_QUERY = """query Partitions($key: AssetKeyInput!) { assetNodeOrError(assetKey: $key) { ... on AssetNode {
  partitionKeysByDimension { partitionKeys }
  assetPartitionStatuses { ... on DefaultPartitionStatuses {
    materializedPartitions failedPartitions unmaterializedPartitions materializingPartitions } } } } }"""


class _Floor(Enum):
    """What an operation is compared with."""

    SMALL = "small"
    LOGS = "logs"
    GENERATIONS = "generations"


@dataclass(frozen=True)
class _Place:
    """A home, its tables and its Dagster instance."""

    location: HomeLocation
    home: Home
    instance: DagsterInstance
    workspace: WorkspaceProcessContext
    turns: list[int] = field(default_factory=lambda: [0])
    """The number of writes so far, which makes the next write differ."""
    cursor: list[str] = field(default_factory=lambda: [""])
    """The cursor of the sensor `catalogue`."""

    @property
    def lake(self) -> Lake:
        """Open the tables again, as each run and each tick does."""
        return Lake(self.location.lake)


def bounded(bench: Bench) -> list[Result]:
    """Measure each operation in the large home, relative to its floor."""
    large_size = _SIZES if bench.sizes.repeats > 1 else (SOME, 8, 48)
    at = "{:,} generations, {:,} tables, {:,} hours".format(*large_size)
    with bench.scratch() as folder, ExitStack() as stack:
        large = stack.enter_context(_place(folder / "large", *large_size))
        small = stack.enter_context(_place(folder / "small", FEW, FEW_TABLES, FEW_HOURS))
        floors: dict[_Floor, tuple[str, Callable[[Callable[[_Place], None]], object]]] = {
            _Floor.SMALL: (
                f"the same with {FEW}, {FEW_TABLES} and {FEW_HOURS}",
                lambda operation: operation(small),
            ),
            _Floor.LOGS: ("opening its logs by deltalake", lambda _: _open_logs(large)),
            _Floor.GENERATIONS: (
                "opening the tables of generations by deltalake, and listing their files",
                lambda _: _list_generation_files(large),
            ),
        }
        results = []
        for name, operation, kind, bound in _OPERATIONS:
            floor, measure = floors[kind]
            pairs = paired(
                lambda operation=operation: operation(large),
                lambda operation=operation, measure=measure: measure(operation),
                repeats=min(bench.sizes.repeats, 5),
                warm_ups=2,
            )
            results.append(Result(f"bounded-{name}", at, pairs.seconds, floor, pairs.floor_seconds, pairs.ratio, bound))
    return results


@contextmanager
def _place(folder: Path, generations: int, tables: int, hours: int) -> Iterator[_Place]:
    """Build a home: its generations, tables with empty logs, and copied hours of the first table."""
    folder.mkdir()
    location = imported(str(folder / "home"), generations, folder / "exports", ANOTHER_RING)
    lake = Lake(location.lake)
    begin_us = Microseconds((CLOCK.now_us() // HOUR_US - hours) * HOUR_US)
    names = [f"t{number}" for number in range(tables)]
    cdc_tables.record_table_changes(
        lake,
        [
            cdc_tables.request_addition(lake, Clock(begin_us), "ks", name, ttl_seconds=60, ddl=_DDL.format(name))
            for name in names
        ],
    )
    for name in names:
        lake.ensure(log_table(read_table_schema(lake, "ks", name)))
    starts = [datetime_from_us(Microseconds(begin_us + HOUR_US * number)) for number in range(hours)]
    rows = [{"keyspace_name": "ks", "table_name": "t0", "hour": start, "rows": 0} for start in starts]
    lake.merge(CONSUMED_HOURS, pa.Table.from_pylist(rows, schema=CONSUMED_HOURS.schema), update=False)
    environment = {HOME_VARIABLE: location.name, CLOCK_VARIABLE: format_us(CLOCK.now_us())}
    with (
        patch.dict(os.environ, environment),
        DagsterInstance.from_config(str(prepare_dagster_home(location))) as instance,
        WorkspaceProcessContext(
            instance, ModuleTarget("cdc_platform.definitions", None, None, "cdc_platform")
        ) as workspace,
        open_home(location.name, clock=CLOCK) as home,
    ):
        built = _Place(location, home, instance, workspace)
        _report_all(built)
        _tick(built)
        yield built


def _report_all(built: _Place) -> None:
    """Give Dagster all partitions and events, as ticks of the catalogue do in hours.

    The hours get a materialization with the data version that a run would report, and no metadata. Those from before
    the retention have no partition.
    """
    hours = {}
    since_us = Microseconds(CLOCK.now_us() - us_from_ms(Settings().dagster_retention_ms))
    for stored in table_contents.iterate_other_partitions(built.lake, since_us):
        if stored.asset == _HOURS_KEY and stored.partition is not None and (digest := stored.digest()) is not None:
            hours[stored.partition] = data_version_from_digest(digest)
    built.instance.add_dynamic_partitions(HOURS_NAME, list(hours))
    with _one_transaction(built.instance):
        for partition, version in hours.items():
            event = AssetMaterialization(_HOURS_KEY, partition=partition, tags={DATA_VERSION_TAG: version})
            built.instance.report_runless_asset_event(event)
        graph = defs.get_repository_def().asset_graph
        while sync_catalog(built.lake, built.instance, graph, most=None, hours_since_us=since_us).left:
            pass


@contextmanager
def _one_transaction(instance: DagsterInstance) -> Iterator[None]:
    """Store events by one connection to each of Dagster's SQLite files, which takes 2 ms for each instead of 20."""
    storage = instance.event_log_storage
    assert isinstance(storage, SqliteEventLogStorage)
    with storage.run_connection(RUNLESS_RUN_ID):
        pass  # this creates the file of events without a run
    with ExitStack() as stack:
        connections = {
            shard: stack.enter_context(create_engine(storage.conn_string_for_shard(shard)).begin())
            for shard in (RUNLESS_RUN_ID, INDEX_SHARD_NAME)
        }
        shared = {
            "run_connection": lambda run_id: nullcontext(connections[run_id]),
            "index_connection": lambda: nullcontext(connections[INDEX_SHARD_NAME]),
        }
        with patch.multiple(storage, **shared):
            yield


def _show_status(built: _Place) -> None:
    built.home.status()


def _list_history(built: _Place) -> None:
    lake = built.lake
    newest = Timeline.read(lake).newest
    assert newest is not None
    keys = GenerationKeys.read(lake)
    assert read_generation_writes(lake, get_generation_names(lake, keys, newest.id or newest.time_ms))


def _audit_one(built: _Place) -> None:
    newest = Timeline.read(built.lake).newest
    assert newest is not None
    assert built.home.check(newest.id).passed


def _list_generations(built: _Place) -> None:
    assert built.home.generations()


def _plan_expiry(built: _Place) -> None:
    assert expiry.plan_expiry(built.lake, CLOCK, Settings())


def _check_repair(built: _Place) -> None:
    repair.check_newest_generation(built.lake)


def _preview_maintenance(built: _Place) -> None:
    preview_tables(built.lake, CLOCK)


def _scrape_metrics(built: _Place) -> None:
    scrape = HomeMetrics(built.location, CLOCK).scrape()
    assert not scrape.problems, scrape.problems
    format_metrics(scrape)


def _apply_script(built: _Place) -> None:
    built.turns[0] += 1
    clock = Clock(Microseconds(CLOCK.now_us() + MINUTE_US * built.turns[0]))
    statement = f"INSERT INTO ks.t1 (p, k, v) VALUES (1, 1, {built.turns[0]});"
    result = commit_script(statement, built.lake, clock, Settings(), on_outcome=lambda outcome: outcome)
    assert result.summary.keys() == {"done"}, result.summary


def _tick_quiet(built: _Place) -> None:
    _tick(built)


def _tick_after_change(built: _Place) -> None:
    """Tick the catalogue after another hour was copied."""
    built.turns[0] += 1
    start = datetime_from_us(Microseconds((CLOCK.now_us() // HOUR_US + built.turns[0]) * HOUR_US))
    row = {"keyspace_name": "ks", "table_name": "t0", "hour": start, "rows": 0}
    built.lake.merge(CONSUMED_HOURS, pa.Table.from_pylist([row], schema=CONSUMED_HOURS.schema), update=False)
    _tick(built)


def _tick(built: _Place) -> None:
    """Tick the sensor `catalogue`, until everything is reported."""
    while True:
        with build_sensor_context(
            instance=built.instance,
            cursor=built.cursor[0],
            repository_def=defs.get_repository_def(),
            resources={
                "home": HomeResource(path=built.location.name),
                "clock": ClockResource(stopped_at=format_us(CLOCK.now_us())),
            },
        ) as context:
            reason = catalogue(context)
            built.cursor[0] = context.cursor or ""
        assert isinstance(reason, SkipReason)
        if built.cursor[0]:
            return


def _find_due_hours(built: _Place) -> None:
    hourly.list_due_hours(built.lake, CLOCK, 24)


def _open_partitions_page(built: _Place) -> None:
    """Query the partitions of an asset and their statuses, as its page in the UI does."""
    request = built.workspace.create_request_context()
    variables = {"key": {"path": list(_HOURS_KEY.path)}}
    answer = asyncio.run(_SCHEMA.execute_async(_QUERY, context_value=request, variable_values=variables))
    assert not answer.errors, answer.errors
    assert answer.data is not None
    statuses = answer.data["assetNodeOrError"]["assetPartitionStatuses"]
    assert statuses["materializedPartitions"]


def _open_logs(built: _Place) -> None:
    for folder in sorted((built.location.path / "lake" / "ks").glob("*_scylla_cdc_log")):
        DeltaTable(folder)


def _list_generation_files(built: _Place) -> None:
    for table in (TOPOLOGY_DESCRIPTIONS, GENERATION_DESCRIPTIONS_V2, STREAMS_DESCRIPTIONS_V2):
        if built.lake.exists(table):
            pa.table(DeltaTable(built.lake.path(table)).get_add_actions(flatten=True))


_OPERATIONS: tuple[tuple[str, Callable[[_Place], None], _Floor, float], ...] = (
    # Before a check, whose thousands of results the ticks would report.
    ("catalogue-change", _tick_after_change, _Floor.SMALL, 3.0),
    ("partitions-page", _open_partitions_page, _Floor.SMALL, 3.0),
    ("history", _list_history, _Floor.SMALL, 2.0),
    ("check-one", _audit_one, _Floor.SMALL, 3.0),
    ("generations", _list_generations, _Floor.GENERATIONS, 3.0),
    ("repair", _check_repair, _Floor.GENERATIONS, 3.0),
    ("status", _show_status, _Floor.LOGS, 2.0),
    ("expire", _plan_expiry, _Floor.LOGS, 2.0),
    ("metrics", _scrape_metrics, _Floor.LOGS, 2.0),
    ("script", _apply_script, _Floor.LOGS, 2.0),
    ("catalogue-quiet", _tick_quiet, _Floor.LOGS, 2.0),
    ("due-hours", _find_due_hours, _Floor.LOGS, 2.0),
    ("maintain", _preview_maintenance, _Floor.LOGS, 6.0),
)
"""By name: the function, what it is compared with, and the bound."""
