"""What is done to a home's Dagster before anything of it answers: by its code server, for which the others wait.

A process of its own would import Dagster once more: two seconds in which nothing else can start.
"""

from __future__ import annotations

from pathlib import Path

from cdc_platform.errors import EnvironmentProblem


def make_ready(folder: Path) -> None:
    """Let Dagster make its databases, and end what an earlier `up` has left unfinished, with what that has reserved.

    On a new home the UI and the daemon would both make the databases at once, and one would fail. A run whose process
    was killed together with its `up` stands as started for good, and its join would never be asked for again; under
    the home's lock no run can be alive.

    Raises:
        EnvironmentProblem: Dagster cannot work there.
    """
    from dagster import DagsterInstance, DagsterRunStatus, RunsFilter

    alive = [DagsterRunStatus.STARTING, DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING]
    try:
        with DagsterInstance.from_config(str(folder)) as instance:
            instance.all_instigator_state()
            for run in instance.get_runs(RunsFilter(statuses=alive)):
                instance.report_run_failed(run, "its process ended together with an earlier cdc-platform up")
            tables = instance.event_log_storage
            for pool in tables.get_concurrency_keys():
                taken = tables.get_concurrency_info(pool)
                for run_id in taken.active_run_ids | taken.pending_run_ids:
                    tables.free_concurrency_slots_for_run(run_id)
    except Exception as error:  # noqa: BLE001 whatever it is that Dagster, its database or its disk says
        told = (str(error).strip() or type(error).__name__).splitlines()[-1]
        raise EnvironmentProblem(f"Dagster cannot work in {folder} ({told}); mend that, or name another home") from None
