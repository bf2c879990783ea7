"""Dagster definitions of the catalog sync: the sensor, and specs of tables that assets only read."""

from dagster import DefaultSensorStatus, Definitions, SensorEvaluationContext, SkipReason, sensor

from cdc_platform.cdclog import hourly
from cdc_platform.clock import Microseconds, us_from_ms
from cdc_platform.delta import read_newest_versions
from cdc_platform.tables import CDC_LOCAL, CDC_TABLES, GENERATIONS
from cdc_platform_assets.catalog_sync.sync import add_hour_partitions, sync_catalog
from cdc_platform_assets.catalog_sync.table_contents import (
    describe_table_versions,
    digest_versions,
    list_readable_clusters,
)
from cdc_platform_assets.specs import asset_key_from_table, build_table_spec
from cdc_platform_resources.clock import ClockResource
from cdc_platform_resources.home import HomeResource


@sensor(
    name="catalogue",
    minimum_interval_seconds=30,
    default_status=DefaultSensorStatus.RUNNING,
    description="Every 30 seconds, reports to Dagster what other programs wrote: partitions, materializations and "
    "check results. Removes partitions of withdrawn and removed generations, and of hours that are older than "
    "`dagster_retention_ms`. Starts no run.",
)
def catalogue(context: SensorEvaluationContext, home: HomeResource, clock: ClockResource) -> SkipReason:
    """Run `sync_catalog` on this home and instance.

    The cursor names the last state whose due hours are partitions, and the last one that was reported completely. It is
    empty while a part of the state is left to report.
    """
    lake, location, now = home.lake(), home.home(), clock.clock()
    versions, clusters = read_newest_versions(lake), list_readable_clusters(location)
    hours = f"{hourly.count_readable_hours(now)}/{digest_versions(versions)}"
    state = describe_table_versions(versions, clusters)
    if context.cursor == f"{hours} {state}":
        return SkipReason("everything that was written is reported")
    due = add_hour_partitions(lake, now, context.instance)
    if (context.cursor or "").partition(" ")[2] == state:
        context.update_cursor(f"{hours} {state}")
        return SkipReason("everything that was written is reported")
    hours_since_us = Microseconds(min([now.now_us() - us_from_ms(location.settings.dagster_retention_ms), *due]))
    repository = context.repository_def
    assert repository is not None
    summary = sync_catalog(
        lake, context.instance, repository.asset_graph, clusters=clusters, hours_since_us=hours_since_us
    )
    context.update_cursor("" if summary.left else f"{hours} {state}")
    return SkipReason(str(summary))


GENERATIONS_SPEC = build_table_spec(
    GENERATIONS,
    group="generations",
    description="Written by the steps of a join with a generation's timestamp and at the end of the join. No asset "
    "materializes it.",
    deps=[asset_key_from_table(CDC_LOCAL)],
)
CDC_TABLES_SPEC = build_table_spec(
    CDC_TABLES,
    group="cdc_log",
    description="Lists the CDC-enabled tables and the TTLs of their logs. Written by `cdc-platform tables` and CQL "
    "scripts. No edge leads to the logs: each new table would make the logs of all other tables stale.",
)

DEFINED = Definitions(assets=[GENERATIONS_SPEC, CDC_TABLES_SPEC], sensors=[catalogue])
