"""Runs that sensors and schedules ask for: which are under way, and how often one is asked for before people are.

What is to be done follows from the tables; here is only how Dagster's runs are counted.
"""

from __future__ import annotations

from dagster import DagsterRunStatus

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
