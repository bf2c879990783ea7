"""Dagster's daemon in one process: it ticks every sensor and schedule of the definitions and runs what they request.

Cursors are stored by the caller. A tick or a run that fails under a fault is repeated like any other.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any

from dagster import (
    AddDynamicPartitionsRequest,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    RunRequest,
    RunsFilter,
    ScheduleDefinition,
    SensorDefinition,
    build_run_status_sensor_context,
    build_schedule_context,
    build_sensor_context,
)
from dagster._core.definitions.run_status_sensor_definition import RunStatusSensorDefinition
from dagster._core.events import DagsterEvent, DagsterEventType
from dagster._core.storage.event_log.sqlite import sqlite_event_log
from dagster._core.storage.runs.sqlite import sqlite_run_storage
from dagster._core.storage.schedules.sqlite import sqlite_schedule_storage
from dagster._core.storage.sqlite import SQLITE_BUSY_TIMEOUT_SECONDS
from dagster._core.storage.tags import RUN_KEY_TAG
from dagster._utils.schedules import schedule_execution_time_iterator
from sqlalchemy.pool import NullPool
from support.worlds.rehearsal import QUIET

from cdc_platform.definitions import defs
from cdc_platform_resources.clock import ClockResource
from cdc_platform_resources.home import HomeResource

MAX_ROUNDS = 4
"""The most rounds of all sensors in one hour: more than any chain of events needs."""
MAX_TICKS = 1_000
"""The most ticks of one sensor in a round; it ticks again while it requests runs."""
_LOST_STATUSES = [DagsterRunStatus.NOT_STARTED, DagsterRunStatus.STARTING, DagsterRunStatus.STARTED]
_EVENTS = {
    DagsterRunStatus.SUCCESS: DagsterEventType.RUN_SUCCESS,
    DagsterRunStatus.FAILURE: DagsterEventType.RUN_FAILURE,
}


def reuse_engines() -> None:
    """Let Dagster's SQLite storages of this process use one engine of SQLAlchemy per file.

    They create an engine for each statement, and a new engine compiles the statement again. That takes more CPU time
    than everything else in a soak.
    """
    options = {"poolclass": NullPool, "connect_args": {"timeout": SQLITE_BUSY_TIMEOUT_SECONDS}}
    for module in (sqlite_event_log, sqlite_run_storage, sqlite_schedule_storage):
        reused = lru_cache(maxsize=8)(partial(module.create_engine, **options))
        module.create_engine = lambda url, reused=reused, **_: reused(url)


class Daemon:
    """Ticks and runs on one instance. `before_run` may do the work of a request itself; it returns True if it has."""

    def __init__(
        self, instance: DagsterInstance, cursors: dict[str, str], before_run: Callable[[str, RunRequest], bool]
    ) -> None:
        self._instance, self._cursors, self._before_run = instance, cursors, before_run
        self._repository = defs.get_repository_def()
        sensors = sorted(self._repository.sensor_defs, key=lambda sensor: sensor.name)
        self._sensors = [sensor for sensor in sensors if not isinstance(sensor, RunStatusSensorDefinition)]
        self._observers = [sensor for sensor in sensors if isinstance(sensor, RunStatusSensorDefinition)]
        self._schedules = sorted(self._repository.schedule_defs, key=lambda schedule: schedule.name)
        self.tolerates_errors = False
        """Whether a fault is active, under which ticks and runs may raise."""
        self.counts: Counter[str] = Counter()
        self.reasons: dict[str, str] = {}
        """Why each sensor and schedule requested nothing in its last tick."""
        self.tick_seconds: dict[str, float] = {}
        """The CPU time (s) of the last tick of each."""
        self.cpu_seconds: defaultdict[str, float] = defaultdict(float)
        """The CPU time (s) of ticks and runs by kind."""

    def end_lost_runs(self) -> None:
        """End the runs of a killed process and free their pools, as run monitoring does."""
        with self._tolerated("monitoring of runs"):
            for run in self._instance.get_runs(RunsFilter(statuses=_LOST_STATUSES)):
                self._instance.report_run_failed(run, "the process of this run is gone")
                self._instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
                self.counts["runs lost"] += 1
                self._notify(run.run_id)

    def tick_schedules(self, after: float, until: float) -> int:
        """Tick each schedule that was due between two times (s since 1970), once; return the number of runs."""
        self.end_lost_runs()
        runs = 0
        for schedule in self._schedules:
            due = schedule_execution_time_iterator(until, schedule.cron_schedule, "UTC", ascending=False)
            moment = next(iter(due))
            if moment.timestamp() > after:
                requests = self._tick(schedule.name, lambda schedule=schedule, at=moment: self._schedule(schedule, at))
                runs += self._run_all(schedule.job_name, requests)
        return runs

    def tick_sensors(self) -> int:
        """Tick all sensors until they request nothing; return the number of runs."""
        total = 0
        for _ in range(MAX_ROUNDS):
            before = total
            for sensor in self._sensors:
                for _ in range(MAX_TICKS):
                    requests = self._tick(sensor.name, lambda sensor=sensor: self._sense(sensor))
                    runs = self._run_all(sensor.targets[0].job_name if sensor.targets else "", requests)
                    total += runs
                    if not runs or self.tolerates_errors:  # a failed run is requested again after a pause
                        break
            if total == before:
                break
        return total

    def run(self, job: str, request: RunRequest) -> bool:
        """Run a job in this process; return True if it succeeded."""
        tags = {**request.tags, **({RUN_KEY_TAG: request.run_key} if request.run_key else {})}
        self.counts[f"runs of {job}"] += 1
        started = time.process_time()
        with self._tolerated(f"run of {job}"):
            result = defs.resolve_job_def(job).execute_in_process(
                run_config={**QUIET, **request.run_config},
                instance=self._instance,
                partition_key=request.partition_key,
                tags=tags,
                raise_on_error=False,
            )
            self.cpu_seconds[f"run of {job}"] += time.process_time() - started
            self._notify(result.run_id)
            if not result.success:
                self.counts[f"failed runs of {job}"] += 1
                if not self.tolerates_errors:
                    raise AssertionError(f"{job} of {request.partition_key} failed without a fault: {_reason(result)}")
            return result.success
        return False

    def _run_all(self, job: str, requests: list[RunRequest]) -> int:
        runs = 0
        for request in requests:
            name = request.job_name or job
            with self._tolerated(f"request of {name}"):
                if self._is_known(request):
                    continue
                if not self._before_run(name, request):
                    self.run(name, request)
            runs += 1
        return runs

    def _is_known(self, request: RunRequest) -> bool:
        """Return True if a run has the request's key: the daemon starts no second one."""
        if request.run_key is None:
            return False
        return bool(self._instance.get_runs(RunsFilter(tags={RUN_KEY_TAG: request.run_key}), limit=1))

    def _schedule(self, schedule: ScheduleDefinition, moment: datetime) -> tuple[list[RunRequest], str | None]:
        context = build_schedule_context(
            instance=self._instance,
            instance_ref=self._instance.get_ref(),
            scheduled_execution_time=moment.astimezone(UTC),
            repository_def=self._repository,
            resources=_resources(),
        )
        with context:
            data = schedule.evaluate_tick(context)
        return list(data.run_requests or []), data.skip_message

    def _sense(self, sensor: SensorDefinition) -> tuple[list[RunRequest], str | None]:
        context = build_sensor_context(
            instance=self._instance,
            instance_ref=self._instance.get_ref(),
            cursor=self._cursors.get(sensor.name),
            repository_def=self._repository,
            sensor_name=sensor.name,
            resources=_resources(),
        )
        with context:
            data = sensor.evaluate_tick(context)
        for change in data.dynamic_partitions_requests or []:
            if isinstance(change, AddDynamicPartitionsRequest):
                self._instance.add_dynamic_partitions(change.partitions_def_name, list(change.partition_keys))
        for event in data.asset_events:
            self._instance.report_runless_asset_event(event)
        if data.cursor is not None:
            self._cursors[sensor.name] = data.cursor
        return list(data.run_requests or []), data.skip_message

    def _tick(self, name: str, evaluate: Callable[[], tuple[list[RunRequest], str | None]]) -> list[RunRequest]:
        started = time.process_time()
        with self._tolerated(f"tick of {name}"):
            requests, reason = evaluate()
            self.tick_seconds[name] = time.process_time() - started
            self.cpu_seconds[f"tick of {name}"] += self.tick_seconds[name]
            self.reasons[name] = reason or f"{len(requests)} runs requested"
            return requests
        return []

    def _notify(self, run_id: str) -> None:
        """Tick the sensors of ended runs."""
        with self._tolerated("reading an ended run"):
            run = self._instance.get_run_by_id(run_id)
            for sensor in self._observers if run is not None else ():
                if run is not None and sensor._run_status is run.status:
                    with self._tolerated(f"tick of {sensor.name}"):
                        _observe(sensor, self._instance, run)

    @contextmanager
    def _tolerated(self, what: str) -> Iterator[None]:
        """Count an error of the block, and continue if a fault is active."""
        try:
            yield
        except AssertionError:
            raise
        except Exception as error:
            if not self.tolerates_errors:
                raise
            self.counts[f"{what} raised {type(error).__name__}"] += 1


def _observe(sensor: RunStatusSensorDefinition, instance: DagsterInstance, run: DagsterRun) -> None:
    context = build_run_status_sensor_context(
        sensor_name=sensor.name,
        dagster_event=DagsterEvent(_EVENTS[run.status].value, run.job_name),
        dagster_instance=instance,
        dagster_run=run,
        resources=_resources(),
    )
    with context.for_run_failure() if run.status is DagsterRunStatus.FAILURE else context as entered:
        sensor(entered)


def _resources() -> dict[str, object]:
    return {"home": HomeResource(), "clock": ClockResource()}


def _reason(result: Any) -> str:
    failed = [event for event in result.all_events if event.is_step_failure]
    return "; ".join(f"{event.step_key}: {event.step_failure_data.error}" for event in failed) or "no step failed"
