from cdc_platform.ingest.cluster_log import ReadWindow as ReadWindow
from cdc_platform.ingest.ingest import IngestResult as IngestResult
from cdc_platform.ingest.ingest import ingest_table as ingest_table
from cdc_platform.ingest.planner import Estimate as Estimate
from cdc_platform.ingest.policy import ReadPolicy as ReadPolicy
from cdc_platform.ingest.preflight import examine as examine
from cdc_platform.ingest.replica.replica import ReplicationResult as ReplicationResult
from cdc_platform.ingest.replica.tables import current_table as current_table
