"""What `status` says of tables with logs, of who reads them, and of what may go because nobody needs it any more."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from cdc_platform.clock import ONE_US, Clock, Microseconds, Milliseconds, format_ms, format_us, seconds_of_us
from cdc_platform.cql.names import LOG_SUFFIX
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.mirrors import cluster_of
from cdc_platform.lake.tables import Table
from cdc_platform.lifecycle.expiry import purge_plan
from cdc_platform.lifecycle.expiry.purge_plan import Action, PlannedGeneration
from cdc_platform.log import gaps
from cdc_platform.records import cdc_tables, consumers, no_tables
from cdc_platform.settings import Settings
from cdc_platform.status.matters import Matter
from cdc_platform.timeline import StreamSources, Timeline


def tables(lake: Lake, clock: Clock, settings: Settings) -> tuple[list[dict[str, Any]], list[Matter]]:
    """The CDC-enabled tables: the TTL, what each log has in the lake, and whose streams its rows lie in."""
    sources = StreamSources(lake, settings)
    told = []
    for each in cdc_tables.cdc_tables(lake):
        parts = lake.slices(Table(each.keyspace_name, each.table_name + LOG_SUFFIX, pa.schema([]), (), ""))
        told.append(
            {
                "table": each.full_name,
                "enabled": each.enabled,
                "ttl_seconds": each.ttl_seconds,
                "streams": "generations"
                if sources.of(each.keyspace_name, each.table_name).in_generations
                else "tablets",
                "log_rows": sum(part.rows for part in parts),
                "log_bytes_in_lake": sum(part.bytes for part in parts),
                "kept": _kept(lake, each.keyspace_name, each.table_name, clock.now_us()),
            }
        )
    return told, [Matter("log-gap", line) for line in gaps.told(lake)]


def _kept(lake: Lake, keyspace: str, name: str, now_us: Microseconds) -> dict[str, Any] | None:
    """The table itself, where `ingest --current` keeps it: its rows, which of them are inexact, and how old it is."""
    from cdc_platform.log.stored_names import AS_OF, MARKED

    table = Table(keyspace, name, pa.schema([]), (), "")
    as_of = lake.transaction(table, AS_OF)
    if as_of is None:
        return None
    return {
        "rows": sum(part.rows for part in lake.slices(table)),
        "inexact_rows": lake.transaction(table, MARKED) or 0,
        "as_of": format_us(Microseconds(as_of)),
        "behind_seconds": round(seconds_of_us(Microseconds(max(now_us - as_of, 0))), 3),
    }


def readers(lake: Lake, clock: Clock, settings: Settings) -> tuple[list[dict[str, Any]], list[Matter]]:
    """The readers of logs: how far behind the clock each is, and whether it has to read what was removed."""
    timeline, sources = Timeline.read(lake), StreamSources(lake, settings)
    now_us = clock.now_us()
    told, matters = [], []
    for each in consumers.consumers(lake):
        reads = None
        if sources.of(each.keyspace_name, each.table_name).in_generations:
            reads = timeline.operating(each.position_us + ONE_US)
        gone = reads is not None and reads.is_removed
        told.append(
            {
                "name": each.name,
                "table": f"{each.keyspace_name}.{each.table_name}",
                "position": format_us(each.position_us),
                "behind_seconds": round(seconds_of_us(max(now_us - each.position_us, Microseconds(0))), 3),
                "moved_at": format_us(each.updated_at_us),
                "removed": gone,
            }
        )
        if gone and reads is not None:
            said = f"consumer {each.full_name} stands in generation {reads.name}, which was removed with its streams"
            forget = f"cdc-platform consumers forget {each.name} {each.keyspace_name}.{each.table_name}"
            do = f"decide whether the consumer starts again after the lost rows, with: {forget}"
            matters.append(Matter("reads-removed", said, do))
    return told, matters


def expiry(lake: Lake, clock: Clock, settings: Settings) -> tuple[dict[str, Any], list[Matter]]:
    """What `expire` would do now, and which generation is the next that may go."""
    plan = purge_plan.plan(lake, clock, settings)
    due = [each for each in plan if each.action is Action.REMOVE or (each.action is Action.MARK and each.mark is None)]
    later = [each for each in plan if each not in due and each.removable_ms is not None]
    following = min(later, key=lambda each: each.removable_ms or 0, default=None)
    told = {
        "to_mark": sum(each.action is Action.MARK for each in due),
        "to_remove": sum(each.action is Action.REMOVE for each in due),
        "next": following and _planned(following),
    }
    assumed = purge_plan.assumptions(plan)
    matters = [Matter("unknown-past", f"{each.table} keeps generations: {each.said}", each.do) for each in assumed]
    if cluster_of(lake) is not None:
        return told, matters  # what goes, and which tables there are, is the cluster's to say
    if due:
        said = f"{told['to_mark']} generations have expired and are not marked, {told['to_remove']} may be removed"
        matters.append(Matter("expiry-due", said, "cdc-platform expire"))
    if plan and not no_tables.are_told(lake):
        said = "which tables have a CDC log is unknown, so no generation expires"
        do = (
            "register each table that has a log (cdc-platform tables add --help), or state that no table has one "
            "(cdc-platform tables none --help)"
        )
        matters.append(Matter("no-tables", said, do))
    return told, matters


def _planned(each: PlannedGeneration) -> dict[str, Any]:
    return {
        "id": each.id,
        "time": format_ms(each.time_ms),
        "expired": _time(each.expired_ms),
        "removable_at": _time(each.removable_ms),
        "blocked_by": list(each.blocked_by),
    }


def _time(ms: Milliseconds | None) -> str | None:
    return None if ms is None else format_ms(ms)
