"""Dagster definitions of CDC logs."""

from dagster import Definitions

from cdc_platform_assets.log.hourly import audit_consumed_hours, consume_hours, consumed_hours, hourly_logs
from cdc_platform_assets.log.logs import audit_cdc_log, cdc_log, changed_logs, check_logs

DEFINED = Definitions(
    assets=[cdc_log, consumed_hours],
    asset_checks=[audit_cdc_log, audit_consumed_hours],
    jobs=[check_logs, consume_hours],
    sensors=[changed_logs],
    schedules=[hourly_logs],
)
