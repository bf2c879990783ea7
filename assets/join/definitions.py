"""Dagster definitions of joins."""

from dagster import Definitions

from cdc_platform_assets.join.inbox import bootstrap, bootstrap_events, waiting_joins
from cdc_platform_assets.join.steps import JOIN_ASSETS, JOIN_CHECKS, join

DEFINED = Definitions(
    assets=[bootstrap_events, *JOIN_ASSETS], asset_checks=JOIN_CHECKS, jobs=[join, bootstrap], sensors=[waiting_joins]
)
