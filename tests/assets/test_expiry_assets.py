"""Expiry in Dagster: the plan marks and shows, the job removes, the checks judge, the schedules ask when they must."""

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
"""When the first generation has expired; nothing else has."""
FINE = dict.fromkeys(
    ["expired_not_held", "none_half_removed", "node_generation_not_removed", "nodes_know_generation"], True
)
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
TABLE = AssetKey(["platform", "removed_generations"])


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """The home that assets work in: four generations, a table whose rows live a second, and a node."""
    home = import_generations(tmp_path)
    lake = Lake(home / "lake")
    add_table(lake, 1)
    write(lake, NODES, node_fields(1, tokens=[1, 2], ignore_msb=0) | {"features": [], "status": "NORMAL"})
    monkeypatch.setenv(HOME_VARIABLE, str(home))
    stand(EXPIRED_MS, monkeypatch)
    return lake


def stand(ms: Milliseconds, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the clock of the assets."""
    monkeypatch.setenv(CLOCK_VARIABLE, iso(ms))


def executed(job: str) -> ExecuteInProcessResult:
    """A run of a job in this process."""
    with DagsterInstance.ephemeral() as instance:
        return defs.resolve_job_def(job).execute_in_process(run_config=QUIET, instance=instance, raise_on_error=False)


def told(result: ExecuteInProcessResult) -> dict[str, Any]:
    """What the materialisation tells."""
    (event,) = result.asset_materializations_for_node("platform__removed_generations")
    return {name: value.value for name, value in event.metadata.items()}


def verdicts(result: ExecuteInProcessResult) -> dict[str, bool]:
    """What the checks say."""
    return {each.check_name: each.passed for each in result.get_asset_check_evaluations() if each.asset_key == TABLE}


def test_the_plan_marks_and_shows_and_removes_nothing(lake: Lake) -> None:
    """The picture, the first rows, the forecast; and every generation is still there."""
    result = executed(PLAN_JOB)
    assert result.success
    shown = told(result)
    assert (shown["marked"], shown["generations"], shown["removable"]) == (1, 4, 0)
    assert shown["plan"].startswith("![purge plan](/shown/pictures/")
    assert shown["growth"].startswith("![forecast](/shown/pictures/")
    assert len(shown["purge_plan"].records) == 4
    assert len(shown["forecast"].records) == 11
    assert verdicts(result) == FINE
    assert [each.expired_ms for each in Timeline.read(lake).known] == [EXPIRED_MS, None, None, None]
    assert told(executed(PLAN_JOB))["marked"] == 0


def test_the_plan_of_an_empty_platform_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is drawn, nothing fails, and no table is made."""
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "empty"))
    result = executed(PLAN_JOB)
    assert result.success
    assert (told(result)["generations"], told(result)["dagster/row_count"]) == (0, 0)
    assert "import a ring snapshot" in told(result)["forecast"]
    assert verdicts(result) == FINE
    assert not any(Lake(tmp_path / "empty" / "lake").exists(table) for table in TABLES.values())


def test_the_job_removes_what_the_command_would(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each table in a step of its own, in the order that no reader stumbles over; run again it does nothing."""
    mark(lake, EXPIRED_MS)
    stand(EXPIRED_MS + GRACE_MS, monkeypatch)
    result = executed(EXPIRE_JOB)
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
    assert [each.id for each in Timeline.read(lake).known] == list(IDS[1:])
    assert expiry.read_unfinished_removals(lake) == []
    versions = [lake.version(table) for table in TABLES.values()]
    assert executed(EXPIRE_JOB).success
    assert [lake.version(table) for table in TABLES.values()] == versions
    assert all(verdicts(executed(PLAN_JOB)).values())


@pytest.mark.parametrize("grace_ms", [GRACE_MS, 0])
def test_a_run_of_the_job_removes_nothing_that_it_marks(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, grace_ms: int
) -> None:
    """However long ago a generation expired, and without a grace time too: the next run after it removes."""
    (lake.root.parent / "settings.toml").write_text(f"expiry_grace_ms = {grace_ms}\n")
    for now_ms, known in ((EXPIRED_MS + DAY_MS, 4), (EXPIRED_MS + DAY_MS + grace_ms, 2)):
        stand(Milliseconds(now_ms), monkeypatch)
        assert executed(EXPIRE_JOB).success
        assert len(Timeline.read(lake).known) == known


def test_the_job_refuses_a_clock_that_is_ahead(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the machine's, by more than the grace time: nothing is marked or removed."""
    mark(lake, EXPIRED_MS)
    stand(ms_from_us(Microseconds(system_time_us() + us_from_ms(GRACE_MS) + 60_000_000)), monkeypatch)
    versions = [lake.version(table) for table in TABLES.values()]
    assert not executed(EXPIRE_JOB).success
    assert [lake.version(table) for table in TABLES.values()] == versions


def test_every_step_runs_in_the_pool_of_its_table() -> None:
    """No step removes from a table while another one writes to it."""
    steps = {node.name: node.definition for node in defs.resolve_job_def(EXPIRE_JOB).nodes}
    pools = {name: step.pool for name, step in steps.items() if isinstance(step, OpDefinition)}
    assert set(pools) == set(steps)
    for table in expiry.REMOVAL_TABLES:
        assert pools[f"remove_from_{table.name}"] == f"{table.keyspace}/{table.name}"
    assert pools["mark_expired"] == "system_distributed/cdc_generation_timestamps"


def test_what_is_marked_and_held_fails_the_check(lake: Lake) -> None:
    """A table that turns up late still has rows of a generation that is marked as expired."""
    assert executed(PLAN_JOB).success
    add_table(lake, 0, name="late")
    result = executed(PLAN_JOB)
    assert verdicts(result) == FINE | {"expired_not_held": False}
    (failed,) = [each for each in result.get_asset_check_evaluations() if not each.passed]
    assert "ks.late can hold rows of it" in (failed.description or "")


def test_what_is_half_removed_or_named_after_it_fails_the_checks(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are left of a removed generation, a listed one without rows, and a node that names a removed one."""
    mark(lake, EXPIRED_MS)
    stand(EXPIRED_MS + GRACE_MS, monkeypatch)
    plan = expiry.plan_expiry(lake, at(EXPIRED_MS + GRACE_MS), Settings())
    begun = expiry.begin_removals(lake, at(EXPIRED_MS + GRACE_MS), plan)
    expiry.remove_generation_rows(lake, GENERATION_TIMESTAMPS, begun)
    found = verdicts(executed(PLAN_JOB))
    assert found == FINE | {"none_half_removed": False}
    expiry.expire_generations(lake, at(EXPIRED_MS + GRACE_MS), Settings())
    assert all(verdicts(executed(PLAN_JOB)).values())
    local = {"host_id": str(uuid.UUID(int=1)), "key": "cdc_local", "streams_timestamp": TIMES_MS[0], "uuid": IDS[0]}
    write(lake, CDC_LOCAL, local)
    found = verdicts(executed(PLAN_JOB))
    assert found.pop("node_generation_not_removed") is False
    found.pop("nodes_know_generation")  # where the node is in the ring, it is behind as well
    assert all(found.values())
    write(lake, GENERATION_TIMESTAMPS, {"key": "timestamps", "time": START_MS + 90 * DAY_MS, "expired": None})
    assert lake.read(STREAMS_DESCRIPTIONS_V2).num_rows > 0
    assert verdicts(executed(PLAN_JOB))["none_half_removed"] is False


def asked(
    schedule: Callable[..., RunRequest | SkipReason], lake: Lake, now_ms: Milliseconds
) -> RunRequest | SkipReason:
    """What a schedule asks for at noon."""
    with DagsterInstance.ephemeral() as instance:
        return schedule(lake, at(now_ms), Settings(), instance, NOON)


def test_the_schedules_ask_when_there_is_something_to_do(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Marking is on by default and removing is not; an hour in which nothing is due has no run."""
    assert hourly_expiry_plan.default_status is DefaultScheduleStatus.RUNNING
    assert hourly_expiry.default_status is DefaultScheduleStatus.STOPPED
    assert isinstance(asked(request_scheduled_plan, lake, EXPIRED_MS), RunRequest)
    assert isinstance(asked(request_scheduled_removal, lake, Milliseconds(EXPIRED_MS - 1)), SkipReason)
    assert isinstance(asked(request_scheduled_removal, lake, EXPIRED_MS), RunRequest)
    assert executed(PLAN_JOB).success
    assert isinstance(asked(request_scheduled_plan, lake, EXPIRED_MS), SkipReason)
    assert isinstance(asked(request_scheduled_removal, lake, EXPIRED_MS), SkipReason)
    found = asked(request_scheduled_removal, lake, EXPIRED_MS + GRACE_MS)
    assert isinstance(found, RunRequest)
    assert found.run_key == NOON.isoformat()
    stand(EXPIRED_MS + GRACE_MS, monkeypatch)
    assert executed(EXPIRE_JOB).success
    assert isinstance(asked(request_scheduled_removal, lake, EXPIRED_MS + GRACE_MS), SkipReason)


def test_a_schedule_waits_for_the_run_that_it_has_asked_for(lake: Lake) -> None:
    """Two runs of one job at once would only do the same twice."""
    with DagsterInstance.ephemeral() as instance:
        run = instance.create_run_for_job(defs.resolve_job_def(PLAN_JOB), status=DagsterRunStatus.STARTED)
        found = request_scheduled_plan(lake, at(EXPIRED_MS), Settings(), instance, NOON)
    assert isinstance(found, SkipReason)
    assert run.run_id in (found.skip_message or "")


def test_the_vacuum_runs_once_a_day_until_the_files_are_gone(lake: Lake) -> None:
    """For eight days after the last removal, at midnight."""
    expire(lake, EXPIRED_MS + GRACE_MS)
    at_midnight, at_noon = (datetime(2026, 1, 5, hour, tzinfo=UTC) for hour in (0, 12))
    # A clock between the expiry of one generation and the next would ask for more than the vacuum.
    now = at(EXPIRED_MS + GRACE_MS)
    assert "vacuum" in (describe_due_removal(lake, now, Settings(), at_midnight) or "")
    assert describe_due_removal(lake, now, Settings(), at_noon) is None
    later = at(Milliseconds(EXPIRED_MS + GRACE_MS + 9 * DAY_MS))
    expire(lake, later.now_ms())
    assert "vacuum" in (describe_due_removal(lake, later, Settings(), at_midnight) or "")
    assert describe_due_removal(lake, at(Milliseconds(START_MS + 60 * DAY_MS)), Settings(), at_midnight) is None
