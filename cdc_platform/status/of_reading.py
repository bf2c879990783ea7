"""What `status` says of tables with logs, of who reads them, and of what may go because nobody needs it any more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
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
from cdc_platform.log.reading.lag import Lag, Standing, standing
from cdc_platform.records import cdc_tables, consumers, no_tables
from cdc_platform.records.consumers import Consumer
from cdc_platform.records.log_gaps import LogGap, Loss
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
    recorded = gaps.log_gaps_of(lake)
    return told, [*_lost(recorded), *(Matter("log-gap", line) for line in gaps.lacking_lines(lake, None, recorded))]


def _lost(recorded: list[LogGap]) -> Iterator[Matter]:
    """Yield what readers of a live cluster missed: wrong until somebody accepts it, to be known from then on."""
    for gap in recorded:
        if gap.is_open:
            look = f"cdc-platform consumers gaps {gap.full_name}"
            yield Matter("rows-lost", str(gap), f"decide whether those rows are needed, and accept it if not: {look}")
        elif gap.what != Loss.BEFORE_READING:
            yield Matter("log-gap", str(gap))


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
    now_us, changes = clock.now_us(), cdc_tables.changes(lake)
    lost = Counter(gap.full_name for gap in gaps.log_gaps_of(lake) if gap.is_open)
    told, matters = [], []
    for each in consumers.consumers(lake):
        reads = None
        if sources.of(each.keyspace_name, each.table_name).in_generations:
            reads = timeline.operating(each.position_us + ONE_US)
        gone = reads is not None and reads.is_removed
        name = f"{each.keyspace_name}.{each.table_name}"
        # Rows of the lake's own log never die: the TTL counts for who reads the cluster.
        of_cluster = each.name == consumers.FROM_CLUSTER
        behind = standing((one for one in changes if one.full_name == name), each, now_us) if of_cluster else None
        if behind is not None:
            matters += _behind(lake, each, behind, now_us)
        told.append(
            {
                "name": each.name,
                "table": name,
                "position": format_us(each.position_us),
                "behind_seconds": round(seconds_of_us(max(now_us - each.position_us, Microseconds(0))), 3),
                "moved_at": format_us(each.updated_at_us),
                "removed": gone,
                "lag": None if behind is None else str(behind.lag),
                "ttl_seconds": None if behind is None or behind.ttl_us is None else seconds_of_us(behind.ttl_us),
                "ttl_share": None if behind is None or behind.share is None else round(behind.share, 3),
                "open_gaps": lost[name],
            }
        )
        if gone and reads is not None:
            said = f"consumer {each.full_name} stands in generation {reads.name}, which was removed with its streams"
            forget = f"cdc-platform consumers forget {each.name} {each.keyspace_name}.{each.table_name}"
            do = f"decide whether the consumer starts again after the lost rows, with: {forget}"
            matters.append(Matter("reads-removed", said, do))
    return told, matters


def _behind(lake: Lake, reader: Consumer, behind: Standing, now_us: Microseconds) -> list[Matter]:
    """Return what is to be said of a reader of a live cluster's log that falls behind the TTL of its rows."""
    name = f"{reader.keyspace_name}.{reader.table_name}"
    seconds = seconds_of_us(Microseconds(now_us - reader.position_us))
    code = _LAGS.get(behind.lag)
    if code is None or behind.ttl_us is None or behind.share is None:
        return []
    said = (
        f"the log of {name} was read up to {format_us(reader.position_us)}, {seconds:,.0f} s ago, and its rows live "
        f"for {seconds_of_us(behind.ttl_us):,.0f} s"
    )
    if behind.died_us is not None:
        said += f": rows that were written up to {format_us(behind.died_us)} may have died unread"
    cluster = cluster_of(lake) or "NAME"
    return [Matter(code, said, f"cdc-platform ingest {cluster} {name}")]


_LAGS = {Lag.HALF: "lag-half-ttl", Lag.MOST: "lag-near-ttl", Lag.DYING: "rows-dying"}
"""What is to be said of each lag; nothing of others."""


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
