"""Dagster definitions of tablets."""

from dagster import Definitions

from cdc_platform_assets.tablets.maintenance import collect_tablets, collectable_stream_sets, unfinished_tablets
from cdc_platform_assets.tablets.stream_sets import (
    TABLET_ASSETS,
    audit_cdc_streams,
    audit_cdc_timestamps,
    change_tablets,
)

DEFINED = Definitions(
    assets=TABLET_ASSETS,
    asset_checks=[audit_cdc_streams, audit_cdc_timestamps],
    jobs=[change_tablets, collect_tablets],
    sensors=[unfinished_tablets, collectable_stream_sets],
)
