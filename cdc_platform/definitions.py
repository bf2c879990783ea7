"""Door 1: the code location that Dagster loads. It collects what `assets` and `resources` declare."""

from __future__ import annotations

from dagster import Definitions, in_process_executor

from assets.bootstrap_events import bootstrap_events, waiting_joins
from assets.cdc_log import audit_cdc_log, cdc_log, changed_logs, check_logs
from assets.consumers import audit_consumed_hours, consume_hours, consumed_hours, hourly_logs
from assets.expiry import (
    audit_removed_generations,
    expire,
    hourly_expiry,
    hourly_expiry_plan,
    plan_expiry,
    removed_generations,
)
from assets.generation_descriptions import audit_cdc_generation_descriptions_v2
from assets.generation_switches import (
    audit_generation_switches,
    drive_switches,
    generation_switches,
    unfinished_switches,
)
from assets.generation_timestamps import audit_cdc_generation_timestamps
from assets.jobs import GENERATION_ASSETS, bootstrap, join
from assets.repair import check_and_repair_streams, needed_repairs, streams_fit_the_ring
from assets.rewrite import (
    audit_cdc_streams_descriptions,
    cdc_generation_descriptions,
    cdc_streams_descriptions,
    hourly_rewrite,
    rewrite,
    v1_leftovers,
)
from assets.streams_descriptions import audit_cdc_streams_descriptions_v2
from assets.tablet_upkeep import collect_tablets, collectable_stream_sets, unfinished_tablets
from assets.tablets import TABLET_ASSETS, audit_cdc_streams, audit_cdc_timestamps, change_tablets
from assets.topology_descriptions import audit_topology_descriptions
from resources.clock import ClockResource
from resources.home import HomeResource
from resources.spark import SparkResource

defs = Definitions(
    assets=[
        bootstrap_events,
        *GENERATION_ASSETS,
        generation_switches,
        cdc_generation_descriptions,
        cdc_streams_descriptions,
        *TABLET_ASSETS,
        removed_generations,
        cdc_log,
        consumed_hours,
    ],
    asset_checks=[
        audit_topology_descriptions,
        audit_cdc_generation_descriptions_v2,
        audit_cdc_streams_descriptions_v2,
        audit_cdc_generation_timestamps,
        audit_generation_switches,
        audit_cdc_streams_descriptions,
        streams_fit_the_ring,
        audit_cdc_streams,
        audit_cdc_timestamps,
        audit_removed_generations,
        audit_cdc_log,
        audit_consumed_hours,
    ],
    jobs=[
        join,
        bootstrap,
        drive_switches,
        check_and_repair_streams,
        rewrite,
        change_tablets,
        collect_tablets,
        plan_expiry,
        expire,
        check_logs,
        consume_hours,
    ],
    sensors=[
        waiting_joins,
        unfinished_switches,
        needed_repairs,
        v1_leftovers,
        unfinished_tablets,
        collectable_stream_sets,
        changed_logs,
    ],
    schedules=[hourly_rewrite, hourly_expiry_plan, hourly_expiry, hourly_logs],
    resources={"spark": SparkResource(), "home": HomeResource(), "clock": ClockResource()},
    executor=in_process_executor,
)
