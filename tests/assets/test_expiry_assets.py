"""Expiry in Dagster: the plan marks, the job removes, the checks judge, the schedules request runs when needed."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AssetKey,
    DagsterInstance,
    DagsterRunStatus,
    DefaultScheduleStatus,
    ExecuteInProcessResult,
    OpDefinition,
    RunRequest,
    SkipReason,
)
from support.homes.expiring import (
    DAY_MS,
    GRACE_MS,
    IDS,
    SKEW_MS,
    START_MS,
    TIMES_MS,
    add_table,
    at,
    expire,
    import_generations,
    iso,
    mark,
    write,
)
from support.nodes import node_fields
from support.worlds.rehearsal import QUIET

from cdc_platform.clock import Microseconds, Milliseconds, ms_from_us, system_time_us, us_from_ms
from cdc_platform.dagster_home import CLOCK_VARIABLE
from cdc_platform.definitions import defs
from cdc_platform.delta import Lake
from cdc_platform.home_location import HOME_VARIABLE
from cdc_platform.lifecycle import expiry
from cdc_platform.settings import Settings
from cdc_platform.tables import CDC_LOCAL, GENERATION_TIMESTAMPS, NODES, STREAMS_DESCRIPTIONS_V2, TABLES
from cdc_platform.timeline import Timeline
from cdc_platform_assets.expiry import (
    EXPIRE_JOB,
    PLAN_JOB,
    describe_due_removal,
    hourly_expiry,
    hourly_expiry_plan,
    request_scheduled_plan,
    request_scheduled_removal,
)

EXPIRED_MS = Milliseconds(TIMES_MS[1] + SKEW_MS + Milliseconds(1000))
"""The time when only the first generation has expired."""
FINE = dict.fromkeys(
    ["expired_not_held", "none_half_removed", "node_generation_not_removed", "nodes_know_generation"], True
)
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
TABLE = AssetKey(["platform", "removed_generations"])


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """Create the home of the assets: four generations, a table whose rows live a second, and a node."""
    home = import_generations(tmp_path)
    lake = Lake(home / "lake")
    add_table(lake, 1)
    write(lake, NODES, node_fields(1, tokens=[1, 2], ignore_msb=0) | {"features": [], "status": "NORMAL"})
    monkeypatch.setenv(HOME_VARIABLE, str(home))
    stop_clock(EXPIRED_MS, monkeypatch)
    return lake


def stop_clock(ms: Milliseconds, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the clock of the assets."""
    monkeypatch.setenv(CLOCK_VARIABLE, iso(ms))


def execute(job: str) -> ExecuteInProcessResult:
    """Run a job in this process."""
    with DagsterInstance.ephemeral() as instance:
        return defs.resolve_job_def(job).execute_in_process(run_config=QUIET, instance=instance, raise_on_error=False)


def metadata(result: ExecuteInProcessResult) -> dict[str, Any]:
    """Return the metadata of the materialization."""
    (event,) = result.asset_materializations_for_node("platform__removed_generations")
    return {name: value.value for name, value in event.metadata.items()}


def check_outcomes(result: ExecuteInProcessResult) -> dict[str, bool]:
    """Return the results of the checks."""
    return {
        evaluation.check_name: evaluation.passed
        for evaluation in result.get_asset_check_evaluations()
        if evaluation.asset_key == TABLE
    }


def test_the_plan_marks_and_removes_nothing(lake: Lake) -> None:
    """The event has the picture, the first rows and the forecast, and every generation still exists."""
    result = execute(PLAN_JOB)
    assert result.success
    event_metadata = metadata(result)
    assert (event_metadata["marked"], event_metadata["generations"], event_metadata["removable"]) == (1, 4, 0)
    assert event_metadata["plan"].startswith("![purge plan](/shown/pictures/")
    assert event_metadata["growth"].startswith("![forecast](/shown/pictures/")
    assert len(event_metadata["purge_plan"].records) == 4
    assert len(event_metadata["forecast"].records) == 11
    assert check_outcomes(result) == FINE
    assert [generation.expired_ms for generation in Timeline.read(lake).known] == [EXPIRED_MS, None, None, None]
    assert metadata(execute(PLAN_JOB))["marked"] == 0


def test_the_plan_of_an_empty_platform_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is drawn, nothing fails, and no table is created."""
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "empty"))
    result = execute(PLAN_JOB)
    assert result.success
    assert (metadata(result)["generations"], metadata(result)["dagster/row_count"]) == (0, 0)
    assert "import a ring snapshot" in metadata(result)["forecast"]
    assert check_outcomes(result) == FINE
    assert not any(Lake(tmp_path / "empty" / "lake").exists(table) for table in TABLES.values())


def test_the_job_removes_the_same_as_the_command(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each table has its own step, in an order that is safe for readers; another run changes nothing."""
    mark(lake, EXPIRED_MS)
    stop_clock(EXPIRED_MS + GRACE_MS, monkeypatch)
    result = execute(EXPIRE_JOB)
    assert result.success
    steps = [event.step_key for event in result.get_step_success_events()]
    assert steps == [
        "begin_removals",
        "remove_from_cdc_streams_descriptions",
        "remove_from_cdc_generation_timestamps",
        "remove_from_cdc_streams_descriptions_v2",
        "remove_from_cdc_generation_descriptions_v2",
        "remove_from_topology_descriptions",
        "remove_from_cdc_generation_descriptions",
        "remove_from_unordered_ranges",
        "remove_from_stream_fingerprints",
        "remove_from_expiry_marks",
        "mark_expired",
    ]
    assert [generation.id for generation in Timeline.read(lake).known] == list(IDS[1:])
    assert expiry.read_unfinished_removals(lake) == []
    versions = [lake.version(table) for table in TABLES.values()]
    assert execute(EXPIRE_JOB).success
    assert [lake.version(table) for table in TABLES.values()] == versions
    assert all(check_outcomes(execute(PLAN_JOB)).values())


@pytest.mark.parametrize("grace_ms", [GRACE_MS, 0])
def test_a_run_of_the_job_removes_nothing_that_it_marks(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, grace_ms: int
) -> None:
    """Only the next run removes a generation, however long ago it expired, and also without a grace time."""
    (lake.root.parent / "settings.toml").write_text(f"expiry_grace_ms = {grace_ms}\n")
    for now_ms, known_generations in ((EXPIRED_MS + DAY_MS, 4), (EXPIRED_MS + DAY_MS + grace_ms, 2)):
        stop_clock(Milliseconds(now_ms), monkeypatch)
        assert execute(EXPIRE_JOB).success
        assert len(Timeline.read(lake).known) == known_generations


def test_the_job_refuses_a_clock_that_is_ahead(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the clock is ahead of the machine's by more than the grace time, nothing is marked or removed."""
    mark(lake, EXPIRED_MS)
    stop_clock(ms_from_us(Microseconds(system_time_us() + us_from_ms(GRACE_MS) + 60_000_000)), monkeypatch)
    versions = [lake.version(table) for table in TABLES.values()]
    assert not execute(EXPIRE_JOB).success
    assert [lake.version(table) for table in TABLES.values()] == versions


def test_every_step_runs_in_the_pool_of_its_table() -> None:
    """No step removes rows from a table while another one writes to it."""
    steps = {node.name: node.definition for node in defs.resolve_job_def(EXPIRE_JOB).nodes}
    pools = {name: step.pool for name, step in steps.items() if isinstance(step, OpDefinition)}
    assert set(pools) == set(steps)
    for table in expiry.REMOVAL_TABLES:
        assert pools[f"remove_from_{table.name}"] == f"{table.keyspace}/{table.name}"
    assert pools["mark_expired"] == "system_distributed/cdc_generation_timestamps"


def test_a_marked_generation_in_use_fails_the_check(lake: Lake) -> None:
    """A table registered late still has rows of a generation that is marked as expired."""
    assert execute(PLAN_JOB).success
    add_table(lake, 0, name="late")
    result = execute(PLAN_JOB)
    assert check_outcomes(result) == FINE | {"expired_not_held": False}
    (failed,) = [evaluation for evaluation in result.get_asset_check_evaluations() if not evaluation.passed]
    assert "ks.late can hold rows of it" in (failed.description or "")


def test_partial_removals_fail_the_checks(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remaining rows of a removed generation, a listed one without rows, and a node naming a removed one are found."""
    mark(lake, EXPIRED_MS)
    stop_clock(EXPIRED_MS + GRACE_MS, monkeypatch)
    plan = expiry.plan_expiry(lake, at(EXPIRED_MS + GRACE_MS), Settings())
    removals = expiry.begin_removals(lake, at(EXPIRED_MS + GRACE_MS), plan)
    expiry.remove_generation_rows(lake, GENERATION_TIMESTAMPS, removals)
    results = check_outcomes(execute(PLAN_JOB))
    assert results == FINE | {"none_half_removed": False}
    expiry.expire_generations(lake, at(EXPIRED_MS + GRACE_MS), Settings())
    assert all(check_outcomes(execute(PLAN_JOB)).values())
    local = {"host_id": str(uuid.UUID(int=1)), "key": "cdc_local", "streams_timestamp": TIMES_MS[0], "uuid": IDS[0]}
    write(lake, CDC_LOCAL, local)
    results = check_outcomes(execute(PLAN_JOB))
    assert results.pop("node_generation_not_removed") is False
    results.pop("nodes_know_generation")  # where the node is in the ring, it is outdated as well
    assert all(results.values())
    write(lake, GENERATION_TIMESTAMPS, {"key": "timestamps", "time": START_MS + 90 * DAY_MS, "expired": None})
    assert lake.read(STREAMS_DESCRIPTIONS_V2).num_rows > 0
    assert check_outcomes(execute(PLAN_JOB))["none_half_removed"] is False


def request_at_noon(
    schedule: Callable[..., RunRequest | SkipReason], lake: Lake, now_ms: Milliseconds
) -> RunRequest | SkipReason:
    """Return what a schedule requests at noon."""
    with DagsterInstance.ephemeral() as instance:
        return schedule(lake, at(now_ms), Settings(), instance, NOON)


def test_the_schedules_request_runs_when_something_is_due(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Marking is on by default and removing is off; in an hour with nothing due there is no run."""
    assert hourly_expiry_plan.default_status is DefaultScheduleStatus.RUNNING
    assert hourly_expiry.default_status is DefaultScheduleStatus.STOPPED
    assert isinstance(request_at_noon(request_scheduled_plan, lake, EXPIRED_MS), RunRequest)
    assert isinstance(request_at_noon(request_scheduled_removal, lake, Milliseconds(EXPIRED_MS - 1)), SkipReason)
    assert isinstance(request_at_noon(request_scheduled_removal, lake, EXPIRED_MS), RunRequest)
    assert execute(PLAN_JOB).success
    assert isinstance(request_at_noon(request_scheduled_plan, lake, EXPIRED_MS), SkipReason)
    assert isinstance(request_at_noon(request_scheduled_removal, lake, EXPIRED_MS), SkipReason)
    request = request_at_noon(request_scheduled_removal, lake, EXPIRED_MS + GRACE_MS)
    assert isinstance(request, RunRequest)
    assert request.run_key == NOON.isoformat()
    stop_clock(EXPIRED_MS + GRACE_MS, monkeypatch)
    assert execute(EXPIRE_JOB).success
    assert isinstance(request_at_noon(request_scheduled_removal, lake, EXPIRED_MS + GRACE_MS), SkipReason)


def test_a_schedule_waits_for_its_requested_run(lake: Lake) -> None:
    """Two concurrent runs of one job would only do the same work twice."""
    with DagsterInstance.ephemeral() as instance:
        run = instance.create_run_for_job(defs.resolve_job_def(PLAN_JOB), status=DagsterRunStatus.STARTED)
        result = request_scheduled_plan(lake, at(EXPIRED_MS), Settings(), instance, NOON)
    assert isinstance(result, SkipReason)
    assert run.run_id in (result.skip_message or "")


def test_the_vacuum_runs_once_a_day_until_the_files_are_gone(lake: Lake) -> None:
    """The vacuum runs for eight days after the last removal, at midnight."""
    expire(lake, EXPIRED_MS + GRACE_MS)
    at_midnight, at_noon = (datetime(2026, 1, 5, hour, tzinfo=UTC) for hour in (0, 12))
    # A clock between the expiry of one generation and the next would request more than the vacuum.
    now = at(EXPIRED_MS + GRACE_MS)
    assert "vacuum" in (describe_due_removal(lake, now, Settings(), at_midnight) or "")
    assert describe_due_removal(lake, now, Settings(), at_noon) is None
    later = at(Milliseconds(EXPIRED_MS + GRACE_MS + 9 * DAY_MS))
    expire(lake, later.now_ms())
    assert "vacuum" in (describe_due_removal(lake, later, Settings(), at_midnight) or "")
    assert describe_due_removal(lake, at(Milliseconds(START_MS + 60 * DAY_MS)), Settings(), at_midnight) is None
