"""Whether the hours that are noted as copied hold what the logs have in them, row by row; `hourly` copies them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from cdc_platform.clock import HOUR_US, ONE_US, Microseconds, format_us, from_datetime, to_datetime
from cdc_platform.cql.schema import TableSchema
from cdc_platform.invariants.findings import HOURS_HOLD_ROWS_ONCE, HOURS_HOLD_THE_LOG, Finding
from cdc_platform.lake.filters import Filter
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import CONSUMED_HOURS
from cdc_platform.log.log_table import log_table
from cdc_platform.log.reading.hourly import keys_of, logs, within
from cdc_platform.log.reading.reader import BY_HOUR, ROWS_AT_ONCE, sink_table
from cdc_platform.log.stored_names import WRITTEN_AT
from cdc_platform.records import cdc_tables
from cdc_platform.records.passed_over import passed_over
from cdc_platform.records.table_history import log_began_us
from cdc_platform.timeline import StreamSources


def audit_hours(lake: Lake, hour_us: Microseconds | None = None) -> list[Finding]:
    """Compare hours that are noted, all or this one (µs), with the log, key by key; nothing where none is noted.

    Counts hours of tables. A table that is no longer known is left out, and so are rows of a log that was dropped.
    """
    where: list[Filter] = [] if hour_us is None else [("hour", "=", to_datetime(hour_us))]
    noted: dict[str, dict[Microseconds, int]] = {}
    for row in lake.read(CONSUMED_HOURS, filters=where).to_pylist():
        hours = noted.setdefault(f"{row['keyspace_name']}.{row['table_name']}", {})
        hours[from_datetime(row["hour"])] = row["rows"]
    known = [schema for schema in logs(lake) if schema.full_name in noted]
    told = [each for schema in known for each in _judged(lake, schema, noted[schema.full_name])]
    if not told:
        return []
    return [
        Finding(name, len(told), sum(map(bool, several)), next(filter(None, several), ""))
        for name, several in zip((HOURS_HOLD_THE_LOG, HOURS_HOLD_ROWS_ONCE), zip(*told, strict=True), strict=True)
    ]


def _judged(lake: Lake, schema: TableSchema, rows: dict[Microseconds, int]) -> Iterator[tuple[str, str]]:
    """What is wrong with each hour (start, µs, and its rows), in words; hours without a gap are looked at together."""
    hours = sorted(rows)
    while hours:
        together, count = 1, rows[hours[0]]
        while together < len(hours) and hours[together] == hours[0] + HOUR_US * together and count <= ROWS_AT_ONCE:
            count += rows[hours[together]]
            together += 1
        if together > 1 and not any(_compared(lake, schema, hours[0], together)):
            yield from [("", "")] * together
        else:
            yield from (_compared(lake, schema, hour) for hour in hours[:together])
        hours = hours[together:]


def _without_passed(lake: Lake, schema: TableSchema, rows: pa.Table) -> pa.Table:
    """Rows of a log without those of generations that the hours passed over, and that have no streams still."""
    noted = passed_over(lake).get((BY_HOUR, schema.keyspace, schema.name), [])
    if not noted:
        return rows
    when = np.asarray(rows[WRITTEN_AT].cast(pa.int64()))
    kept = np.ones(rows.num_rows, dtype=bool)
    for each in StreamSources(lake).of(schema.keyspace, schema.name).periods():
        if each.bare and each.begin_us in noted:
            kept &= (when < each.begin_us) | (False if each.end_us is None else when >= each.end_us)
    return rows.filter(pa.array(kept))


def _began_us(lake: Lake, schema: TableSchema) -> Microseconds:
    name = (schema.keyspace, schema.name)
    changes = cdc_tables.changes(lake)
    return log_began_us(change for change in changes if (change.keyspace_name, change.table_name) == name)


def _compared(lake: Lake, schema: TableSchema, hour_us: Microseconds, hours: int = 1) -> tuple[str, str]:
    """What is wrong with hours that follow each other: rows that are not the log's, and rows that are there twice."""
    log, sink = log_table(schema), sink_table(schema, BY_HOUR)
    keys, inside = list(log.keys), within(hour_us - ONE_US, hour_us + HOUR_US * hours - ONE_US)
    order = [(name, "ascending") for name in keys]
    wanted, found = (lake.read(table, [*keys, WRITTEN_AT], inside).sort_by(order) for table in (log, sink))
    wanted = _without_passed(lake, schema, wanted)
    if found.equals(wanted) and found.group_by(keys).aggregate([]).num_rows == found.num_rows:
        return "", ""
    # A row from before the log began was in the log of a table that was dropped.
    began = to_datetime(_began_us(lake, schema))
    there = dict(zip(keys_of(found), found[WRITTEN_AT].to_pylist(), strict=True))
    due = set(keys_of(wanted))
    missing = len(due - there.keys())
    foreign = sum(key not in due and when >= began for key, when in there.items())
    twice = found.num_rows - len(there)
    head, mend = f"{schema.full_name}, the hour from {format_us(hour_us)}:", "materialise the hour again"
    rows = f"{missing} of {len(due)} rows of the log are not in {sink.full_name}, {foreign} others are"
    return (
        f"{head} {rows}; {mend}" if missing or foreign else "",
        f"{head} {twice} of {found.num_rows} rows of {sink.full_name} are there again; {mend}" if twice else "",
    )
