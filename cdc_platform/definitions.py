"""The code location that Dagster loads: all definitions of `assets` with their resources."""

from __future__ import annotations

from cdc_platform.runtime import gc_paused_for_imports

with gc_paused_for_imports():  # garbage collection would take a third of the import time in every process
    from dagster import Definitions, in_process_executor

    from assets import expiry, maintenance, repair, switch, tables, v1_rewrite
    from assets.catalog_sync import definitions as reconcile
    from assets.cluster import definitions as cluster
    from assets.join import definitions as join
    from assets.log import definitions as log
    from assets.tablets import definitions as tablets
    from cdc_platform.instance_lock import bind_to_up
    from resources.clock import ClockResource
    from resources.home import HomeResource
    from resources.spark import SparkResource

bind_to_up()

DEFINITION_MODULES = (join, switch, repair, v1_rewrite, tablets, expiry, log, cluster, tables, maintenance, reconcile)

defs = Definitions.merge(
    *(room.DEFINED for room in DEFINITION_MODULES),
    Definitions(
        resources={"spark": SparkResource(), "home": HomeResource(), "clock": ClockResource()},
        executor=in_process_executor,
    ),
)
