"""Door 1: the code location that Dagster loads. It collects what the rooms of `assets` define."""

from __future__ import annotations

from cdc_platform.interpreter import importing

with importing():  # else to look for garbage is a third of the time, behind any door
    from dagster import Definitions, in_process_executor

    from assets import expiry, repair, switch, tables, upgrade, upkeep
    from assets.cluster import defined as cluster
    from assets.join import defined as join
    from assets.log import defined as log
    from assets.reconcile import defined as reconcile
    from assets.tablets import defined as tablets
    from cdc_platform.lease import bind
    from resources.clock import ClockResource
    from resources.home import HomeResource
    from resources.spark import SparkResource

bind()

ROOMS = (join, switch, repair, upgrade, tablets, expiry, log, cluster, tables, upkeep, reconcile)

defs = Definitions.merge(
    *(room.DEFINED for room in ROOMS),
    Definitions(
        resources={"spark": SparkResource(), "home": HomeResource(), "clock": ClockResource()},
        executor=in_process_executor,
    ),
)
