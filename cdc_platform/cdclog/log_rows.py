"""Read the rows of a log, or of a copy of it, by the time at which they were written."""

from __future__ import annotations

import pyarrow as pa

from cdc_platform.cdclog.schema import WRITTEN_AT
from cdc_platform.clock import Microseconds, datetime_from_us
from cdc_platform.delta import Filter, Lake, compute
from cdc_platform.tables import Table


def time_filters(after_us: Microseconds | None, until_us: Microseconds) -> list[Filter]:
    """Return the filters for rows later than `after_us` (None: all older rows, too) up to `until_us` (µs)."""
    later: list[Filter] = [] if after_us is None else [(WRITTEN_AT, ">", datetime_from_us(after_us))]
    return [*later, (WRITTEN_AT, "<=", datetime_from_us(until_us))]


def read_row_keys(lake: Lake, table: Table, after_us: Microseconds, until_us: Microseconds) -> pa.Table:
    """Return the keys and times of the rows that `time_filters` selects; none if the table does not exist."""
    return lake.read(table, [*table.keys, WRITTEN_AT], time_filters(after_us, until_us))


def count_rows(lake: Lake, table: Table, after_us: Microseconds | None, until_us: Microseconds) -> int:
    """Return the number of rows that `time_filters` selects."""
    return lake.read(table, [WRITTEN_AT], time_filters(after_us, until_us)).num_rows


def newest_row_us(lake: Lake, table: Table) -> Microseconds:
    """Return when the newest row was written (µs); 0 if there are no rows."""
    newest = compute.max(lake.read(table, [WRITTEN_AT])[WRITTEN_AT].cast(pa.int64())).as_py()
    return Microseconds(newest or 0)
