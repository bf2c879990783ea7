"""Plan the changes of CDC-enabled tables that an imported schema shows."""

from __future__ import annotations

from typing import Any

from cdc_platform.clock import Clock
from cdc_platform.cql import get_defining_comments, strip_comments
from cdc_platform.delta import Lake
from cdc_platform.importing.formats.described_schema import DescribedTable
from cdc_platform.importing.plan import ImportPlan
from cdc_platform.metastore import CdcTable, cdc_tables


def plan_cdc_tables(plan: ImportPlan, lake: Lake, clock: Clock) -> None:
    """Plan to add unknown tables and to alter those that changed.

    A schema shows the current state of tables, but not since when, nor mostly how old their logs are; that stays
    unknown. Tables missing from the schema stay, because a schema may describe only one keyspace. A table without CDC
    enabled and without a log in the schema has no log.

    Raises:
        InputError: a name, a TTL or a time is invalid.
    """
    known = {(table.keyspace_name, table.table_name): table for table in cdc_tables.read_cdc_tables(lake)}
    for table in plan.exports.tables:
        name = table.keyspace, table.name
        stored = known.get(name)
        created_ms = None if table.created_at_ms is None else min(clock.now_ms(), table.created_at_ms)
        if stored is None and table.is_logged:
            addition = cdc_tables.request_addition(
                lake,
                clock,
                *name,
                ttl_seconds=table.ttl_seconds or 0,
                enabled=table.enabled,
                ddl=table.ddl,
                created_at_ms=created_ms,
                observed=True,
            )
            plan.table_changes.append(addition)
        elif stored is not None and not _is_same(stored, table):
            options: dict[str, Any] = {}
            if table.ttl_seconds is not None:
                options = {"ttl_seconds": table.ttl_seconds, "enabled": table.enabled}
            ddl = stored.ddl if _has_definition(stored, table) else table.ddl
            alteration = cdc_tables.request_alteration(
                lake, clock, *name, created_at_ms=created_ms, observed=True, ddl=ddl, **options
            )
            plan.table_changes.append(alteration)
    plan.warnings += [
        f"{table.full_name}: its definition is left out, so its keys cannot be looked up by value: {table.unread}"
        for table in plan.exports.tables
        if table.unread is not None
    ]
    plan.warnings += [
        f"{table.full_name}: the schema has its log but not its CDC options, so its rows are assumed never to expire; "
        "import the schema with its base table"
        for table in plan.exports.tables
        if table.ttl_seconds is None
    ]


def _is_same(stored: CdcTable, table: DescribedTable) -> bool:
    options = table.ttl_seconds is None or (stored.ttl_seconds, stored.enabled) == (table.ttl_seconds, table.enabled)
    # Of two possible creation times of a log the older one counts.
    created = table.created_at_ms is None or (
        stored.created_at_ms is not None and stored.created_at_ms <= table.created_at_ms
    )
    return options and created and _has_definition(stored, table)


def _has_definition(stored: CdcTable, table: DescribedTable) -> bool:
    """Return True if the described definition equals the known one, ignoring truncations recorded here only."""
    if table.ddl is None:
        return True
    return stored.ddl is not None and _definition(stored.ddl) == _definition(table.ddl)


def _definition(ddl: str) -> tuple[str, list[str]]:
    """Return a table's statement, its search indexes and its declared attributes, without other comments."""
    return strip_comments(ddl), get_defining_comments(ddl)
