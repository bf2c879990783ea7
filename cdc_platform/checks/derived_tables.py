"""Audits of small tables whose rows follow from other tables. No Spark.

They cover lists and ledgers; descriptions, streams and stream sets have their own families. Work that is in progress or
was interrupted by a kill is no violation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import pairwise
from typing import Any

from cdc_platform.checks import uniqueness
from cdc_platform.checks.invariants import (
    FINGERPRINTS_FOLLOW_STREAMS,
    NODES_KEEP_LEDGER_IDS,
    STREAM_SETS_FOLLOW_LAYOUTS,
    TABLES_FOLLOW_CHANGES,
    TIMESTAMPS_FOLLOW_LEDGER,
    Finding,
)
from cdc_platform.clock import datetime_from_ms, format_us, us_from_datetime
from cdc_platform.delta import Lake
from cdc_platform.metastore import cdc_local
from cdc_platform.tables import (
    CDC_LOCAL,
    CDC_TABLE_CHANGES,
    CDC_TABLES,
    GENERATION_TIMESTAMPS,
    GENERATIONS,
    REMOVED_GENERATIONS,
    TABLET_LAYOUTS,
    TABLET_TIMESTAMPS,
    Table,
)

_Row = dict[str, Any]
_Key = tuple[str, str]


def audit_derived_tables(lake: Lake) -> list[Finding]:
    """Return one finding per invariant, except for tables that are empty together with their sources."""
    ledger = lake.read(GENERATIONS).to_pylist()
    judged = {
        TIMESTAMPS_FOLLOW_LEDGER: _timestamp_violations(lake, ledger),
        TABLES_FOLLOW_CHANGES: _table_violations(lake),
        STREAM_SETS_FOLLOW_LAYOUTS: _stream_set_violations(lake),
        NODES_KEEP_LEDGER_IDS: _node_violations(lake, ledger),
        FINGERPRINTS_FOLLOW_STREAMS: uniqueness.check_stored_fingerprints(lake),
    }
    return [line for name, violations in judged.items() if (line := _finding(name, violations)).population]


def _finding(name: str, violations: Iterable[str | None]) -> Finding:
    """Build a finding from one entry per checked item: what is wrong with it, or None."""
    every = list(violations)
    amiss = [message for message in every if message is not None]
    return Finding(name, len(every), len(amiss), amiss[0] if amiss else "")


def _timestamp_violations(lake: Lake, ledger: list[_Row]) -> Iterator[str | None]:
    times: dict[datetime, int] = defaultdict(int)
    for row in lake.read(GENERATION_TIMESTAMPS, ["time"]).to_pylist():
        times[row["time"]] += 1
    removed = {row["time"] for row in lake.read(REMOVED_GENERATIONS, ["time"]).to_pylist()}
    table = GENERATION_TIMESTAMPS.full_name
    for time, count in times.items():
        yield f"{table} lists {_time_text(time)} {count} times" if count > 1 else None
    for row in ledger:
        if row["published_at"] is not None and row["time"] not in removed:
            missing = (
                f"{table} lacks {_time_text(row['time'])}, at which generation {row['generation_id']} was published"
            )
            yield None if row["time"] in times else missing


def _table_violations(lake: Lake) -> Iterator[str | None]:
    standing, changes = _rows_by_table(lake, CDC_TABLES), _rows_by_table(lake, CDC_TABLE_CHANGES)
    columns = [name for name in CDC_TABLES.schema.names if name not in CDC_TABLES.keys]
    newest = max((_changed_at(row) for rows in changes.values() for row in rows), default=None)
    for key, rows in sorted(changes.items()):
        history = sorted(rows, key=_changed_at)
        states = [[], *([] if row["what"] == "dropped" else [row] for row in history)]
        # The newest of all changes may be recorded but not applied yet; the next writer applies it first.
        under_way = _changed_at(history[-1]) == newest
        allowed = [[[row[name] for name in columns] for row in state] for state in states[-2 if under_way else -1 :]]
        current = [[row[name] for name in columns] for row in standing.get(key, [])]
        yield (
            None
            if current in allowed
            else f"{CDC_TABLES.full_name} has {'.'.join(key)} in another state than its changes"
        )


def _stream_set_violations(lake: Lake) -> Iterator[str | None]:
    listed = _rows_by_table(lake, TABLET_TIMESTAMPS)
    for key, rows in _rows_by_table(lake, TABLET_LAYOUTS).items():
        layouts = sorted(rows, key=lambda row: row["number"])
        if layouts[-1]["kind"] == "dropped":
            continue
        published = sorted(row["timestamp"] for row in listed.get(key, []))
        name, table = ".".join(key), TABLET_TIMESTAMPS.full_name
        due = [row["timestamp"] for row in layouts if row["timestamp"] is not None]
        # Old sets may have been collected, and the newest may not be published yet.
        missing = [time for time in due[:-1] if time not in published and (not published or time > published[0])]
        strange = [time for time in published if time not in due]
        repeated = [time for time, other in pairwise(published) if time == other]
        for wrong, verb in ((strange, "has, and nobody decided,"), (missing, "lacks"), (repeated, "has twice")):
            yield f"{table} {verb} the set of {name} at {_time_text(wrong[0])}" if wrong else None


def _node_violations(lake: Lake, ledger: list[_Row]) -> Iterator[str | None]:
    time_of = {row["generation_id"]: row["time"] for row in ledger}
    id_of = {row["time"]: row["generation_id"] for row in ledger if row["format"] is None}
    for row in cdc_local.read_cdc_local(lake).values():
        id_, time = row.uuid, None if row.time_ms is None else datetime_from_ms(row.time_ms)
        if row.key != "cdc_local" or id_ is None or time is None or (id_ not in time_of and time not in id_of):
            continue  # a V1 generation, or one of a cluster that was never imported
        expected = (
            f"the ledger has {_time_text(time_of[id_])}" if id_ in time_of else f"the ledger has {id_of[time]} there"
        )
        same = time_of.get(id_) == time
        yield (
            None if same else f"{CDC_LOCAL.full_name}: node {row.host_id} keeps {id_} at {_time_text(time)}; {expected}"
        )


def _rows_by_table(lake: Lake, table: Table) -> Mapping[_Key, list[_Row]]:
    by_table: dict[_Key, list[_Row]] = defaultdict(list)
    for row in lake.read(table).to_pylist():
        by_table[row["keyspace_name"], row["table_name"]].append(row)
    return by_table


def _changed_at(row: _Row) -> datetime:
    return row["changed_at"]


def _time_text(time: datetime) -> str:
    return format_us(us_from_datetime(time))
