"""Base writes by the hour, and tables rebuilt from their logs, through Dagster: events, checks and failures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dagster import AssetCheckSeverity, ExecuteInProcessResult
from deltalake import DeltaTable
from pyarrow import parquet
from support.homes.log_lake import START_US, SWITCH_US, split
from support.worlds.rehearsal import QUIET, Rehearsal

from cdc_platform.cdclog import log_table, read_table_schema, rebuilt_table
from cdc_platform.checks import LOG_INVARIANTS, LOG_ROW_COLOCATED, REBUILT_EQUALS_GIVEN
from cdc_platform.clock import HOUR_US, Microseconds
from cdc_platform.definitions import defs
from cdc_platform_assets.log.rebuilt import REBUILD_JOB
from cdc_platform_assets.log.writes import WRITES_JOB
from cdc_platform_assets.partitions import LOGS_NAME, WRITE_HOURS_NAME, partition_from_hour_us

NAME = "ks.tabs"
HOURS = [partition_from_hour_us(Microseconds(begin)) for begin in (START_US, SWITCH_US)]


@pytest.fixture
def writes(rehearsal: Rehearsal, tmp_path: Path) -> Path:
    """Create twenty writes to a tablet-based table, ten in each of two hours, beside a log that has others."""
    split(rehearsal.lake)
    rehearsal.instance.add_dynamic_partitions(LOGS_NAME, [NAME])
    rehearsal.instance.add_dynamic_partitions(WRITE_HOURS_NAME, HOURS)
    times = [begin + HOUR_US // 2 + index for begin in (START_US, SWITCH_US) for index in range(10)]
    columns = {name: pa.array(range(100, 120), pa.int32()) for name in ("p", "k", "v")}
    parquet.write_table(pa.table({"timestamp": times} | columns), tmp_path / "writes.parquet")
    return tmp_path / "writes.parquet"


def append(rehearsal: Rehearsal, path: Path, hour: str = HOURS[0]) -> ExecuteInProcessResult:
    """Append an hour of a file."""
    config = {"ops": {"platform__logged_writes": {"config": {"table": NAME, "path": str(path)}}}}
    return _run(rehearsal, WRITES_JOB, config, hour)


def rebuild(rehearsal: Rehearsal, path: str | None = None) -> ExecuteInProcessResult:
    """Rebuild the table, and compare it with a given one."""
    config = {"ops": {"compare_rebuilt_tables": {"config": {"path": path}}}} if path else {}
    return _run(rehearsal, REBUILD_JOB, config, NAME)


def _run(rehearsal: Rehearsal, job: str, config: dict[str, Any], partition: str) -> ExecuteInProcessResult:
    return defs.resolve_job_def(job).execute_in_process(
        run_config=QUIET | config, instance=rehearsal.instance, partition_key=partition, raise_on_error=False
    )


def check_results(result: ExecuteInProcessResult) -> dict[str, bool]:
    """Return the results of a run's checks."""
    return {check.check_name: check.passed for check in result.get_asset_check_evaluations()}


def test_an_hour_is_appended_once_and_checked(rehearsal: Rehearsal, writes: Path) -> None:
    """The hour's rows are in the log and judged by its checks; appending the hour again adds nothing."""
    log = log_table(read_table_schema(rehearsal.lake, "ks", "tabs"))
    before = rehearsal.lake.read(log).num_rows
    for appended in (True, False):
        result = append(rehearsal, writes)
        assert result.success
        metadata = result.asset_materializations_for_node("platform__logged_writes")[0].metadata
        assert (metadata["appended"].value, metadata["log_rows"].value) == (appended, 10 * appended)
        assert (metadata["dagster/row_count"].value, metadata["batch"].value) == (10, f"hour-{HOURS[0]}")
        assert check_results(result) == dict.fromkeys(LOG_INVARIANTS, True)
        assert rehearsal.lake.read(log).num_rows == before + 10
    check_metadata = {check.check_name: check.metadata for check in result.get_asset_check_evaluations()}
    times_us = rehearsal.lake.read(log)["cdc$timestamp"].cast("int64").to_pylist()
    hour = START_US - START_US % HOUR_US
    assert check_metadata[LOG_ROW_COLOCATED]["population"].value == sum(
        hour <= time_us < hour + HOUR_US for time_us in times_us
    )


def test_a_row_in_a_foreign_stream_fails_its_hour(rehearsal: Rehearsal, writes: Path) -> None:
    """The other hour still passes."""
    for hour in HOURS:
        assert append(rehearsal, writes, hour).success
    log = log_table(read_table_schema(rehearsal.lake, "ks", "tabs"))
    DeltaTable(rehearsal.lake.path(log)).update({"cdc$stream_id": f"X'{'00' * 16}'"}, predicate="p = 101")
    rehearsal.lake.table_cache.revalidate()
    assert not append(rehearsal, writes, HOURS[0]).success
    assert append(rehearsal, writes, HOURS[1]).success


def test_an_invalid_write_fails_the_run_and_appends_nothing(rehearsal: Rehearsal, writes: Path) -> None:
    """The failure names the row's key and the reason."""
    table = parquet.read_table(writes)
    invalid = table.set_column(2, "k", pa.array([None, *range(19)], pa.int32()))
    parquet.write_table(invalid, writes)
    version = rehearsal.lake.version(log_table(read_table_schema(rehearsal.lake, "ks", "tabs")))
    result = append(rehearsal, writes)
    assert not result.success
    (failure,) = [
        event for event in result.all_events if event.is_step_failure and "logged_writes" in str(event.step_key)
    ]
    error_text = str(failure.step_failure_data.error) + str(failure.step_failure_data.user_failure_data)
    assert '{"p": 100, "k": null}' in error_text
    assert "it has no k; it is a clustering column" in error_text
    assert rehearsal.lake.version(log_table(read_table_schema(rehearsal.lake, "ks", "tabs"))) == version


def test_a_rebuilt_table_is_compared_with_a_given_one(rehearsal: Rehearsal, writes: Path) -> None:
    """Without a given table there is no verdict; the same rows pass, and for others the check names the first keys."""
    result = rebuild(rehearsal)
    assert result.success
    (check,) = result.get_asset_check_evaluations()
    assert (check.passed, check.severity) == (False, AssetCheckSeverity.WARN)
    assert check.description == "not judged: the run names no table to compare with"
    table = rebuilt_table(read_table_schema(rehearsal.lake, "ks", "tabs"))
    metadata = result.asset_materializations_for_node("platform__rebuilt_tables")[0].metadata
    rows = rehearsal.lake.read(table)
    assert metadata["dagster/row_count"].value == rows.num_rows > 10
    for name, given_rows, is_equal in (("same", rows, True), ("less", rows.slice(1), False)):
        path = writes.parent / f"{name}.parquet"
        parquet.write_table(given_rows, path)
        result = rebuild(rehearsal, str(path))
        assert check_results(result) == {REBUILT_EQUALS_GIVEN: is_equal}
    (check,) = result.get_asset_check_evaluations()
    assert check.metadata["violations"].value == 1
    assert "only rebuilt" in str(check.metadata["sample"].value)
