"""Detection of Spark's retries of a failed task on another executor, and the settings that enable them.

A store may admit one executor and refuse another.
"""

from __future__ import annotations

import os

_RETRY_VARIABLE = "CDC_PLATFORM_TRIED_ELSEWHERE"
"""The environment variable of executors whose failed tasks Spark retries on others."""
_WAIT_SECONDS = 15
"""How long Spark waits for an executor that has not failed the task yet, for example a replacement for a dead one."""
RETRY_SETTINGS = {
    "spark.excludeOnFailure.taskAndStage.enabled": "true",
    "spark.scheduler.excludeOnFailure.unschedulableTaskSetTimeout": f"{_WAIT_SECONDS}s",
    f"spark.executorEnv.{_RETRY_VARIABLE}": "1",
}
"""Settings of a cluster's driver that make Spark retry failed tasks on other executors."""
_MAX_ATTEMPTS = 4
"""The number of attempts of a task in Spark, by default."""


def is_retried_elsewhere() -> bool:
    """Return True if Spark will retry the current task on another executor if it fails."""
    if not os.environ.get(_RETRY_VARIABLE):
        return False
    from pyspark import TaskContext

    context = TaskContext.get()
    return context is not None and context.attemptNumber() + 1 < _MAX_ATTEMPTS
