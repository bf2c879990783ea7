"""Run requests of sensors and schedules: running and failed attempts, and homes that must not be written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from typing import Any, TypeVar, cast

from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, RunRequest, RunsFilter, SkipReason

from cdc_platform.clock import format_us
from cdc_platform.delta import describe_mirror, get_mirrored_cluster, get_observed_status
from resources.home import HomeResource

MAX_ATTEMPTS = 3
"""Runs that a sensor asks for on one state of the tables before it leaves what does not succeed to people."""
FINISHED_STATUSES = frozenset({DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED})
"""A run in any other status may still write."""
ACTIVE_STATUSES = [
    DagsterRunStatus.QUEUED,
    DagsterRunStatus.NOT_STARTED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
]
"""A schedule asks for no second run beside one in these."""
PARTITION_TAG = "dagster/partition"
MAX_RETRIES_TAG = "dagster/max_retries"
"""Set to 0 by who asks again itself: the daemon must not repeat a crashed run too, there would be two at once."""


@dataclass(frozen=True)
class RunAttempt:
    """What becomes of a wish for a run: the `request`, or one that is `active`, or none of both.

    `ended` are the runs of the same wish that there were, newest first. Without a request and an active run they were
    as many as are asked for.
    """

    request: RunRequest | None
    active: DagsterRun | None
    ended: tuple[DagsterRun, ...]


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
    """Ask for a run of `job`, unless one is under way or `MAX_ATTEMPTS` of the same wish have ended.

    A wish is the same while `state`, a tag and its value, is; without it while the partition is. Under way counts what
    runs of this job, or of `any_job`, for the partition, where there is one. `name` goes into the run key: a key blocks
    for as long as a run has it, even a failed one, so the number of the attempt is part of it.
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


def request_run_unless_active(instance: DagsterInstance, job: str, moment: datetime) -> RunRequest | SkipReason:
    """What a schedule asks for at `moment`: a run of the job, unless one waits or runs."""
    running = instance.get_runs(RunsFilter(job_name=job, statuses=ACTIVE_STATUSES), limit=1)
    if running:
        return SkipReason(f"run {running[0].run_id} is under way")
    return RunRequest(run_key=moment.isoformat(), tags={MAX_RETRIES_TAG: "0"})


def find_active_partitions(instance: DagsterInstance, job: str) -> dict[str, str]:
    """The partitions of which a run of the job waits or runs, each with the run's ID."""
    active = instance.get_runs(RunsFilter(job_name=job, statuses=ACTIVE_STATUSES))
    return {run.tags[PARTITION_TAG]: run.run_id for run in active if PARTITION_TAG in run.tags}


_Tick = TypeVar("_Tick", bound=Callable[..., Any])


def skip_unless_writable(tick: _Tick) -> _Tick:
    """The tick of a sensor or a schedule, which has a resource `home`; skipped where nothing is built on that."""

    @wraps(tick)
    def ask(*args: object, home: HomeResource, **others: object) -> object:
        cluster = get_mirrored_cluster(home.lake())
        return SkipReason(describe_mirror(cluster)) if cluster is not None else whole(*args, home=home, **others)

    whole = skip_while_only_observed(tick)
    return cast(_Tick, ask)


def skip_while_only_observed(tick: _Tick) -> _Tick:
    """As `skip_unless_writable`, for runs which write what readers have done: the mirror of a live cluster takes
    that.
    """

    @wraps(tick)
    def ask(*args: object, home: HomeResource, **others: object) -> object:
        found = get_observed_status(home.lake())
        if found is not None:
            return SkipReason(
                f"this home is only observed since {format_us(found.since_us)}: nothing is built on it until "
                "cdc-platform check is clean"
            )
        return tick(*args, home=home, **others)

    return cast(_Tick, ask)
