"""Runs that sensors and schedules ask for: which are under way, and how often one is asked for before people are.

What is to be done follows from the tables; here is only how Dagster's runs are counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, RunRequest, RunsFilter, SkipReason

MOST_ATTEMPTS = 3
"""Runs that a sensor asks for on one state of the tables before it leaves what does not succeed to people."""
FINISHED = frozenset({DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED})
"""A run in any other status may still write."""
WAITING_OR_RUNNING = [
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
class Attempt:
    """What becomes of a wish for a run: the `request`, or one that is `active`, or none of both.

    `ended` are the runs of the same wish that there were, newest first. Without a request and an active run they were
    as many as are asked for.
    """

    request: RunRequest | None
    active: DagsterRun | None
    ended: tuple[DagsterRun, ...]


def attempt(
    instance: DagsterInstance,
    job: str,
    name: str,
    *,
    state: tuple[str, str] | None = None,
    partition: str | None = None,
    any_job: bool = False,
    tags: Mapping[str, str] | None = None,
) -> Attempt:
    """Ask for a run of `job`, unless one is under way or `MOST_ATTEMPTS` of the same wish have ended.

    A wish is the same while `state`, a tag and its value, is; without it while the partition is. Under way counts what
    runs of this job, or of `any_job`, for the partition, where there is one. `name` goes into the run key: a key blocks
    for as long as a run has it, even a failed one, so the number of the attempt is part of it.
    """
    of_partition = {} if partition is None else {PARTITION_TAG: partition}
    runs = instance.get_runs(RunsFilter(job_name=None if any_job else job, tags=of_partition))
    active = next((run for run in runs if run.status not in FINISHED), None)
    ended = tuple(run for run in runs if run.job_name == job and (state is None or run.tags.get(state[0]) == state[1]))
    if active is not None or len(ended) >= MOST_ATTEMPTS:
        return Attempt(None, active, ended)
    marks = {**(tags or {}), **({} if state is None else {state[0]: state[1]}), MAX_RETRIES_TAG: "0"}
    request = RunRequest(run_key=f"{name}/{len(ended) + 1}", partition_key=partition, tags=marks)
    return Attempt(request, None, ended)


def unless_under_way(instance: DagsterInstance, job: str, moment: datetime) -> RunRequest | SkipReason:
    """What a schedule asks for at `moment`: a run of the job, unless one waits or runs."""
    running = instance.get_runs(RunsFilter(job_name=job, statuses=WAITING_OR_RUNNING), limit=1)
    if running:
        return SkipReason(f"run {running[0].run_id} is under way")
    return RunRequest(run_key=moment.isoformat(), tags={MAX_RETRIES_TAG: "0"})


def partitions_under_way(instance: DagsterInstance, job: str) -> dict[str, str]:
    """The partitions of which a run of the job waits or runs, each with the run's ID."""
    active = instance.get_runs(RunsFilter(job_name=job, statuses=WAITING_OR_RUNNING))
    return {run.tags[PARTITION_TAG]: run.run_id for run in active if PARTITION_TAG in run.tags}
