"""The catalogue shows what is in the tables, whichever program wrote it: partitions, events, versions and verdicts."""

from __future__ import annotations

from typing import Any

import pytest
from dagster import (
    AssetCheckKey,
    AssetKey,
    DagsterEventType,
    SkipReason,
    build_sensor_context,
)
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.event_api import PartitionKeyFilter
from dagster._core.loader import LoadingContextForTest
from deltalake import DeltaTable, write_deltalake
from support.command_line import run
from support.homes.expiring import GRACE_MS, TIMES_MS, add_table, import_generations, iso
from support.nodes import join_request
from support.worlds.rehearsal import Rehearsal

from cdc_platform.cdclog import log_table, read_table_schema
from cdc_platform.checks import STORAGE_FAMILY
from cdc_platform.clock import MINUTE_US, Clock, Milliseconds, parse_time_us
from cdc_platform.definitions import defs
from cdc_platform.delta import CommitAuthor, TaskRunner, commit_as
from cdc_platform.delta.open_table import OpenTable
from cdc_platform.lifecycle import run_join
from cdc_platform.metastore import inbox
from cdc_platform.metastore.cdc_tables import add_cdc_table, alter_cdc_table
from cdc_platform.settings import Settings
from cdc_platform.tables import (
    BOOTSTRAP_EVENTS,
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
    GENERATIONS,
    REMOVED_GENERATIONS,
    STREAMS_DESCRIPTIONS_V2,
    TOPOLOGY_DESCRIPTIONS,
)
from cdc_platform_assets.catalog_sync import check_results
from cdc_platform_assets.catalog_sync.definitions import catalogue
from cdc_platform_assets.catalog_sync.sync import SyncSummary, sync_catalog
from cdc_platform_assets.catalog_sync.table_contents import GENERATION_TABLES
from cdc_platform_assets.check_runs import ENTRY_POINT_TAG
from cdc_platform_assets.partitions import GENERATIONS_NAME, HOURS_NAME
from cdc_platform_assets.specs import asset_key_from_table
from cdc_platform_resources.clock import ClockResource
from cdc_platform_resources.home import HomeResource

DDL = "CREATE TABLE ks.t (p int PRIMARY KEY, v int) WITH cdc = {'enabled': true};"
GRAPH = defs.get_repository_def().asset_graph
NOON = "2026-01-31T12:00:00Z"


def refuse() -> Any:
    """Fail: small joins need no Spark."""
    raise AssertionError("a small join needs no Spark")


def join_by_command(rehearsal: Rehearsal, number: int, *, tokens: int = 4) -> str:
    """Run a join as the command line does; return its generation."""
    clock = Clock(parse_time_us(NOON) + MINUTE_US * 10 * number)
    with commit_as(CommitAuthor("command line", "bootstrap")):
        event = inbox.queue_join(rehearsal.lake, clock, join_request(number, tokens, 2))
        run_join(
            TaskRunner(refuse), rehearsal.lake, clock, Settings(), event.generation_id, entry_point="bootstrap --run"
        )
    return event.generation_id


def tick_catalogue(rehearsal: Rehearsal, cursor: str | None, stopped_at: str = NOON) -> tuple[str, str | None]:
    """Tick the sensor at a time; return its message and the next cursor."""
    resources = {"home": HomeResource(), "clock": ClockResource(stopped_at=stopped_at)}
    with build_sensor_context(
        instance=rehearsal.instance, cursor=cursor, resources=resources, repository_def=defs.get_repository_def()
    ) as context:
        result = catalogue(context)
        assert isinstance(result, SkipReason)
        return result.skip_message or "", context.cursor


def sync(rehearsal: Rehearsal, most: int | None = None) -> SyncSummary:
    """Run one tick of the sensor's work."""
    return sync_catalog(rehearsal.lake, rehearsal.instance, GRAPH, most=most)


def newest(rehearsal: Rehearsal, asset: AssetKey, partition: str | None) -> Any:
    """Return the newest materialization of a partition."""
    record = rehearsal.instance.get_latest_data_version_record(asset, is_source=False, partition_key=partition)
    assert record is not None, (asset, partition)
    return record.event_log_entry.asset_materialization


def status(rehearsal: Rehearsal, asset: AssetKey, partition: str) -> StaleStatus:
    """Return whether Dagster's UI shows a partition as fresh, stale or missing."""
    resolver = CachingStaleStatusResolver(rehearsal.instance, GRAPH, LoadingContextForTest(rehearsal.instance))
    return resolver.get_status(asset, partition)


def statuses(rehearsal: Rehearsal, generation_id: str) -> dict[str, StaleStatus]:
    """Return the status of each of a generation's partitions, by table."""
    partition = rehearsal.partition(generation_id)
    return {table.name: status(rehearsal, asset_key_from_table(table), partition) for table in GENERATION_TABLES}


def test_a_home_unknown_to_dagster_is_reported(rehearsal: Rehearsal) -> None:
    """Each partition of generations made by commands gets one event with version, commit and author, and is fresh."""
    generations = [join_by_command(rehearsal, number) for number in (1, 2)]
    queued = inbox.queue_join(rehearsal.lake, Clock(), join_request(3, 4, 2)).generation_id
    first = sync(rehearsal)
    names = [rehearsal.partition(generation) for generation in (*generations, queued)]
    assert rehearsal.instance.get_dynamic_partitions(GENERATIONS_NAME) == names
    assert [first.added, first.left] == [names, False]
    for table in GENERATION_TABLES:
        for partition in names[:2]:
            metadata = newest(rehearsal, asset_key_from_table(table), partition).metadata
            assert "command line bootstrap" in metadata["written_by"].value
            assert metadata["delta_version"].value >= 0
            assert metadata["committed_at"].value > 0
    for generation in generations:
        assert set(statuses(rehearsal, generation).values()) == {StaleStatus.FRESH}
    waiting = statuses(rehearsal, queued)
    assert waiting.pop(BOOTSTRAP_EVENTS.name) is StaleStatus.FRESH
    assert set(waiting.values()) == {StaleStatus.MISSING}
    second = sync(rehearsal)
    assert (second.events, second.results, second.added) == (0, 0, [])


def test_results_of_other_entry_points_are_reported(rehearsal: Rehearsal) -> None:
    """The results of a join by the command line become check results on the events that they belong to."""
    partition = rehearsal.partition(join_by_command(rehearsal, 1))
    # All results of a join; whether the ring fits the newest generation is no result of a step.
    assert sync(rehearsal).results == 17
    checks = [
        key
        for key in GRAPH.asset_check_keys
        if key.asset_key == asset_key_from_table(TOPOLOGY_DESCRIPTIONS) and key.name not in STORAGE_FAMILY.invariants
    ]
    records = rehearsal.instance.event_log_storage.get_latest_asset_check_execution_by_key(
        checks, partition_filter=PartitionKeyFilter(key=partition)
    )
    assert set(records) == set(checks) != set()
    assert {record.status.value for record in records.values()} == {"SUCCEEDED"}
    assert AssetCheckKey(asset_key_from_table(TOPOLOGY_DESCRIPTIONS), "ring_covered_once") in records


@pytest.mark.long("runs of Dagster, of all steps and checks")
def test_a_tick_queries_new_results_only(rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many joins a home has, a process queries Dagster's storage about each result once."""
    read_newest, partitions = check_results.read_newest_results, list[str]()

    def record_partition(instance: Any, checks: Any, partition: str | None) -> Any:
        partitions.append(str(partition))
        return read_newest(instance, checks, partition)

    monkeypatch.setattr(check_results, "read_newest_results", record_partition)
    generations = [join_by_command(rehearsal, number) for number in (1, 2)]
    assert sync(rehearsal).results > 0
    per_join = len(partitions) // 2
    assert sorted(partitions) == sorted([rehearsal.partition(generation) for generation in generations] * per_join)
    partitions.clear()
    third = join_by_command(rehearsal, 3)
    assert sync(rehearsal).results > 0
    assert partitions == [rehearsal.partition(third)] * per_join


def test_unchanged_rows_make_nothing_stale(rehearsal: Rehearsal) -> None:
    """A repeated description and a queued node change no version; a changed row does."""
    generation = rehearsal.queue(1)
    assert rehearsal.join(generation).success
    partition = rehearsal.partition(generation)
    version = rehearsal.lake.version(TOPOLOGY_DESCRIPTIONS)
    assert rehearsal.join(generation, TOPOLOGY_DESCRIPTIONS.full_name).success
    assert rehearsal.lake.version(TOPOLOGY_DESCRIPTIONS) != version
    rehearsal.queue(2)
    assert set(statuses(rehearsal, generation).values()) == {StaleStatus.FRESH}
    sync(rehearsal)
    assert set(statuses(rehearsal, generation).values()) == {StaleStatus.FRESH}
    rows = rehearsal.lake.read(GENERATION_DESCRIPTIONS_V2).to_pylist()
    rows[0]["streams"] = rows[0]["streams"][::-1]
    table = rehearsal.lake.read(GENERATION_DESCRIPTIONS_V2)
    rehearsal.lake.merge(GENERATION_DESCRIPTIONS_V2, type(table).from_pylist(rows, schema=table.schema), update=True)
    assert sync(rehearsal).events >= 1
    after = statuses(rehearsal, generation)
    stale = {name for name, stale_status in after.items() if stale_status is StaleStatus.STALE}
    assert STREAMS_DESCRIPTIONS_V2.name in stale
    assert after[TOPOLOGY_DESCRIPTIONS.name] is StaleStatus.FRESH
    assert newest(rehearsal, asset_key_from_table(GENERATION_DESCRIPTIONS_V2), partition).metadata["written_by"].value


def test_rows_changed_after_their_successors_show_as_stale(rehearsal: Rehearsal) -> None:
    """In a home unknown to Dagster, rows derived from older ones are not reported as fresh."""
    generation = join_by_command(rehearsal, 1)
    table = rehearsal.lake.read(GENERATION_DESCRIPTIONS_V2)
    rows = table.to_pylist()
    rows[0]["streams"] = rows[0]["streams"][::-1]
    rehearsal.lake.merge(GENERATION_DESCRIPTIONS_V2, type(table).from_pylist(rows, schema=table.schema), update=True)
    sync(rehearsal)
    by_table = statuses(rehearsal, generation)
    assert by_table[STREAMS_DESCRIPTIONS_V2.name] is StaleStatus.STALE
    assert by_table[GENERATION_DESCRIPTIONS_V2.name] is StaleStatus.FRESH


def test_a_run_reports_itself(rehearsal: Rehearsal) -> None:
    """What a run of Dagster has reported is not reported again, and its events link to its commits."""
    generation = rehearsal.queue(1)
    joined = rehearsal.join(generation)
    assert joined.success
    partition = rehearsal.partition(generation)
    for table in GENERATION_TABLES[1:]:
        metadata = newest(rehearsal, asset_key_from_table(table), partition).metadata
        assert metadata["written_in_run"].value == joined.dagster_run.run_id
    first = sync(rehearsal)
    assert first.results == 0
    after = {table.name: newest(rehearsal, asset_key_from_table(table), partition) for table in GENERATION_TABLES}
    assert sync(rehearsal).events == 0
    assert {
        table.name: newest(rehearsal, asset_key_from_table(table), partition) for table in GENERATION_TABLES
    } == after


def test_partitions_of_withdrawn_joins_are_removed(rehearsal: Rehearsal) -> None:
    """Withdrawing a join removes its partition."""
    event = inbox.queue_join(rehearsal.lake, Clock(), join_request(1, 4, 2))
    sync(rehearsal)
    assert rehearsal.instance.get_dynamic_partitions(GENERATIONS_NAME) == ["1_10.0.0.1_" + event.generation_id[:8]]
    inbox.withdraw_event(rehearsal.lake, Clock(), event.event_id)
    assert sync(rehearsal).removed == ["1_10.0.0.1_" + event.generation_id[:8]]
    assert rehearsal.instance.get_dynamic_partitions(GENERATIONS_NAME) == []


def test_partitions_of_removed_generations_are_removed_and_their_history_stays(rehearsal: Rehearsal) -> None:
    """An expired generation has no partition any more, but its history still names who wrote and who removed it."""
    home = import_generations(rehearsal.lake.root.parent.parent)
    add_table(rehearsal.lake, 60)
    sync(rehearsal)
    first, *others = map(iso, TIMES_MS)
    assert set(rehearsal.instance.get_dynamic_partitions(GENERATIONS_NAME)) == {first, *others}
    for hours in (2, 4):
        expired = run("--home", home, "--clock", iso(Milliseconds(TIMES_MS[1] + hours * GRACE_MS)), "expire")
        assert expired.exit_code == 0, expired.stderr
    assert sync(rehearsal).removed == [first]
    assert set(rehearsal.instance.get_dynamic_partitions(GENERATIONS_NAME)) == set(others)
    history = run("--home", home, "history", first, "--json").rows
    by = {(line["table"], line["what"]): line["by"] for line in history}
    assert by[STREAMS_DESCRIPTIONS_V2.full_name, "written"] == "command line import"
    assert by[STREAMS_DESCRIPTIONS_V2.full_name, "removed"] == "command line expire"
    assert (REMOVED_GENERATIONS.full_name, "written") in by


def test_a_tick_is_bounded_and_reports_the_newest_first(rehearsal: Rehearsal) -> None:
    """A tick reports a bounded number of events and results, and says if more remain; the ticks end."""
    first, second = (join_by_command(rehearsal, number) for number in (1, 2))
    summary = SyncSummary(left=True)
    ticks = 0
    while summary.left:
        summary = sync(rehearsal, most=5)
        ticks += 1
        assert summary.events + summary.results <= 5
        if ticks == 1:
            assert (
                status(rehearsal, asset_key_from_table(BOOTSTRAP_EVENTS), rehearsal.partition(second))
                is StaleStatus.FRESH
            )
            assert (
                status(rehearsal, asset_key_from_table(BOOTSTRAP_EVENTS), rehearsal.partition(first))
                is StaleStatus.MISSING
            )
    assert ticks > 6
    partition = rehearsal.partition(first)
    assert status(rehearsal, asset_key_from_table(GENERATION_TIMESTAMPS), partition) is StaleStatus.FRESH
    page = newest(rehearsal, asset_key_from_table(GENERATION_TIMESTAMPS), partition).metadata["report"]
    assert page.value == f"/shown/reports/{partition}.html"


def test_partitions_of_older_homes_stay(rehearsal: Rehearsal) -> None:
    """If a generation's partition is named by its UUID, its events go there and no second one is created."""
    generation = join_by_command(rehearsal, 1)
    rehearsal.instance.add_dynamic_partitions(GENERATIONS_NAME, [generation])
    assert sync(rehearsal).added == []
    assert newest(rehearsal, asset_key_from_table(GENERATION_TIMESTAMPS), generation)
    assert rehearsal.join(generation).success
    assert rehearsal.instance.get_dynamic_partitions(GENERATIONS_NAME) == [generation]


def test_the_sensor_skips_while_nothing_is_written(rehearsal: Rehearsal) -> None:
    """Its cursor records when all was reported; a lost one loses nothing; the ledger is observed."""
    join_by_command(rehearsal, 1)
    message, cursor = tick_catalogue(rehearsal, None)
    assert message.startswith("reported ")
    assert tick_catalogue(rehearsal, cursor)[0] == "everything that was written is reported"
    assert tick_catalogue(rehearsal, "nonsense")[0].startswith("reported 0 events and 0 check results")
    observed = rehearsal.instance.fetch_observations(asset_key_from_table(GENERATIONS), limit=5).records
    assert len(observed) == 1
    kinds = {DagsterEventType.ASSET_OBSERVATION}
    assert {record.event_log_entry.dagster_event_type for record in observed} == kinds


def test_a_quiet_tick_opens_no_table(rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of files say that nothing was written. Hours become due by time, and are found once one has passed."""
    join_by_command(rehearsal, 1)
    at_us = Clock(parse_time_us(NOON))
    add_cdc_table(rehearsal.lake, at_us, "ks", "t", ttl_seconds=60, ddl=DDL)
    rehearsal.lake.ensure(log_table(read_table_schema(rehearsal.lake, "ks", "t")))
    opened: list[str] = []
    begin = OpenTable.__init__

    def count(table: OpenTable, folder: str, *args: Any, **options: Any) -> None:
        opened.append(folder)
        begin(table, folder, *args, **options)

    monkeypatch.setattr(OpenTable, "__init__", count)

    def tick(cursor: str | None, stopped_at: str) -> tuple[str, str | None]:
        opened.clear()
        return tick_catalogue(rehearsal, cursor, stopped_at)

    quiet = "everything that was written is reported"
    message, cursor = tick(None, "2026-01-31T13:59:00Z")
    assert message != quiet
    assert tick(cursor, "2026-01-31T14:00:29Z") == (quiet, cursor)
    assert opened == []
    hours = set(rehearsal.instance.get_dynamic_partitions(HOURS_NAME))
    message, later = tick(cursor, "2026-01-31T14:00:30Z")
    assert (message, later == cursor) == (quiet, False)
    assert set(rehearsal.instance.get_dynamic_partitions(HOURS_NAME)) - hours == {"2026-01-31-13:00"}
    assert tick(later, "2026-01-31T14:30:00Z") == (quiet, later)
    assert opened == []
    alter_cdc_table(rehearsal.lake, Clock(parse_time_us("2026-01-31T14:31:00Z")), "ks", "t", ttl_seconds=61)
    assert tick(later, "2026-01-31T14:32:00Z")[0] != quiet


@pytest.mark.parametrize("asset", sorted(GRAPH.get_all_asset_keys()))
def test_every_lineage_edge_resolves(asset: AssetKey) -> None:
    """Every dependency, column source and table name is an asset, and each column is one of its columns."""
    known = GRAPH.get_all_asset_keys()
    node = GRAPH.get(asset)
    assert set(node.parent_keys) <= known
    assert tuple(node.metadata["dagster/table_name"].split(".")) == tuple(asset.path)
    columns_of_asset = {column.name for column in node.metadata["dagster/column_schema"].columns}
    lineage = node.metadata.get("dagster/column_lineage")
    for column, sources in ({} if lineage is None else lineage.deps_by_column).items():
        assert column in columns_of_asset
        for source in sources:
            assert source.asset_key in known, (column, source)
            columns = GRAPH.get(source.asset_key).metadata["dagster/column_schema"].columns
            assert source.column_name in {source_column.name for source_column in columns}, (column, source)


@pytest.mark.long("a run of Dagster, of all steps and checks")
def test_events_of_commands_match_those_of_runs(rehearsal: Rehearsal) -> None:
    """An event of a command has the rows, plots and other metadata of a run's event of the same table."""
    by_command = rehearsal.partition(join_by_command(rehearsal, 1))
    queued = rehearsal.queue(2)
    assert rehearsal.join(queued).success
    sync(rehearsal)
    only_runs = {"seconds", "written_in_run", "dagster/column_lineage", "report_file"}
    # The first generation has no earlier ring.
    only_later = {"ring_before", "generation_before"}
    for table in GENERATION_TABLES[1:]:
        asset = asset_key_from_table(table)
        run_metadata = newest(rehearsal, asset, rehearsal.partition(queued)).metadata
        command_metadata = newest(rehearsal, asset, by_command).metadata
        assert set(run_metadata) - set(command_metadata) <= only_runs | only_later, table
        assert type(command_metadata["dagster/row_count"]) is type(run_metadata["dagster/row_count"])
    described = newest(rehearsal, asset_key_from_table(TOPOLOGY_DESCRIPTIONS), by_command).metadata
    assert described["dagster/row_count"].value == 4
    assert described["streams"].value == 8
    assert "/shown/pictures/" in described["ring"].value


def test_a_second_result_of_a_command_is_reported(rehearsal: Rehearsal) -> None:
    """Two checks of one partition are two results, each of a finished run that names the command."""
    partition = rehearsal.partition(join_by_command(rehearsal, 1))
    check = AssetCheckKey(asset_key_from_table(TOPOLOGY_DESCRIPTIONS), "commits_known")
    for expected_status in ("SUCCEEDED", "FAILED"):
        if expected_status == "FAILED":
            folder = rehearsal.lake.path(TOPOLOGY_DESCRIPTIONS)
            rows = DeltaTable(folder).to_pyarrow_table().slice(0, 1)
            write_deltalake(folder, rows, mode="append")
        run("--home", rehearsal.lake.root.parent, "check")
        sync(rehearsal)
        record = rehearsal.instance.event_log_storage.get_latest_asset_check_execution_by_key(
            [check], partition_filter=PartitionKeyFilter(key=partition)
        )[check]
        assert record.status.value == expected_status
        check_run = rehearsal.instance.get_run_by_id(record.run_id)
        assert check_run is not None
        assert check_run.is_finished
        assert check_run.tags[ENTRY_POINT_TAG] == "cdc-platform check"
