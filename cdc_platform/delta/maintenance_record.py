"""When each task of maintenance last succeeded in a home: a small JSON file next to its lake.

It is no table, because a mirror of a cluster, which takes no writes of its own, is maintained as well. A missing or
damaged file means that nothing is known.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from enum import StrEnum

from cdc_platform.clock import Clock, Microseconds, format_us, parse_time_us
from cdc_platform.delta.lake import Lake
from cdc_platform.delta.lake_copy import put_file
from cdc_platform.delta.locks import lake_lock
from cdc_platform.storage import StoragePath

MAINTENANCE_FILE = "maintenance.json"


class MaintenanceTask(StrEnum):
    """A task of maintenance that has to succeed once a day."""

    SMALL_FILES = "small_files"
    CHECKPOINTS = "checkpoints"
    VACUUM = "vacuum"
    LOG_FILES = "log_files"
    DAGSTER_RUNS = "dagster_runs"
    CHECK = "check"


TABLE_TASKS = (MaintenanceTask.SMALL_FILES, MaintenanceTask.CHECKPOINTS, MaintenanceTask.VACUUM)
"""The tasks of `maintenance.maintain_lake`."""


def read_maintenance(lake: Lake) -> dict[MaintenanceTask, Microseconds]:
    """Return when (µs) each task last succeeded; a task that never did is missing."""
    try:
        stored = json.loads(_get_path(lake).read())
        return {task: parse_time_us(stored[task]) for task in MaintenanceTask if task in stored}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def record_maintenance(lake: Lake, clock: Clock, tasks: Collection[MaintenanceTask]) -> None:
    """Record that tasks have succeeded now. Other tasks stay.

    Raises:
        EnvironmentProblem: the file cannot be written.
    """
    now_us = clock.now_us()
    with lake_lock(lake, "maintenance"):
        times: Mapping[MaintenanceTask, Microseconds] = read_maintenance(lake) | dict.fromkeys(tasks, now_us)
        document = {str(task): format_us(time_us) for task, time_us in times.items()}
        put_file(_get_path(lake), f"{json.dumps(document, indent=1)}\n".encode())


def _get_path(lake: Lake) -> StoragePath:
    return lake.location.folder / MAINTENANCE_FILE
