"""Damage of a stored table shows on the partition of its asset, whichever entry point judged it, and nowhere else.

The tables are damaged with plain deltalake. No JVM.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from dagster import (
    AssetCheckEvaluation,
    AssetCheckKey,
    AssetCheckSeverity,
    AssetKey,
    DagsterInstance,
    ExecuteInProcessResult,
)
from dagster._core.event_api import PartitionKeyFilter
from deltalake import DeltaTable, write_deltalake
from support.command_line import run
from support.homes.every_table import LOGS, every_table
from support.homes.foreign import rewrite, rows_of
from support.homes.ingested import ReadLog, ingested_home
from support.worlds.rehearsal import QUIET, Rehearsal

from cdc_platform.cdclog import log_table, read_table_schema
from cdc_platform.checks import (
    COMMITS_KNOWN,
    ROWS_AS_COMMITTED,
    STORAGE_FAMILY,
    judge_part,
    record_verifications,
    verify_part,
)
from cdc_platform.clock import Clock
from cdc_platform.definitions import defs
from cdc_platform.delta import (
    ALL_PARTS,
    Lake,
    WriteSource,
    provenance,
    row_hash,
    undo_commit,
    verify_tables,
    write_as,
)
from cdc_platform.errors import PlatformError
from cdc_platform.home_location import HOME_VARIABLE, open_home_location
from cdc_platform.metastore import CheckRun, cdc_tables, read_table_checks
from cdc_platform.scylla import registry
from cdc_platform.tables import CDC_TABLES, NODES, TABLES, TOPOLOGY_DESCRIPTIONS, Table
from cdc_platform_assets.catalog_sync.sync import sync_catalog
from cdc_platform_assets.storage_checks import STORAGE_CHECKED_ASSETS, AssetPart, list_asset_parts
from cdc_platform_assets.tables import AUDIT_JOB

GRAPH = defs.get_repository_def().asset_graph
ResultKey = tuple[str, str, str | None]
"""An asset, a check and a partition."""


@dataclass(frozen=True)
class World:
    """A home with rows in every table, and the Dagster instance that shows it."""

    home: Path
    lake: Lake
    instance: DagsterInstance

    def statuses(self) -> dict[ResultKey, str]:
        """Return the newest status of each result of the storage checks."""
        keys = [key for key in GRAPH.asset_check_keys if key.name in STORAGE_FAMILY.invariants]
        infos = self.instance.event_log_storage.get_asset_check_partition_info(keys)
        return {
            (info.check_key.asset_key.to_user_string(), info.check_key.name, info.partition_key): (
                info.latest_execution_status.value
            )
            for info in infos
            if info.check_key.asset_key != AssetKey(["platform", "tables"])
        }

    def sync(self) -> None:
        """Do what the sensor does."""
        sync_catalog(self.lake, self.instance, GRAPH, most=None)

    def folder(self, table: str) -> Path:
        """Return the folder of a table."""
        return self.lake.root / table.replace(".", "/")

    def parts(self, table: str) -> list[AssetPart]:
        """Return the partitions of assets that show this table."""
        return [part for part in list_asset_parts(self.lake, self.instance) if part.table.full_name == table]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Create a home that was checked and synchronized, in which every result passed."""
    home = every_table(tmp_path_factory.mktemp("every"))
    with pytest.MonkeyPatch.context() as patched, DagsterInstance.ephemeral() as instance:
        patched.setenv(HOME_VARIABLE, str(home))
        created = World(home, Lake(home / "lake"), instance)
        created.sync()
        judge_by_audit(created, "")
        for part in list_asset_parts(created.lake, instance):
            PARTS.setdefault(part.table.full_name, []).append(part)
        assert set(created.statuses().values()) == {"SUCCEEDED"}
        yield created


def judge_by_audit(world: World, table: str) -> None:
    """Judge with the job `audit_tables`; the sensor does not tick."""
    assert defs.resolve_job_def(AUDIT_JOB).execute_in_process(run_config=QUIET, instance=world.instance).success


def judge_by_command(world: World, table: str) -> None:
    """Judge with the command and synchronize its results, ignoring tables of the home that cannot be read."""
    assert run("--home", world.home, "check").exit_code in (0, 1)
    with suppress(PlatformError):
        world.sync()


def judge_by_run(world: World, table: str) -> None:
    """Judge by executing an asset's checks without a partition, as the button on the Checks tab does."""
    assets = {part.asset for part in world.parts(table)}
    keys = {key for key in GRAPH.asset_check_keys if key.asset_key in assets and key.name in STORAGE_FAMILY.invariants}
    assert execute_checks(world, keys).success


def execute_checks(world: World, keys: set[AssetCheckKey]) -> ExecuteInProcessResult:
    """Run only these checks."""
    job = defs.get_repository_def().get_implicit_global_asset_job_def()
    subset = job.get_subset(asset_selection=set(), asset_check_selection=keys)
    return subset.execute_in_process(run_config=QUIET, instance=world.instance, raise_on_error=False)


ENTRY_POINTS: dict[str, Callable[[World, str], None]] = {
    "check": judge_by_command,
    "audit": judge_by_audit,
    "run": judge_by_run,
}
# The logs of the home are stored tables of one asset, and so are the tables with their hourly copies.
TABLES_OF_ASSETS = sorted(
    {table.full_name for table, _ in STORAGE_CHECKED_ASSETS.values() if table.full_name in TABLES} | {LOGS[0], LOGS[2]}
)


def part_name(table: str, row: Mapping[str, object]) -> str:
    """Return the name of the part that a row of a table belongs to, by the declaration."""
    columns = TABLES[table].part_columns if table in TABLES else ()
    return row_hash.partition_name_from_values(columns, row) if columns else ALL_PARTS


def visible_row(world: World, table: str) -> dict[str, object]:
    """Return a row that a partition of an asset shows."""
    visible_parts = {part.part for part in world.parts(table)}
    rows = [row for row in rows_of(world.folder(table)) if {part_name(table, row), ALL_PARTS} & visible_parts]
    assert rows, f"no asset shows {table}"
    return rows[-1]


def append_foreign_row(world: World, table: str, row: dict[str, object]) -> set[ResultKey]:
    """Append a row as a foreign writer; return the results that it has to fail."""
    folder, changed_part = world.folder(table), part_name(table, row)
    schema = pa.schema(DeltaTable(folder).schema())
    write_deltalake(folder, pa.Table.from_pylist([row], schema=schema), mode="append")
    return result_keys(table, changed_part, ROWS_AS_COMMITTED, COMMITS_KNOWN)


def result_keys(table: str, changed_part: str, *names: str) -> set[ResultKey]:
    """Return the results of these checks on the partitions that show a part of a table."""
    return {
        (part.asset.to_user_string(), str(name), part.partition)
        for part in PARTS[table]
        for name in names
        if ALL_PARTS in (part.part, changed_part) or part.part == changed_part
    }


PARTS: dict[str, list[AssetPart]] = {}
"""The partitions that show each table of the home, recorded while it is sound."""


def changed_statuses(world: World, before: dict[ResultKey, str]) -> dict[ResultKey, str]:
    """Return the results whose status changed, without the plans that a run over all partitions leaves."""
    return {
        key: status for key, status in world.statuses().items() if status != before.get(key) and status != "PLANNED"
    }


@pytest.mark.grid("foreign rows on the partitions of assets", 6)
@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
@pytest.mark.parametrize("table", TABLES_OF_ASSETS)
def test_a_foreign_row_fails_its_partition(world: World, table: str, entry_point: str) -> None:
    """The table's partition fails, all others are unchanged; undoing the commit makes it pass again."""
    before, judge = world.statuses(), ENTRY_POINTS[entry_point]
    expected = append_foreign_row(world, table, visible_row(world, table))
    try:
        judge(world, table)
        assert changed_statuses(world, before) == dict.fromkeys(expected, "FAILED") != {}
    finally:
        undo_commit(world.lake, table, DeltaTable(world.folder(table)).version(), "a test")
    judge(world, table)
    assert changed_statuses(world, before) == {}


def test_foreign_rows_in_all_tables_are_distinguished(world: World) -> None:
    """One audit finds a row in each table, and no partition without one fails."""
    before = world.statuses()
    # Without the table of CDC-enabled tables, the partitions of logs are unknown.
    tables = [table for table in TABLES_OF_ASSETS if table != CDC_TABLES.full_name]
    expected = set().union(*(append_foreign_row(world, table, visible_row(world, table)) for table in tables))
    try:
        judge_by_audit(world, "")
        assert changed_statuses(world, before) == dict.fromkeys(expected, "FAILED")
    finally:
        for table in tables:
            undo_commit(world.lake, table, DeltaTable(world.folder(table)).version(), "a test")
    judge_by_audit(world, "")
    assert changed_statuses(world, before) == {}


def visible_results(world: World, part: AssetPart) -> dict[str, str]:
    """Return what the storage checks show on a partition: passed, failed, or unknown, which is a warning."""
    keys = [AssetCheckKey(part.asset, str(name)) for name in STORAGE_FAMILY.invariants]
    records = world.instance.event_log_storage.get_latest_asset_check_execution_by_key(
        keys, partition_filter=PartitionKeyFilter(key=part.partition)
    )
    result_by_name = {}
    for key, record in records.items():
        event = None if record.event is None else record.event.dagster_event
        evaluation = None if event is None else event.event_specific_data
        assert isinstance(evaluation, AssetCheckEvaluation)
        kind = "unknown" if evaluation.severity is AssetCheckSeverity.WARN else "failed"
        result_by_name[key.name] = "passed" if evaluation.passed else kind
    return result_by_name


def first_file(folder: Path, part: str) -> Path:
    """Return a data file of a part."""
    return next(path for path in map(Path, DeltaTable(folder).file_uris()) if part.partition("=")[2] in str(path))


def damage_file(folder: Path, part: str, row: dict[str, object]) -> None:
    """Overwrite some bytes in the middle of a file."""
    path = first_file(folder, part if TABLES[f"{folder.parent.name}.{folder.name}"].partition_by else "")
    content = bytearray(path.read_bytes())
    content[len(content) // 3 : len(content) // 3 + 40] = b"x" * 40
    path.write_bytes(content)


def remove_row(folder: Path, part: str, row: dict[str, object]) -> None:
    """Remove the row."""
    rewrite(folder, [other for other in rows_of(folder) if other != row])


def duplicate_row(folder: Path, part: str, row: dict[str, object]) -> None:
    """Append the row a second time."""
    schema = pa.schema(DeltaTable(folder).schema())
    write_deltalake(folder, pa.Table.from_pylist([row], schema=schema), mode="append")


def change_value(folder: Path, part: str, row: dict[str, object]) -> None:
    """Change a value of the row."""
    name = "ignore_msb"
    rewrite(folder, [other if other != row else row | {name: 31 - int(str(row[name]))} for other in rows_of(folder)])


def append_invented_row(folder: Path, part: str, row: dict[str, object]) -> None:
    """Append another row of the same part."""
    key = {"range_end": int(str(row["range_end"])) + 1} if "range_end" in row else {"address": "10.9.9.9"}
    duplicate_row(folder, part, row | key)


ROWS_CHANGED = {"files_whole": "passed", "rows_as_committed": "failed", "commits_known": "failed"}
FILE_DAMAGED = {"files_whole": "failed", "rows_as_committed": "unknown", "commits_known": "passed"}
DAMAGE: dict[str, tuple[Callable[[Path, str, dict[str, object]], None], dict[str, str]]] = {
    "a foreign row": (append_invented_row, ROWS_CHANGED),
    "a missing row": (remove_row, ROWS_CHANGED),
    "a doubled row": (duplicate_row, ROWS_CHANGED),
    "a changed value": (change_value, ROWS_CHANGED),
    "a damaged file": (damage_file, FILE_DAMAGED),
}
SOUND = dict.fromkeys(ROWS_CHANGED, "passed")


@pytest.mark.grid("damage on the partitions of assets", 4)
@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("table", [TOPOLOGY_DESCRIPTIONS, NODES], ids=lambda table: table.name)
def test_a_partition_shows_each_damage(world: World, table: Table, kind: str) -> None:
    """Any damage of a partition shows there, and another partition shows that it is sound."""
    damage, expected = DAMAGE[kind]
    folder, row = world.folder(table.full_name), visible_row(world, table.full_name)
    saved = shutil.copytree(folder, world.home / "saved" / kind / table.name)
    damaged = [part for part in PARTS[table.full_name] if part.part == part_name(table.full_name, row)]
    others = [part for part in PARTS[table.full_name] if part not in damaged]
    damage(folder, damaged[0].part or "", row)
    try:
        judge_by_audit(world, "")
        assert [visible_results(world, part) for part in damaged] == [expected] * len(damaged)
        # A damaged file of a table without Delta partitions has rows of all parts, none of which can be read.
        elsewhere = expected if expected is FILE_DAMAGED and not table.partition_by else SOUND
        assert others
        assert [visible_results(world, part) for part in others] == [elsewhere] * len(others)
    finally:
        shutil.rmtree(folder)
        shutil.copytree(saved, folder)
        world.lake.table_cache.revalidate(world.lake.path(table))
    judge_by_audit(world, "")
    assert all(visible_results(world, part) == SOUND for part in (*damaged, *others))


def test_an_unread_partition_does_not_pass(world: World) -> None:
    """Checks of one partition read that one and have no result for the others."""
    table, lake = TOPOLOGY_DESCRIPTIONS, world.lake
    stored = provenance.PartitionDigests(lake, table).names
    first, *rest = [part for part in PARTS[table.full_name] if part.part in stored]
    check = CheckRun.begin(lake, Clock(), "a test")
    result = verify_part(lake, check, table, [first.part])
    assert result is not None
    findings = {line.invariant: line for line in judge_part(result, first.part)}
    assert findings[ROWS_AS_COMMITTED].passed
    assert rest
    for part in rest:
        (line,) = (line for line in judge_part(result, part.part) if line.invariant == ROWS_AS_COMMITTED)
        assert line.unknown
        assert not line.passed
    # The result of an earlier check of the same version still applies.
    assert read_table_checks(lake)[table.full_name].unread == frozenset()


@pytest.fixture
def cluster(rehearsal: Rehearsal) -> Lake:
    """Return the lake of a registered and observed cluster with one ingested log."""
    _, registered = ingested_home(rehearsal.lake.root.parent, [ReadLog("t")])
    lake = Lake(registered.open_home().lake)
    with write_as(WriteSource.OBSERVED):
        ddl = "CREATE TABLE shop.t (p int PRIMARY KEY, v int) WITH cdc = {'enabled': true};"
        cdc_tables.alter_cdc_table(lake, Clock(), "shop", "t", ddl=ddl)
        lake.ensure(log_table(read_table_schema(lake, "shop", "t")))
    return lake


@pytest.mark.parametrize("entry_point", ["audit", "check", "run"])
@pytest.mark.parametrize(
    ("table", "asset", "partition"),
    [
        ("platform.cdc_tables", "platform/observed_cluster", "prod"),
        ("shop.t_scylla_cdc_log", "platform/ingested_log", "prod/shop.t"),
    ],
)
def test_damage_in_the_home_of_a_cluster_shows_on_its_assets(
    rehearsal: Rehearsal, cluster: Lake, table: str, asset: str, partition: str, entry_point: str
) -> None:
    """A foreign commit there fails the partition of the cluster or of the log, and no other."""
    clusters = registry.list_clusters(open_home_location(rehearsal.lake.root.parent))
    world = World(rehearsal.lake.root.parent, rehearsal.lake, rehearsal.instance)
    sync_catalog(world.lake, world.instance, GRAPH, clusters=clusters, most=None)
    folder = cluster.root / table.replace(".", "/")
    keys = {key for key in GRAPH.asset_check_keys if key.asset_key.to_user_string() == asset}
    storage_checks = {key for key in keys if key.name in STORAGE_FAMILY.invariants}

    def judge() -> None:
        if entry_point == "check":
            check = CheckRun.begin(cluster, Clock(), "cdc-platform check")
            assert record_verifications(check, verify_tables(cluster)) is None
        elif entry_point == "audit":
            judge_by_audit(world, "")
        else:
            assert execute_checks(world, storage_checks).success
        sync_catalog(world.lake, world.instance, GRAPH, clusters=clusters, most=None)

    judge()
    before = world.statuses()
    assert {status for key, status in before.items() if key[::2] == (asset, partition)} == {"SUCCEEDED"}
    schema = pa.schema(DeltaTable(folder).schema())
    rows = DeltaTable(folder).to_pyarrow_table().to_pylist()[:1]
    foreign = rows or [{field.name: EXAMPLES[str(field.type)] for field in schema}]
    write_deltalake(folder, pa.Table.from_pylist(foreign, schema=schema), mode="append")
    judge()
    failed = {key for key, status in changed_statuses(world, before).items() if status == "FAILED"}
    assert failed == {(asset, str(name), partition) for name in (ROWS_AS_COMMITTED, COMMITS_KNOWN)}


EXAMPLES = {
    "binary": b"x" * 16,
    "string": "de305d54-75b4-11e5-8bcf-feff819cdc9f",
    "int32": 1,
    "int8": 1,
    "int64": 1,
    "bool": True,
    "timestamp[us, tz=UTC]": datetime(2026, 1, 31, 12, tzinfo=UTC),
}
"""A value for each type of a log's columns."""
