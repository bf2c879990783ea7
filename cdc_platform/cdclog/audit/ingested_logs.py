"""Check that the gaps that readers recorded in the log of a live cluster are accepted.

This reads recorded gaps and contacts no cluster.
"""

from __future__ import annotations

from cdc_platform.cdclog.gaps import read_log_gaps
from cdc_platform.checks import LOG_GAPS_ACCEPTED, Finding
from cdc_platform.delta import Lake
from cdc_platform.metastore import INGEST_CONSUMER, consumers


def audit_ingest(lake: Lake, name: str | None = None) -> list[Finding]:
    """Check every ingested log, or that of one table (`keyspace.table`); return [] if there is none."""
    gaps = read_log_gaps(lake)
    readers = [consumer for consumer in consumers.read_consumers(lake) if consumer.name == INGEST_CONSUMER]
    read = [f"{reader.keyspace_name}.{reader.table_name}" for reader in readers]
    logs = {full_name for full_name in (*read, *(gap.full_name for gap in gaps)) if name in (None, full_name)}
    open_ = [gap for gap in gaps if gap.is_open and gap.full_name in logs]
    more = f" (and {len(open_) - 1} more gaps)" if len(open_) > 1 else ""
    sample = f"{open_[0]}{more}" if open_ else ""
    return [Finding(LOG_GAPS_ACCEPTED, len(logs), len({gap.full_name for gap in open_}), sample)] if logs else []
