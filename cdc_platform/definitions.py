"""Door 1: the code location that Dagster loads. It collects what `assets` and `resources` declare."""

from __future__ import annotations

from dagster import Definitions, in_process_executor

from assets.bootstrap_events import bootstrap_events, waiting_joins
from assets.generation_descriptions import audit_cdc_generation_descriptions_v2
from assets.generation_timestamps import audit_cdc_generation_timestamps
from assets.jobs import GENERATION_ASSETS, bootstrap, join
from assets.streams_descriptions import audit_cdc_streams_descriptions_v2
from assets.topology_descriptions import audit_topology_descriptions
from resources.clock import ClockResource
from resources.home import HomeResource
from resources.spark import SparkResource

defs = Definitions(
    assets=[bootstrap_events, *GENERATION_ASSETS],
    asset_checks=[
        audit_topology_descriptions,
        audit_cdc_generation_descriptions_v2,
        audit_cdc_streams_descriptions_v2,
        audit_cdc_generation_timestamps,
    ],
    jobs=[join, bootstrap],
    sensors=[waiting_joins],
    resources={"spark": SparkResource(), "home": HomeResource(), "clock": ClockResource()},
    executor=in_process_executor,
)
