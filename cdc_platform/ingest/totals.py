"""What the commits of an ingested log have counted since it was first ingested."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from cdc_platform.cql import LOG_SUFFIX
from cdc_platform.delta import Lake
from cdc_platform.ingest.marks import LATE, REQUESTS, RETRIES
from cdc_platform.tables import Table


@dataclass(frozen=True)
class IngestTotals:
    """Rows in the lake, rows that second passes found, and the requests and retries that reading took.

    `requests` and `retries` are None if only earlier releases, which did not count them, have ingested the log.
    """

    rows: int
    late: int
    requests: int | None
    retries: int | None


def read_ingest_totals(lake: Lake, keyspace: str, table: str) -> IngestTotals:
    """Return the totals of the log of a table, from its Delta log alone."""
    log = Table(keyspace, table + LOG_SUFFIX, pa.schema([]), (), "")
    marks = lake.transactions(log, (LATE, REQUESTS, RETRIES))
    rows = sum(part.rows for part in lake.partitions(log))
    return IngestTotals(rows, marks.get(LATE, 0), marks.get(REQUESTS), marks.get(RETRIES))
