"""Everything is materialised at once: one run makes all finished generations again, each with its own version."""

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


def all_at_once(instance: DagsterInstance) -> ExecuteInProcessResult:
    """What a backfill of all partitions of all assets of generations asks for: one run over their whole range."""
    first, *_, last = instance.get_dynamic_partitions(GENERATIONS_NAME)
    of_generations = [
        each for each in GRAPH.materializable_asset_keys if GRAPH.get(each).partitions_def == GENERATION_PARTITIONS
    ]
    return (
        defs.get_repository_def()
        .get_implicit_global_asset_job_def()
        .execute_in_process(
            run_config=QUIET,
            instance=instance,
            asset_selection=of_generations,
            tags={ASSET_PARTITION_RANGE_START_TAG: first, ASSET_PARTITION_RANGE_END_TAG: last},
            raise_on_error=False,
        )
    )


def versions(instance: DagsterInstance, asset: AssetKey) -> dict[str, str]:
    """The data version of each partition's newest event."""
    found = {}
    for partition in instance.get_dynamic_partitions(GENERATIONS_NAME):
        record = instance.get_latest_data_version_record(asset, is_source=False, partition_key=partition)
        if record is not None:
            found[partition] = (record.event_log_entry.tags or {})["dagster/data_version"]
    return found


@pytest.mark.long("several runs of Dagster, of all steps and checks")
def test_one_run_makes_all_finished_generations_again(rehearsal: Rehearsal) -> None:
    """Each keeps its version and has its own check results; what waits is left to the sensor, with a line."""
    generations = [rehearsal.queue(number) for number in (1, 2)]
    for generation in generations:
        assert rehearsal.join(generation).success
    waits = inbox.queue_join(rehearsal.lake, Clock(), join_request(3, 4, 2)).generation_id
    sync_catalog(rehearsal.lake, rehearsal.instance, GRAPH, most=None)
    assets = [asset_key_from_table(table) for table in GENERATION_TABLES]
    before = {asset: versions(rehearsal.instance, asset) for asset in assets}
    assert len(before[asset_key_from_table(BOOTSTRAP_EVENTS)]) == 3
    assert len(set(before[asset_key_from_table(TOPOLOGY_DESCRIPTIONS)].values())) == 2
    result = all_at_once(rehearsal.instance)
    assert result.success
    assert {asset: versions(rehearsal.instance, asset) for asset in assets} == before
    done = [rehearsal.partition(each) for each in generations]
    made = [
        (event.asset_key, event.partition) for event in result.get_asset_materialization_events() if event.asset_key
    ]
    inboxes = [(assets[0], partition) for partition in before[assets[0]]]
    assert sorted(made) == sorted([*((asset, each) for asset in assets[1:] for each in done), *inboxes])
    for partition in done:
        checks = [
            each for each in GRAPH.asset_check_keys if each.asset_key == asset_key_from_table(TOPOLOGY_DESCRIPTIONS)
        ]
        found = rehearsal.instance.event_log_storage.get_latest_asset_check_execution_by_key(
            checks, partition_filter=PartitionKeyFilter(key=partition)
        )
        assert {(record.run_id, record.status.value) for record in found.values()} == {
            (result.dagster_run.run_id, "SUCCEEDED")
        }
    assert [join.generation_id for join in inbox.read_pending_events(rehearsal.lake)] == [waits]
    assert sync_catalog(rehearsal.lake, rehearsal.instance, GRAPH, most=None).events == 0
    said = [entry.user_message for entry in rehearsal.instance.all_logs(result.dagster_run.run_id)]
    assert any(rehearsal.partition(waits) in line and "waiting_joins" in line for line in said)
