"""Run requests of sensors and schedules: running and failed attempts, and homes that must not be written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from typing import Any, TypeVar, cast

from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, RunRequest, RunsFilter, SensorResult, SkipReason

from cdc_platform.delta import Lake, get_home_mode
from cdc_platform.tables import Table
from cdc_platform_resources.home import HomeResource

MAX_ATTEMPTS = 3
"""The most runs that a sensor requests for one state of the tables before it leaves the failure to an operator."""
FINISHED_STATUSES = frozenset({DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED})
"""A run in any other status may still write."""
ACTIVE_STATUSES = [
    DagsterRunStatus.QUEUED,
    DagsterRunStatus.NOT_STARTED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
]
"""A schedule requests no further run while one has one of these statuses."""
PARTITION_TAG = "dagster/partition"
MAX_RETRIES_TAG = "dagster/max_retries"
"""Set to 0 on runs that a sensor or schedule requests again itself.

If the daemon also retried a crashed run, two would run at once.
"""


@dataclass(frozen=True)
class RunAttempt:
    """The outcome of a request for a run: a `request`, an `active` run, or neither.

    `ended` are the ended runs of the same request, newest first. If there is neither, they have reached `MAX_ATTEMPTS`.
    """

    request: RunRequest | None
    active: DagsterRun | None
    ended: tuple[DagsterRun, ...]

    def skip_reason(self, goal: str, remedy: str) -> str | None:
        """Return why no run is requested, or None if one is. `goal` is what the run is for, in the infinitive."""
        if self.request is not None:
            return None
        if self.active is not None:
            return f"run {self.active.run_id} is in progress, to {goal}"
        count, last = len(self.ended), self.ended[0].run_id
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
    tags: Mapping[str, str] | None = None,
) -> RunAttempt:
    """Request a run of `job`, unless one is active or `MAX_ATTEMPTS` runs of the same request have ended.

    Requests are the same if they have the same `state` (a tag and its value), or without it the same partition. A run
    of this job counts as active, or of every job with `any_job`, limited to the partition if there is one. `name`
    becomes part of the run key. A key blocks for as long as a run has it, even a failed one, so the attempt's number is
    part of it.
    """
    of_partition = {} if partition is None else {PARTITION_TAG: partition}
    runs = instance.get_runs(RunsFilter(job_name=None if any_job else job, tags=of_partition))
    active = next((run for run in runs if run.status not in FINISHED_STATUSES), None)
    ended = tuple(run for run in runs if run.job_name == job and (state is None or run.tags.get(state[0]) == state[1]))
    if active is not None or len(ended) >= MAX_ATTEMPTS:
        return RunAttempt(None, active, ended)
    marks = {**(tags or {}), **({} if state is None else {state[0]: state[1]}), MAX_RETRIES_TAG: "0"}
    request = RunRequest(run_key=f"{name}/{len(ended) + 1}", partition_key=partition, tags=marks)
    return RunAttempt(request, None, ended)


def request_scheduled_run(
    instance: DagsterInstance, job: str, moment: datetime, skip_reason: str | None
) -> RunRequest | SkipReason:
    """Request a run of the job at `moment`, unless there is a reason to skip it or one is queued or running."""
    if skip_reason is not None:
        return SkipReason(skip_reason)
    running = instance.get_runs(RunsFilter(job_name=job, statuses=ACTIVE_STATUSES), limit=1)
    if running:
        return SkipReason(f"run {running[0].run_id} is in progress")
    return RunRequest(run_key=moment.isoformat(), tags={MAX_RETRIES_TAG: "0"})


def find_active_partitions(instance: DagsterInstance, job: str) -> dict[str, str]:
    """Return the partitions for which a run of the job is queued or running, with the run's ID."""
    active = instance.get_runs(RunsFilter(job_name=job, statuses=ACTIVE_STATUSES))
    return {run.tags[PARTITION_TAG]: run.run_id for run in active if PARTITION_TAG in run.tags}


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
