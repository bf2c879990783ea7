"""Dagster definitions of joins."""

from dagster import Definitions

from cdc_platform_assets.join.inbox import bootstrap, bootstrap_events, waiting_joins
from cdc_platform_assets.join.step_docs import RING_BEFORE_JOIN
from cdc_platform_assets.join.steps import JOIN_ASSETS, JOIN_CHECKS, join
from cdc_platform_assets.partitions import RING_PARTITIONS
from cdc_platform_assets.specs import build_table_spec

RING_SPEC = build_table_spec(
    RING_BEFORE_JOIN,
    group="generations",
    partitions=RING_PARTITIONS,
    description="No edge leads here, because it would close a cycle: each join writes the ring from which the next "
    "generation is made. The description of a generation links the nodes of the generation before it.",
)

DEFINED = Definitions(
    assets=[bootstrap_events, RING_SPEC, *JOIN_ASSETS],
    asset_checks=JOIN_CHECKS,
    jobs=[join, bootstrap],
    sensors=[waiting_joins],
)
