"""What the room of tablets defines."""

from dagster import Definitions

from assets.tablets.sets import TABLET_ASSETS, audit_cdc_streams, audit_cdc_timestamps, change_tablets
from assets.tablets.upkeep import collect_tablets, collectable_stream_sets, unfinished_tablets

DEFINED = Definitions(
    assets=TABLET_ASSETS,
    asset_checks=[audit_cdc_streams, audit_cdc_timestamps],
    jobs=[change_tablets, collect_tablets],
    sensors=[unfinished_tablets, collectable_stream_sets],
)
