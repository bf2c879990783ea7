"""The audited description as V2 descriptions: what nodes read when they learn of a generation.

The step is `lifecycle.bootstrap.insert_descriptions`; the timestamp is chosen only after it.
"""

from collections.abc import Iterator

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetExecutionContext,
    MaterializeResult,
    multi_asset_check,
)

from assets.checks import invariant_results, invariant_specs
from assets.declared import Sources, pool, table_asset
from assets.failures import in_one_line
from assets.partitions import GENERATIONS
from assets.told import Stopwatch, materialized
from assets.topology_descriptions import topology_descriptions
from cdc_platform.clock import format_ms
from cdc_platform.invariants.audit import INSERTED_INVARIANTS, audit_inserted, audit_lake
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import GENERATION_DESCRIPTIONS, GENERATION_DESCRIPTIONS_V2, TOPOLOGY_DESCRIPTIONS
from cdc_platform.lifecycle.join import bootstrap, bootstrap_v1
from cdc_platform.records import reading
from resources.clock import ClockResource
from resources.home import HomeResource
from resources.spark import SparkResource

INVARIANTS = INSERTED_INVARIANTS
SOURCES: Sources = {
    "id": [(TOPOLOGY_DESCRIPTIONS, "generation_id")],
    "range_end": [(TOPOLOGY_DESCRIPTIONS, "range_end")],
    "ignore_msb": [(TOPOLOGY_DESCRIPTIONS, "ignore_msb")],
    "num_ranges": [(TOPOLOGY_DESCRIPTIONS, "range_end")],
    "streams": [(TOPOLOGY_DESCRIPTIONS, "streams")],
}


@table_asset(
    GENERATION_DESCRIPTIONS_V2,
    group="generations",
    spark=True,
    deps=[topology_descriptions],
    partitions=GENERATIONS,
    description="The audited description, each row with the number of rows that the whole has: a reader that finds "
    "fewer refuses the generation.",
)
def cdc_generation_descriptions_v2(
    context: AssetExecutionContext, spark: SparkResource, home: HomeResource, clock: ClockResource
) -> MaterializeResult:
    """Insert one generation's description, in one commit; in a mixed cluster in the first format."""
    watch, lake = Stopwatch(), home.lake()
    with in_one_line():
        if bootstrap.is_v1(lake, context.partition_key):
            return _in_first_format(context, lake, clock, home, watch)
        version = bootstrap.insert_descriptions(spark.spark_session, lake, context.partition_key)
        rows = reading.complete_range_ends(lake, context.partition_key).size
    return materialized(version, rows=rows, watch=watch, sources=SOURCES, told={"format": "v2"})


def _in_first_format(
    context: AssetExecutionContext, lake: Lake, clock: ClockResource, home: HomeResource, watch: Stopwatch
) -> MaterializeResult:
    """Not every node understands V2: the generation becomes one row of `cdc_generation_descriptions`."""
    time_ms = bootstrap_v1.insert_description(lake, clock.clock(), home.settings(), context.partition_key)
    told = {"format": "v1", "time": format_ms(time_ms), "table": GENERATION_DESCRIPTIONS.full_name}
    return materialized(lake.version(GENERATION_DESCRIPTIONS), rows=1, watch=watch, sources=SOURCES, told=told)


@multi_asset_check(
    can_subset=True,
    name="audit_cdc_generation_descriptions_v2",
    specs=invariant_specs(GENERATION_DESCRIPTIONS_V2, INVARIANTS),
    pool=pool(GENERATION_DESCRIPTIONS_V2),
)
def audit_cdc_generation_descriptions_v2(
    context: AssetCheckExecutionContext, spark: SparkResource, home: HomeResource
) -> Iterator[AssetCheckResult]:
    """Judge what was inserted, in one Spark pass, before the generation is given its timestamp."""
    with in_one_line():
        if context.has_partition_key:
            findings = audit_inserted(spark.spark_session, home.lake(), context.partition_key)
        else:
            findings = audit_lake(spark.spark_session, home.lake())
    yield from invariant_results(GENERATION_DESCRIPTIONS_V2, context.selected_asset_check_keys, findings)
