"""The published streams of a generation: the rows that CDC clients read, before its timestamp is to be seen.

The step is `lifecycle.publish.publish_streams`.
"""

from collections.abc import Iterator

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetExecutionContext,
    MaterializeResult,
    multi_asset_check,
)

from assets.cdc_local import cdc_local
from assets.checks import invariant_results, invariant_specs
from assets.declared import Sources, pool, table_asset
from assets.failures import in_one_line
from assets.generation_descriptions import cdc_generation_descriptions_v2
from assets.partitions import GENERATIONS
from assets.told import Stopwatch, materialized
from cdc_platform.clock import format_ms
from cdc_platform.invariants.audit import PUBLISHED_INVARIANTS, audit_lake, audit_published
from cdc_platform.lake.tables import CDC_LOCAL, GENERATION_DESCRIPTIONS_V2, STREAMS_DESCRIPTIONS_V2
from cdc_platform.lifecycle.join import publish
from cdc_platform.records import reading
from resources.home import HomeResource
from resources.spark import SparkResource

INVARIANTS = PUBLISHED_INVARIANTS
SOURCES: Sources = {
    "time": [(CDC_LOCAL, "streams_timestamp")],
    "range_end": [(GENERATION_DESCRIPTIONS_V2, "range_end")],
    "streams": [(GENERATION_DESCRIPTIONS_V2, "streams")],
}


@table_asset(
    STREAMS_DESCRIPTIONS_V2,
    group="publishing",
    spark=True,
    deps=[cdc_generation_descriptions_v2, cdc_local],
    partitions=GENERATIONS,
    description="Nodes race to publish and any number may: the rows are the same. Streams are in shard order.",
)
def cdc_streams_descriptions_v2(
    context: AssetExecutionContext, spark: SparkResource, home: HomeResource
) -> MaterializeResult:
    """Publish the streams of one generation, in one commit."""
    watch, lake = Stopwatch(), home.lake()
    with in_one_line():
        version = publish.publish_streams(spark.spark_session, lake, context.partition_key)
        time_ms = reading.find_generation(lake, context.partition_key).time_ms
    if version is None:
        version = lake.version(STREAMS_DESCRIPTIONS_V2)
    rows = reading.published_range_ends(lake, time_ms).size
    return materialized(version, rows=rows, watch=watch, sources=SOURCES, told={"time": format_ms(time_ms)})


@multi_asset_check(
    can_subset=True,
    name="audit_cdc_streams_descriptions_v2",
    specs=invariant_specs(STREAMS_DESCRIPTIONS_V2, INVARIANTS),
    pool=pool(STREAMS_DESCRIPTIONS_V2),
)
def audit_cdc_streams_descriptions_v2(
    context: AssetCheckExecutionContext, spark: SparkResource, home: HomeResource
) -> Iterator[AssetCheckResult]:
    """Judge that the published rows are the description's, before the timestamp tells readers to come."""
    with in_one_line():
        if context.has_partition_key:
            findings = audit_published(spark.spark_session, home.lake(), context.partition_key)
        else:
            findings = audit_lake(spark.spark_session, home.lake())
    yield from invariant_results(STREAMS_DESCRIPTIONS_V2, context.selected_asset_check_keys, findings)
