"""Whether the generations that readers passed over, because they had no streams, have none still; note by note."""

from __future__ import annotations

from cdc_platform.cql.schema import TableSchema
from cdc_platform.invariants.findings import PASSED_OVER_STAYS_EMPTY, Finding
from cdc_platform.lake.lake import Lake
from cdc_platform.log.reading.left_out import appeared, came_later
from cdc_platform.records import consumers
from cdc_platform.records.passed_over import passed_over
from cdc_platform.timeline import StreamSources


def audit_passed(lake: Lake, schema: TableSchema | None = None) -> list[Finding]:
    """Look at every note of a consumer that is registered, or of those of one table; nothing where there is none."""
    noted = passed_over(lake)
    if not noted:
        return []
    sources = StreamSources(lake)
    count, found = 0, []
    for consumer in consumers.consumers(lake):
        if schema is not None and consumer.key[1:] != (schema.keyspace, schema.name):
            continue
        sets = noted.get(consumer.key, [])
        count += len(sets)
        later = came_later(sources.of(consumer.keyspace_name, consumer.table_name), sets) if sets else []
        found += [appeared(consumer.full_name, begin) for begin in later]
    return [Finding(PASSED_OVER_STAYS_EMPTY, count, len(found), found[0] if found else "")] if count else []
