"""The tables with a CDC log that a schema tells of, brought into the home as `cdc-platform tables` would."""

from __future__ import annotations

from cdc_platform.clock import Clock
from cdc_platform.cql.written import without_notes
from cdc_platform.lake.lake import Lake
from cdc_platform.records import cdc_tables, descriptions
from cdc_platform.records.table_history import CdcTable
from cdc_platform.sources.cqlsh import Exports
from cdc_platform.sources.described_schema import DescribedTable


def tell_tables(lake: Lake, clock: Clock, exports: Exports) -> int:
    """Add the tables that are not known, alter those that are otherwise now; answers how many.

    One that is not in the schema stays: a schema may be that of one keyspace. A table without options of its own that
    is not enabled has no log.

    Raises:
        InputError: a name, a TTL or a time is impossible; nothing was told then.
    """
    if not exports.tables:
        return 0
    known = {(each.keyspace_name, each.table_name): each for each in cdc_tables.cdc_tables(lake)}
    now_ms = clock.now_ms()
    # A log whose table has no ID was made before the oldest generation, so that none is missed for its rows.
    oldest_ms = min([*descriptions.listed_times(lake), *exports.timestamps, now_ms])
    sayings = []
    for table in exports.tables:
        name = table.keyspace, table.name
        there = known.get(name)
        if there is None and table.enabled:
            created_ms = min(now_ms, oldest_ms if table.created_at_ms is None else table.created_at_ms)
            options = {"ttl_seconds": table.ttl_seconds, "ddl": table.ddl}
            sayings.append(cdc_tables.addition(lake, clock, *name, created_at_ms=created_ms, **options))
        elif there is not None and not _is_same(there, table):
            ddl = there.ddl if _has_definition(there, table) else table.ddl
            options = {"ttl_seconds": table.ttl_seconds, "enabled": table.enabled, "ddl": ddl}
            sayings.append(cdc_tables.alteration(lake, clock, *name, **options))
    return len(cdc_tables.say(lake, sayings))


def undefined(exports: Exports) -> list[str]:
    """The tables that are taken in without their definition, a line each with why."""
    return [
        f"{each.keyspace}.{each.name}: its definition is left out, so its keys cannot be asked for by their values: "
        f"{each.unread}"
        for each in exports.tables
        if each.unread is not None
    ]


def _is_same(there: CdcTable, table: DescribedTable) -> bool:
    options = (there.ttl_seconds, there.enabled) == (table.ttl_seconds, table.enabled)
    return options and _has_definition(there, table)


def _has_definition(there: CdcTable, table: DescribedTable) -> bool:
    """Whether what is described says nothing new; what was noted here of truncations no schema knows."""
    return table.ddl is None or (there.ddl is not None and without_notes(there.ddl) == table.ddl)
