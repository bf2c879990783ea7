"""The generation's ID at the node that introduces it. Here the timestamp is chosen: as late as possible, and once.

The step is `lifecycle.bootstrap.introduce`; the ledger `platform.generations` keeps the choice.
"""

from dagster import AssetExecutionContext, MaterializeResult

from assets.declared import Sources, table_asset
from assets.failures import in_one_line
from assets.generation_descriptions import cdc_generation_descriptions_v2
from assets.partitions import GENERATIONS
from assets.told import Stopwatch, materialized
from cdc_platform.clock import format_ms
from cdc_platform.lake.tables import BOOTSTRAP_EVENTS, CDC_LOCAL, GENERATION_DESCRIPTIONS_V2
from cdc_platform.lifecycle.join import bootstrap
from cdc_platform.records import inbox
from resources.clock import ClockResource
from resources.home import HomeResource

SOURCES: Sources = {
    "host_id": [(BOOTSTRAP_EVENTS, "host_id")],
    "uuid": [(GENERATION_DESCRIPTIONS_V2, "id")],
}


@table_asset(
    CDC_LOCAL,
    group="generations",
    spark=False,
    deps=[cdc_generation_descriptions_v2],
    partitions=GENERATIONS,
    description="The inserted generation gets its timestamp, by default 65 s from now: twice the ring delay and "
    "the leeway. The timestamp is chosen once; materialised again, the same one comes out.",
)
def cdc_local(context: AssetExecutionContext, home: HomeResource, clock: ClockResource) -> MaterializeResult:
    """Give one generation its timestamp and keep its ID at the joining node."""
    watch, lake = Stopwatch(), home.lake()
    with in_one_line():
        time_ms = bootstrap.introduce(lake, clock.clock(), home.settings(), context.partition_key)
        host = str(inbox.event(lake, generation_id=context.partition_key).node.host_id)
    rows = lake.read(CDC_LOCAL, ["key"], [("host_id", "=", host)]).num_rows
    told = {"time": format_ms(time_ms), "host_id": host}
    return materialized(lake.version(CDC_LOCAL), rows=rows, watch=watch, sources=SOURCES, told=told)
