"""One life of a soak's process: from the hour that the last life reached, until the end or until it is killed."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dagster import DagsterInstance, DagsterRunStatus, RunRequest, RunsFilter
from support.processes.clocks import MovableClock
from support.soak.daemon import Daemon
from support.soak.faults import enlarge_disk, injected
from support.soak.plan import MAX_NODES, Plan
from support.soak.soak_home import World, build_world, now_seconds

from cdc_platform.alerts import read_open_alerts
from cdc_platform.cdclog import hourly
from cdc_platform.clock import HOUR_SECONDS, HOUR_US, Clock, Microseconds, us_from_seconds
from cdc_platform.dagster_home import prepare_dagster_home
from cdc_platform.delta import Lake
from cdc_platform.home import open_home
from cdc_platform.home_location import HomeLocation, open_home_location
from cdc_platform.metastore import inbox, switches
from cdc_platform.metastore import tablets as stored_tablets
from cdc_platform_assets.join.inbox import JOIN_JOB
from cdc_platform_assets.log.hourly import HOURS_JOB
from cdc_platform_assets.maintenance import MAINTENANCE_JOB
from cdc_platform_assets.partitions import hour_us_from_partition

RECORDS = 120
"""The number of records of a soak, evenly over its hours."""
CALM_HOURS = 8
"""Hours without work and faults at the end, in which everything that waits has to finish."""
HOURLY_RUNS = 2
_ACTIONS_SECOND = 600
"""Seconds after the full hour at which people and clients act; schedules are due before that."""


@dataclass
class Soak:
    """The state of a soak between lives, in a file outside of the home."""

    start_s: int
    hour: int = 0
    """The hour that comes next."""
    ticked_s: float = 0
    """When schedules were last ticked (s since 1970); 0 before the first time."""
    lives: int = 0
    faulted: int = -1
    """The last hour whose fault was injected. A life after a kill repeats the hour without it."""
    pending: list[dict[str, Any]] = field(default_factory=list)
    """Actions that failed and are repeated."""
    cursors: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    """The CPU time of each kind of work, without that of lives that were killed."""
    is_mounted: bool = False
    """Whether the home has a file system of its own, which can be full."""
    records: list[dict[str, float]] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Soak:
        """Read the state."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    def store(self, path: Path) -> None:
        """Write the state at once."""
        draft = path.with_suffix(".new")
        draft.write_text(json.dumps(asdict(self)), encoding="utf-8")
        draft.replace(path)


class Life:
    """One process of a soak. `folder` has its state; `disk` is the file system of the home."""

    def __init__(self, plan: Plan, folder: Path, disk: Path, *, is_mounted: bool) -> None:
        self._plan, self._path, self._disk = plan, folder / "soak.json", disk
        if is_mounted:
            enlarge_disk(disk)
        self._clock, self._soak = MovableClock(), Soak.load(self._path)
        start_us = us_from_seconds(self._soak.start_s)
        self._home = _open(disk)
        if self._soak.hour == 0 and not (self._home.path / "lake").exists():
            self._clock.advance_to(self._soak.start_s)
            build_world(self._home, start_us)
        self._instance = DagsterInstance.from_config(str(prepare_dagster_home(self._home)))
        self._world = World(self._home, folder, start_us, plan.draws, MAX_NODES)
        self._daemon = Daemon(self._instance, self._soak.cursors, self._work_by_command)
        self._soak.lives += 1
        self._soak.is_mounted = is_mounted
        self._ticked_s = float(self._soak.ticked_s or self._soak.start_s)
        self._is_quiet = False

    def live(self) -> None:
        """Run all hours that remain, then the calm ones, and judge the home."""
        soak, plan = self._soak, self._plan
        self._clock.advance_to(soak.start_s + soak.hour * HOUR_SECONDS)
        self._daemon.end_lost_runs()
        while soak.hour < plan.hours + CALM_HOURS and not self._is_quiet:
            self._clock.advance_to(soak.start_s + soak.hour * HOUR_SECONDS + _ACTIONS_SECOND)
            fault = None if soak.faulted == soak.hour else plan.fault(soak.hour)
            if fault is not None and fault.kind == "full-disk" and not soak.is_mounted:
                fault = None
            if fault is not None:
                soak.faulted = soak.hour
                self._count({f"fault: {fault.kind}": 1})
                soak.store(self._path)
            self._daemon.tolerates_errors = fault is not None and not fault.kind.startswith("kill")
            with injected(fault, self._disk):
                self._live_hour(soak.hour)
            self._daemon.tolerates_errors = False
            soak.hour += 1
            self._log_progress()
            if soak.hour <= plan.hours and soak.hour % max(1, plan.hours // RECORDS) == 0:
                soak.records.append(self._measure())
            self._count(self._daemon.counts)
            self._daemon.counts.clear()
            for name, seconds in self._daemon.cpu_seconds.items():
                soak.cpu_seconds[name] = soak.cpu_seconds.get(name, 0.0) + seconds
            self._daemon.cpu_seconds.clear()
            soak.store(self._path)
        soak.result = self._judge()
        soak.store(self._path)

    def _live_hour(self, hour: int) -> None:
        soak, plan = self._soak, self._plan
        actions = [*soak.pending, *(plan.actions(hour) if hour < plan.hours else ())]
        soak.pending = []
        for action in actions:
            try:
                with self._timed(f"action {action['kind']}"):
                    self._world.act(action)
            except Exception as error:
                if not self._daemon.tolerates_errors:
                    raise
                self._count({f"{action['kind']} raised {type(error).__name__}": 1})
                soak.pending.append(action)
        if hour % plan.tick_hours == 0 or hour >= plan.hours:
            until = now_seconds()
            scheduled = self._daemon.tick_schedules(self._ticked_s, until)
            self._ticked_s = self._soak.ticked_s = until
            requested = self._daemon.tick_sensors()
            # The audit of the tables runs every hour, and so does the copy of the hour that has ended.
            self._is_quiet = hour > plan.hours and requested == 0 and scheduled <= HOURLY_RUNS

    def _work_by_command(self, job: str, request: RunRequest) -> bool:
        """Do the work of a join or of an hour as a command does, unless it falls to Dagster."""
        if job == MAINTENANCE_JOB:
            self._clock.stamp_files(self._home.path)  # it removes files by their age
        if job not in (JOIN_JOB, HOURS_JOB) or request.partition_key is None:
            return False
        if job == JOIN_JOB:
            number = int(request.partition_key.partition("_")[0])
        else:
            number = hour_us_from_partition(request.partition_key) // HOUR_US - self._soak.start_s // HOUR_SECONDS
        if number % self._plan.dagster_every == 0:
            return False
        with self._timed(f"command for {job}"):
            if job == JOIN_JOB:
                self._world.join_by_command(request.tags["cdc_platform/generation"])
            else:
                self._world.copy_by_command(request.partition_key)
        self._daemon.counts[f"commands for {job}"] += 1
        return True

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        started = time.process_time()
        yield
        self._daemon.cpu_seconds[what] += time.process_time() - started

    def _count(self, counts: dict[str, int] | Counter[str]) -> None:
        for name, number in counts.items():
            self._soak.counts[name] = self._soak.counts.get(name, 0) + number

    def _log_progress(self) -> None:
        soak, used = self._soak, time.process_time()
        print(f"hour {soak.hour:,} of {self._plan.hours:,}, life {soak.lives}, {used:.0f} s of CPU time", flush=True)

    def _measure(self) -> dict[str, float]:
        lake_files, lake_bytes = _measure_folder(self._home.path / "lake")
        dagster_files, dagster_bytes = _measure_folder(self._home.dagster)
        home_files, home_bytes = _measure_folder(self._home.path)
        temporary_files, temporary_bytes = _measure_folder(Path(os.environ["TMPDIR"]))
        return {
            "hour": self._soak.hour,
            "life": self._soak.lives,
            "lake_files": lake_files,
            "lake_bytes": lake_bytes,
            "dagster_files": dagster_files,
            "dagster_bytes": dagster_bytes,
            "other_files": home_files - lake_files - dagster_files,
            "other_bytes": home_bytes - lake_bytes - dagster_bytes,
            "temporary_files": temporary_files,
            "temporary_bytes": temporary_bytes,
            "memory_bytes": _resident_bytes(),
            "tick_seconds": sum(self._daemon.tick_seconds.values()),
            "real_s": time.monotonic(),
        }

    def _judge(self) -> dict[str, Any]:
        """Return the violations and pending work at the end, and the written rows."""
        lake = Lake(self._home.lake)
        with open_home(self._home.path) as home:
            report = home.check()
        self._daemon.tick_sensors()  # an alert about an earlier check ends with the results of this one
        hours = self._plan.hours
        unfinished = self._instance.get_runs(
            RunsFilter(
                statuses=[
                    status
                    for status in DagsterRunStatus
                    if status not in (DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED)
                ]
            )
        )
        return {
            "violations": [f"{line.invariant}: {line.sample}" for line in report.failed],
            "passed": sum(line.passed for line in report.results if not line.unknown),
            "waiting": {
                "joins": len(inbox.read_pending_events(lake)),
                "switches": len(switches.read_unfinished_switches(lake)),
                "tablet changes": len(stored_tablets.read_unfinished_layouts(lake)),
                "hours": len(hourly.list_due_hours(lake, Clock(Microseconds(self._judged_us())), 1000)),
                "actions": len(self._soak.pending),
                "runs": len(unfinished),
            },
            "runs": dict(Counter(run.job_name for run in self._instance.get_runs())),
            "alerts": [f"{alert['key']}: {alert['message']}" for alert in read_open_alerts(self._home)],
            "rows": {
                table: [self._world.expected_rows(table, hours), *self._world.stored_rows(table)]
                for table in ("t", "tabs")
            },
            "reasons": self._daemon.reasons,
        }

    def _judged_us(self) -> Microseconds:
        """Return the time of the last ticks: an hour that became due since then was requested by no schedule."""
        return us_from_seconds(int(self._ticked_s))


def fork_life(plan: Plan, folder: Path, disk: Path, *, is_mounted: bool) -> int:
    """Run one life in a process that is forked from this one; return its exit code, negative if it was killed.

    Without a file system of its own (`is_mounted`) the disk is never full.
    """
    child = os.fork()
    if child:
        try:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        except SystemExit:
            os.kill(child, signal.SIGKILL)
            raise
    code: int = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        random.seed(plan.seed)
        Life(plan, folder, disk, is_mounted=is_mounted).live()
        code = 0
    finally:
        if sys.exc_info()[0] is not None:
            traceback.print_exc()
        os._exit(code)


def _open(disk: Path) -> HomeLocation:
    os.environ["CDC_PLATFORM_HOME"] = str(disk / "home")
    return open_home_location()


def _measure_folder(folder: Path) -> tuple[int, int]:
    """Return the number of files in a folder and below it, and their bytes."""
    files = size = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            more = _measure_folder(Path(entry.path)) if entry.is_dir() else (1, entry.stat().st_size)
            files, size = files + more[0], size + more[1]
    return files, size


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
