"""Backfills of all partitions: one run materializes all finished generations again, each with its own version."""

from __future__ import annotations

import pytest
from dagster import AssetKey, DagsterInstance, ExecuteInProcessResult
from dagster._core.event_api import PartitionKeyFilter
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG
from support.nodes import join_request
from support.worlds.rehearsal import QUIET, Rehearsal

from cdc_platform.clock import Clock
from cdc_platform.definitions import defs
from cdc_platform.metastore import inbox
from cdc_platform.tables import BOOTSTRAP_EVENTS, TOPOLOGY_DESCRIPTIONS
from cdc_platform_assets.catalog_sync.sync import sync_catalog
from cdc_platform_assets.catalog_sync.table_contents import GENERATION_TABLES
from cdc_platform_assets.partitions import GENERATION_PARTITIONS, GENERATIONS_NAME
from cdc_platform_assets.specs import asset_key_from_table

GRAPH = defs.get_repository_def().asset_graph


def run_backfill(instance: DagsterInstance) -> ExecuteInProcessResult:
    """Run what a backfill of all assets of generations requests: one run over the whole range of partitions."""
    first, *_, last = instance.get_dynamic_partitions(GENERATIONS_NAME)
    selection = [
        key for key in GRAPH.materializable_asset_keys if GRAPH.get(key).partitions_def == GENERATION_PARTITIONS
    ]
    return (
        defs.get_repository_def()
        .get_implicit_global_asset_job_def()
        .execute_in_process(
            run_config=QUIET,
            instance=instance,
            asset_selection=selection,
            tags={ASSET_PARTITION_RANGE_START_TAG: first, ASSET_PARTITION_RANGE_END_TAG: last},
            raise_on_error=False,
        )
    )


def versions(instance: DagsterInstance, asset: AssetKey) -> dict[str, str]:
    """Return the data version of each partition's newest event."""
    version_by_partition = {}
    for partition in instance.get_dynamic_partitions(GENERATIONS_NAME):
        record = instance.get_latest_data_version_record(asset, is_source=False, partition_key=partition)
        if record is not None:
            version_by_partition[partition] = (record.event_log_entry.tags or {})["dagster/data_version"]
    return version_by_partition


@pytest.mark.long("several runs of Dagster, of all steps and checks")
def test_one_run_materializes_all_finished_generations_again(rehearsal: Rehearsal) -> None:
    """Each keeps its version and has its own check results; a message says that the sensor runs waiting ones."""
    generations = [rehearsal.queue(number) for number in (1, 2)]
    for generation in generations:
        assert rehearsal.join(generation).success
    queued = inbox.queue_join(rehearsal.lake, Clock(), join_request(3, 4, 2)).generation_id
    sync_catalog(rehearsal.lake, rehearsal.instance, GRAPH, most=None)
    assets = [asset_key_from_table(table) for table in GENERATION_TABLES]
    before = {asset: versions(rehearsal.instance, asset) for asset in assets}
    assert len(before[asset_key_from_table(BOOTSTRAP_EVENTS)]) == 3
    assert len(set(before[asset_key_from_table(TOPOLOGY_DESCRIPTIONS)].values())) == 2
    result = run_backfill(rehearsal.instance)
    assert result.success
    assert {asset: versions(rehearsal.instance, asset) for asset in assets} == before
    finished = [rehearsal.partition(name) for name in generations]
    materialized = [
        (event.asset_key, event.partition) for event in result.get_asset_materialization_events() if event.asset_key
    ]
    inboxes = [(assets[0], partition) for partition in before[assets[0]]]
    assert sorted(materialized) == sorted([*((asset, name) for asset in assets[1:] for name in finished), *inboxes])
    for partition in finished:
        checks = [
            name for name in GRAPH.asset_check_keys if name.asset_key == asset_key_from_table(TOPOLOGY_DESCRIPTIONS)
        ]
        records = rehearsal.instance.event_log_storage.get_latest_asset_check_execution_by_key(
            checks, partition_filter=PartitionKeyFilter(key=partition)
        )
        assert {(record.run_id, record.status.value) for record in records.values()} == {
            (result.dagster_run.run_id, "SUCCEEDED")
        }
    assert [join.generation_id for join in inbox.read_pending_events(rehearsal.lake)] == [queued]
    assert sync_catalog(rehearsal.lake, rehearsal.instance, GRAPH, most=None).events == 0
    messages = [entry.user_message for entry in rehearsal.instance.all_logs(result.dagster_run.run_id)]
    assert any(rehearsal.partition(queued) in line and "waiting_joins" in line for line in messages)
