"""A generation as it is generated: every range of the ring after the join with its streams, and the audit of them.

The rules are in `cdc_platform.generations`, the step is `lifecycle.bootstrap.describe`.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetExecutionContext,
    MaterializeResult,
    multi_asset_check,
)

from assets.bootstrap_events import bootstrap_events
from assets.checks import invariant_results, invariant_specs
from assets.declared import Sources, pool, table_asset
from assets.drawn import drawn_ring, drawn_streams
from assets.failures import in_one_line
from assets.partitions import GENERATIONS
from assets.told import Stopwatch, few_rows, materialized
from cdc_platform.invariants.audit import (
    ACROSS_INVARIANTS,
    DESCRIPTION_INVARIANTS,
    audit_across,
    audit_description,
    audit_lake,
)
from cdc_platform.invariants.findings import Finding
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import BOOTSTRAP_EVENTS, TOPOLOGY_DESCRIPTIONS
from cdc_platform.lifecycle.join import bootstrap
from cdc_platform.records import inbox
from cdc_platform.ring import Ring
from resources.home import HomeResource
from resources.spark import SparkResource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INVARIANTS = (*DESCRIPTION_INVARIANTS, *ACROSS_INVARIANTS)
_TOKENS = [(BOOTSTRAP_EVENTS, "tokens")]
_SHARDING = [*_TOKENS, (BOOTSTRAP_EVENTS, "shard_count"), (BOOTSTRAP_EVENTS, "ignore_msb")]
SOURCES: Sources = {
    "generation_id": [(BOOTSTRAP_EVENTS, "generation_id")],
    "range_end": _TOKENS,
    "range_start": _TOKENS,
    "vnode_index": _TOKENS,
    "owner": [(BOOTSTRAP_EVENTS, "host_id")],
    "streams": [(BOOTSTRAP_EVENTS, "generation_id"), *_SHARDING],
    "ignore_msb": [(BOOTSTRAP_EVENTS, "ignore_msb")],
}


@table_asset(
    TOPOLOGY_DESCRIPTIONS,
    group="generations",
    spark=True,
    deps=[bootstrap_events],
    partitions=GENERATIONS,
    description="Generated from the ring as it stands and the tokens of the node whose turn it is. The random "
    "bits of a stream ID are a hash of generation, range and shard: materialised again, it has the same bytes.",
)
def topology_descriptions(
    context: AssetExecutionContext, spark: SparkResource, home: HomeResource
) -> MaterializeResult:
    """Generate the streams of one generation."""
    watch, lake = Stopwatch(), home.lake()
    with in_one_line():
        described = bootstrap.describe(spark.spark_session, lake, context.partition_key)
        event = inbox.event(lake, generation_id=context.partition_key)
    ring = described.ring_after
    if described.warning:
        context.log.warning(described.warning)
    told = {
        **({"mixed_cluster": described.warning} if described.warning else {}),
        "streams": described.num_streams,
        "ring": drawn_ring(ring, None if event.is_repair else event.node),
        "streams_a_node_and_a_shard": drawn_streams(ring),
        "nodes": few_rows(("host_id", "address", "ranges", "shards", "ignore_msb"), _nodes(ring)),
    }
    return materialized(described.version, rows=described.num_ranges, watch=watch, sources=SOURCES, told=told)


@multi_asset_check(
    can_subset=True,
    name="audit_topology_descriptions",
    specs=invariant_specs(TOPOLOGY_DESCRIPTIONS, INVARIANTS),
    pool=pool(TOPOLOGY_DESCRIPTIONS),
)
def audit_topology_descriptions(
    context: AssetCheckExecutionContext, spark: SparkResource, home: HomeResource
) -> Iterator[AssetCheckResult]:
    """Judge a description before it is inserted: one Spark pass, two for streams that other generations have."""
    with in_one_line():
        if context.has_partition_key:
            findings = _audit(spark.spark_session, home.lake(), context.partition_key)
        else:
            findings = audit_lake(spark.spark_session, home.lake())
    yield from invariant_results(TOPOLOGY_DESCRIPTIONS, context.selected_asset_check_keys, findings)


def _audit(spark: "SparkSession", lake: Lake, generation_id: str) -> list[Finding]:
    before, after = bootstrap.rings(lake, generation_id)
    findings = audit_description(spark, lake, generation_id, before, after)
    return [*findings, *audit_across(spark, lake, generation_id)]


def _nodes(ring: Ring) -> Iterator[tuple[str, str, int, int, int]]:
    for node in ring.nodes:
        yield str(node.host_id), node.address, len(node.tokens), node.shard_count, node.ignore_msb
