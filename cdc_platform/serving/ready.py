"""What is done to a home's Dagster before its parts start, as `python -m cdc_platform.serving.ready FOLDER`.

A process of its own: what it imports is not kept in memory by the command that starts it and goes on for weeks.
"""

from __future__ import annotations

import sys
from pathlib import Path


def make_ready(folder: Path) -> None:
    """Let Dagster make its databases, and end what an earlier `up` has left unfinished, with what that has reserved.

    On a new home the UI and the daemon would both make the databases at once, and one would fail. A run whose process
    was killed together with its `up` stands as started for good, and its join would never be asked for again; under
    the home's lock no run can be alive.
    """
    from dagster import DagsterInstance, DagsterRunStatus, RunsFilter

    alive = [DagsterRunStatus.STARTING, DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING]
    with DagsterInstance.from_config(str(folder)) as instance:
        instance.all_instigator_state()
        for run in instance.get_runs(RunsFilter(statuses=alive)):
            instance.report_run_failed(run, "its process ended together with an earlier cdc-platform up")
        tables = instance.event_log_storage
        for pool in tables.get_concurrency_keys():
            taken = tables.get_concurrency_info(pool)
            for run_id in taken.active_run_ids | taken.pending_run_ids:
                tables.free_concurrency_slots_for_run(run_id)


if __name__ == "__main__":
    make_ready(Path(sys.argv[1]))
