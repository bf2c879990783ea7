"""The published timestamps: a row here is the commit mark of publishing, and with it a join is finished.

The step is `lifecycle.publish.publish_timestamp`.
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
from assets.drawn import drawn_timeline
from assets.failures import in_one_line
from assets.nodes import nodes
from assets.partitions import GENERATIONS
from assets.streams_descriptions import cdc_streams_descriptions_v2
from assets.told import Stopwatch, materialized
from cdc_platform.clock import format_ms
from cdc_platform.invariants.audit import TIMESTAMP_INVARIANTS, audit_timestamps
from cdc_platform.lake.tables import GENERATION_TIMESTAMPS, STREAMS_DESCRIPTIONS_V2
from cdc_platform.lifecycle.join import publish
from cdc_platform.records import reading
from resources.clock import ClockResource
from resources.home import HomeResource

INVARIANTS = TIMESTAMP_INVARIANTS
SOURCES: Sources = {"time": [(STREAMS_DESCRIPTIONS_V2, "time")]}


@table_asset(
    GENERATION_TIMESTAMPS,
    group="publishing",
    spark=False,
    deps=[cdc_streams_descriptions_v2, nodes],
    partitions=GENERATIONS,
    description="Readers that see a timestamp rely on all of its streams rows; so it is written last.",
)
def cdc_generation_timestamps(
    context: AssetExecutionContext, home: HomeResource, clock: ClockResource
) -> MaterializeResult:
    """Publish the timestamp of one generation."""
    watch, lake, now = Stopwatch(), home.lake(), clock.clock()
    with in_one_line():
        time_ms = publish.publish_timestamp(lake, now, context.partition_key)
    told = {"time": format_ms(time_ms), "timeline": drawn_timeline(reading.known_generations(lake), now)}
    return materialized(lake.version(GENERATION_TIMESTAMPS), rows=1, watch=watch, sources=SOURCES, told=told)


@multi_asset_check(
    can_subset=True,
    name="audit_cdc_generation_timestamps",
    specs=invariant_specs(GENERATION_TIMESTAMPS, INVARIANTS),
    pool=pool(GENERATION_TIMESTAMPS),
)
def audit_cdc_generation_timestamps(
    context: AssetCheckExecutionContext, home: HomeResource
) -> Iterator[AssetCheckResult]:
    """Judge that no timestamp is to be seen without all of its rows."""
    with in_one_line():
        generation_id = context.partition_key if context.has_partition_key else None
        findings = audit_timestamps(home.lake(), generation_id)
    yield from invariant_results(GENERATION_TIMESTAMPS, context.selected_asset_check_keys, findings)
