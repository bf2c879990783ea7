"""All tables of a home in Dagster: the list, and checks that find what `cdc-platform check` finds. No JVM."""

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
    """Create a home with rows in every table, written by the platform alone."""
    return every_table(tmp_path_factory.mktemp("every"))


@pytest.fixture
def home(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy for the assets."""
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    return shutil.copytree(packed, tmp_path / "home")


def run_audit(instance: DagsterInstance | None = None) -> ExecuteInProcessResult:
    """Run the job."""
    return defs.resolve_job_def(AUDIT_JOB).execute_in_process(run_config=QUIET, instance=instance)


def failed(run: ExecuteInProcessResult) -> dict[str, str]:
    """Return the samples of the failed checks; assert that all checks ran."""
    results = {evaluation.check_name: evaluation for evaluation in run.get_asset_check_evaluations()}
    assert set(results) == {*STORAGE_FAMILY.invariants, *DERIVED_TABLE_FAMILY.invariants}
    return {
        name: str(evaluation.metadata["sample"].value) for name, evaluation in results.items() if not evaluation.passed
    }


def test_every_table_is_listed_and_passes(home: Path) -> None:
    """Declared tables, logs and sinks are listed, and all seven checks pass."""
    run, stored_names = run_audit(), {".".join(name) for name in list_stored_tables(Lake(home / "lake"))}
    assert stored_names > {*TABLES, *LOGS}
    (event,) = run.get_asset_materialization_events()
    metadata = event.materialization.metadata
    assert metadata["dagster/row_count"].value == len(stored_names)
    table_list = metadata["tables"]
    assert isinstance(table_list, TableMetadataValue)
    assert {str(record.data["table"]) for record in table_list.records} == stored_names
    assert failed(run) == {}


def test_a_foreign_change_is_found(home: Path) -> None:
    """A row is deleted from a derived table, by a commit that is not the platform's."""
    lake = Lake(home / "lake")
    time = max(lake.read(GENERATION_TIMESTAMPS)["time"].to_pylist())
    literal = f"arrow_cast('{time.isoformat()}', 'Timestamp(Microsecond, Some(\"UTC\"))')"
    DeltaTable(lake.path(GENERATION_TIMESTAMPS)).delete(f"time = {literal}")
    with DagsterInstance.ephemeral() as instance:
        run = run_audit(instance)
        tagged = instance.get_run_by_id(run.run_id)
        assert tagged is not None
    failures = failed(run)
    assert set(failures) == {"rows_as_committed", "commits_known", "timestamps_follow_ledger"}
    assert all(GENERATION_TIMESTAMPS.full_name in sample for sample in failures.values())
    assert set(tagged.tags[VIOLATED_TAG].split(", ")) == set(failures), "those of both families are seen on the run"


def test_a_damaged_file_is_found(home: Path) -> None:
    """The damage is named by table and file, and other tables are still judged."""
    lake = Lake(home / "lake")
    Path(lake.data_files(NODES)[0].path).write_bytes(b"PAR1")
    failures = failed(run_audit())
    assert NODES.full_name in failures["files_whole"]
    assert "rows_as_committed" not in failures


def test_a_derived_table_is_not_judged_if_it_cannot_be_read(home: Path) -> None:
    """With a damaged ledger the derived family reports "not judged" instead of a reader's error."""
    lake = Lake(home / "lake")
    for file in lake.data_files(GENERATION_TIMESTAMPS):
        Path(file.path).write_bytes(b"PAR1")
    failures = failed(run_audit())
    assert {"files_whole", *DERIVED_TABLE_FAMILY.invariants} <= set(failures)
    assert all("not judged" in failures[name] for name in DERIVED_TABLE_FAMILY.invariants)


def test_an_empty_home_has_nothing_to_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run lists no table, its checks pass, and the schedule requests no run."""
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    assert failed(run_audit()) == {}
    with DagsterInstance.ephemeral() as instance:
        moment = datetime(2026, 2, 1, 3, 30, tzinfo=UTC)
        lake = Lake(tmp_path / "home" / "lake")
        assert isinstance(request_scheduled_audit(lake, instance, moment), SkipReason)
        row = {"host_id": "a", "status": "NORMAL", "address": "a", "datacenter": "d", "rack": "r", "tokens": [1]}
        row |= {"shard_count": 2, "ignore_msb": 0, "features": []}
        lake.merge(NODES, pa.Table.from_pylist([row], schema=NODES.schema), update=False)
        assert isinstance(request_scheduled_audit(lake, instance, moment), RunRequest)
