"""Everything that removes data for good decides by verified tables alone.

`SITES` names every place in the product that removes something, with the operations that test it here or the reason
why nothing is lost. Each operation runs on a healthy home, where the test records the tables that it reads. It then
runs on copies in which a foreign program changed a row of one of these tables: it must refuse with the line of `check`
and change nothing.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance
from deltalake import DeltaTable
from support.command_line import run
from support.homes import foreign
from support.homes.contents import contents
from support.homes.expiring import (
    DAY_MS,
    GRACE_MS,
    HOUR_MS,
    IDS,
    START_MS,
    TIMES_MS,
    add_table,
    import_generations,
    iso,
    mark,
    write,
)
from support.worlds.switch_lake import NOON_MS, switching

from cdc_platform.clock import Clock, Microseconds, Milliseconds, format_ms, us_from_ms
from cdc_platform.definitions import defs
from cdc_platform.delta import Lake, TableVerification, verify_tables
from cdc_platform.home_location import open_home_location
from cdc_platform.metastore import cdc_tables, consumers
from cdc_platform.tables import (
    CDC_LOCAL,
    CDC_TABLE_CHANGES,
    CDC_TABLES,
    COMMITTED_GENERATIONS,
    CONSUMERS,
    EXPIRY_MARKS,
    GENERATION_DESCRIPTIONS,
    GENERATION_DESCRIPTIONS_V2,
    NODES,
    STREAM_FINGERPRINTS,
    STREAMS_DESCRIPTIONS,
    STREAMS_DESCRIPTIONS_V2,
    TABLES,
    TABLET_TIMESTAMPS,
    Table,
)
from cdc_platform_assets.catalog_sync.sync import sync_catalog

ROOT = Path(__file__).resolve().parents[2]

# Calls that remove tables, files, folders, objects or Dagster partitions.
REMOVING = frozenset(
    {
        *("delete", "replace_once", "vacuum", "delete_rows", "vacuum_files", "vacuum_table"),
        *("unlink", "rmtree", "rmdir", "removedirs", "delete_dynamic_partition"),
    }
)
STATEMENT = re.compile(r"\s*(DELETE FROM|DROP TABLE|TRUNCATE)\b")

DRAFT = "a draft, a lock, a cache or a temporary file of the process itself"
LAKE = "the lake's own way to do what is asked of it: its callers are named"
FOLLOWS = "rows that are replaced by what follows from other tables, and can be made again"
ASKED = "what a person hands in replaces it, in the same command"
SITES: Mapping[str, str | tuple[str, ...]] = {
    "cdc_platform/lifecycle/expiry.py:_delete_statement": ("expire --cql",),
    "cdc_platform/lifecycle/expiry.py:_remove_timestamps": ("expire", "expire --dry-run", "job expire"),
    "cdc_platform/lifecycle/expiry.py:remove_generation_rows": ("expire", "expire --dry-run", "job expire"),
    "cdc_platform/lifecycle/expiry.py:expire_generations": ("home maintain",),
    "assets/expiry.py:_build_removal_op.remove": ("job expire",),
    "cdc_platform/lifecycle/tablets.py:collect_tablet_sets": ("tablets gc", "job tablet_gc"),
    "cdc_platform/lifecycle/tablets.py:_remove_stream_sets": ("tables drop", "tablets gc after a drop"),
    "cdc_platform/metastore/consumers.py:forget_consumer": ("consumers remove",),
    "cdc_platform/metastore/consumers.py:delete_skipped_sets": ("consumers remove",),
    "cdc_platform/delta/maintenance.py:vacuum_table": ("home maintain", "home maintain --dry-run"),
    "cdc_platform/delta/maintenance.py:maintain_lake.maintain": ("home maintain",),
    "cdc_platform/home/maintenance.py:trim_log_files": "captured output past its limits of age and size",
    "cdc_platform/home/maintenance.py:_remove_if_empty": "folders without a file",
    "cdc_platform/json_logs.py:open_service_log": "the log of a service's earlier start",
    "assets/dagster_history.py:trim_runs": "files of a removed run, whose events are superseded or of no partition",
    "assets/dagster_history.py:_remove_database": "files of runs that were removed",
    "assets/catalog_sync/sync.py:_sync_partitions": ("catalogue",),
    "assets/catalog_sync/sync.py:_remove_old_hours": "partitions in Dagster by age alone; the tables have the hours",
    "cdc_platform/scylla/registry.py:remove_cluster": "an address, which `cluster add` brings back",
    "cdc_platform/scylla/registry.py:renew_cluster": "an address beside the home that was moved aside, which is kept",
    "cdc_platform/alerts/hooks.py:forget_alerts": "up to where a hook was told: it starts with what comes next",
    "cdc_platform/ingest/replica/merge.py:RangeMerger._replace": FOLLOWS,
    "cdc_platform/cdclog/consumer/hourly.py:_replace_rows": FOLLOWS,
    "cdc_platform/lifecycle/join/publish.py:write_published_streams": FOLLOWS,
    "cdc_platform/metastore/cdc_tables.py:complete_cdc_tables": FOLLOWS,
    "cdc_platform/checks/uniqueness.py:store_fingerprints": FOLLOWS,
    "cdc_platform/generations/placement.py:find_repeated_streams": "numbers of an array",
    "cdc_platform/metastore/check_results.py:store_check_results": "judgements that newer ones replace",
    "cdc_platform/metastore/table_checks.py:store_table_checks": "verifications that newer ones replace",
    "cdc_platform/metastore/log_gaps.py:record_log_gaps": "gaps that are noted, merged with those that overlap them",
    "cdc_platform/metastore/log_gaps.py:accept_log_gaps": ASKED,
    "cdc_platform/metastore/cluster_changes.py:store_omitted_items": "what the look before this one left out",
    "cdc_platform/metastore/ring.py:replace_ring": ASKED,
    "cdc_platform/metastore/cdc_local.py:forget_nodes": ASKED,
    "cdc_platform/importing/run.py:_write_plan": ASKED,
    "cdc_platform/delta/foreign_commits.py:_move_entries": "an unreadable entry of a log, of which a copy lies aside",
    "cdc_platform/cli/repair.py:_restore_rows": "a pointer to a checkpoint that is not there",
    "cdc_platform/cql/ast.py:Truncate": "words",
    "cdc_platform/home_location.py:remove_empty_home": "what the same command made",
    "cdc_platform/home_migration.py:_replace_files": "the journal of a migration whose files are all replaced",
    "cdc_platform/home_migration.py:undo_migration": "the journal of a migration whose files are all restored",
    "cdc_platform/home_migration.py:remove_leftovers": "copies of files that a migration has replaced or restored",
    "cdc_platform/cli/home.py:copy": "the note of a copy that is whole",
    "cdc_platform/cli/up.py:_start_services": DRAFT,
    "cdc_platform/storage/atomic.py:_remove": DRAFT,
    "cdc_platform/spark/connect.py:ConnectServer.stop": DRAFT,
    "cdc_platform/storage/write_check.py:_remove_probes": DRAFT,
    "cdc_platform/storage/write_check.py:_read_probe_result": DRAFT,
    "cdc_platform/delta/lake_copy.py:_copy_file": DRAFT,
    "cdc_platform/delta/maintenance.py:remove_leftover_probes": DRAFT,
    "cdc_platform/spark/jars.py:_fetch_jars": DRAFT,
    "cdc_platform/storage/leases.py:is_any_lease_renewed": DRAFT,
    "cdc_platform/delta/log_mirror.py:LogMirror._put_file": DRAFT,
    "cdc_platform/delta/locks.py:shared_lock": DRAFT,
    "cdc_platform/instance_lock.py:_sweep": DRAFT,
    "cdc_platform/delta/lake.py:Lake.delete": LAKE,
    "cdc_platform/delta/lake.py:Lake.vacuum": LAKE,
    "cdc_platform/delta/writer.py:delete_rows": LAKE,
    "cdc_platform/delta/writer.py:delete_rows.commit": LAKE,
    "cdc_platform/delta/compaction.py:list_unneeded_files": LAKE,
    "cdc_platform/delta/compaction.py:vacuum_files": LAKE,
    "cdc_platform/delta/verification.py:_TableExamination._list_unnamed": LAKE,
    "cdc_platform/storage/path.py:LocalPath.remove": LAKE,
    "cdc_platform/storage/object_store.py:ObjectStorePath.remove": LAKE,
}
"""Every place that removes something: the operations that test it, or why nothing is lost there."""
WITHOUT_SITE = ("switch commit", "switch abort", "job plan_expiry", "expire --dry-run")
"""Operations that cannot be undone or that preview a removal, and remove nothing themselves."""


def is_removal(node: ast.AST) -> bool:
    """Return True if a node of the syntax tree removes something."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and STATEMENT.match(node.value) is not None
    if not isinstance(node, ast.Call) or not isinstance(node.func, (ast.Attribute, ast.Name)):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
    arguments = {keyword.arg for keyword in node.keywords}
    if name == "remove":  # the `remove` of a path; that of a list has an argument
        return not node.args and not arguments
    return name in REMOVING or (name == "transact" and "whole" in arguments)


def find_removal_sites() -> set[str]:
    """Return every function of the product that removes something, by module and name."""

    def inside(node: ast.AST, name: str) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            below = f"{name}.{child.name}".lstrip(".") if named else name
            if is_removal(child):
                yield below
            yield from inside(child, below)

    modules = [path for folder in ("cdc_platform", "assets", "resources") for path in (ROOT / folder).rglob("*.py")]
    return {
        f"{path.relative_to(ROOT)}:{name}"
        for path in modules
        for name in inside(ast.parse(path.read_text(encoding="utf-8")), "")
    }


def test_every_removal_site_is_listed() -> None:
    """Each removal in the code is listed in `SITES`, and each operation belongs to a site."""
    assert find_removal_sites() == set(SITES)
    tried = {name for reason in SITES.values() if isinstance(reason, tuple) for name in reason}
    assert tried | set(WITHOUT_SITE) == {*OPERATIONS, *FILES}


Run = Callable[[Path], str | None]
"""Runs an operation on a home; returns its refusal, or None if it succeeded."""


@dataclass(frozen=True)
class Operation:
    """An operation that cannot be undone.

    `prepare` creates a home in the given folder in which the operation has something to do. `others`: tables that it
    reads and does not decide by. `is_shown`: it changes nothing by itself. `changes`: names of the foreign changes to
    test.
    """

    prepare: Callable[[Path], None]
    run: Run
    others: tuple[Table, ...] = ()
    is_shown: bool = False
    changes: tuple[str, ...] = tuple(foreign.CHANGES)


def command_at(*words: str, at: str) -> Run:
    """Return a function that runs a command at a time."""

    def execute(home: Path) -> str | None:
        arguments = [(home.parent / "generation").read_text() if word == "@generation" else word for word in words]
        answer = run("--home", home, "--clock", at, *arguments)
        if answer.exit_code:
            assert answer.exit_code in (1, 2), answer
            assert answer.stdout == "" or answer.exit_code == 1, answer
        return answer.stderr if answer.exit_code else None

    return execute


def job_at(name: str, at: str, partition: str | None = None) -> Run:
    """Return a function that runs a Dagster job at a time."""

    def execute(home: Path) -> str | None:
        config = {
            "loggers": {"console": {"config": {"log_level": "CRITICAL"}}},
            "resources": {"clock": {"config": {"stopped_at": at}}, "home": {"config": {"path": str(home)}}},
        }
        with DagsterInstance.ephemeral() as instance:
            if partition is not None:
                instance.add_dynamic_partitions("tablet_table", [partition])
            result = defs.resolve_job_def(name).execute_in_process(
                run_config=config, instance=instance, raise_on_error=False, partition_key=partition
            )
        if result.success:
            return None
        failures = [event.step_failure_data.error for event in result.all_events if event.is_step_failure]
        return "\n".join(str(error) for error in failures)

    return execute


def catalogue(home: Path) -> str | None:
    """Synchronize Dagster with the home while it still has a partition of the removed generation."""
    with DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("generation", [iso(TIMES_MS[0])])
        synced = sync_catalog(Lake(home / "lake"), instance, defs.resolve_asset_graph(), most=0)
        remaining = instance.get_dynamic_partitions("generation")
    assert (iso(TIMES_MS[0]) in remaining) == bool(synced.refused)
    return synced.refused or None


NOW_MS = Milliseconds(START_MS + 60 * DAY_MS)
NOW = iso(NOW_MS)


def expiring(home: Path) -> None:
    """Create four generations; three may be removed, though each table that could retain them has rows."""
    import_generations(home.parent)
    lake = Lake(home / "lake")
    add_table(lake, 3600)
    cdc_tables.alter_cdc_table(lake, Clock(us_from_ms(Milliseconds(START_MS + 31 * DAY_MS))), "ks", "t", ttl_seconds=60)
    consumers.register_consumer(lake, Clock(us_from_ms(START_MS)), "audit", "ks", "t", position_us=us_from_ms(NOW_MS))
    node = {"host_id": IDS[3], "address": "a", "datacenter": "d", "rack": "r", "features": [], "tokens": [1]}
    write(lake, NODES, node | {"status": "NORMAL", "shard_count": 1, "ignore_msb": 0})
    write(lake, CDC_LOCAL, {"host_id": IDS[3], "key": "cdc_local", "streams_timestamp": TIMES_MS[3], "uuid": IDS[3]})
    write(lake, COMMITTED_GENERATIONS, {"time": TIMES_MS[3], "generation_id": IDS[3]})
    write(lake, TABLET_TIMESTAMPS, {"keyspace_name": "ks", "table_name": "tabs", "timestamp": START_MS})
    entry = {"token_range_end": 1, "streams": [b"\0" * 16], "sharding_ignore_msb": 0}
    write(lake, GENERATION_DESCRIPTIONS, {"time": TIMES_MS[3], "description": [entry]})
    write(lake, STREAMS_DESCRIPTIONS, {"time": TIMES_MS[3], "streams": [b"\0" * 16]})
    assert mark(lake, Milliseconds(NOW_MS - GRACE_MS)) == 3


def after_expiry(home: Path) -> None:
    """Create the same home after the removal."""
    expiring(home)
    assert run("--home", home, "--clock", NOW, "expire").exit_code == 0


def tablets(home: Path) -> None:
    """Create a table with two removable stream sets, and a consumer that has read them."""
    for hour, (change, count) in enumerate((("create", 2), ("split", 4), ("split", 8))):
        words = ("tablets", change, "ks.t", "--count", str(count))
        answer = run("--home", home, "--clock", iso(Milliseconds(START_MS + hour * HOUR_MS)), *words)
        assert answer.exit_code == 0, answer.stderr
    consumers.register_consumer(
        Lake(home / "lake"), Clock(us_from_ms(START_MS)), "audit", "ks", "t", position_us=us_from_ms(NOW_MS)
    )


def dropped(home: Path) -> None:
    """Create a table whose log was dropped by a process that died before removing the stream sets."""
    tablets(home)
    cdc_tables.drop_cdc_table(Lake(home / "lake"), Clock(us_from_ms(NOW_MS)), "ks", "t")


def skipped_by_consumer(home: Path) -> None:
    """Register a consumer that skipped a generation."""
    lake = Lake(open_home_location(home).lake)
    consumers.register_consumer(lake, Clock(Microseconds(1)), "audit", "ks", "t", position_us=Microseconds(0))
    consumers.record_skipped_sets(lake, Clock(Microseconds(1)), ("audit", "ks", "t"), [Microseconds(0)])


def acknowledged(answers: int) -> Callable[[Path], None]:
    """Return a function that prepares a switch acknowledged by `answers` of its three participants."""

    def prepare(home: Path) -> None:
        id_ = switching(Lake(open_home_location(home).lake), answers)
        (home.parent / "generation").write_text(id_, encoding="utf-8")

    return prepare


LATE = format_ms(Milliseconds(NOON_MS + 30_000))
GOES = (GENERATION_DESCRIPTIONS_V2, STREAMS_DESCRIPTIONS_V2)
"""Rows that are removed with their generation, whatever their content."""
SHOWN = (CDC_TABLES, CDC_TABLE_CHANGES, CONSUMERS, TABLET_TIMESTAMPS, EXPIRY_MARKS, STREAM_FINGERPRINTS)
"""Tables that Dagster's catalog shows but does not identify generations by."""
OPERATIONS = {
    "expire": Operation(expiring, command_at("expire", at=NOW), GOES),
    "expire --dry-run": Operation(expiring, command_at("expire", "--dry-run", at=NOW), is_shown=True),
    "expire --cql": Operation(expiring, command_at("expire", "--cql", at=NOW), is_shown=True),
    "job expire": Operation(expiring, job_at("expire", NOW), GOES),
    "job plan_expiry": Operation(lambda home: unmarked(home), job_at("plan_expiry", NOW)),
    "tablets gc": Operation(tablets, command_at("tablets", "gc", at=NOW)),
    "job tablet_gc": Operation(tablets, job_at("tablet_gc", NOW, "ks.t")),
    "tablets gc after a drop": Operation(dropped, command_at("tablets", "gc", at=NOW)),
    "tables drop": Operation(tablets, command_at("tables", "drop", "ks.t", at=NOW)),
    "consumers remove": Operation(skipped_by_consumer, command_at("consumers", "remove", "audit", "ks.t", at=NOW)),
    "switch commit": Operation(acknowledged(3), command_at("switch", "commit", "@generation", at=LATE)),
    "switch abort": Operation(acknowledged(1), command_at("switch", "abort", "@generation", at=LATE)),
    # A generation is not removed without its record, and an invalid UUID ends the tick earlier.
    "catalogue": Operation(after_expiry, catalogue, SHOWN, is_shown=True, changes=("a doubled row",)),
}
"""Operations that cannot be undone, by name; those on files are listed below."""
SLOW = frozenset({name for name in OPERATIONS if name.startswith("job ")})


FILES = {
    "home maintain": ("home", "maintain"),
    "home maintain --dry-run": ("home", "maintain", "--dry-run"),
}
"""Commands that remove files, which decide by the tables' logs alone."""


def unmarked(home: Path) -> None:
    """Create generations that have expired and are not marked."""
    import_generations(home.parent)
    add_table(Lake(home / "lake"), 3600)


@dataclass(frozen=True)
class Healthy:
    """A home before an operation, and the tables with rows that the operation reads."""

    home: Path
    reads: tuple[Table, ...]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Healthy]:
    """Create an operation's home once, run the operation on a copy, and record the tables that it reads."""
    homes: dict[str, Healthy] = {}

    def make(name: str) -> Healthy:
        if name not in homes:
            folder, operation = tmp_path_factory.mktemp("healthy"), OPERATIONS[name]
            home = folder / "home"
            operation.prepare(home)
            before = contents(home)
            with pytest.MonkeyPatch.context() as patch:
                table_names = record_read_tables(patch)
                copy = copy_home(home, tmp_path_factory.mktemp("copy"))
                assert operation.run(copy) is None
            assert (contents(copy) == before) == operation.is_shown, f"{name} had nothing to do"
            with_rows = [
                table for table in TABLES.values() if table.full_name in table_names and before[table.full_name]
            ]
            homes[name] = Healthy(home, tuple(table for table in with_rows if table not in operation.others))
        return homes[name]

    return make


def record_read_tables(patch: pytest.MonkeyPatch) -> set[str]:
    """Return a set that collects the names of the tables read or changed from now on."""
    table_names: set[str] = set()
    for method in ("read", "read_partitions", "open_for_write"):
        own = getattr(Lake, method)

        def record(self: Lake, table: Table, *args: Any, own: Any = own, **options: Any) -> Any:
            table_names.add(table.full_name)
            return own(self, table, *args, **options)

        patch.setattr(Lake, method, record)
    return table_names


def copy_home(home: Path, folder: Path) -> Path:
    """Copy a home and everything beside it."""
    shutil.copytree(home.parent, folder, dirs_exist_ok=True)
    return folder / home.name


def versions(home: Path) -> dict[str, int | None]:
    """Return the version of each table."""
    lake = Lake(home / "lake")
    return {name: lake.version(table) for name, table in TABLES.items()}


@pytest.mark.grid("foreign changes before removals", 8)
@pytest.mark.parametrize(
    ("name", "change"),
    [(name, change) for name in OPERATIONS if name not in SLOW for change in OPERATIONS[name].changes],
)
@pytest.mark.long("a command for each table that an operation decides by")
def test_operation_refuses_foreign_rows(
    name: str, change: str, healthy: Callable[[str], Healthy], tmp_path: Path
) -> None:
    """If a foreign program changed a table that it reads, an operation refuses as `check` does and changes nothing."""
    prepared = healthy(name)
    assert prepared.reads
    for table in prepared.reads:
        assert_refuses(name, prepared.home, table, change, tmp_path / table.full_name)


@pytest.mark.dagster
@pytest.mark.parametrize("name", sorted(SLOW))
@pytest.mark.long("a run of Dagster for each table that a job decides by")
def test_job_refuses_foreign_rows(name: str, healthy: Callable[[str], Healthy], tmp_path: Path) -> None:
    """A job neither removes nor marks anything then; the run's failure has the line of `check`."""
    prepared = healthy(name)
    for table in prepared.reads:
        assert_refuses(name, prepared.home, table, "an UPDATE", tmp_path / table.full_name)


def assert_refuses(name: str, home: Path, table: Table, change: str, folder: Path) -> None:
    """Assert that an operation refuses after a foreign change to one table of its home."""
    copy = copy_home(home, folder)
    foreign.CHANGES[change](Path(Lake(copy / "lake").path(table)))
    complaint = foreign.complaint_about(Lake(copy / "lake"), table)
    before = versions(copy)
    refusal = OPERATIONS[name].run(copy)
    assert refusal is not None, f"{name} went through after {change} in {table.full_name}"
    assert complaint in " ".join(refusal.split()), (table.full_name, complaint, refusal)
    assert versions(copy) == before, f"{name} changed a table after {change} in {table.full_name}"


@pytest.mark.grid("damage before removals", 3)
@pytest.mark.long("a command for each table that an operation decides by")
@pytest.mark.parametrize("damage", ["missing file", "log gone", "log entry damaged"])
@pytest.mark.parametrize("name", ["expire", "tablets gc", "consumers remove", "switch commit"])
def test_operation_refuses_damaged_table(
    name: str, damage: str, healthy: Callable[[str], Healthy], tmp_path: Path
) -> None:
    """An operation names a damaged table (missing data file, truncated entry, no log) and removes nothing."""
    prepared = healthy(name)
    for table in prepared.reads:
        copy = copy_home(prepared.home, tmp_path / table.full_name)
        spoil(Path(Lake(copy / "lake").path(table)), damage)
        before = list_files(copy)
        refusal = OPERATIONS[name].run(copy)
        assert refusal is not None, f"{name} went through: {damage} of {table.full_name}"
        assert table.full_name in refusal, (table.full_name, refusal)
        assert list_files(copy) == before


def list_files(home: Path) -> list[str]:
    """Return the files of all tables."""
    tables = [path for path in (home / "lake").glob("*/*/**/*") if path.is_file()]
    return sorted(str(path.relative_to(home)) for path in tables)


def spoil(folder: Path, damage: str) -> None:
    """Damage a table's files."""
    log = folder / "_delta_log"
    if damage == "missing file":
        Path(DeltaTable(folder).file_uris()[0]).unlink()
    elif damage == "log gone":
        shutil.rmtree(log)
    else:
        newest = sorted(log.glob("*.json"))[-1]
        newest.write_bytes(newest.read_bytes()[:-20])


def with_stray_files(home: Path) -> None:
    """Create tables with an old file that no commit names."""
    expiring(home)
    for table in (CDC_TABLES, CDC_TABLE_CHANGES, CONSUMERS, NODES):
        stray = home / "lake" / table.keyspace / table.name / "part-0.parquet"
        stray.write_bytes(b"PAR1")
        os.utime(stray, (1e9, 1e9))


@pytest.mark.parametrize("words", FILES.values(), ids=list(FILES))
@pytest.mark.parametrize("damage", [*foreign.CHANGES, "log entry missing"])
def test_maintenance_retains_files_of_damaged_or_foreign_log(
    words: tuple[str, ...], damage: str, tmp_path: Path
) -> None:
    """Maintenance retains the files of that table for a repair, removes those of other tables, and exits with 1."""
    home = tmp_path / "home"
    with_stray_files(home)
    folder = home / "lake" / CDC_TABLE_CHANGES.keyspace / CDC_TABLE_CHANGES.name
    if damage in foreign.CHANGES:
        foreign.CHANGES[damage](folder)
    else:
        sorted((folder / "_delta_log").glob("*.json"))[1].unlink()
    verification = verify_changes(home)
    answer = run("--home", home, *words)
    assert answer.exit_code == 1
    message = (
        verification.foreign[0] if damage in foreign.CHANGES else f"{verification.name}: version 1 of its log is gone"
    )
    assert message in answer.stderr
    remaining = [path.parent.name for path in (home / "lake").glob("*/*/part-0.parquet")]
    assert remaining == ["cdc_table_changes"] or ("--dry-run" in words and len(remaining) == 4)


def test_files_are_removed_after_foreign_commits_are_accepted(tmp_path: Path) -> None:
    """Maintenance that was refused succeeds after the foreign commits are accepted."""
    home = tmp_path / "home"
    with_stray_files(home)
    foreign.changed_row(home / "lake" / CDC_TABLE_CHANGES.keyspace / CDC_TABLE_CHANGES.name)
    assert run("--home", home, "home", "maintain").exit_code == 1
    for commit in verify_changes(home).foreign:
        version = commit.partition(":")[0].rpartition(" ")[2]
        words = ("--accept", f"{CDC_TABLE_CHANGES.full_name}@{version}", "--reason", "it is meant")
        assert run("--home", home, "check", *words).exit_code == 0
    assert run("--home", home, "home", "maintain").exit_code == 0
    assert not list((home / "lake").glob("*/*/part-0.parquet"))


def verify_changes(home: Path) -> TableVerification:
    """Return the verification of the table of changes."""
    (verification,) = verify_tables(Lake(home / "lake"), names=[CDC_TABLE_CHANGES.full_name])
    return verification
