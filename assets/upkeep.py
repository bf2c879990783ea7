"""The upkeep of the files of all tables, every day: what nothing needs goes, in the homes of live clusters as well.

It stands beside the rooms, none of which knows all tables. No row changes, so also an only observed home is kept up.
"""

from datetime import datetime

from dagster import (
    DagsterInstance,
    DefaultScheduleStatus,
    Definitions,
    OpExecutionContext,
    RunRequest,
    ScheduleEvaluationContext,
    SkipReason,
    in_process_executor,
    job,
    op,
    schedule,
)

from assets.failures import RETRIES, in_one_line
from assets.runs import unless_under_way
from assets.told import few_rows
from cdc_platform.cluster import carried
from cdc_platform.errors import StateError
from cdc_platform.home import Home
from cdc_platform.lake import housekeeping
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.versions import stored_names
from cdc_platform.places import place_of
from resources.home import HomeResource

UPKEEP_JOB = "upkeep"
DAILY = "30 4 * * *"


@op(pool="platform/upkeep", retry_policy=RETRIES)
def clear_tables(context: OpExecutionContext, home: HomeResource) -> None:
    """Delete the files that no table needs; tables that cannot be kept up fail the run when all others are done."""
    with in_one_line():
        done = [(path, each) for path, lake in lakes(home.home()).items() for each in housekeeping.clear(lake)]
    rows = [(path, each.table, each.files) for path, each in done if each.files]
    files = sum(each.files for _, each in done)
    context.log.info(f"{files} files of {len(rows)} tables went.")
    context.add_output_metadata({"files": files, "tables": few_rows(("home", "table", "files"), rows)})
    with in_one_line():
        failed = [each.failed for _, each in done if each.failed]
        if failed:
            raise StateError(f"{len(failed)} tables were not kept up, as {failed[0]}")


def lakes(home: Home) -> dict[str, Lake]:
    """The lakes of a home and of those below it, by their paths."""
    below = {"": place_of(home.name), **carried.homes(home)}
    return {path: Lake(str(place / "lake")) for path, place in below.items()}


@job(
    name=UPKEEP_JOB,
    description="Deletes the files of all tables that nothing needs any more: seven days after a commit has removed "
    "them, or after they were written where no commit names them. Run again it goes on where it was.",
    executor_def=in_process_executor,
)
def upkeep() -> None:
    """The op."""
    clear_tables()


def scheduled_upkeep(home: Home, instance: DagsterInstance, moment: datetime) -> RunRequest | SkipReason:
    """What the schedule asks for at `moment`: a run, if there are tables and none is under way."""
    if not any(stored_names(lake) for lake in lakes(home).values()):
        return SkipReason("there are no tables yet")
    return unless_under_way(instance, UPKEEP_JOB, moment)


@schedule(
    name="daily_upkeep",
    job_name=UPKEEP_JOB,
    cron_schedule=DAILY,
    default_status=DefaultScheduleStatus.RUNNING,
    description="Every night: deletes the files of all tables that nothing has needed for seven days.",
)
def daily_upkeep(context: ScheduleEvaluationContext, home: HomeResource) -> RunRequest | SkipReason:
    """`scheduled_upkeep` on this home and this instance."""
    return scheduled_upkeep(home.home(), context.instance, context.scheduled_execution_time)


DEFINED = Definitions(jobs=[upkeep], schedules=[daily_upkeep])
