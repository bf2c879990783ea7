"""All tables of a home in Dagster: what is listed, and that the checks find what `cdc-platform check` finds. No JVM."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from dagster import DagsterInstance, ExecuteInProcessResult, RunRequest, SkipReason, TableMetadataValue
from deltalake import DeltaTable
from support.homes.every_table import LOGS, every_table
from support.worlds.rehearsal import QUIET

from cdc_platform.checks import DERIVED_TABLE_FAMILY, STORAGE_FAMILY
from cdc_platform.definitions import defs
from cdc_platform.delta import Lake, list_stored_tables
from cdc_platform.home_location import HOME_VARIABLE
from cdc_platform.tables import GENERATION_TIMESTAMPS, NODES, TABLES
from cdc_platform_assets.checks import VIOLATED_TAG
from cdc_platform_assets.tables import AUDIT_JOB, request_scheduled_audit


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with rows in every table, which nobody but the platform has written."""
    return every_table(tmp_path_factory.mktemp("every"))


@pytest.fixture
def home(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy, in which the assets work."""
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    return shutil.copytree(packed, tmp_path / "home")


def audited(instance: DagsterInstance | None = None) -> ExecuteInProcessResult:
    """A run of the job."""
    return defs.resolve_job_def(AUDIT_JOB).execute_in_process(run_config=QUIET, instance=instance)


def failed(run: ExecuteInProcessResult) -> dict[str, str]:
    """The checks that failed, with what they show of it; all are there."""
    results = {each.check_name: each for each in run.get_asset_check_evaluations()}
    assert set(results) == {*STORAGE_FAMILY.invariants, *DERIVED_TABLE_FAMILY.invariants}
    return {name: str(each.metadata["sample"].value) for name, each in results.items() if not each.passed}


def test_every_table_is_listed_and_well(home: Path) -> None:
    """Declared ones, logs and sinks; with nothing amiss all seven checks pass."""
    run, there = audited(), {".".join(each) for each in list_stored_tables(Lake(home / "lake"))}
    assert there > {*TABLES, *LOGS}
    (made,) = run.get_asset_materialization_events()
    metadata = made.materialization.metadata
    assert metadata["dagster/row_count"].value == len(there)
    listed = metadata["tables"]
    assert isinstance(listed, TableMetadataValue)
    assert {str(record.data["table"]) for record in listed.records} == there
    assert failed(run) == {}


def test_what_a_stranger_did_is_found(home: Path) -> None:
    """A row taken out of a table that follows from another, and with it a commit that is not the platform's."""
    lake = Lake(home / "lake")
    time = max(lake.read(GENERATION_TIMESTAMPS)["time"].to_pylist())
    literal = f"arrow_cast('{time.isoformat()}', 'Timestamp(Microsecond, Some(\"UTC\"))')"
    DeltaTable(lake.path(GENERATION_TIMESTAMPS)).delete(f"time = {literal}")
    with DagsterInstance.ephemeral() as instance:
        run = audited(instance)
        tagged = instance.get_run_by_id(run.run_id)
        assert tagged is not None
    found = failed(run)
    assert set(found) == {"rows_as_committed", "commits_known", "timestamps_follow_ledger"}
    assert all(GENERATION_TIMESTAMPS.full_name in said for said in found.values())
    assert set(tagged.tags[VIOLATED_TAG].split(", ")) == set(found), "those of both families are seen on the run"


def test_a_damaged_file_is_found(home: Path) -> None:
    """Named by table and file; the others are judged all the same."""
    lake = Lake(home / "lake")
    Path(lake.data_files(NODES)[0].path).write_bytes(b"PAR1")
    found = failed(audited())
    assert NODES.full_name in found["files_whole"]
    assert "rows_as_committed" not in found


def test_what_follows_is_not_judged_where_it_cannot_be_read(home: Path) -> None:
    """A damaged ledger: its family says so, instead of an error of a reader."""
    lake = Lake(home / "lake")
    for file in lake.data_files(GENERATION_TIMESTAMPS):
        Path(file.path).write_bytes(b"PAR1")
    found = failed(audited())
    assert {"files_whole", *DERIVED_TABLE_FAMILY.invariants} <= set(found)
    assert all("not judged" in found[name] for name in DERIVED_TABLE_FAMILY.invariants)


def test_an_empty_home_has_nothing_to_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No table: the run lists none, its checks pass as there is nothing of it; the schedule asks for no run."""
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    assert failed(audited()) == {}
    with DagsterInstance.ephemeral() as instance:
        at = datetime(2026, 2, 1, 3, 30, tzinfo=UTC)
        lake = Lake(tmp_path / "home" / "lake")
        assert isinstance(request_scheduled_audit(lake, instance, at), SkipReason)
        row = {"host_id": "a", "status": "NORMAL", "address": "a", "datacenter": "d", "rack": "r", "tokens": [1]}
        row |= {"shard_count": 2, "ignore_msb": 0, "features": []}
        lake.merge(NODES, pa.Table.from_pylist([row], schema=NODES.schema), update=False)
        assert isinstance(request_scheduled_audit(lake, instance, at), RunRequest)
