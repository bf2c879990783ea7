"""What the room of the live clusters defines."""

from dagster import Definitions

from assets.cluster.ingested import audit_ingested_log, ingest_log, ingested_log, live_logs
from assets.cluster.observed import audit_observed_cluster, changed_clusters, observe_cluster, observed_cluster

DEFINED = Definitions(
    assets=[observed_cluster, ingested_log],
    asset_checks=[audit_observed_cluster, audit_ingested_log],
    jobs=[observe_cluster, ingest_log],
    sensors=[changed_clusters],
    schedules=[live_logs],
)
