"""The tables with a CDC log that a schema tells of, brought into the home as `cdc-platform tables` would."""

from __future__ import annotations

from cdc_platform.clock import Clock, Milliseconds, ms_from_datetime
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import GENERATION_TIMESTAMPS
from cdc_platform.records import cdc_tables
from cdc_platform.sources.cqlsh import Exports
from cdc_platform.sources.described_schema import DescribedTable


def tell_tables(lake: Lake, clock: Clock, exports: Exports) -> int:
    """Add the tables that are not known, alter those that are otherwise now; answers how many.

    One that is not in the schema stays: a schema may be that of one keyspace. A table without options of its own that
    is not enabled has no log.

    Raises:
        InputError: a name, a TTL or a time is impossible.
    """
    known = {(each.keyspace_name, each.table_name): each for each in cdc_tables.cdc_tables(lake)}
    told = 0
    for table in exports.tables:
        name = table.keyspace, table.name
        there = known.get(name)
        if there is None and table.enabled:
            created_ms = _created_ms(lake, clock, exports, table)
            cdc_tables.add(lake, clock, *name, ttl_seconds=table.ttl_seconds, created_at_ms=created_ms)
        elif there is not None and (there.ttl_seconds, there.enabled) != (table.ttl_seconds, table.enabled):
            cdc_tables.alter(lake, clock, *name, ttl_seconds=table.ttl_seconds, enabled=table.enabled)
        else:
            continue
        told += 1
    return told


def _created_ms(lake: Lake, clock: Clock, exports: Exports, table: DescribedTable) -> Milliseconds:
    """When the log was made (ms): by its ID, else before the oldest generation, so that none is missed for its rows."""
    times = [ms_from_datetime(time) for time in lake.read(GENERATION_TIMESTAMPS, ["time"])["time"].to_pylist()]
    oldest = min([*times, *exports.timestamps, clock.now_ms()])
    return min(clock.now_ms(), oldest if table.created_at_ms is None else table.created_at_ms)
