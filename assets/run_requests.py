"""Run requests of sensors and schedules: running and failed attempts, and homes that must not be written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import wraps
from itertools import takewhile
from typing import Any, TypeVar, cast

from dagster import (
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    RunRecord,
    RunRequest,
    RunsFilter,
    SensorResult,
    SkipReason,
)

from cdc_platform.clock import (
    HOUR_SECONDS,
    SECOND_US,
    Microseconds,
    format_ms,
    ms_from_us,
    system_time_us,
    us_from_datetime,
)
from cdc_platform.delta import Lake, get_home_mode
from cdc_platform.retries import retry_pause_us
from cdc_platform.tables import Table
from cdc_platform_assets.failures import read_run_failure
from cdc_platform_resources.home import HomeResource

MAX_ATTEMPTS = 3
"""The most runs for one state of the tables before a sensor leaves a failure to an operator. Outages are unlimited."""
_MAX_READ_RUNS = 20
"""The most ended runs of one request that a tick reads. By then the pauses have reached their maximum."""
FINISHED_STATUSES = frozenset({DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED})
"""A run in any other status may still write."""
ACTIVE_STATUSES = [
    DagsterRunStatus.QUEUED,
    DagsterRunStatus.NOT_STARTED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
]
"""A schedule requests no further run while one has one of these statuses."""
UNFINISHED_STATUSES = [status for status in DagsterRunStatus if status not in FINISHED_STATUSES]
PARTITION_TAG = "dagster/partition"
ATTEMPT_TAG = "cdc_platform/attempt"
"""The run tag with the number of the attempt, which outlives the removal of older runs."""
MAX_RUNTIME_TAG = "dagster/max_runtime"
MAX_RUN_SECONDS = 6 * HOUR_SECONDS
"""When Dagster's run monitoring ends a run that a sensor or schedule requested. dagster.yaml limits all others."""
MAX_RETRIES_TAG = "dagster/max_retries"
"""Set to 0 on runs that a sensor or schedule requests again itself.

If the daemon also retried a crashed run, two would run at once.
"""
REQUESTED_RUN_TAGS = {MAX_RETRIES_TAG: "0", MAX_RUNTIME_TAG: str(MAX_RUN_SECONDS)}
"""The tags of every run that a sensor or schedule requests."""


@dataclass(frozen=True)
class RunAttempt:
    """The outcome of a request for a run: a `request`, an `active` run, a pause until `retry_at_us`, or none of them.

    `ended` are the newest ended runs of the same request, newest first. If there is none of the others, the request is
    left to an operator: its error does not go away by itself, or its runs have reached `MAX_ATTEMPTS`.
    """

    request: RunRequest | None
    active: DagsterRun | None
    ended: tuple[DagsterRun, ...]
    retry_at_us: Microseconds | None = None

    @property
    def has_succeeded(self) -> bool:
        """Return True if the last ended run of the request succeeded."""
        return bool(self.ended) and self.ended[0].status is DagsterRunStatus.SUCCESS

    def skip_reason(self, goal: str, remedy: str) -> str | None:
        """Return why no run is requested, or None if one is. `goal` is what the run is for, in the infinitive."""
        if self.request is not None:
            return None
        if self.active is not None:
            return f"run {self.active.run_id} is in progress, to {goal}"
        count, last = len(self.ended), self.ended[0].run_id
        if self.retry_at_us is not None:
            return f"run {last} did not {goal}; the next attempt starts at {format_ms(ms_from_us(self.retry_at_us))}"
        if count < MAX_ATTEMPTS:
            return f"run {last} did not {goal}, and a repetition would fail too; fix what it reports, then {remedy}"
        return f"{count} runs did not {goal}; fix what run {last} reports, then {remedy}"


@dataclass(frozen=True)
class Work:
    """What a sensor requests a run for.

    `state` identifies it: the same state is requested again after a failed run only. `goal` says in the infinitive what
    the run is for, and `remedy` what to do if runs keep failing.
    """

    state: str
    goal: str
    remedy: str


@dataclass(frozen=True)
class NoWork:
    """Why a sensor requests no run. If it is `final`, the next ticks skip until one of the watched tables changes."""

    reason: str
    final: bool = False


def request_work(
    lake: Lake,
    instance: DagsterInstance,
    cursor: str | None,
    *,
    job: str,
    state_tag: str,
    watched: Sequence[Table],
    find_work: Callable[[], Work | NoWork],
) -> SensorResult:
    """Evaluate a sensor tick: request a run of `job` for the work that `find_work` finds in the tables.

    The cursor holds the versions of the watched tables at which there was no work, so a quiet tick reads no rows. A
    lost cursor loses nothing.
    """
    versions = read_versions(lake, watched)
    if cursor == versions:
        return SensorResult(skip_reason="no table has changed since the last tick, which found no work", cursor=cursor)
    work = find_work()
    if isinstance(work, NoWork):
        return SensorResult(skip_reason=work.reason, cursor=versions if work.final else None)
    attempt = request_run(instance, job, work.state, state=(state_tag, work.state))
    if attempt.request is None:
        return SensorResult(skip_reason=attempt.skip_reason(work.goal, work.remedy))
    return SensorResult(run_requests=[attempt.request])


def read_versions(lake: Lake, tables: Sequence[Table]) -> str:
    """Return the versions of tables as a sensor's cursor."""
    return "/".join(str(lake.version(table)) for table in tables)


def request_run(
    instance: DagsterInstance,
    job: str,
    name: str,
    *,
    state: tuple[str, str] | None = None,
    partition: str | None = None,
    any_job: bool = False,
    periodic: bool = False,
    tags: Mapping[str, str] | None = None,
) -> RunAttempt:
    """Request a run of `job`, unless one is active, the last one failed too recently, or no repetition helps.

    Every sensor and schedule uses this retry policy:

    * After a failure the pause grows (`retry_pause_us`), counted from the end of the last run. Only the first run that
      lost its worker is repeated at once, because the cause is usually a restart.
    * An outage (no disk space, Spark or a store gone, out of memory, a lost worker) is repeated until it is over.
    * An error that never goes away by itself is not repeated, and others at most `MAX_ATTEMPTS` times.
    * With `periodic` work that is due again anyway, only the pauses apply, and a success ends the series of failures.

    Requests are the same if they have the same `state` (a tag and its value), or without it the same partition. A run
    of this job counts as active, or of every job with `any_job`, limited to the partition if there is one. `name`
    becomes part of the run key. A key blocks for as long as a run has it, even a failed one, so the attempt's number is
    part of it.
    """
    of_partition = {} if partition is None else {PARTITION_TAG: partition}
    active = instance.get_runs(
        RunsFilter(job_name=None if any_job else job, tags=of_partition, statuses=UNFINISHED_STATUSES), limit=1
    )
    same = of_partition if state is None else {**of_partition, state[0]: state[1]}
    records = instance.get_run_records(
        RunsFilter(job_name=job, tags=same, statuses=list(FINISHED_STATUSES)), limit=_MAX_READ_RUNS
    )
    if periodic:
        records = list(takewhile(lambda record: record.dagster_run.status is not DagsterRunStatus.SUCCESS, records))
    ended = tuple(record.dagster_run for record in records)
    if active:
        return RunAttempt(None, active[0], ended)
    if ended:
        retry_at_us = _retry_at_us(instance, records)
        if system_time_us() < retry_at_us:
            return RunAttempt(None, None, ended, retry_at_us)
        if not periodic and not _may_repeat(instance, ended):
            return RunAttempt(None, None, ended)
    numbers = [int(run.tags.get(ATTEMPT_TAG, "0")) for run in ended]
    attempt = max([len(ended), *numbers]) + 1
    marks = {
        **(tags or {}),
        **({} if state is None else {state[0]: state[1]}),
        ATTEMPT_TAG: str(attempt),
        **REQUESTED_RUN_TAGS,
    }
    request = RunRequest(run_key=f"{name}/{attempt}", partition_key=partition, tags=marks)
    return RunAttempt(request, None, ended)


def _retry_at_us(instance: DagsterInstance, ended: Sequence[RunRecord]) -> Microseconds:
    """Return when the pause after the newest of these ended runs is over."""
    newest, end_us = ended[0].dagster_run, _end_us(ended[0])
    if newest.status is DagsterRunStatus.SUCCESS:
        return end_us
    is_first_loss = (
        len(ended) == 1
        and newest.status is DagsterRunStatus.FAILURE
        and read_run_failure(instance, newest.run_id).is_worker_lost
    )
    return end_us if is_first_loss else end_us + retry_pause_us(len(ended))


def _may_repeat(instance: DagsterInstance, ended: Sequence[DagsterRun]) -> bool:
    """Return True if a further run of a request may succeed, judged by its last one."""
    if ended[0].status is DagsterRunStatus.FAILURE:
        recovery = read_run_failure(instance, ended[0].run_id).recovery
        if recovery != "limited":
            return recovery == "outage"
    return len(ended) < MAX_ATTEMPTS


def _end_us(record: RunRecord) -> Microseconds:
    """Return when a run ended; a run that never started ended with its last update."""
    if record.end_time is None:
        return us_from_datetime(record.update_timestamp)
    return Microseconds(int(record.end_time * SECOND_US))


def request_scheduled_run(
    instance: DagsterInstance, job: str, moment: datetime, skip_reason: str | None
) -> RunRequest | SkipReason:
    """Request a run of the job at `moment`, unless there is a reason to skip it or one is queued or running."""
    if skip_reason is not None:
        return SkipReason(skip_reason)
    running = instance.get_runs(RunsFilter(job_name=job, statuses=ACTIVE_STATUSES), limit=1)
    if running:
        return SkipReason(f"run {running[0].run_id} is in progress")
    return RunRequest(run_key=moment.isoformat(), tags=REQUESTED_RUN_TAGS)


def request_partitions(
    instance: DagsterInstance, job: str, partitions: Sequence[str], moment: str, goal: str
) -> tuple[list[RunRequest], list[str]]:
    """Request a run of a schedule's job for each partition that is due at `moment`; see `request_run`.

    Return the requests, and a reason for each partition without one. `goal` is what a run is for, in the infinitive.
    """
    requests: list[RunRequest] = []
    reasons: list[str] = []
    for partition in partitions:
        attempt = request_run(instance, job, f"{partition}/{moment}", partition=partition, periodic=True)
        if attempt.request is not None:
            requests.append(attempt.request)
        else:
            reasons.append(f"{partition}: {attempt.skip_reason(goal, 'launch the job by hand')}")
    return requests, reasons


def request_daily_run(
    instance: DagsterInstance, job: str, moment: datetime, hour: int, skip_reason: str | None
) -> RunRequest | SkipReason:
    """Request the job unless it has succeeded since the last time that it was `hour` o'clock (UTC).

    Ticks at any interval therefore run it once a day, also on a machine that was off at that time, and repeat a failed
    run as `request_run` does.
    """
    if skip_reason is not None:
        return SkipReason(skip_reason)
    moment = moment.astimezone(UTC)
    due = moment.replace(hour=hour, minute=0, second=0, microsecond=0)
    due -= timedelta(days=due > moment)
    done = instance.get_run_records(RunsFilter(job_name=job, statuses=[DagsterRunStatus.SUCCESS]), limit=1)
    if done and _end_us(done[0]) >= us_from_datetime(due):
        return SkipReason(f"run {done[0].dagster_run.run_id} has succeeded since {due.isoformat(timespec='minutes')}")
    attempt = request_run(instance, job, moment.isoformat(), periodic=True)
    return attempt.request or SkipReason(attempt.skip_reason("succeed", "launch the job by hand") or "")


_Tick = TypeVar("_Tick", bound=Callable[..., Any])


def skip_unless_writable(tick: _Tick, table: Table | None = None) -> _Tick:
    """Wrap the tick of a sensor or schedule with a resource `home`, and skip it if its runs could not write there.

    `table` is a table that the runs write; None stands for any table that holds facts of the cluster.
    """

    @wraps(tick)
    def skip_or_tick(*args: object, home: HomeResource, **others: object) -> object:
        mode = get_home_mode(home.lake())
        return tick(*args, home=home, **others) if mode.allows_write(table) else SkipReason(str(mode))

    return cast(_Tick, skip_or_tick)
