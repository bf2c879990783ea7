"""The event of a command has the metadata of a run's event of the same asset, for every asset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from dagster import AssetKey, AssetMaterialization
from support.homes.log_lake import START_US, split
from support.homes.v1_tables import old_cluster, times
from support.nodes import join_request
from support.worlds.rehearsal import QUIET, Rehearsal, failures
from support.worlds.switch_lake import NOON, NOON_MS, TWO_PHASE, host, inserted, ring_of

from cdc_platform.cdclog import hourly, rebuild_table
from cdc_platform.clock import HOUR_US, MINUTE_US, Clock, Microseconds, format_ms, parse_time_us
from cdc_platform.dagster_home import CLOCK_VARIABLE
from cdc_platform.definitions import defs
from cdc_platform.delta import CommitAuthor, Lake, TaskRunner, commit_as
from cdc_platform.lifecycle import run_join, switch
from cdc_platform.metastore import inbox
from cdc_platform.settings import Settings
from cdc_platform.tables import GENERATION_DESCRIPTIONS, GENERATION_SWITCHES, Table
from cdc_platform_assets.catalog_sync.sync import sync_catalog
from cdc_platform_assets.run_requests import PARTITION_TAG
from cdc_platform_assets.specs import asset_key_from_table

pytestmark = pytest.mark.long("runs of Dagster, of all assets of a home")
GRAPH = defs.get_repository_def().asset_graph
OF_RUNS_ALONE = {"seconds", "written_in_run", "report_file"}
"""The duration of a step, which commands do not store, Dagster's run, and the file of a report that a run wrote."""
ELSEWHERE = {
    "cdc_generation_descriptions": "the test below",
    "cdc_streams_descriptions": "a run of the rewrite reports what it decided, which no table stores",
    "generation_switches": "the test below",
    "ingested_log": "test_cluster_assets",
    "logged_writes": "a batch of a command is no hour; its rows show on the log",
    "observed_cluster": "test_cluster_assets",
    "removed_generations": "a run reports a plan and a forecast of its own time",
    "simulated_switches": "a simulation writes no table",
    "tables": "a listing of all tables, which only runs make",
}
"""The assets without a partition in the home of this test, with the reason or the test that covers them."""


def run_commands(rehearsal: Rehearsal) -> None:
    """Join a node, change tablets, write a log, copy an hour of it and rebuild its table, as commands do."""
    lake, later = rehearsal.lake, Clock(Microseconds(START_US + 5 * HOUR_US))
    with commit_as(CommitAuthor("command line", "every command")):
        split(lake)
        hourly.copy_hour(lake, later, hourly.select_logs(lake), START_US)
        rebuild_table(lake, later, "ks", "tabs", TaskRunner.alone())
        clock = Clock(parse_time_us("2026-01-31T12:00:00Z") + MINUTE_US)
        event = inbox.queue_join(lake, clock, join_request(1, 4, 2))
        run_join(TaskRunner.alone(), lake, clock, Settings(), event.generation_id, entry_point="bootstrap --run")


def newest(rehearsal: Rehearsal, asset: AssetKey, partition: str | None) -> AssetMaterialization:
    """Return the newest materialization of a partition."""
    record = rehearsal.instance.get_latest_data_version_record(asset, is_source=False, partition_key=partition)
    assert record is not None, (asset, partition)
    event = record.event_log_entry.asset_materialization
    assert event is not None
    return event


def materialize(rehearsal: Rehearsal, assets: set[AssetKey], partition: str | None) -> None:
    """Materialize a partition of assets in one run."""
    job = defs.get_repository_def().get_implicit_global_asset_job_def()
    executed = job.get_subset(asset_selection=assets, asset_check_selection=set()).execute_in_process(
        run_config=QUIET,
        instance=rehearsal.instance,
        tags={} if partition is None else {PARTITION_TAG: partition},
        raise_on_error=False,
    )
    assert not failures(executed)


def keys_and_types(event: AssetMaterialization) -> dict[str, type[Any]]:
    """Return the metadata of an event, without its values."""
    return {name: type(value) for name, value in event.metadata.items()}


def test_events_of_commands_have_the_metadata_of_runs(rehearsal: Rehearsal) -> None:
    """Commands make each partition and a run materializes it again: no key of the run's metadata is missing."""
    run_commands(rehearsal)
    assert not sync_catalog(rehearsal.lake, rehearsal.instance, GRAPH, most=None).left
    by_partition: dict[str, set[AssetKey]] = {}
    for key in GRAPH.materializable_asset_keys:
        for partition in rehearsal.instance.get_materialized_partitions(key):
            by_partition.setdefault(partition, set()).add(key)
    covered = set().union(*by_partition.values())
    assert {key.path[-1] for key in GRAPH.materializable_asset_keys - covered} == set(ELSEWHERE)
    events = {
        (key, partition): newest(rehearsal, key, partition)
        for partition in by_partition
        for key in by_partition[partition]
    }
    assert {event.metadata["kind"].value for event in events.values()} == {"command"}
    for partition, assets in by_partition.items():
        # Assets of one run are partitioned in the same way.
        for definition in {GRAPH.get(key).partitions_def for key in assets}:
            same = {key for key in assets if GRAPH.get(key).partitions_def == definition}
            materialize(rehearsal, same, partition)
    for (key, partition), event in events.items():
        assert_same_metadata(event, newest(rehearsal, key, partition))


def assert_same_metadata(of_command: AssetMaterialization, of_run: AssetMaterialization) -> None:
    """Assert that the command's event has every key of the run's event, in the same form."""
    command_types, run_types = keys_and_types(of_command), keys_and_types(of_run)
    common = run_types.keys() - OF_RUNS_ALONE
    assert {name: command_types.get(name) for name in common} == {name: run_types[name] for name in common}, (
        of_run.asset_key
    )
    assert of_run.metadata["kind"].value == "python"


def prepare_v1(lake: Lake) -> None:
    """Create two V1 generations."""
    old_cluster(lake, times(2), members=[], tables=[])


def prepare_switch(lake: Lake) -> None:
    """Create a switch that waits for acknowledgements."""
    ring_of(lake, (1, 2))
    switch.prepare_switch(lake, NOON, TWO_PHASE, inserted(lake, 3), host(3), [host(number) for number in (1, 2, 3)])


@pytest.mark.parametrize(
    ("table", "prepare"),
    [(GENERATION_DESCRIPTIONS, prepare_v1), (GENERATION_SWITCHES, prepare_switch)],
    ids=["v1", "switch"],
)
def test_unpartitioned_tables_have_the_same_metadata(
    rehearsal: Rehearsal, table: Table, prepare: Callable[[Lake], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events of V1 generations and switches made by commands match those of runs."""
    monkeypatch.setenv(CLOCK_VARIABLE, format_ms(NOON_MS))
    with commit_as(CommitAuthor("command line", "every command")):
        prepare(rehearsal.lake)
    sync_catalog(rehearsal.lake, rehearsal.instance, GRAPH, most=None)
    asset = asset_key_from_table(table)
    event = newest(rehearsal, asset, None)
    assert event.metadata["kind"].value == "command"
    materialize(rehearsal, {asset}, None)
    assert_same_metadata(event, newest(rehearsal, asset, None))
