"""Dagster definitions of the catalog sync: the sensor, and specs of tables that assets only read."""

from dagster import DefaultSensorStatus, Definitions, SensorEvaluationContext, SkipReason, sensor

from assets.catalog_sync.sync import add_hour_partitions, sync_catalog
from assets.catalog_sync.table_contents import describe_table_versions
from assets.specs import build_table_spec
from cdc_platform.tables import CDC_TABLES, GENERATIONS
from resources.clock import ClockResource
from resources.home import HomeResource


@sensor(
    name="catalogue",
    minimum_interval_seconds=30,
    default_status=DefaultSensorStatus.RUNNING,
    description="Tells Dagster what was written without it, by a command or another program: partitions, events with "
    "the commit, its writer and the digest, and check results. Takes away the partitions of generations that were "
    "withdrawn or removed. Starts no run and no JVM; a home that Dagster never saw is told over some ticks.",
)
def catalogue(context: SensorEvaluationContext, home: HomeResource, clock: ClockResource) -> SkipReason:
    """`sync_catalog` on this home and this instance. The cursor only says at which state nothing was left to tell."""
    lake = home.lake()
    add_hour_partitions(lake, clock.clock(), context.instance)
    state = describe_table_versions(lake)
    if context.cursor == state:
        return SkipReason("nothing has been written since all was told")
    repository = context.repository_def
    assert repository is not None
    summary = sync_catalog(lake, context.instance, repository.asset_graph)
    context.update_cursor("" if summary.left else state)
    return SkipReason(str(summary))


GENERATIONS_SPEC = build_table_spec(
    GENERATIONS,
    group="generations",
    description="Written with a generation's timestamp and when its join has ended. No asset makes it: it is what each "
    "step of a join leaves beside its table.",
)
CDC_TABLES_SPEC = build_table_spec(
    CDC_TABLES,
    group="cdc_log",
    description="Written by `cdc-platform tables` and by CQL scripts: which tables have a log, and how long its rows "
    "live.",
)

DEFINED = Definitions(assets=[GENERATIONS_SPEC, CDC_TABLES_SPEC], sensors=[catalogue])
