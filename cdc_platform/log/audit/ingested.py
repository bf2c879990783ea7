"""Whether rows of a live cluster's log were lost before they were read, by the gaps that readers recorded."""

from __future__ import annotations

from cdc_platform.invariants.findings import LOG_GAPS_ACCEPTED, Finding
from cdc_platform.lake.lake import Lake
from cdc_platform.log.gaps import log_gaps_of
from cdc_platform.records import consumers
from cdc_platform.records.consumers import FROM_CLUSTER


def audit_ingested(lake: Lake, name: str | None = None) -> list[Finding]:
    """Judge every log that was brought in, or that of one table (`keyspace.table`); nothing where there is none."""
    gaps = log_gaps_of(lake)
    readers = [each for each in consumers.consumers(lake) if each.name == FROM_CLUSTER]
    read = [f"{each.keyspace_name}.{each.table_name}" for each in readers]
    logs = {each for each in (*read, *(gap.full_name for gap in gaps)) if name in (None, each)}
    open_ = [gap for gap in gaps if gap.is_open and gap.full_name in logs]
    more = f" (and {len(open_) - 1} more gaps)" if len(open_) > 1 else ""
    sample = f"{open_[0]}{more}" if open_ else ""
    return [Finding(LOG_GAPS_ACCEPTED, len(logs), len({gap.full_name for gap in open_}), sample)] if logs else []
