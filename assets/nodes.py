"""The ring as it stands: the joining node becomes a normal one once its generation is known.

The step is `lifecycle.bootstrap.admit`.
"""

from dagster import AssetExecutionContext, MaterializeResult

from assets.cdc_local import cdc_local
from assets.declared import Sources, table_asset
from assets.failures import in_one_line
from assets.partitions import GENERATIONS
from assets.told import Stopwatch, few_rows, materialized
from cdc_platform.lake.tables import BOOTSTRAP_EVENTS, NODES
from cdc_platform.lifecycle.join import bootstrap
from resources.home import HomeResource

SOURCES: Sources = {
    name: [(BOOTSTRAP_EVENTS, name)] for name in NODES.schema.names if name in BOOTSTRAP_EVENTS.schema.names
}


@table_asset(
    NODES,
    group="generations",
    spark=False,
    deps=[cdc_local],
    partitions=GENERATIONS,
    description="The node that introduces the generation becomes NORMAL. The generation of the next node is "
    "made from this ring.",
)
def nodes(context: AssetExecutionContext, home: HomeResource) -> MaterializeResult:
    """Admit the node of one generation to the ring."""
    watch, lake = Stopwatch(), home.lake()
    with in_one_line():
        admitted = bootstrap.admit(lake, context.partition_key)
    columns = ["host_id", "address", "datacenter", "rack", "status", "shard_count", "ignore_msb"]
    rows = lake.read(NODES, columns)
    told = {
        "admitted": str(admitted.host_id),
        "ring": few_rows(columns, (tuple(row.values()) for row in rows.sort_by("host_id").to_pylist())),
    }
    return materialized(lake.version(NODES), rows=rows.num_rows, watch=watch, sources=SOURCES, told=told)
