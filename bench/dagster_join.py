"""The rows about a join in a running `up`: from its launch by the sensor to the published timestamp.

The floor is Dagster's time for an empty job with as many steps and checks, launched in the same `up`, plus the join by
functions.
"""

from __future__ import annotations

import json
import random
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from dagster import DagsterEventType, DagsterInstance, RunsFilter
from dagster._core.run_coordinator.queued_run_coordinator import QueuedRunCoordinator

from bench.cluster import Size, lake_before_join, lake_before_next_join
from bench.empty_job import JOB, PARTITION
from bench.idle import SETTLES_SECONDS, up
from bench.life import Joins
from bench.measure import Pairs, Result
from bench.session import Bench
from cdc_platform.clock import Clock
from cdc_platform.delta import Lake, TaskRunner
from cdc_platform.home_location import open_home_location
from cdc_platform.server import CODE_LOCATION
from cdc_platform.tables import GENERATION_TIMESTAMPS
from cdc_platform_assets.join.inbox import JOIN_JOB

_SIZE = Size(1, 256, 8)
_WARM_UPS = 2
_TURNS = 15
"""Each side waits in Dagster's queue for a random time."""
_SECONDS = 120
_LAUNCH = """mutation($job: String!, $partition: String!) { launchRun(executionParams: {
selector: {repositoryLocationName: "LOCATION", repositoryName: "__repository__", jobName: $job}, mode: "default",
executionMetadata: {tags: [{key: "dagster/partition", value: $partition}]}
}) { __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""


def dagster_join(bench: Bench) -> list[Result]:
    """Measure joins that the sensor launches, relative to empty jobs and joins by functions; and the start of runs."""
    pairs, starts, parts = Pairs([], []), [], []
    moments = random.Random(0)
    settles = SETTLES_SECONDS if bench.sizes.repeats > 1 else 2
    with bench.scratch() as folder, up(folder / "home", program="bench.empty_job") as (_, address):
        time.sleep(settles)
        home = open_home_location(folder / "home")
        joins = Joins(TaskRunner.alone(), _SIZE, folder / "functions")
        with DagsterInstance.from_config(str(home.dagster)) as instance:
            instance.add_dynamic_partitions(JOB, [PARTITION])
            ends = _Runs(instance, address)
            # A job launched right after another one would wait in the queue equally long each time. A sensor's job is
            # launched at any moment between two polls of the queue, and so is the empty job here.
            queue = instance.run_coordinator
            assert isinstance(queue, QueuedRunCoordinator)
            for number in range(_WARM_UPS + (_TURNS if bench.sizes.repeats > 1 else 1)):
                by_functions = joins.seconds()
                time.sleep(moments.uniform(0, queue.dequeue_interval_seconds))
                empty, empty_started = ends.empty()
                joined, started = ends.join(Lake(home.lake), number)
                if number >= _WARM_UPS:
                    pairs.floor.append(by_functions + empty)
                    pairs.subject.append(joined)
                    starts.append(started)
                    spent = {"functions": by_functions, "empty": empty, "joined": joined}
                    parts.append({**spent, "started": started, "empty_started": empty_started})
    details = {"turns": parts}
    floor = "an empty job of as many steps and checks of a partition, and the join by functions"
    at, again = f"{_SIZE}, launch to timestamp", "from the launch of a join to its first step"
    return [
        Result("dagster-join", at, pairs.seconds, floor, pairs.floor_seconds, pairs.ratio, 1.5, details=details),
        Result("dagster-start", again, median(starts), "none: seconds", 0.0, median(starts), 2.0),
    ]


class _Runs:
    """Runs in an `up`, and the times of their events from its storage."""

    def __init__(self, instance: DagsterInstance, address: Mapping[str, str]) -> None:
        self._instance, self._told = instance, address

    def empty(self) -> tuple[float, float]:
        """Launch an empty job; return the seconds to its last materialization and to its first step."""
        run_id = self._launched()
        _await(lambda: self._has_ended(run_id), f"the end of run {run_id}")
        materialized = self._times(run_id, DagsterEventType.ASSET_MATERIALIZATION)
        launched = self._times(run_id, DagsterEventType.PIPELINE_ENQUEUED)[0]
        return materialized[-1] - launched, self._times(run_id, DagsterEventType.STEP_START)[0] - launched

    def join(self, lake: Lake, number: int) -> tuple[float, float]:
        """Queue a node; return the seconds from the launch of its join to its timestamp and to its first step."""
        earlier = {run.run_id for run in self._joins()}
        before = _published(lake)
        if number:
            lake_before_next_join(lake, _SIZE, number, Clock())
        else:
            lake_before_join(lake.root, _SIZE, Clock())
        _await(lambda: _published(lake) > before, "a published timestamp")
        published = _newest(lake)
        (run_id,) = {run.run_id for run in self._joins()} - earlier
        # The next join waits until this one is judged completely.
        _await(lambda: self._has_ended(run_id), f"the end of run {run_id}")
        launched = self._times(run_id, DagsterEventType.PIPELINE_ENQUEUED)[0]
        return published - launched, self._times(run_id, DagsterEventType.STEP_START)[0] - launched

    def _joins(self) -> list[Any]:
        return list(self._instance.get_runs(RunsFilter(job_name=JOIN_JOB)))

    def _has_ended(self, run_id: str) -> bool:
        run = self._instance.get_run_by_id(run_id)
        assert run is not None
        assert not (run.is_finished and not run.is_success), f"run {run_id} of {run.job_name} ended {run.status}"
        return run.is_finished

    def _times(self, run_id: str, kind: DagsterEventType) -> list[float]:
        return sorted(record.timestamp for record in self._instance.all_logs(run_id, of_type=kind))

    def _launched(self) -> str:
        query = {"query": _LAUNCH.replace("LOCATION", CODE_LOCATION), "variables": {"job": JOB, "partition": PARTITION}}
        token = Path(self._told["token_file"]).read_text(encoding="utf-8")
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        request = urllib.request.Request(f"{self._told['url']}/graphql", json.dumps(query).encode(), headers)
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
            launched = json.load(answer)["data"]["launchRun"]
        assert "run" in launched, launched
        return launched["run"]["runId"]


def _published(lake: Lake) -> int:
    """Return the number of generations with a published timestamp, from a new lake."""
    return Lake(lake.root).read(GENERATION_TIMESTAMPS).num_rows


def _newest(lake: Lake) -> float:
    """Return the time of the last publication: that of its commit's file."""
    log = Path(lake.path(GENERATION_TIMESTAMPS)) / "_delta_log"
    return max(path.stat().st_mtime for path in log.glob("*.json"))


def _await(happens: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _SECONDS
    while not happens():
        assert time.monotonic() < deadline, f"{what} was waited for in vain"
        time.sleep(0.1)
