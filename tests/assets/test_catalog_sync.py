"""The catalogue says what is in the tables, whoever wrote it: partitions, events, versions, verdicts; and no more."""

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

from cdc_platform.checks import STORAGE_FAMILY
from cdc_platform.clock import MINUTE_US, Clock, Milliseconds, parse_time_us
from cdc_platform.definitions import defs
from cdc_platform.delta import CommitAuthor, TaskRunner, commit_as
from cdc_platform.lifecycle import run_join
from cdc_platform.metastore import inbox
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
from cdc_platform_assets.partitions import GENERATIONS_NAME
from cdc_platform_assets.specs import asset_key_from_table
from cdc_platform_resources.clock import ClockResource
from cdc_platform_resources.home import HomeResource

GRAPH = defs.get_repository_def().asset_graph
NOON = "2026-01-31T12:00:00Z"


def refuse() -> Any:
    """Nobody: small joins need no Spark."""
    raise AssertionError("a small join needs no Spark")


def join_by_command(rehearsal: Rehearsal, number: int, *, tokens: int = 4) -> str:
    """A join as the command line makes it; answers with its generation."""
    clock = Clock(parse_time_us(NOON) + MINUTE_US * 10 * number)
    with commit_as(CommitAuthor("command line", "bootstrap")):
        event = inbox.queue_join(rehearsal.lake, clock, join_request(number, tokens, 2))
        run_join(
            TaskRunner(refuse), rehearsal.lake, clock, Settings(), event.generation_id, entry_point="bootstrap --run"
        )
    return event.generation_id


def told(rehearsal: Rehearsal, most: int | None = None) -> SyncSummary:
    """One tick of the sensor's work."""
    return sync_catalog(rehearsal.lake, rehearsal.instance, GRAPH, most=most)


def newest(rehearsal: Rehearsal, asset: AssetKey, partition: str | None) -> Any:
    """The newest materialisation of a partition."""
    record = rehearsal.instance.get_latest_data_version_record(asset, is_source=False, partition_key=partition)
    assert record is not None, (asset, partition)
    return record.event_log_entry.asset_materialization


def status(rehearsal: Rehearsal, asset: AssetKey, partition: str) -> StaleStatus:
    """Whether Dagster's UI shows a partition as fresh, stale or missing."""
    resolver = CachingStaleStatusResolver(rehearsal.instance, GRAPH, LoadingContextForTest(rehearsal.instance))
    return resolver.get_status(asset, partition)


def statuses(rehearsal: Rehearsal, generation_id: str) -> dict[str, StaleStatus]:
    """The status of each of a generation's partitions, by table."""
    partition = rehearsal.partition(generation_id)
    return {table.name: status(rehearsal, asset_key_from_table(table), partition) for table in GENERATION_TABLES}


def test_a_home_that_dagster_never_saw_is_told(rehearsal: Rehearsal) -> None:
    """Every partition of generations made by commands has its event: version, commit, who; told once, and all fresh."""
    generations = [join_by_command(rehearsal, number) for number in (1, 2)]
    waits = inbox.queue_join(rehearsal.lake, Clock(), join_request(3, 4, 2)).generation_id
    first = told(rehearsal)
    names = [rehearsal.partition(each) for each in (*generations, waits)]
    assert rehearsal.instance.get_dynamic_partitions(GENERATIONS_NAME) == names
    assert [first.added, first.left] == [names, False]
    for table in GENERATION_TABLES:
        for partition in names[:2]:
            said = newest(rehearsal, asset_key_from_table(table), partition).metadata
            assert "command line bootstrap" in said["written_by"].value
            assert said["delta_version"].value >= 0
            assert said["committed_at"].value > 0
    for generation in generations:
        assert set(statuses(rehearsal, generation).values()) == {StaleStatus.FRESH}
    waiting = statuses(rehearsal, waits)
    assert waiting.pop(BOOTSTRAP_EVENTS.name) is StaleStatus.FRESH
    assert set(waiting.values()) == {StaleStatus.MISSING}
    again = told(rehearsal)
    assert (again.events, again.results, again.added) == (0, 0, [])


def test_results_of_other_doors_are_told(rehearsal: Rehearsal) -> None:
    """What the command line judged of a join are results of its checks, each on the event that it is of."""
    partition = rehearsal.partition(join_by_command(rehearsal, 1))
    # All that is judged of a join; whether the ring fits the newest generation is nobody's verdict on a step.
    assert told(rehearsal).results == 17
    checks = [
        each
        for each in GRAPH.asset_check_keys
        if each.asset_key == asset_key_from_table(TOPOLOGY_DESCRIPTIONS) and each.name not in STORAGE_FAMILY.invariants
    ]
    found = rehearsal.instance.event_log_storage.get_latest_asset_check_execution_by_key(
        checks, partition_filter=PartitionKeyFilter(key=partition)
    )
    assert set(found) == set(checks) != set()
    assert {record.status.value for record in found.values()} == {"SUCCEEDED"}
    assert AssetCheckKey(asset_key_from_table(TOPOLOGY_DESCRIPTIONS), "ring_covered_once") in found


@pytest.mark.long("runs of Dagster, of all steps and checks")
def test_a_tick_asks_about_new_verdicts_only(rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many joins a home has: a tick asks Dagster's storage about each verdict once in a process's life."""
    read, asked = check_results.read_newest_results, list[str]()

    def count(instance: Any, checks: Any, partition: str | None) -> Any:
        asked.append(str(partition))
        return read(instance, checks, partition)

    monkeypatch.setattr(check_results, "read_newest_results", count)
    generations = [join_by_command(rehearsal, number) for number in (1, 2)]
    assert told(rehearsal).results > 0
    per_join = len(asked) // 2
    assert sorted(asked) == sorted([rehearsal.partition(generation) for generation in generations] * per_join)
    asked.clear()
    third = join_by_command(rehearsal, 3)
    assert told(rehearsal).results > 0
    assert asked == [rehearsal.partition(third)] * per_join


def test_what_is_made_again_the_same_makes_nothing_stale(rehearsal: Rehearsal) -> None:
    """The same description again, and a node that is queued, change no version; a changed row does."""
    generation = rehearsal.queue(1)
    assert rehearsal.join(generation).success
    partition = rehearsal.partition(generation)
    version = rehearsal.lake.version(TOPOLOGY_DESCRIPTIONS)
    assert rehearsal.join(generation, TOPOLOGY_DESCRIPTIONS.full_name).success
    assert rehearsal.lake.version(TOPOLOGY_DESCRIPTIONS) != version
    rehearsal.queue(2)
    assert set(statuses(rehearsal, generation).values()) == {StaleStatus.FRESH}
    told(rehearsal)
    assert set(statuses(rehearsal, generation).values()) == {StaleStatus.FRESH}
    rows = rehearsal.lake.read(GENERATION_DESCRIPTIONS_V2).to_pylist()
    rows[0]["streams"] = rows[0]["streams"][::-1]
    table = rehearsal.lake.read(GENERATION_DESCRIPTIONS_V2)
    rehearsal.lake.merge(GENERATION_DESCRIPTIONS_V2, type(table).from_pylist(rows, schema=table.schema), update=True)
    assert told(rehearsal).events >= 1
    after = statuses(rehearsal, generation)
    stale = {name for name, each in after.items() if each is StaleStatus.STALE}
    assert STREAMS_DESCRIPTIONS_V2.name in stale
    assert after[TOPOLOGY_DESCRIPTIONS.name] is StaleStatus.FRESH
    assert newest(rehearsal, asset_key_from_table(GENERATION_DESCRIPTIONS_V2), partition).metadata["written_by"].value


def test_what_was_changed_behind_a_generation_shows_as_stale(rehearsal: Rehearsal) -> None:
    """In a home that Dagster never saw, rows that were made from older ones are not told as fresh."""
    generation = join_by_command(rehearsal, 1)
    table = rehearsal.lake.read(GENERATION_DESCRIPTIONS_V2)
    rows = table.to_pylist()
    rows[0]["streams"] = rows[0]["streams"][::-1]
    rehearsal.lake.merge(GENERATION_DESCRIPTIONS_V2, type(table).from_pylist(rows, schema=table.schema), update=True)
    told(rehearsal)
    found = statuses(rehearsal, generation)
    assert found[STREAMS_DESCRIPTIONS_V2.name] is StaleStatus.STALE
    assert found[GENERATION_DESCRIPTIONS_V2.name] is StaleStatus.FRESH


def test_a_run_tells_for_itself(rehearsal: Rehearsal) -> None:
    """What a run of Dagster has told is not told again, and its events lead to its commits."""
    generation = rehearsal.queue(1)
    joined = rehearsal.join(generation)
    assert joined.success
    partition = rehearsal.partition(generation)
    for table in GENERATION_TABLES[1:]:
        said = newest(rehearsal, asset_key_from_table(table), partition).metadata
        assert said["written_in_run"].value == joined.dagster_run.run_id
    first = told(rehearsal)
    assert first.results == 0
    after = {table.name: newest(rehearsal, asset_key_from_table(table), partition) for table in GENERATION_TABLES}
    assert told(rehearsal).events == 0
    assert {
        table.name: newest(rehearsal, asset_key_from_table(table), partition) for table in GENERATION_TABLES
    } == after


def test_partitions_of_what_is_gone_go(rehearsal: Rehearsal) -> None:
    """A join that is withdrawn takes its partition with it."""
    event = inbox.queue_join(rehearsal.lake, Clock(), join_request(1, 4, 2))
    told(rehearsal)
    assert rehearsal.instance.get_dynamic_partitions(GENERATIONS_NAME) == ["1_10.0.0.1_" + event.generation_id[:8]]
    inbox.withdraw_event(rehearsal.lake, Clock(), event.event_id)
    assert told(rehearsal).removed == ["1_10.0.0.1_" + event.generation_id[:8]]
    assert rehearsal.instance.get_dynamic_partitions(GENERATIONS_NAME) == []


def test_partitions_of_removed_generations_go_and_their_history_stays(rehearsal: Rehearsal) -> None:
    """A generation that expires is no partition any more; who wrote and who removed it is told all the same."""
    home = import_generations(rehearsal.lake.root.parent.parent)
    add_table(rehearsal.lake, 60)
    told(rehearsal)
    first, *others = map(iso, TIMES_MS)
    assert set(rehearsal.instance.get_dynamic_partitions(GENERATIONS_NAME)) == {first, *others}
    for hours in (2, 4):
        expired = run("--home", home, "--clock", iso(Milliseconds(TIMES_MS[1] + hours * GRACE_MS)), "expire")
        assert expired.exit_code == 0, expired.stderr
    assert told(rehearsal).removed == [first]
    assert set(rehearsal.instance.get_dynamic_partitions(GENERATIONS_NAME)) == set(others)
    history = run("--home", home, "history", first, "--json").rows
    by = {(line["table"], line["what"]): line["by"] for line in history}
    assert by[STREAMS_DESCRIPTIONS_V2.full_name, "written"] == "command line import"
    assert by[STREAMS_DESCRIPTIONS_V2.full_name, "removed"] == "command line expire"
    assert (REMOVED_GENERATIONS.full_name, "written") in by


def test_a_tick_is_bounded_and_the_newest_come_first(rehearsal: Rehearsal) -> None:
    """Whatever there is to tell, a tick tells so much; it says that more is left, and ticks end."""
    first, second = (join_by_command(rehearsal, number) for number in (1, 2))
    waits = SyncSummary(left=True)
    ticks = 0
    while waits.left:
        waits = told(rehearsal, most=5)
        ticks += 1
        assert waits.events + waits.results <= 5
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


def test_partitions_of_before_go_on(rehearsal: Rehearsal) -> None:
    """Where a generation's partition is called by its UUID, its events go there and no second one is made."""
    generation = join_by_command(rehearsal, 1)
    rehearsal.instance.add_dynamic_partitions(GENERATIONS_NAME, [generation])
    assert told(rehearsal).added == []
    assert newest(rehearsal, asset_key_from_table(GENERATION_TIMESTAMPS), generation)
    assert rehearsal.join(generation).success
    assert rehearsal.instance.get_dynamic_partitions(GENERATIONS_NAME) == [generation]


def test_the_sensor_sleeps_while_nothing_is_written(rehearsal: Rehearsal) -> None:
    """Its cursor says when all was told; a lost one loses nothing; the ledger is observed."""
    join_by_command(rehearsal, 1)

    def tick(cursor: str | None) -> tuple[str, str | None]:
        resources = {"home": HomeResource(), "clock": ClockResource(stopped_at=NOON)}
        with build_sensor_context(
            instance=rehearsal.instance, cursor=cursor, resources=resources, repository_def=defs.get_repository_def()
        ) as context:
            found = catalogue(context)
            assert isinstance(found, SkipReason)
            return found.skip_message or "", context.cursor

    said, cursor = tick(None)
    assert said.startswith("reported ")
    assert tick(cursor)[0] == "everything that was written is reported"
    assert tick("nonsense")[0].startswith("reported 0 events and 0 check results")
    observed = rehearsal.instance.fetch_observations(asset_key_from_table(GENERATIONS), limit=5).records
    assert len(observed) == 1
    kinds = {DagsterEventType.ASSET_OBSERVATION}
    assert {record.event_log_entry.dagster_event_type for record in observed} == kinds


@pytest.mark.parametrize("asset", sorted(GRAPH.get_all_asset_keys()))
def test_every_lineage_edge_resolves(asset: AssetKey) -> None:
    """Every dependency, every column source and every table name is an asset, and the column is one of its columns."""
    known = GRAPH.get_all_asset_keys()
    node = GRAPH.get(asset)
    assert set(node.parent_keys) <= known
    assert tuple(node.metadata["dagster/table_name"].split(".")) == tuple(asset.path)
    own = {column.name for column in node.metadata["dagster/column_schema"].columns}
    lineage = node.metadata.get("dagster/column_lineage")
    for column, sources in ({} if lineage is None else lineage.deps_by_column).items():
        assert column in own
        for source in sources:
            assert source.asset_key in known, (column, source)
            columns = GRAPH.get(source.asset_key).metadata["dagster/column_schema"].columns
            assert source.column_name in {each.name for each in columns}, (column, source)


@pytest.mark.long("a run of Dagster, of all steps and checks")
def test_commands_are_shown_as_runs_are(rehearsal: Rehearsal) -> None:
    """An event of a command has the rows, the plots and the other metadata of a run's event of the same table."""
    by_command = rehearsal.partition(join_by_command(rehearsal, 1))
    queued = rehearsal.queue(2)
    assert rehearsal.join(queued).success
    told(rehearsal)
    of_runs_alone = {"seconds", "written_in_run", "dagster/column_lineage", "report_file"}
    # The first generation is made from no ring.
    of_later_ones = {"ring_before", "generation_before"}
    for table in GENERATION_TABLES[1:]:
        asset = asset_key_from_table(table)
        ran = newest(rehearsal, asset, rehearsal.partition(queued)).metadata
        said = newest(rehearsal, asset, by_command).metadata
        assert set(ran) - set(said) <= of_runs_alone | of_later_ones, table
        assert type(said["dagster/row_count"]) is type(ran["dagster/row_count"])
    described = newest(rehearsal, asset_key_from_table(TOPOLOGY_DESCRIPTIONS), by_command).metadata
    assert described["dagster/row_count"].value == 4
    assert described["streams"].value == 8
    assert "/shown/pictures/" in described["ring"].value


def test_a_second_result_of_a_command_is_told(rehearsal: Rehearsal) -> None:
    """Results of two checks of one partition are two results, each of a run that names the command and has ended."""
    partition = rehearsal.partition(join_by_command(rehearsal, 1))
    check = AssetCheckKey(asset_key_from_table(TOPOLOGY_DESCRIPTIONS), "commits_known")
    for status in ("SUCCEEDED", "FAILED"):
        if status == "FAILED":
            folder = rehearsal.lake.path(TOPOLOGY_DESCRIPTIONS)
            rows = DeltaTable(folder).to_pyarrow_table().slice(0, 1)
            write_deltalake(folder, rows, mode="append")
        run("--home", rehearsal.lake.root.parent, "check")
        told(rehearsal)
        record = rehearsal.instance.event_log_storage.get_latest_asset_check_execution_by_key(
            [check], partition_filter=PartitionKeyFilter(key=partition)
        )[check]
        assert record.status.value == status
        judged = rehearsal.instance.get_run_by_id(record.run_id)
        assert judged is not None
        assert judged.is_finished
        assert judged.tags[ENTRY_POINT_TAG] == "cdc-platform check"
