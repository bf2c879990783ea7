"""Maintenance deletes unneeded files of tables by age alone, in folders, in object stores and in homes below."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from dagster import DagsterInstance, RunRequest, SkipReason
from support.command_line import run
from support.drawing import SEED
from support.homes.every_table import LOGS, every_table
from support.processes.nursery import Nursery
from support.store.s3 import S3
from support.worlds.rehearsal import QUIET

from cdc_platform import failpoints
from cdc_platform.checks import audit_stored
from cdc_platform.clock import Clock
from cdc_platform.definitions import defs
from cdc_platform.delta import (
    TABLE_TASKS,
    VERSION_RETENTION,
    Lake,
    MaintenanceTask,
    WriteSource,
    files,
    read_maintenance,
    verify_tables,
    write_as,
)
from cdc_platform.delta.maintenance import TableMaintenance
from cdc_platform.delta.open_table import open_table
from cdc_platform.delta.versions import iter_table_folders
from cdc_platform.home import list_lakes
from cdc_platform.home_location import HOME_VARIABLE, open_home_location
from cdc_platform.metastore import cdc_tables
from cdc_platform.scylla import Connection, registry
from cdc_platform.storage import StoragePath, leases, parse_path, write_check
from cdc_platform.tables import TABLES
from cdc_platform_assets.checks import VIOLATED_TAG
from cdc_platform_assets.maintenance import MAINTENANCE_JOB, request_scheduled_maintenance
from cdc_platform_assets.specs import pool_from_table

HOUR = timedelta(hours=1)
YOUNG, OLD = (VERSION_RETENTION + by for by in (-HOUR, HOUR))


class Aged:
    """A home in a folder or a store whose files can be made older."""

    def __init__(self, home: str, s3: S3, draft: Path) -> None:
        self.home, self._s3, self._draft = home, s3, draft

    def put(self, file: StoragePath, age: timedelta) -> StoragePath:
        """Write a file that no commit names, with this age."""
        self.write(file, b"PAR1")
        return self.aged(file, age)

    def write(self, file: StoragePath, content: bytes) -> None:
        """Write a file of this content, replacing any other."""
        self._draft.write_bytes(content)
        file.receive(self._draft)

    def aged(self, file: StoragePath, age: timedelta) -> StoragePath:
        """Give a file this age."""
        if file.local_path is None:
            self._s3.is_old(str(file), age.total_seconds())
        else:
            at = file.local_path.stat().st_mtime - age.total_seconds()
            os.utime(file.local_path, (at, at))
        return file


@pytest.fixture(params=["folder", "store"])
def aged(request: pytest.FixtureRequest, s3: S3, tmp_path: Path) -> Aged:
    """A home with rows in two tables, and a cluster's home below it."""
    home = str(tmp_path / "home") if request.param == "folder" else f"{s3.bucket()}/home"
    cluster = registry.add_cluster(open_home_location(home), "prod", Connection(contacts=("127.0.0.1:1",)))
    for location in (home, cluster.at):
        with write_as(WriteSource.OBSERVED):
            cdc_tables.add_cdc_table(Lake(open_home_location(location).lake), Clock(), "ks", "t", ttl_seconds=60)
            cdc_tables.alter_cdc_table(
                Lake(open_home_location(location).lake), Clock(), "ks", "t", ttl_seconds=5, enabled=None
            )
    return Aged(home, s3, tmp_path / "draft")


def tables(home: str) -> list[tuple[str | None, str, StoragePath]]:
    """Return the home, name and folder of each table of a home and of the home below it."""
    below = [(None, "lake"), ("clusters/prod", "clusters/prod/lake")]
    return [
        (at, name, parse_path(path))
        for at, lake in below
        for name, path in iter_table_folders(parse_path(f"{home}/{lake}"))
    ]


def exists(files: list[StoragePath]) -> list[bool]:
    """Return which files exist."""
    return [file.stat() is not None for file in files]


def test_files_go_by_age_alone(aged: Aged) -> None:
    """Maintenance deletes old unnamed files, spares young and named ones, and finds nothing in a second run."""
    old, young, named = [], [], []
    for _, _, table in tables(aged.home):
        named += [aged.aged(parse_path(path), 9 * OLD) for path in files.list_paths(open_table(str(table)))]
        old += [aged.put(table / "part-old.parquet", OLD), aged.put(table / "k=1" / "part-old.parquet", OLD)]
        young += [aged.put(table / "part-young.parquet", YOUNG)]
    listed = [
        line
        for lake in list_lakes(open_home_location(aged.home)).values()
        for result in verify_tables(lake)
        for line in result.unnamed
    ]
    assert len(listed) == len(old) + len(young)
    dry = run("--home", aged.home, "home", "maintain", "--dry-run", "--json")
    assert (dry.exit_code, exists([*old, *young, *named])) == (0, [True] * (len(old) + len(young) + len(named)))
    due = [{"home": at, **asdict(TableMaintenance(name, files=2))} for at, name, _ in tables(aged.home)]
    assert dry.rows == due
    maintained = run("--home", aged.home, "home", "maintain", "--json")
    assert (maintained.exit_code, maintained.rows) == (0, due), maintained
    assert (exists(old), exists([*young, *named])) == ([False] * len(old), [True] * (len(young) + len(named)))
    second = run("--home", aged.home, "home", "maintain", "--json")
    assert [result["files"] for result in second.rows] == [0] * len(due)
    for lake in list_lakes(open_home_location(aged.home)).values():
        for result in verify_tables(lake, deep=True):
            assert (result.damage, result.unexpected, result.foreign) == ([], [], [])
            assert len(result.unnamed) == 1


def test_removed_files_go_a_week_after_their_commit(aged: Aged) -> None:
    """The time of the commit decides, not the age of the file; the replacement files stay."""
    for _, _, table in tables(aged.home):
        for path in list_removed(table):
            aged.aged(table / path, 9 * OLD)
    assert not any(row["files"] for row in run("--home", aged.home, "home", "maintain", "--json").rows)
    removed = []
    for _, _, table in tables(aged.home):
        removed += [table / path for path in list_removed(table)]
        backdate(table, OLD, aged)
    assert removed
    assert all(exists(removed))
    result = run("--home", aged.home, "home", "maintain", "--json")
    assert (result.exit_code, sum(row["files"] for row in result.rows), any(exists(removed))) == (
        0,
        len(removed),
        False,
    )


def list_removed(table: StoragePath) -> list[str]:
    """Return the files that commits of a table have removed."""
    log = table / "_delta_log"
    actions = (
        json.loads(line) for name in log.names() if name.endswith(".json") for line in (log / name).read().splitlines()
    )
    return [action["remove"]["path"] for action in actions if "remove" in action]


def backdate(table: StoragePath, age: timedelta, aged: Aged) -> None:
    """Backdate the removals in a table's commits by `age`."""
    log = table / "_delta_log"
    for name in (name for name in log.names() if name.endswith(".json")):
        actions = [json.loads(line) for line in (log / name).read().splitlines()]
        for removal in (removal["remove"] for removal in actions if "remove" in removal):
            removal["deletionTimestamp"] -= int(age / timedelta(milliseconds=1))
        text = "".join(f"{json.dumps(removal)}\n" for removal in actions)
        aged.write(log / name, text.encode())


def test_a_damaged_table_is_reported_and_others_are_maintained(aged: Aged) -> None:
    """A damaged table causes one warning and exit code 1; the other tables are still cleared."""
    (_, first, damaged), *others = tables(aged.home)
    unneeded = [aged.put(table / "part-old.parquet", OLD) for _, _, table in others]
    for name in (damaged / "_delta_log").names():
        aged.put(damaged / "_delta_log" / name, timedelta())
    result = run("--home", aged.home, "home", "maintain")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1), result
    assert first in result.stderr
    assert "[not-kept-up]" in result.stderr
    assert not any(exists(unneeded))


def littered(folder: Path, s3: S3) -> tuple[Path, list[StoragePath]]:
    """Return a home with unneeded files in every table."""
    home = every_table(folder)
    aged = Aged(str(home), s3, folder / "draft")
    unneeded = [aged.put(table / f"part-{n}.parquet", OLD) for _, _, table in tables(str(home)) for n in range(2)]
    assert len(unneeded) >= 2 * len({*TABLES, *LOGS})
    return home, unneeded


def assert_cleared(home: Path, unneeded: list[StoragePath]) -> None:
    """Assert that the unneeded files are gone and that the home passes a deep check."""
    assert not any(exists(unneeded))
    for verification in verify_tables(Lake(home / "lake"), deep=True):
        assert (verification.damage, verification.unexpected, verification.foreign, verification.unnamed) == (
            [],
            [],
            [],
            [],
        )


@pytest.mark.long("tables of every kind, of which most are written to twice")
def test_concurrent_maintenance_runs_equal_one(s3: S3, nursery: Nursery, tmp_path: Path) -> None:
    """Eight concurrent runs leave the state that one leaves, and none fails."""
    home, unneeded = littered(tmp_path, s3)
    runs = nursery.race([["--home", str(home), "home", "maintain"]] * 8)
    assert [result.exit_code for result in runs] == [0] * 8, runs
    assert_cleared(home, unneeded)


@pytest.mark.long("tables of every kind, of which most are written to twice")
def test_a_killed_maintenance_run_is_completed_by_the_next(s3: S3, nursery: Nursery, tmp_path: Path) -> None:
    """After a kill before any operation, the next run leaves the state of an undisturbed run."""
    if nursery.refusal:
        pytest.skip(nursery.refusal)
    home, unneeded = littered(tmp_path, s3)
    shutil.copytree(home, tmp_path / "twin")
    whole = nursery.traced(["--home", str(tmp_path / "twin"), "home", "maintain"], tmp_path / "twin")
    assert whole.exit_code == 0, whole
    count, dice = len(whole.operations), random.Random(SEED)
    for before in sorted(dice.sample(range(count // 2), 2)):
        killed = nursery.traced(["--home", str(home), "home", "maintain"], home, before)
        assert killed.exit_code == -9, f"before operation {before} of {count}"
    assert run("--home", home, "home", "maintain").exit_code == 0
    assert_cleared(home, unneeded)


def test_dagster_maintains_tables_every_day(aged: Aged, monkeypatch: pytest.MonkeyPatch) -> None:
    """The schedule requests a run if tables exist; the run clears all tables and names a damaged one."""
    monkeypatch.setenv(HOME_VARIABLE, aged.home)
    unneeded = [aged.put(table / "part-old.parquet", OLD) for _, _, table in tables(aged.home)]
    with DagsterInstance.ephemeral() as instance:
        request = request_scheduled_maintenance(open_home_location(aged.home), instance, datetime(2026, 1, 1))
        assert isinstance(request, RunRequest)
        empty = open_home_location(
            f"{aged.home}/empty" if aged.home.startswith("s3:") else str(Path(aged.home).parent / "empty")
        )
        assert isinstance(request_scheduled_maintenance(empty, instance, datetime(2026, 1, 1)), SkipReason)
        job = defs.resolve_job_def(MAINTENANCE_JOB)
        assert job.execute_in_process(run_config=QUIET, instance=instance).success
        assert not any(exists(unneeded))
        for path, lake in list_lakes(open_home_location(aged.home)).items():
            trimmed = () if path else (MaintenanceTask.LOG_FILES, MaintenanceTask.DAGSTER_RUNS)
            assert set(read_maintenance(lake)) == {*TABLE_TASKS, *trimmed}
        (_, name, damaged), *_ = tables(aged.home)
        for entry in (damaged / "_delta_log").names():
            aged.put(damaged / "_delta_log" / entry, timedelta())
        failed = job.execute_in_process(run_config=QUIET, instance=instance, raise_on_error=False)
        assert not failed.success
        assert any(
            name in (event.message or "") + str(event.event_specific_data)
            for event in failed.all_events
            if event.is_failure
        )


def test_each_step_holds_the_pool_of_its_table() -> None:
    """Each step uses the pool of its table, as writing steps do; one more pool is for undeclared tables."""
    nodes = defs.resolve_job_def(MAINTENANCE_JOB).graph.nodes
    pools = {pool for node in nodes for pool in node.definition.pools}
    assert {pool_from_table(table) for table in TABLES.values()} <= pools
    assert "platform/logs" in pools


def test_a_violation_shows_on_the_run_and_in_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daily check fails no step; its run names each violation, and status shows it with its time."""
    home = every_table(tmp_path)
    monkeypatch.setenv(HOME_VARIABLE, str(home))
    lake = Lake(home / "lake")
    damaged = lake.data_files(TABLES["platform.nodes"])[0].path
    Path(damaged).write_bytes(b"PAR1")
    with DagsterInstance.ephemeral() as instance:
        job = defs.resolve_job_def(MAINTENANCE_JOB)
        result = job.execute_in_process(
            run_config=QUIET, instance=instance, raise_on_error=False, op_selection=["check_homes"]
        )
        assert result.success
        run_now = instance.get_run_by_id(result.run_id)
        assert run_now is not None
        assert "files_whole" in run_now.tags[VIOLATED_TAG]
    assert MaintenanceTask.CHECK in read_maintenance(lake)
    failed = run("--home", home, "status", "--json").facts["checks"]["failed"]
    assert "files_whole" in {result["invariant"] for result in failed}


def home_of_killed_probe(s3: S3) -> tuple[str, list[StoragePath]]:
    """Return a home whose first writer was killed while it probed the store, and the files that it left."""
    home = f"{s3.bucket()}/home"
    command = [sys.executable, "-m", "cdc_platform", "--home", home, "tables", "add", "ks.t", "--ttl", "60"]
    killed = subprocess.run(
        command, env=os.environ | {failpoints.KILL_AT_VARIABLE: failpoints.AFTER_STORE_TRIED}, timeout=120
    )
    assert killed.returncode == -signal.SIGKILL
    probe_folder = parse_path(f"{home}/{write_check.PROBE_FOLDER}")
    leftovers = [probe_folder / name for name in probe_folder.names()]
    assert leftovers
    return home, leftovers


def test_leftovers_of_a_killed_store_probe_go_by_age(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check lists the leftovers, maintenance deletes only old ones, and the next writer probes the store again."""
    home, leftovers = home_of_killed_probe(s3)
    # Let the killed writer's lease, which is not renewed, expire at once.
    monkeypatch.setattr(leases, "STALE_SECONDS", 1.0)
    added = run("--home", home, "tables", "add", "ks.t", "--ttl", "60")
    assert (added.exit_code, exists(leftovers)) == (0, [True] * len(leftovers)), added
    verifications = verify_tables(Lake(f"{home}/lake"))
    assert [
        len(verification.unnamed) for verification in verifications if verification.name == write_check.PROBE_FOLDER
    ] == [len(leftovers)]
    (result,) = (line for line in audit_stored(verifications) if line.invariant == "files_whole")
    assert (result.violations, "is left by a store probe" in result.sample) == (0, True)
    assert maintain_probes(home, "--dry-run") == []
    for file in leftovers:
        s3.is_old(str(file), OLD.total_seconds())
    due = [{"home": None, **asdict(TableMaintenance(write_check.PROBE_FOLDER, files=len(leftovers)))}]
    assert (maintain_probes(home, "--dry-run"), exists(leftovers)) == (due, [True] * len(leftovers))
    assert (maintain_probes(home), exists(leftovers)) == (due, [False] * len(leftovers))
    assert maintain_probes(home) == []


def maintain_probes(home: str, *words: str) -> list[dict[str, object]]:
    """Return what maintenance reports about leftovers of store probes."""
    result = run("--home", home, "home", "maintain", "--json", *words)
    assert result.exit_code == 0, result
    return [row for row in result.rows if row["table"] == write_check.PROBE_FOLDER]
