"""Whether Spark retries a failed task on another executor, and the settings for that.

A store may admit one executor and refuse another.
"""

from __future__ import annotations

import os

_RETRY_VARIABLE = "CDC_PLATFORM_TRIED_ELSEWHERE"
"""What executors have in their environment whose tasks, where they fail, Spark runs on others."""
_WAIT_SECONDS = 15
"""How long it waits for one that has not failed at a task yet, as while another takes the place of one that died."""
RETRY_SETTINGS = {
    "spark.excludeOnFailure.taskAndStage.enabled": "true",
    "spark.scheduler.excludeOnFailure.unschedulableTaskSetTimeout": f"{_WAIT_SECONDS}s",
    f"spark.executorEnv.{_RETRY_VARIABLE}": "1",
}
"""Settings of a driver of a cluster, by which it does so."""
_MAX_ATTEMPTS = 4
"""So often Spark runs a task that fails, unless it is told otherwise."""


def is_retried_elsewhere() -> bool:
    """Whether the task that this is asked in is run by another worker if it fails."""
    if not os.environ.get(_RETRY_VARIABLE):
        return False
    from pyspark import TaskContext

    context = TaskContext.get()
    return context is not None and context.attemptNumber() + 1 < _MAX_ATTEMPTS
