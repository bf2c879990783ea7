"""The tables with a CDC log that a schema tells of, brought into the home as `cdc-platform tables` would."""

from __future__ import annotations

from typing import Any

from cdc_platform.clock import Clock
from cdc_platform.cql.written import index_lines, without_notes
from cdc_platform.lake.lake import Lake
from cdc_platform.records import cdc_tables
from cdc_platform.records.table_history import CdcTable
from cdc_platform.sources.cqlsh import Exports
from cdc_platform.sources.described_schema import DescribedTable


def tell_tables(lake: Lake, clock: Clock, exports: Exports) -> int:
    """Add the tables that are not known, alter those that are otherwise now; answers how many.

    A schema shows how tables stand, and neither since when nor, mostly, how old their logs are: that stays unknown. A
    table that is not in the schema stays: a schema may be that of one keyspace. One that is not enabled, and whose log
    is not in the schema, has no log.

    Raises:
        InputError: a name, a TTL or a time is impossible; nothing was told then.
    """
    known = {(each.keyspace_name, each.table_name): each for each in cdc_tables.cdc_tables(lake)}
    sayings = []
    for table in exports.tables:
        name = table.keyspace, table.name
        there = known.get(name)
        created_ms = None if table.created_at_ms is None else min(clock.now_ms(), table.created_at_ms)
        if there is None and table.is_logged:
            options: dict[str, Any] = {
                "ttl_seconds": table.ttl_seconds or 0,
                "enabled": table.enabled,
                "ddl": table.ddl,
            }
            added = cdc_tables.addition(lake, clock, *name, created_at_ms=created_ms, seen=True, **options)
            sayings.append(added)
        elif there is not None and not _is_same(there, table):
            stands: dict[str, Any] = {"ttl_seconds": table.ttl_seconds, "enabled": table.enabled}
            if table.ttl_seconds is None:
                stands = {}
            ddl = there.ddl if _has_definition(there, table) else table.ddl
            altered = cdc_tables.alteration(lake, clock, *name, created_at_ms=created_ms, seen=True, ddl=ddl, **stands)
            sayings.append(altered)
    return len(cdc_tables.say(lake, sayings))


def without_options(exports: Exports) -> list[str]:
    """Return a line for each log imported without the CDC options of its base table, with what is assumed."""
    return [
        f"{each.full_name}: its log is in the schema, and its CDC options are not, so its rows are taken to never "
        "expire; import the schema with its base table"
        for each in exports.tables
        if each.ttl_seconds is None
    ]


def undefined(exports: Exports) -> list[str]:
    """The tables that are taken in without their definition, a line each with why."""
    return [
        f"{each.full_name}: its definition is left out, so its keys cannot be asked for by their values: {each.unread}"
        for each in exports.tables
        if each.unread is not None
    ]


def _is_same(there: CdcTable, table: DescribedTable) -> bool:
    options = table.ttl_seconds is None or (there.ttl_seconds, there.enabled) == (table.ttl_seconds, table.enabled)
    # Of two times at which a log may have been created the older one counts.
    created = table.created_at_ms is None or (
        there.created_at_ms is not None and there.created_at_ms <= table.created_at_ms
    )
    return options and created and _has_definition(there, table)


def _has_definition(there: CdcTable, table: DescribedTable) -> bool:
    """Whether what is described says nothing new; what was noted here of truncations no schema knows."""
    if table.ddl is None:
        return True
    return there.ddl is not None and _definition(there.ddl) == _definition(table.ddl)


def _definition(ddl: str) -> tuple[str, list[str]]:
    """What makes a table, and its search indexes; what else stands in comments is of no schema."""
    return without_notes(ddl), index_lines(ddl)
