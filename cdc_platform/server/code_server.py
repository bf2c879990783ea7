"""Dagster's code server: `python -m cdc_platform.server.code_server` with the options of `dagster api grpc`.

Runs are forks of a process that has imported everything, because importing takes longer than most runs. That process is
itself a fork of the code server, made before it serves, so both share their memory. Each run ends with `up`.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
from functools import wraps
from pathlib import Path
from typing import Any

from cdc_platform.dagster_home import prepare_dagster_home
from cdc_platform.errors import EnvironmentProblem, PlatformError, to_one_line
from cdc_platform.home_location import open_home_location
from cdc_platform.instance_lock import UP_VARIABLE, bind_to_up
from cdc_platform.json_logs import configure_json_logs
from cdc_platform.processes import kill_when_parent_dies
from cdc_platform.server.console_commands import console_command
from cdc_platform.server.dagster_watch import watch_dagster
from cdc_platform.server.renamed_schedules import carry_over_stopped_schedules


def initialize_dagster_storage(folder: Path) -> None:
    """Let Dagster create its databases, end what an earlier `up` left unfinished, and stop renamed schedules.

    On a new home the UI and the daemon would otherwise both create the databases at once, and one would fail. If a
    run's process was killed together with its `up`, Dagster would list the run as started forever and never request its
    join again. No run can be alive under the home's lock. The pool slots of such runs are freed. A schedule that was
    stopped under an earlier name is stopped before the daemon could start it under its new name.

    Raises:
        EnvironmentProblem: Dagster cannot work in the folder.
    """
    from dagster import DagsterInstance, DagsterRunStatus, RunsFilter

    alive = [DagsterRunStatus.STARTING, DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING]
    try:
        with DagsterInstance.from_config(str(folder)) as instance:
            carry_over_stopped_schedules(instance)
            for run in instance.get_runs(RunsFilter(statuses=alive)):
                instance.report_run_failed(run, "its process ended together with an earlier cdc-platform up")
            tables = instance.event_log_storage
            for pool in tables.get_concurrency_keys():
                slots = tables.get_concurrency_info(pool)
                for run_id in slots.active_run_ids | slots.pending_run_ids:
                    tables.free_concurrency_slots_for_run(run_id)
    except Exception as error:  # noqa: BLE001 any error of Dagster, its database or its disk
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
        raise EnvironmentProblem(f"Dagster cannot work in {folder} ({reason}); fix it, or use another home") from None


PRELOADED = "cdc_platform.server.prefork_imports"

if __name__ == "__mp_main__":
    configure_json_logs()
    bind_to_up()
    kill_when_parent_dies()


def serve_code_location() -> None:
    """Serve until a signal ends the process."""
    bind_to_up()
    configure_json_logs()
    command = console_command("dagster")
    try:
        home = open_home_location()
        if UP_VARIABLE not in os.environ:
            os.environ["DAGSTER_HOME"] = str(prepare_dagster_home(home))
        folder = Path(os.environ["DAGSTER_HOME"])
        initialize_dagster_storage(folder)
    except PlatformError as error:
        sys.exit(str(error))  # `up` shows the last log line of a service that has ended
    load_migrations_once()
    report_ended_runs_after_outages()
    if sys.platform == "linux":
        fork_runs()
    watch_dagster(home, folder)
    sys.argv[:1] = ["dagster", "api", "grpc"]
    command()


def load_migrations_once() -> None:
    """Make alembic load Dagster's migration scripts once per process.

    Each sensor tick opens Dagster's storage, which compares the revision of each database with the scripts. Without
    this function, a tick loads a hundred modules, which takes more CPU than the rest of the tick.
    """
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    load, loaded = ScriptDirectory.from_config, dict[str | None, ScriptDirectory]()

    def from_config(config: Config) -> ScriptDirectory:
        folder = config.get_main_option("script_location")
        if folder not in loaded:
            loaded[folder] = load(config)
        return loaded[folder]

    ScriptDirectory.from_config = from_config  # type: ignore[method-assign]


def report_ended_runs_after_outages() -> None:
    """Make Dagster report runs whose process has ended also if its storage was unreachable when they ended.

    The code server looks for such runs in a thread that ends with the first error. The runs would stay started until
    their maximum runtime, and what they do would not be requested again. Here the next look reports them.
    """
    from dagster._grpc.server import DagsterApiServer

    report = DagsterApiServer._check_for_orphaned_runs
    logger, is_failing = logging.getLogger(__name__), False

    @wraps(report)
    def report_or_warn(self: DagsterApiServer) -> None:
        nonlocal is_failing
        try:
            report(self)
        except Exception as error:  # noqa: BLE001 any error of Dagster, its database or its disk
            if not is_failing:
                logger.warning("Runs that have ended cannot be reported yet: %s", to_one_line(str(error)))
            is_failing = True
        else:
            is_failing = False

    DagsterApiServer._check_for_orphaned_runs = report_or_warn  # type: ignore[method-assign]


def fork_runs() -> None:
    """Fork the runs of this code server from a process that has imported what they import.

    Dagster starts each run in multiprocessing's context "spawn" and has no option for another one. Here that name
    returns the context "forkserver". Its process starts with the first run, so an `up` without runs needs no memory for
    it.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([PRELOADED])
    get_context: Any = multiprocessing.get_context

    def forking(method: str | None = None) -> Any:
        return context if method == "spawn" else get_context(method)

    multiprocessing.get_context = forking


if __name__ == "__main__":
    serve_code_location()
