"""One retry policy for all sensors: outages are repeated with growing pauses, errors of the input are not."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterRunStatus, Failure, RunRequest, SensorResult, SkipReason
from support.failed_runs import advance_retries, fail_run
from support.homes.log_lake import split
from support.homes.v1_tables import HOUR_MS, START_MS, old_cluster, times
from support.worlds.rehearsal import Rehearsal, node_config

from cdc_platform import errors
from cdc_platform.clock import (
    HOUR_US,
    SECOND_US,
    Clock,
    Microseconds,
    Milliseconds,
    datetime_from_us,
    parse_time_us,
    system_time_us,
    us_from_ms,
)
from cdc_platform.definitions import defs
from cdc_platform.errors import PlatformError, Recovery
from cdc_platform.generations import uniform_tablet_ends
from cdc_platform.lifecycle import tablets
from cdc_platform.metastore import JoinRequest, inbox
from cdc_platform.retries import FIRST_PAUSE_US, LONGEST_PAUSE_US
from cdc_platform.settings import Settings
from cdc_platform.storage.locks import LockLost
from cdc_platform_assets.failures import read_run_failure
from cdc_platform_assets.join.inbox import JOIN_JOB, request_join
from cdc_platform_assets.log.logs import LOGS_JOB, request_log_checks
from cdc_platform_assets.run_requests import MAX_ATTEMPTS, MAX_RUNTIME_TAG, request_daily_run, request_partitions
from cdc_platform_assets.tablets.maintenance import request_unfinished_changes
from cdc_platform_assets.tablets.stream_sets import TABLETS_JOB
from cdc_platform_assets.v1_rewrite import REWRITE_JOB, request_rewrite

ASSETS = Path(__file__).resolve().parent.parent.parent / "assets"
NOON = parse_time_us("2026-01-01T12:00:00Z")
NOW = Clock(us_from_ms(Milliseconds(START_MS + 5 * HOUR_MS)))


def queue_join(rehearsal: Rehearsal) -> None:
    """Queue one node."""
    inbox.queue_join(rehearsal.lake, Clock(), JoinRequest.model_validate(node_config(1)))


def leave_tablet_change(rehearsal: Rehearsal) -> None:
    """Leave a decided tablet change unfinished."""
    tablets.decide_tablet_creation(rehearsal.lake, Clock(NOON), Settings(), "ks", "t", uniform_tablet_ends(2))


@dataclass(frozen=True)
class Work:
    """Work that a sensor finds: how it is created, and a tick."""

    job: str
    prepare: Callable[[Rehearsal], Any]
    tick: Callable[[Rehearsal, str | None], SensorResult]


WORK = {
    "waiting_joins": Work(JOIN_JOB, queue_join, lambda r, cursor: request_join(r.lake, r.instance, cursor)),
    "unfinished_tablets": Work(
        TABLETS_JOB, leave_tablet_change, lambda r, cursor: request_unfinished_changes(r.lake, r.instance, cursor)
    ),
    "v1_leftovers": Work(
        REWRITE_JOB,
        lambda r: old_cluster(r.lake, times(1)),
        lambda r, cursor: request_rewrite(r.lake, NOW, Settings(), r.instance, cursor),
    ),
    "changed_logs": Work(
        LOGS_JOB, lambda r: split(r.lake), lambda r, cursor: request_log_checks(r.lake, r.instance, cursor)
    ),
}
OUTAGES = {
    "no disk space": errors.disk_full_error("/lake"),
    "a store that is gone": errors.Unavailable("the store does not answer"),
    "Spark gone": errors.EnvironmentProblem("Spark has ended"),
    "out of memory": MemoryError(),
    "a lost race": errors.ConflictError("another writer won"),
    "a lost worker": None,
}


def requested(result: SensorResult) -> RunRequest | None:
    """Return the run that a tick requests, if any."""
    requests = result.run_requests or []
    assert len(requests) <= 1
    return requests[0] if requests else None


def reason(result: SensorResult | SkipReason | RunRequest) -> str:
    """Return why a tick requests no run."""
    skip = result.skip_reason if isinstance(result, SensorResult) else result
    assert isinstance(skip, SkipReason)
    return skip.skip_message or ""


def fail(rehearsal: Rehearsal, work: Work, request: RunRequest, error: BaseException | None) -> str:
    """Fail a run of a request, with the tags that Dagster gives it; return the run's ID."""
    partition = {} if request.partition_key is None else {"dagster/partition": request.partition_key}
    return fail_run(rehearsal.instance, work.job, {**request.tags, **partition}, error).run_id


@pytest.mark.parametrize(
    ("sensor", "outage"),
    [*(("waiting_joins", outage) for outage in OUTAGES), *((sensor, "no disk space") for sensor in list(WORK)[1:])],
)
def test_an_outage_is_repeated_with_growing_pauses(
    sensor: str, outage: str, rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No attempt starts before its pause is over, and one starts after it; the pauses are bounded by half an hour."""
    work, keys = WORK[sensor], []
    work.prepare(rehearsal)
    cursor = None
    for failures in range(8):
        result = work.tick(rehearsal, cursor)
        request, cursor = requested(result), result.cursor
        assert request is not None, f"after {failures} failures"
        keys.append(request.run_key)
        assert request.tags[MAX_RUNTIME_TAG] == "21600"
        failed_run_id = fail(rehearsal, work, request, OUTAGES[outage])
        if OUTAGES[outage] is None and failures == 0:  # a restart counts as no lasting outage
            continue
        pause = min(FIRST_PAUSE_US * 2**failures, LONGEST_PAUSE_US)
        # All failed runs of this test end now by the machine's clock.
        advance_retries(monkeypatch, pause - SECOND_US * 20)
        paused = work.tick(rehearsal, cursor)
        assert requested(paused) is None
        assert f"run {failed_run_id} did not " in reason(paused)
        assert "the next attempt starts at 2" in reason(paused)
        advance_retries(monkeypatch, pause + SECOND_US)
    assert len(set(keys)) == 8, "Dagster starts no second run of a key"


@pytest.mark.parametrize("sensor", WORK)
def test_an_error_of_the_input_is_not_repeated(
    sensor: str, rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The input error is not repeated, not even after a day; the tick names the run and the remedy."""
    work = WORK[sensor]
    work.prepare(rehearsal)
    request = requested(work.tick(rehearsal, None))
    assert request is not None
    failed_run_id = fail(rehearsal, work, request, errors.InputError("shard_count is 0"))
    advance_retries(monkeypatch, HOUR_US * 24)
    for _ in range(3):
        result = work.tick(rehearsal, None)
        assert requested(result) is None
        assert f"run {failed_run_id} did not " in reason(result)
        assert "a repetition would fail too; fix what it reports, then " in reason(result)


@pytest.mark.parametrize("error", [errors.StateError("an earlier join is unfinished"), ZeroDivisionError(), "canceled"])
@pytest.mark.parametrize("sensor", WORK)
def test_other_errors_are_repeated_a_few_times(
    sensor: str, error: BaseException | str, rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such errors may end when other work has finished; after a few attempts they are left to a person."""
    work = WORK[sensor]
    work.prepare(rehearsal)
    advance_retries(monkeypatch, HOUR_US)
    failed_run_id = ""
    for _ in range(MAX_ATTEMPTS):
        request = requested(work.tick(rehearsal, None))
        assert request is not None
        if isinstance(error, BaseException):
            failed_run_id = fail(rehearsal, work, request, error)
        else:
            tags = {**request.tags}
            if request.partition_key is not None:
                tags["dagster/partition"] = request.partition_key
            job = defs.resolve_job_def(work.job)
            run = rehearsal.instance.create_run_for_job(job, tags=tags, status=DagsterRunStatus.CANCELED)
            failed_run_id = run.run_id
    assert "3 runs did not " in reason(work.tick(rehearsal, None))
    assert f"fix what run {failed_run_id} reports" in reason(work.tick(rehearsal, None))


def test_three_failures_in_a_row_do_not_block_the_inbox(rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark restarts within a minute, and the sensor requests the join again by itself."""
    work = WORK["waiting_joins"]
    work.prepare(rehearsal)
    for seconds in (0, 31, 92):
        advance_retries(monkeypatch, SECOND_US * seconds)
        request = requested(work.tick(rehearsal, None))
        assert request is not None
        fail(rehearsal, work, request, errors.EnvironmentProblem("Spark has ended"))
    advance_retries(monkeypatch, SECOND_US * 213)
    assert requested(work.tick(rehearsal, None)) is not None


def test_a_run_ended_by_a_restart_is_repeated_at_once(rehearsal: Rehearsal) -> None:
    """The next `up` repeats it without a pause; a second loss has one."""
    work = WORK["waiting_joins"]
    work.prepare(rehearsal)
    for _ in range(2):
        request = requested(work.tick(rehearsal, None))
        assert request is not None
        fail(rehearsal, work, request, None)
    assert "the next attempt starts at" in reason(work.tick(rehearsal, None))


def test_failed_runs_count_after_older_ones_are_removed(rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Maintenance removes old runs, but the next attempt still has a new run key."""
    work = WORK["waiting_joins"]
    work.prepare(rehearsal)
    advance_retries(monkeypatch, HOUR_US)
    runs = []
    for _ in range(3):
        request = requested(work.tick(rehearsal, None))
        assert request is not None
        runs.append(fail(rehearsal, work, request, None))
    for run_id in runs[:2]:
        rehearsal.instance.delete_run(run_id)
    request = requested(work.tick(rehearsal, None))
    assert request is not None
    assert (request.run_key or "").endswith("/4")


def test_schedules_pause_and_start_over_after_a_success(rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failing work that is due every minute is requested less often, but never given up."""
    instance, partitions = rehearsal.instance, ["2026-01-01-00:00"]

    def tick(moment: str) -> RunRequest | str:
        requests, reasons = request_partitions(instance, "consume_hours", partitions, moment, "copy it")
        return requests[0] if requests else reasons[0]

    tags = {"dagster/partition": partitions[0]}
    for number in range(5):
        assert isinstance(tick(str(number)), RunRequest)
        fail_run(instance, "consume_hours", tags, errors.InputError("a column has another type"))
        advance_retries(monkeypatch, Microseconds(0))
        assert "the next attempt starts at" in str(tick(f"{number} later"))
        advance_retries(monkeypatch, HOUR_US)
    job = defs.resolve_job_def("consume_hours")
    instance.create_run_for_job(job, tags=tags, status=DagsterRunStatus.SUCCESS)
    fail_run(instance, "consume_hours", tags, errors.StateError("x"))
    advance_retries(monkeypatch, SECOND_US * 31)
    request = tick("after the success")
    assert isinstance(request, RunRequest)
    assert request.run_key == f"{partitions[0]}/after the success/2"


def test_a_daily_job_is_repeated_until_it_has_succeeded(rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hourly ticks request it once a day; a machine that was off catches up; a failure is repeated."""
    instance, today = rehearsal.instance, datetime_from_us(system_time_us()).replace(minute=30)
    hour = today.hour

    def tick(moment: datetime) -> RunRequest | SkipReason:
        return request_daily_run(instance, "consume_hours", moment, hour, None)

    assert isinstance(tick(today), RunRequest)
    fail_run(instance, "consume_hours", {}, errors.disk_full_error("/lake"))
    assert "the next attempt starts at" in reason(tick(today))
    advance_retries(monkeypatch, HOUR_US)
    assert isinstance(tick(today), RunRequest)
    job = defs.resolve_job_def("consume_hours")
    succeeded = instance.create_run_for_job(job, status=DagsterRunStatus.SUCCESS)
    assert f"run {succeeded.run_id} has succeeded since" in reason(tick(today))
    tomorrow = datetime_from_us(Microseconds(system_time_us() + 24 * HOUR_US)).replace(minute=30, tzinfo=UTC)
    assert isinstance(tick(tomorrow), RunRequest)
    assert reason(request_daily_run(instance, "consume_hours", tomorrow, hour, "no tables")) == "no tables"


def test_every_error_declares_whether_a_repetition_helps(rehearsal: Rehearsal) -> None:
    """A failed run is judged by the class of its error; a failure raised by other code is repeated a few times."""
    names_by_recovery: dict[Recovery, set[str]] = {"outage": set(), "limited": set(), "never": set()}
    for kind in [errors.PlatformError, *_subclasses(errors.PlatformError), LockLost]:
        if kind.__init__ is not PlatformError.__init__:
            continue
        for as_failure in (True, False):
            run = fail_run(rehearsal.instance, JOIN_JOB, {}, kind("what failed: a disk"), as_failure=as_failure)
            failure = read_run_failure(rehearsal.instance, run.run_id)
            assert failure.message == "what failed: a disk"
            assert failure.recovery == kind.recovery
        names_by_recovery[failure.recovery].add(kind.__name__)
    assert {"Unavailable", "NotLetIn", "NoJava", "ConflictError", "LockLost"} <= names_by_recovery["outage"]
    assert {"InputError", "NotFound", "UnknownGeneration", "AuditFailed"} <= names_by_recovery["never"]
    assert {"StateError", "StoreFailure", "ClockRefused"} <= names_by_recovery["limited"]
    other = fail_run(rehearsal.instance, JOIN_JOB, {}, Failure("a person's code"))
    assert read_run_failure(rehearsal.instance, other.run_id).recovery == "limited"


def _subclasses(kind: type[PlatformError]) -> list[type[PlatformError]]:
    return [below for child in kind.__subclasses__() for below in (child, *_subclasses(child))]


def test_only_the_policy_builds_run_requests() -> None:
    """No sensor or schedule builds a request of its own, so every one with a job uses the policy."""
    builders = {
        path.relative_to(ASSETS).as_posix()
        for path in sorted(ASSETS.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "RunRequest"
    }
    assert builders == {"run_requests.py"}
