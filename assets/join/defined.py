"""What the room of joins defines."""

from dagster import Definitions

from assets.join.inbox import bootstrap, bootstrap_events, waiting_joins
from assets.join.steps import ASSETS, CHECKS, join

DEFINED = Definitions(
    assets=[bootstrap_events, *ASSETS], asset_checks=CHECKS, jobs=[join, bootstrap], sensors=[waiting_joins]
)
