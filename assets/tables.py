"""All tables of the home as they lie there: how large each is, whether files, rows and commits are the platform's own.

It stands beside the rooms, none of which knows all tables; logs and sinks are among them. No Spark.
"""

import hashlib
from collections.abc import Iterator
from datetime import datetime

import pyarrow as pa
from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetExecutionContext,
    AssetSelection,
    DagsterInstance,
    DataVersion,
    DefaultScheduleStatus,
    Definitions,
    MaterializeResult,
    RunRequest,
    ScheduleEvaluationContext,
    SkipReason,
    define_asset_job,
    in_process_executor,
    multi_asset_check,
    schedule,
)

from assets.checks import Found, check_specs, judged
from assets.declared import pool, table_asset
from assets.runs import unless_under_way
from assets.told import Stopwatch, few_rows
from cdc_platform.errors import PlatformError
from cdc_platform.invariants.findings import FOLLOWING, STORED
from cdc_platform.invariants.following import audit_following
from cdc_platform.invariants.stored import audit_stored, findings_of
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import Table
from cdc_platform.lake.verification import verify
from cdc_platform.lake.versions import stored_names
from resources.clock import ClockResource
from resources.home import HomeResource

AUDIT_JOB = "audit_tables"
DAILY = "30 3 * * *"
HOME_TABLES = Table(
    "platform",
    "tables",
    pa.schema([]),
    keys=(),
    comment="Every table that lies in the home",
)
"""Stands for all of them."""


@table_asset(
    HOME_TABLES,
    group="tables",
    spark=False,
    description="Materialise it to see the version, rows and bytes of each. Its checks look at files, rows and commits "
    "of all tables, and hold those that follow from others against them: every day, and in `cdc-platform check`.",
)
def home_tables(context: AssetExecutionContext, home: HomeResource) -> MaterializeResult:
    """List the tables; what cannot be opened is left to the checks."""
    watch, lake = Stopwatch(), home.lake()
    lines = list(_sizes(lake))
    context.log.info(f"{len(lines)} tables.")
    told = {
        "bytes": sum(line[3] for line in lines),
        "tables": few_rows(("table", "version", "rows", "bytes"), sorted(lines, key=lambda line: -line[3])),
    }
    content = hashlib.sha256(repr(sorted(lines)).encode()).hexdigest()[:32]
    return MaterializeResult(
        metadata={"dagster/row_count": len(lines), "seconds": watch.seconds(), **told},
        data_version=DataVersion(content),
    )


def _sizes(lake: Lake) -> Iterator[tuple[str, int, int, int]]:
    for keyspace, name in stored_names(lake):
        table = Table(keyspace, name, pa.schema([]), (), "")
        try:
            slices, version = lake.slices(table), lake.version(table)
        except PlatformError:
            continue
        yield table.full_name, version or 0, sum(part.rows for part in slices), sum(part.bytes for part in slices)


@multi_asset_check(
    can_subset=True,
    name="audit_stored_tables",
    specs=check_specs(HOME_TABLES, [*STORED.invariants, *FOLLOWING.invariants]),
    pool=pool(HOME_TABLES),
)
def audit_home_tables(
    context: AssetCheckExecutionContext, home: HomeResource, clock: ClockResource
) -> Iterator[AssetCheckResult]:
    """Judge all tables as `cdc-platform check` does; large slices are left to `check --deep`."""
    lake = home.lake()

    def audit(_: str | None) -> Found:
        found = verify(lake)
        following = findings_of(FOLLOWING, lambda: audit_following(lake), found)
        return [(STORED, audit_stored(found)), (FOLLOWING, following or [])]

    yield from judged(context, HOME_TABLES, lake, clock.clock(), audit)


audit_tables = define_asset_job(
    AUDIT_JOB,
    selection=AssetSelection.assets(home_tables),
    description="Lists all tables of the home and judges their files, rows and commits. It writes nothing.",
    executor_def=in_process_executor,
)


def scheduled_audit(lake: Lake, instance: DagsterInstance, moment: datetime) -> RunRequest | SkipReason:
    """What the schedule asks for at `moment`: a run, if the home has tables and none is under way."""
    if not stored_names(lake):
        return SkipReason("there are no tables yet")
    return unless_under_way(instance, AUDIT_JOB, moment)


@schedule(
    name="daily_audit_of_tables",
    job_name=AUDIT_JOB,
    cron_schedule=DAILY,
    default_status=DefaultScheduleStatus.RUNNING,
    description="Every day: whether files, rows and commits of all tables are the platform's own.",
)
def daily_audit_of_tables(context: ScheduleEvaluationContext, home: HomeResource) -> RunRequest | SkipReason:
    """`scheduled_audit` on this home and this instance."""
    return scheduled_audit(home.lake(), context.instance, context.scheduled_execution_time)


DEFINED = Definitions(
    assets=[home_tables],
    asset_checks=[audit_home_tables],
    jobs=[audit_tables],
    schedules=[daily_audit_of_tables],
)
