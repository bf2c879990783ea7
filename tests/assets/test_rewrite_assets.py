"""The rewrite in Dagster: what a run does and reports, what its checks judge, when sensor and schedule request it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AssetMaterialization,
    AssetRecordsFilter,
    DagsterInstance,
    DagsterRunStatus,
    ExecuteInProcessResult,
    RunRequest,
    SensorResult,
    SkipReason,
    TableMetadataValue,
    build_schedule_context,
    build_sensor_context,
)
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest
from support.failed_runs import advance_retries
from support.homes.v1_tables import HOUR_MS, START_MS, nodes, old_cluster, times
from support.worlds.rehearsal import QUIET, Rehearsal

from cdc_platform.clock import HOUR_US, Clock, Milliseconds, datetime_from_ms, format_ms, us_from_ms
from cdc_platform.dagster_home import CLOCK_VARIABLE
from cdc_platform.definitions import defs
from cdc_platform.delta import Lake
from cdc_platform.lifecycle.join import publish
from cdc_platform.lifecycle.rewrite import rewrite_streams_tables
from cdc_platform.metastore.cdc_local import hosts_with_rewrite_marker
from cdc_platform.settings import Settings
from cdc_platform.tables import GENERATION_TIMESTAMPS, STREAMS_DESCRIPTIONS_V2, Table
from cdc_platform_assets.catalog_sync.sync import sync_catalog
from cdc_platform_assets.partitions import GENERATIONS_NAME, REWRITE_DECISIONS_NAME
from cdc_platform_assets.specs import REWRITE_DECISIONS, asset_key_from_table
from cdc_platform_assets.v1_rewrite import (
    REWRITE_JOB,
    hourly_rewrite,
    report_skipped_generations,
    request_rewrite,
    request_scheduled_rewrite,
    v1_leftovers,
)
from cdc_platform_resources.clock import ClockResource
from cdc_platform_resources.home import HomeResource

NOW_MS = Milliseconds(START_MS + 5 * HOUR_MS)
NOW = Clock(us_from_ms(NOW_MS))
HOSTS = {str(node.host_id) for node in nodes(3)}
PUBLISHED = (STREAMS_DESCRIPTIONS_V2, GENERATION_TIMESTAMPS)
NOON, ONE = datetime(2026, 1, 1, 12, tzinfo=UTC), datetime(2026, 1, 1, 13, tzinfo=UTC)


@pytest.fixture(autouse=True)
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the clock at the same time for every run."""
    monkeypatch.setenv(CLOCK_VARIABLE, format_ms(NOW_MS))


def run_job(rehearsal: Rehearsal, **config: Any) -> ExecuteInProcessResult:
    """Run the job, with the tags that the sensor gives it."""
    tags = config.pop("tags", {})
    ops = {"ops": {"system_distributed__cdc_streams_descriptions": {"config": config}}} if config else {}
    return defs.resolve_job_def(REWRITE_JOB).execute_in_process(
        run_config=QUIET | ops, instance=rehearsal.instance, raise_on_error=False, tags=tags
    )


def skip_message(result: SensorResult | RunRequest | SkipReason) -> str:
    """Return why no run was requested."""
    reason = result.skip_reason if isinstance(result, SensorResult) else result
    assert isinstance(reason, SkipReason), result
    return str(reason.skip_message)


def tick(lake: Lake, instance: DagsterInstance, cursor: str | None = None, **settings: Any) -> Any:
    """Run one tick of the sensor."""
    return request_rewrite(lake, NOW, Settings(**settings), instance, cursor)


def evaluations(result: ExecuteInProcessResult) -> dict[str, tuple[bool, dict[str, Any]]]:
    """Return the checks of a run with their result and figures."""
    return {
        evaluation.check_name: (
            evaluation.passed,
            {name: value.value for name, value in evaluation.metadata.items() if name in ("population", "violations")},
        )
        for evaluation in result.get_asset_check_evaluations()
    }


def test_a_run_rewrites_reports_and_judges(rehearsal: Rehearsal) -> None:
    """Of three generations, one without data, two are rewritten and listed in a table; the check finds the third."""
    old_cluster(rehearsal.lake, times(3), without_data=times(3)[:1])
    result = run_job(rehearsal)
    assert result.success
    *others, own_event = result.asset_materializations_for_node("system_distributed__cdc_streams_descriptions")
    published = {(event.asset_key.path[-1], event.partition) for event in others} - {
        ("rewrite_decisions", format_ms(Milliseconds(time_ms))) for time_ms in times(3)
    }
    tables = ("cdc_streams_descriptions_v2", "cdc_generation_timestamps")
    assert published == {(table, format_ms(Milliseconds(time_ms))) for table in tables for time_ms in times(3)[1:]}
    for time_ms in times(3)[1:]:
        resolver = CachingStaleStatusResolver(
            rehearsal.instance,
            defs.get_repository_def().asset_graph,
            LoadingContextForTest(rehearsal.instance),
        )
        partition = format_ms(Milliseconds(time_ms))
        assert resolver.get_status(asset_key_from_table(GENERATION_TIMESTAMPS), partition) is StaleStatus.FRESH
        assert resolver.get_stale_causes(asset_key_from_table(GENERATION_TIMESTAMPS), partition) == []
    tags = rehearsal.instance.get_runs()[0].tags
    assert tags["cdc_platform/violated"] == "live_generations_rewritten"
    metadata = own_event.metadata
    assert (metadata["rewritten"].value, metadata["missing"].value, metadata["marked"].value) == (2, 1, 3)
    table = metadata["decisions"]
    assert isinstance(table, TableMetadataValue)
    assert [record.data["action"] for record in table.records] == ["rewrite", "rewrite", "missing-data"]
    assert hosts_with_rewrite_marker(rehearsal.lake) == HOSTS
    assert rehearsal.lake.read(GENERATION_TIMESTAMPS).num_rows == 2
    assert evaluations(result) == {
        "live_generations_rewritten": (False, {"population": 3, "violations": 1}),
        "rewritten_equals_v1": (True, {"population": 2 * 12, "violations": 0}),
    }
    v1_metadata = result.asset_materializations_for_node("system_distributed__cdc_generation_descriptions")[0].metadata
    assert v1_metadata["dagster/row_count"].value == 2


def test_a_run_without_old_tables_succeeds(rehearsal: Rehearsal) -> None:
    """Without anything to rewrite or judge the run succeeds; an unknown node fails it."""
    old_cluster(rehearsal.lake, [])
    result = run_job(rehearsal)
    assert result.success
    assert evaluations(result) == {
        "live_generations_rewritten": (True, {"population": 0, "violations": 0}),
        "rewritten_equals_v1": (True, {"population": 0, "violations": 0}),
    }
    refused = run_job(rehearsal, nodes=["00000000-0000-0000-0000-0000000000ff"])
    assert not refused.success


def test_a_dry_run_of_the_job_writes_nothing(rehearsal: Rehearsal) -> None:
    """The launchpad can show what the job would do."""
    old_cluster(rehearsal.lake, times(2))
    assert run_job(rehearsal, dry_run=True).success
    assert rehearsal.lake.read(GENERATION_TIMESTAMPS).num_rows == 0
    assert hosts_with_rewrite_marker(rehearsal.lake) == set()


def test_the_sensor_requests_a_run_while_its_conditions_hold(rehearsal: Rehearsal) -> None:
    """It needs a live timestamp missing from the new table, and a node that is not marked."""
    lake, instance = rehearsal.lake, rehearsal.instance
    old_cluster(lake, [], tables=[])
    assert "no V1 streams table" in skip_message(tick(lake, instance))
    cells = old_cluster(lake, times(2), tables=[("orders", 0)])
    first = tick(lake, instance)
    assert len(first.run_requests) == 1
    # Ticks without a cursor, or before the run has begun, request the same run.
    assert tick(lake, instance).run_requests[0].run_key == first.run_requests[0].run_key
    assert "dont_rewrite_streams" in skip_message(tick(lake, instance, dont_rewrite_streams=True))
    # Another process publishes all of them, so nothing is left although no node is marked.
    for time_ms, cell in cells.items():
        publish.write_published_streams(lake, Milliseconds(time_ms), cell)
        publish.write_published_timestamp(lake, Milliseconds(time_ms))
    idle = tick(lake, instance)
    assert "every V1 generation that can still hold rows is rewritten" in skip_message(idle)
    assert "no table has changed" in skip_message(tick(lake, instance, idle.cursor))
    # One more missing timestamp is another state and another run; then one node after the other is marked.
    lake.delete(GENERATION_TIMESTAMPS, [("time", "=", datetime_from_ms(Milliseconds(times(2)[0])))])
    second = tick(lake, instance, idle.cursor)
    assert second.run_requests[0].run_key != first.run_requests[0].run_key
    rewrite_streams_tables(lake, NOW, Settings(), sorted(HOSTS)[:2])
    lake.delete(GENERATION_TIMESTAMPS, [("time", "=", datetime_from_ms(Milliseconds(times(2)[0])))])
    assert len(tick(lake, instance).run_requests) == 1
    rewrite_streams_tables(lake, NOW, Settings(), force=True)
    assert "every node of the ring is marked as rewritten" in skip_message(tick(lake, instance))


def test_the_sensor_gives_up_if_a_repetition_would_fail_too(
    rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rewrite of an unknown node is not requested again, and the message names the remedy."""
    lake, instance = rehearsal.lake, rehearsal.instance
    old_cluster(lake, times(1))
    request = tick(lake, instance).run_requests[0]
    assert not run_job(rehearsal, nodes=["00000000-0000-0000-0000-0000000000ff"], tags=request.tags).success
    assert "the next attempt starts at" in skip_message(tick(lake, instance))
    advance_retries(monkeypatch, HOUR_US)
    assert skip_message(tick(lake, instance)).endswith("fix what it reports, then run: cdc-platform rewrite")


def test_sensor_and_schedule_together_request_one_run(rehearsal: Rehearsal) -> None:
    """While a run is in progress neither requests another; without one both may, and two runs have one result."""
    lake, instance = rehearsal.lake, rehearsal.instance
    cells = old_cluster(lake, times(2))
    assert isinstance(request_scheduled_rewrite(lake, Settings(), instance, NOON), RunRequest)
    running = instance.create_run_for_job(defs.resolve_job_def(REWRITE_JOB), status=DagsterRunStatus.STARTED)
    for result in (tick(lake, instance), request_scheduled_rewrite(lake, Settings(), instance, NOON)):
        assert f"run {running.run_id} is " in skip_message(result)
    instance.delete_run(running.run_id)
    assert run_job(rehearsal).success
    assert run_job(rehearsal, force=True).success
    assert lake.read(GENERATION_TIMESTAMPS).num_rows == len(cells)


def test_the_schedule_requests_runs_until_every_node_is_marked(rehearsal: Rehearsal) -> None:
    """Markers are written even if nothing is left to rewrite. The schedule runs by default and states why it skips."""
    assert hourly_rewrite.default_status.value == "RUNNING"
    assert skip_message(request_scheduled_rewrite(rehearsal.lake, Settings(), rehearsal.instance, NOON)) == (
        "there is no V1 streams table"
    )
    lake, instance = rehearsal.lake, rehearsal.instance
    old_cluster(lake, [])
    assert isinstance(request_scheduled_rewrite(lake, Settings(), instance, NOON), SkipReason)
    old_cluster(lake, times(2))
    rewrite_streams_tables(lake, NOW, Settings(), sorted(HOSTS)[:1])
    request = request_scheduled_rewrite(lake, Settings(), instance, NOON)
    assert isinstance(request, RunRequest)
    assert request.run_key == NOON.isoformat()
    assert run_job(rehearsal).success
    assert isinstance(request_scheduled_rewrite(lake, Settings(), instance, ONE), SkipReason)


def test_sensor_and_schedule_use_the_home_and_the_clock(rehearsal: Rehearsal, tmp_path: Path) -> None:
    """The functions that Dagster calls use the same home and clock as the tests."""
    old_cluster(rehearsal.lake, times(1))
    resources = {"home": HomeResource(), "clock": ClockResource()}
    moment = datetime_from_ms(NOW_MS)
    (tmp_path / "dagster").mkdir()
    with DagsterInstance.local_temp(str(tmp_path / "dagster")) as instance:
        with build_sensor_context(instance=instance, resources=resources) as context:
            result: Any = v1_leftovers(context)
        assert len(result.run_requests) == 1
        with build_schedule_context(
            instance=instance, scheduled_execution_time=moment, resources={"home": HomeResource()}
        ) as context:
            request: Any = hourly_rewrite(context)
    assert request.run_key == moment.isoformat()


def test_generations_that_are_too_old_are_skipped_and_not_missing(rehearsal: Rehearsal) -> None:
    """Each has one event without rows that states the reason, whatever ran the rewrite; a second tick adds none."""
    lake, instance = rehearsal.lake, rehearsal.instance
    old_cluster(lake, times(4), tables=[("orders", 3 * 3600)])
    rewrite_streams_tables(lake, NOW, Settings())
    assert lake.read(GENERATION_TIMESTAMPS).num_rows == 3
    sync_catalog(lake, instance, defs.get_repository_def().asset_graph)
    keys = {format_ms(Milliseconds(time_ms)) for time_ms in times(4)}
    too_old = format_ms(Milliseconds(times(4)[0]))
    for table in PUBLISHED:
        assert instance.get_materialized_partitions(asset_key_from_table(table)) == keys - {too_old}
    assert [report_skipped_generations(lake, NOW, Settings(), instance) for _ in range(2)] == [1, 0]
    for table in PUBLISHED:
        assert instance.get_materialized_partitions(asset_key_from_table(table)) == keys
        event = latest(instance, table, too_old)
        assert event.metadata["dagster/row_count"].value == 0
        assert str(event.metadata["skipped"].value).startswith("superseded at 2020-09-13T13:26:40.000Z, and logs have")
    assert too_old in instance.get_dynamic_partitions(GENERATIONS_NAME)


def test_a_skipped_generation_that_is_rewritten_later_has_its_rows(rehearsal: Rehearsal) -> None:
    """If a log turns out to live longer, the rewrite and the next tick report the rows."""
    lake, instance = rehearsal.lake, rehearsal.instance
    old_cluster(lake, times(4), tables=[("orders", 3 * 3600)])
    rewrite_streams_tables(lake, NOW, Settings())
    assert report_skipped_generations(lake, NOW, Settings(), instance) == 1
    old_cluster(lake, [], tables=[("carts", 0)])
    rewrite_streams_tables(lake, NOW, Settings(), force=True)
    sync_catalog(lake, instance, defs.get_repository_def().asset_graph)
    event = latest(instance, GENERATION_TIMESTAMPS, format_ms(Milliseconds(times(4)[0])))
    assert "skipped" not in event.metadata
    assert event.metadata["delta_version"].value != -1


def test_nothing_is_skipped_while_the_tables_are_unknown(rehearsal: Rehearsal) -> None:
    """Without a schema each generation may have rows; a home without V1 tables has nothing to report."""
    assert report_skipped_generations(rehearsal.lake, NOW, Settings(), rehearsal.instance) == 0
    old_cluster(rehearsal.lake, times(4), tables=[])
    assert report_skipped_generations(rehearsal.lake, NOW, Settings(), rehearsal.instance) == 0
    assert rehearsal.instance.get_dynamic_partitions(GENERATIONS_NAME) == []


def test_a_run_reports_each_decision(rehearsal: Rehearsal) -> None:
    """The asset between V1 and V2 has one event per generation; one that is too old no longer counts as missing."""
    old_cluster(rehearsal.lake, times(4), tables=[("orders", 3 * 3600)], without_data=times(4)[2:3])
    assert run_job(rehearsal).success
    keys = rehearsal.instance.get_dynamic_partitions(REWRITE_DECISIONS_NAME)
    decisions = {key: latest(rehearsal.instance, REWRITE_DECISIONS, key).metadata["action"].value for key in keys}
    expected = dict(zip(times(4), ("skip-too-old", "rewrite", "missing-data", "rewrite"), strict=True))
    assert decisions == {format_ms(Milliseconds(time_ms)): action for time_ms, action in expected.items()}
    event = latest(rehearsal.instance, GENERATION_TIMESTAMPS, format_ms(Milliseconds(times(4)[0])))
    assert event.metadata["skipped"].value


def latest(instance: DagsterInstance, table: Table, partition: str) -> AssetMaterialization:
    """Return the newest event of a partition."""
    records = AssetRecordsFilter(asset_key=asset_key_from_table(table), asset_partitions=[partition])
    materialization = instance.fetch_materializations(records, limit=1).records[0].asset_materialization
    assert materialization is not None
    return materialization
