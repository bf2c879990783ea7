"""Dagster definitions of CDC logs."""

from dagster import Definitions

from cdc_platform_assets.log.hourly import audit_consumed_hours, consume_hours, consumed_hours, hourly_logs
from cdc_platform_assets.log.logs import audit_cdc_log, cdc_log, changed_logs, check_logs
from cdc_platform_assets.log.rebuilt import compare_rebuilt_tables, rebuild_tables, rebuilt_tables
from cdc_platform_assets.log.writes import audit_logged_writes, log_writes, logged_writes

DEFINED = Definitions(
    assets=[cdc_log, consumed_hours, logged_writes, rebuilt_tables],
    asset_checks=[audit_cdc_log, audit_consumed_hours, audit_logged_writes, compare_rebuilt_tables],
    jobs=[check_logs, consume_hours, log_writes, rebuild_tables],
    sensors=[changed_logs],
    schedules=[hourly_logs],
)
