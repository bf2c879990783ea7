"""The code location that Dagster loads: all definitions of `assets` with their resources.

Importing this module configures the logs of the process, so that runs log as JSON also where Dagster's own commands
start them.
"""

from __future__ import annotations

from cdc_platform.runtime import gc_paused_for_imports

with gc_paused_for_imports():  # garbage collection would take a third of the import time in every process
    from dagster import Definitions, in_process_executor

    from cdc_platform.instance_lock import bind_to_up
    from cdc_platform.json_logs import configure_json_logs
    from cdc_platform.timeline import is_generation_name
    from cdc_platform_assets import (
        alerts,
        expiry,
        maintenance,
        repair,
        simulation,
        storage_checks,
        switch,
        tables,
        v1_rewrite,
    )
    from cdc_platform_assets.catalog_sync import definitions as reconcile
    from cdc_platform_assets.cluster import definitions as cluster
    from cdc_platform_assets.join import definitions as join
    from cdc_platform_assets.log import definitions as log
    from cdc_platform_assets.tablets import definitions as tablets
    from cdc_platform_resources.clock import ClockResource
    from cdc_platform_resources.home import HomeResource
    from cdc_platform_resources.spark import SparkResource

bind_to_up()
configure_json_logs(is_generation_name)

DEFINITION_MODULES = (
    join,
    switch,
    simulation,
    repair,
    v1_rewrite,
    tablets,
    expiry,
    log,
    cluster,
    tables,
    storage_checks,
    maintenance,
    reconcile,
    alerts,
)

defs = Definitions.merge(
    *(room.DEFINED for room in DEFINITION_MODULES),
    Definitions(
        resources={"spark": SparkResource(), "home": HomeResource(), "clock": ClockResource()},
        executor=in_process_executor,
    ),
)
