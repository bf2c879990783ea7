"""Files of tables that nothing needs go by age alone, in a folder and in a store, in homes below as well."""

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
    """A home whose files can be made older, wherever it is."""

    def __init__(self, home: str, s3: S3, draft: Path) -> None:
        self.home, self._s3, self._draft = home, s3, draft

    def put(self, place: StoragePath, age: timedelta) -> StoragePath:
        """A file that no commit names, as if it had been written so long ago."""
        self.write(place, b"PAR1")
        return self.aged(place, age)

    def write(self, place: StoragePath, content: bytes) -> None:
        """A file of this content, in place of any."""
        self._draft.write_bytes(content)
        place.receive(self._draft)

    def aged(self, place: StoragePath, age: timedelta) -> StoragePath:
        """A file as if it had been written so long ago."""
        if place.local_path is None:
            self._s3.is_old(str(place), age.total_seconds())
        else:
            at = place.local_path.stat().st_mtime - age.total_seconds()
            os.utime(place.local_path, (at, at))
        return place


@pytest.fixture(params=["folder", "store"])
def aged(request: pytest.FixtureRequest, s3: S3, tmp_path: Path) -> Aged:
    """A home with rows in two tables, and below it one of a cluster."""
    home = str(tmp_path / "home") if request.param == "folder" else f"{s3.bucket()}/home"
    cluster = registry.add_cluster(open_home_location(home), "prod", Connection(contacts=("127.0.0.1:1",)))
    for at in (home, cluster.at):
        with write_as(WriteSource.OBSERVED):
            cdc_tables.add_cdc_table(Lake(open_home_location(at).lake), Clock(), "ks", "t", ttl_seconds=60)
            cdc_tables.alter_cdc_table(
                Lake(open_home_location(at).lake), Clock(), "ks", "t", ttl_seconds=5, enabled=None
            )
    return Aged(home, s3, tmp_path / "draft")


def tables(home: str) -> list[tuple[str | None, str, StoragePath]]:
    """The tables of a home and of the one below it: where, name, folder."""
    below = [(None, "lake"), ("clusters/prod", "clusters/prod/lake")]
    return [
        (at, name, parse_path(path))
        for at, lake in below
        for name, path in iter_table_folders(parse_path(f"{home}/{lake}"))
    ]


def there(places: list[StoragePath]) -> list[bool]:
    """Which of them are there."""
    return [place.stat() is not None for place in places]


def test_files_go_by_age_alone(aged: Aged) -> None:
    """Unnamed ones on both sides of the age, and named ones however old; check lists them; a second time none goes."""
    old, young, named = [], [], []
    for _, _, table in tables(aged.home):
        named += [aged.aged(parse_path(path), 9 * OLD) for path in files.list_paths(open_table(str(table)))]
        old += [aged.put(table / "part-old.parquet", OLD), aged.put(table / "k=1" / "part-old.parquet", OLD)]
        young += [aged.put(table / "part-young.parquet", YOUNG)]
    listed = [
        line
        for lake in list_lakes(open_home_location(aged.home)).values()
        for each in verify_tables(lake)
        for line in each.unnamed
    ]
    assert len(listed) == len(old) + len(young)
    dry = run("--home", aged.home, "home", "maintain", "--dry-run", "--json")
    assert (dry.exit_code, there([*old, *young, *named])) == (0, [True] * (len(old) + len(young) + len(named)))
    due = [{"home": at, **asdict(TableMaintenance(name, files=2))} for at, name, _ in tables(aged.home)]
    assert dry.rows == due
    done = run("--home", aged.home, "home", "maintain", "--json")
    assert (done.exit_code, done.rows) == (0, due), done
    assert (there(old), there([*young, *named])) == ([False] * len(old), [True] * (len(young) + len(named)))
    again = run("--home", aged.home, "home", "maintain", "--json")
    assert [each["files"] for each in again.rows] == [0] * len(due)
    for lake in list_lakes(open_home_location(aged.home)).values():
        for each in verify_tables(lake, deep=True):
            assert (each.damage, each.unexpected, each.foreign) == ([], [], [])
            assert len(each.unnamed) == 1


def test_what_a_commit_has_removed_goes_after_a_week(aged: Aged) -> None:
    """By when the commit was made, not by the age of the file; what it put in its place stays."""
    for _, _, table in tables(aged.home):
        for path in each_removed(table):
            aged.aged(table / path, 9 * OLD)
    assert not any(each["files"] for each in run("--home", aged.home, "home", "maintain", "--json").rows)
    gone = []
    for _, _, table in tables(aged.home):
        gone += [table / path for path in each_removed(table)]
        backdate(table, OLD, aged)
    assert gone
    assert all(there(gone))
    done = run("--home", aged.home, "home", "maintain", "--json")
    assert (done.exit_code, sum(each["files"] for each in done.rows), any(there(gone))) == (0, len(gone), False)


def each_removed(table: StoragePath) -> list[str]:
    """The files that commits of a table have removed."""
    log = table / "_delta_log"
    actions = (
        json.loads(line) for name in log.names() if name.endswith(".json") for line in (log / name).read().splitlines()
    )
    return [each["remove"]["path"] for each in actions if "remove" in each]


def backdate(table: StoragePath, age: timedelta, aged: Aged) -> None:
    """Let the commits of a table have removed files so long ago."""
    log = table / "_delta_log"
    for name in (name for name in log.names() if name.endswith(".json")):
        actions = [json.loads(line) for line in (log / name).read().splitlines()]
        for each in (each["remove"] for each in actions if "remove" in each):
            each["deletionTimestamp"] -= int(age / timedelta(milliseconds=1))
        text = "".join(f"{json.dumps(each)}\n" for each in actions)
        aged.write(log / name, text.encode())


def test_a_table_that_is_damaged_is_said_and_others_are_kept_up(aged: Aged) -> None:
    """One warning, exit code 1; the tables behind it are cleared."""
    (_, first, damaged), *others = tables(aged.home)
    strange = [aged.put(table / "part-old.parquet", OLD) for _, _, table in others]
    for name in (damaged / "_delta_log").names():
        aged.put(damaged / "_delta_log" / name, timedelta())
    done = run("--home", aged.home, "home", "maintain")
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1), done
    assert first in done.stderr
    assert "[not-kept-up]" in done.stderr
    assert not any(there(strange))


def littered(folder: Path, s3: S3) -> tuple[Path, list[StoragePath]]:
    """A home with files in every table that nobody needs."""
    home = every_table(folder)
    aged = Aged(str(home), s3, folder / "draft")
    strange = [aged.put(table / f"part-{n}.parquet", OLD) for _, _, table in tables(str(home)) for n in range(2)]
    assert len(strange) >= 2 * len({*TABLES, *LOGS})
    return home, strange


def assert_cleared(home: Path, strange: list[StoragePath]) -> None:
    """They are gone, and the home is well."""
    assert not any(there(strange))
    for each in verify_tables(Lake(home / "lake"), deep=True):
        assert (each.damage, each.unexpected, each.foreign, each.unnamed) == ([], [], [], [])


@pytest.mark.long("tables of every kind, of which most are written to twice")
def test_upkeeps_at_once_are_one(s3: S3, nursery: Nursery, tmp_path: Path) -> None:
    """Eight of them leave what one leaves, and none is refused."""
    home, strange = littered(tmp_path, s3)
    ended = nursery.race([["--home", str(home), "home", "maintain"]] * 8)
    assert [each.exit_code for each in ended] == [0] * 8, ended
    assert_cleared(home, strange)


@pytest.mark.long("tables of every kind, of which most are written to twice")
def test_an_upkeep_that_is_killed_ends_the_same(s3: S3, nursery: Nursery, tmp_path: Path) -> None:
    """Run again it leaves what one that nobody killed would have left, whatever it was about to do."""
    if nursery.refusal:
        pytest.skip(nursery.refusal)
    home, strange = littered(tmp_path, s3)
    shutil.copytree(home, tmp_path / "twin")
    whole = nursery.traced(["--home", str(tmp_path / "twin"), "home", "maintain"], tmp_path / "twin")
    assert whole.exit_code == 0, whole
    count, dice = len(whole.operations), random.Random(SEED)
    for before in sorted(dice.sample(range(count // 2), 2)):
        died = nursery.traced(["--home", str(home), "home", "maintain"], home, before)
        assert died.exit_code == -9, f"before operation {before} of {count}"
    assert run("--home", home, "home", "maintain").exit_code == 0
    assert_cleared(home, strange)


def test_dagster_does_it_every_day(aged: Aged, monkeypatch: pytest.MonkeyPatch) -> None:
    """The schedule asks for a run where there are tables; that clears all of them, and names one that it cannot."""
    monkeypatch.setenv(HOME_VARIABLE, aged.home)
    strange = [aged.put(table / "part-old.parquet", OLD) for _, _, table in tables(aged.home)]
    with DagsterInstance.ephemeral() as instance:
        asked = request_scheduled_maintenance(open_home_location(aged.home), instance, datetime(2026, 1, 1))
        assert isinstance(asked, RunRequest)
        empty = open_home_location(
            f"{aged.home}/empty" if aged.home.startswith("s3:") else str(Path(aged.home).parent / "empty")
        )
        assert isinstance(request_scheduled_maintenance(empty, instance, datetime(2026, 1, 1)), SkipReason)
        job = defs.resolve_job_def(MAINTENANCE_JOB)
        assert job.execute_in_process(run_config=QUIET, instance=instance).success
        assert not any(there(strange))
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
    """Like every step that writes the table; one more for the tables that are not declared."""
    nodes = defs.resolve_job_def(MAINTENANCE_JOB).graph.nodes
    pools = {pool for node in nodes for pool in node.definition.pools}
    assert {pool_from_table(table) for table in TABLES.values()} <= pools
    assert "platform/logs" in pools


def test_a_violation_shows_on_the_run_and_in_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daily check fails no step: its run names what is violated, and status shows it with the time."""
    home = every_table(tmp_path)
    monkeypatch.setenv(HOME_VARIABLE, str(home))
    lake = Lake(home / "lake")
    damaged = lake.data_files(TABLES["platform.nodes"])[0].path
    Path(damaged).write_bytes(b"PAR1")
    with DagsterInstance.ephemeral() as instance:
        job = defs.resolve_job_def(MAINTENANCE_JOB)
        done = job.execute_in_process(
            run_config=QUIET, instance=instance, raise_on_error=False, op_selection=["check_homes"]
        )
        assert done.success
        run_now = instance.get_run_by_id(done.run_id)
        assert run_now is not None
        assert "files_whole" in run_now.tags[VIOLATED_TAG]
    assert MaintenanceTask.CHECK in read_maintenance(lake)
    failed = run("--home", home, "status", "--json").facts["checks"]["failed"]
    assert "files_whole" in {result["invariant"] for result in failed}


def killed_try(s3: S3) -> tuple[str, list[StoragePath]]:
    """A home whose first writer was killed as it tried the store out, and what that left."""
    home = f"{s3.bucket()}/home"
    command = [sys.executable, "-m", "cdc_platform", "--home", home, "tables", "add", "ks.t", "--ttl", "60"]
    killed = subprocess.run(
        command, env=os.environ | {failpoints.KILL_AT_VARIABLE: failpoints.AFTER_STORE_TRIED}, timeout=120
    )
    assert killed.returncode == -signal.SIGKILL
    tried = parse_path(f"{home}/{write_check.PROBE_FOLDER}")
    left = [tried / name for name in tried.names()]
    assert left
    return home, left


def test_what_a_killed_try_of_a_store_left_goes_by_age(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check lists it, upkeep takes the old away and leaves the young; who writes next tries the store out anew."""
    home, left = killed_try(s3)
    monkeypatch.setattr(leases, "STALE_SECONDS", 1.0)  # of the killed one's turn, which nobody keeps
    added = run("--home", home, "tables", "add", "ks.t", "--ttl", "60")
    assert (added.exit_code, there(left)) == (0, [True] * len(left)), added
    found = verify_tables(Lake(f"{home}/lake"))
    assert [len(each.unnamed) for each in found if each.name == write_check.PROBE_FOLDER] == [len(left)]
    (told,) = (line for line in audit_stored(found) if line.invariant == "files_whole")
    assert (told.violations, "is left by a store probe" in told.sample) == (0, True)
    assert of_tries(home, "--dry-run") == []
    for place in left:
        s3.is_old(str(place), OLD.total_seconds())
    due = [{"home": None, **asdict(TableMaintenance(write_check.PROBE_FOLDER, files=len(left)))}]
    assert (of_tries(home, "--dry-run"), there(left)) == (due, [True] * len(left))
    assert (of_tries(home), there(left)) == (due, [False] * len(left))
    assert of_tries(home) == []


def of_tries(home: str, *words: str) -> list[dict[str, object]]:
    """What upkeep tells of what is left of tries of the store."""
    done = run("--home", home, "home", "maintain", "--json", *words)
    assert done.exit_code == 0, done
    return [each for each in done.rows if each["table"] == write_check.PROBE_FOLDER]
