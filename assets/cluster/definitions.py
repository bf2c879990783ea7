"""Dagster definitions of live clusters."""

from dagster import Definitions

from cdc_platform_assets.cluster.ingest import audit_ingested_log, ingest_log, ingested_log, live_logs
from cdc_platform_assets.cluster.lag import ingest_lags, judge_ingest_lag, judge_lag_job
from cdc_platform_assets.cluster.observations import (
    audit_observed_cluster,
    changed_clusters,
    observe_cluster_job,
    observed_cluster,
)

DEFINED = Definitions(
    assets=[observed_cluster, ingested_log],
    asset_checks=[audit_observed_cluster, audit_ingested_log, judge_ingest_lag],
    jobs=[observe_cluster_job, ingest_log, judge_lag_job],
    sensors=[changed_clusters, ingest_lags],
    schedules=[live_logs],
)
