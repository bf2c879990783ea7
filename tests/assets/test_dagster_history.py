"""Old runs are removed from Dagster's storage; what the catalogue and the checks show of every partition stays."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AssetCheckEvaluation,
    AssetCheckKey,
    AssetKey,
    AssetMaterialization,
    AssetObservation,
    AssetRecordsFilter,
    DagsterEvent,
    DagsterEventType,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    EventLogEntry,
)
from dagster._core.events import AssetObservationData, StepMaterializationData

from cdc_platform.clock import DAY_MS, Milliseconds
from cdc_platform_assets import dagster_history
from cdc_platform_assets.catalog_sync.check_results import read_newest_results
from cdc_platform_assets.dagster_history import TrimmedRuns, trim_runs
from cdc_platform_assets.run_requests import UNFINISHED_STATUSES
from cdc_platform_assets.storage_checks import STORAGE_CHECKED_ASSETS

NOW = datetime(2027, 1, 1, tzinfo=UTC)
"""Later than any run here by more than a retention of ninety days."""
ASSET, CHECK = AssetKey(["ks", "t"]), "rows_fine"
UNFINISHED = [status for status in UNFINISHED_STATUSES if status is not DagsterRunStatus.QUEUED]
"""Without a queued run, which Dagster creates only for a job in a code location."""
RETENTION = Milliseconds(30 * DAY_MS)


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[DagsterInstance]:
    """Return Dagster's storage in files, as `up` has it."""
    with DagsterInstance.local_temp(str(tmp_path)) as instance:
        yield instance


def add_run(instance: DagsterInstance, run_id: str, status: DagsterRunStatus = DagsterRunStatus.SUCCESS) -> str:
    """Add a run with this status, whose events may follow."""
    instance.add_run(DagsterRun("some_job", run_id, status=status))
    return run_id


def log(instance: DagsterInstance, run_id: str, event: DagsterEvent) -> None:
    """Store an event of a run."""
    entry = EventLogEntry(None, "", run_id, datetime.now(UTC).timestamp(), "debug", None, "some_job", event)
    instance.store_event(entry)


def materialized(instance: DagsterInstance, run_id: str, partition: str | None, asset: AssetKey = ASSET) -> None:
    """Add a run that materialized a partition."""
    instance.report_dagster_event(
        DagsterEvent(
            DagsterEventType.ASSET_MATERIALIZATION.value,
            "some_job",
            event_specific_data=StepMaterializationData(AssetMaterialization(asset, partition=partition), []),
        ),
        run_id=add_run(instance, run_id),
    )


def observed(instance: DagsterInstance, run_id: str, partition: str | None, asset: AssetKey = ASSET) -> None:
    """Add a run that observed a partition."""
    data = AssetObservationData(AssetObservation(asset, partition=partition))
    event = DagsterEvent(DagsterEventType.ASSET_OBSERVATION.value, "some_job", event_specific_data=data)
    instance.report_dagster_event(event, run_id=add_run(instance, run_id))


def checked(instance: DagsterInstance, run_id: str, partition: str | None, asset: AssetKey = ASSET) -> None:
    """Add a run that checked a partition."""
    result = AssetCheckEvaluation(asset, CHECK, passed=True, metadata={}, partition=partition)
    event = DagsterEvent(DagsterEventType.ASSET_CHECK_EVALUATION.value, "some_job", event_specific_data=result)
    instance.report_dagster_event(event, run_id=add_run(instance, run_id))


def runs(instance: DagsterInstance) -> list[str]:
    """Return the IDs of all runs."""
    return sorted(run.run_id for run in instance.get_runs())


@pytest.mark.parametrize("kind", [materialized, observed, checked], ids=lambda each: each.__name__)
@pytest.mark.parametrize("partition", ["p", None])
def test_the_newest_event_of_each_partition_stays(
    instance: DagsterInstance, kind: object, partition: str | None
) -> None:
    """The run before it is removed; the newest one of another partition stays."""
    assert callable(kind)
    kind(instance, "a-first", partition)
    kind(instance, "b-other", "q")
    kind(instance, "c-second", partition)
    add_run(instance, "d-nothing")
    trimmed = trim_runs(instance, RETENTION, None, now=NOW)
    # Without partitions, the catalogue shows the newest event of any partition.
    assert runs(instance) == ["b-other", "c-second"]
    assert trimmed == TrimmedRuns(2, 2)
    assert trim_runs(instance, RETENTION, None, now=NOW) == TrimmedRuns(0, 2)


def test_the_catalogue_shows_the_same(instance: DagsterInstance) -> None:
    """The newest materialization of each partition, its run, and the newest result of each check stay."""
    for number in range(6):
        materialized(instance, f"m{number}", f"p{number % 2}")
        checked(instance, f"c{number}", f"p{number % 2}")

    def read_catalogue() -> list[object]:
        materializations = [
            (record.run_id, record.storage_id)
            for partition in ("p0", "p1")
            for record in instance.fetch_materializations(
                AssetRecordsFilter(ASSET, asset_partitions=[partition]), 1
            ).records
        ]
        key = AssetCheckKey(ASSET, CHECK)
        results = [read_newest_results(instance, [key], partition)[key].run_id for partition in ("p0", "p1")]
        return [materializations, results, instance.get_materialized_partitions(ASSET)]

    before = read_catalogue()
    assert trim_runs(instance, RETENTION, None, now=NOW).removed == 8
    assert read_catalogue() == before
    assert runs(instance) == ["c4", "c5", "m4", "m5"]


@pytest.mark.parametrize("kind", [materialized, observed, checked], ids=lambda kind: kind.__name__)
def test_a_run_goes_with_its_partition(instance: DagsterInstance, kind: Any) -> None:
    """For every partitioned asset: a removed generation, table or hour shows nowhere, so its runs go."""
    partitioned = {
        asset: definition.name
        for asset, (_, definition) in STORAGE_CHECKED_ASSETS.items()
        if definition is not None and definition.name is not None
    }
    assert len(set(partitioned.values())) >= 5
    for name in set(partitioned.values()):
        instance.add_dynamic_partitions(name, ["exists", "goes"])
    for asset in partitioned:
        for partition in ("exists", "goes"):
            kind(instance, f"{asset.path[-1]}-{partition}", partition, asset)
    assert trim_runs(instance, RETENTION, None, now=NOW) == TrimmedRuns(0, 2 * len(partitioned))
    for name in set(partitioned.values()):
        instance.delete_dynamic_partition(name, "goes")
    assert trim_runs(instance, RETENTION, None, now=NOW) == TrimmedRuns(len(partitioned), len(partitioned))
    assert runs(instance) == sorted(f"{asset.path[-1]}-exists" for asset in partitioned)


@pytest.mark.parametrize("status", UNFINISHED, ids=str)
def test_an_unfinished_run_stays(instance: DagsterInstance, status: DagsterRunStatus) -> None:
    """An unfinished run stays, however old it is."""
    add_run(instance, "running", status)
    assert trim_runs(instance, RETENTION, None, now=NOW) == TrimmedRuns()
    assert runs(instance) == ["running"]


def test_only_the_age_decides_and_a_dry_run_removes_nothing(instance: DagsterInstance) -> None:
    """Runs are removed once their creation is older than the retention; a dry run removes nothing."""
    add_run(instance, "run")
    created = instance.get_run_records()[0].create_timestamp
    age = timedelta(milliseconds=RETENTION)
    assert trim_runs(instance, RETENTION, None, now=created + age - timedelta(seconds=1)) == TrimmedRuns()
    assert trim_runs(instance, RETENTION, None, now=created + age + timedelta(seconds=1), dry_run=True).removed == 1
    assert runs(instance) == ["run"]
    assert trim_runs(instance, RETENTION, None, now=created + age + timedelta(seconds=1)).removed == 1
    assert runs(instance) == []


def test_the_files_of_a_run_are_removed_with_it(instance: DagsterInstance, tmp_path: Path) -> None:
    """Captured output and step results of a removed run are deleted; those of other runs stay."""
    for name in ("gone", "kept"):
        (tmp_path / "storage" / name / "compute_logs").mkdir(parents=True)
    add_run(instance, "gone")
    materialized(instance, "kept", "p")
    trim_runs(instance, RETENTION, tmp_path, now=NOW)
    assert [(tmp_path / "storage" / name).exists() for name in ("gone", "kept")] == [False, True]


def test_databases_of_removed_runs_go(instance: DagsterInstance, tmp_path: Path) -> None:
    """Remove the database of a run with the run, and an old one that an earlier version left; keep all others."""
    first, second, third, lost, young = (str(uuid.UUID(int=number)) for number in range(5))
    for run_id in (first, second):
        materialized(instance, run_id, "p")
    materialized(instance, third, "q")
    folder = tmp_path / "history" / "runs"
    for name in (lost, young, "index-copy"):
        shutil.copy(folder / f"{first}.db", folder / f"{name}.db")
    moment = datetime.now(UTC) + timedelta(days=60)
    os.utime(folder / f"{young}.db", (moment.timestamp(), moment.timestamp()))
    assert trim_runs(instance, RETENTION, tmp_path, now=moment, dry_run=True) == TrimmedRuns(1, 2)
    assert len(list(folder.glob("*-*.db"))) == 6
    assert trim_runs(instance, RETENTION, tmp_path, now=moment) == TrimmedRuns(1, 2)
    names = {file.stem for file in folder.glob("*.db")}
    assert names == {second, third, young, "index-copy", "index"}
    assert {run.run_id for run in instance.get_runs()} == {second, third}
    assert instance.all_logs(second)


def test_runs_that_stay_do_not_block_the_others(
    instance: DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call examines a bounded number of runs and continues after them the next time; at the end it starts over."""
    monkeypatch.setattr(dagster_history, "MAX_RUNS", 2)
    for number in range(2):
        materialized(instance, f"a{number}", f"p{number}")
    for number in range(3):
        add_run(instance, f"b{number}")
    results = [trim_runs(instance, RETENTION, tmp_path, now=NOW) for _ in range(3)]
    assert results == [TrimmedRuns(0, 2), TrimmedRuns(2, 0), TrimmedRuns(1, 0)]
    materialized(instance, "c", "p0")
    assert trim_runs(instance, RETENTION, tmp_path, now=NOW) == TrimmedRuns(1, 1)
    assert runs(instance) == ["a1", "c"]
