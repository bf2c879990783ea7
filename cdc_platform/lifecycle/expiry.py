"""Expiry of generations: the purge plan, the removal from the lake, and CQL that removes them from a cluster.

The plan reads names, times and Delta's log, never a stream, so that 10,000 generations take a moment. A run removes
only generations that an earlier run marked, and relies only on verified tables. The removal of the timestamp is the
decision; later runs finish the rest. ScyllaDB itself never removes a generation from its tables (scylladb#7300).
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from cdc_platform import failpoints
from cdc_platform.clock import (
    Clock,
    Microseconds,
    Milliseconds,
    ceil_ms_from_us,
    cql_timestamp_literal,
    datetime_from_ms,
    datetime_from_us,
    format_ms,
    format_us,
    ms_from_datetime,
    ms_from_us,
    us_from_datetime,
    us_from_ms,
)
from cdc_platform.cql import quote_name, split_full_name
from cdc_platform.delta import Filter, Lake, choose_remedy, compute, get_verified_lake, maintenance
from cdc_platform.generations import (
    BEGINNING_US,
    NEVER_US,
    ClockMargins,
    LogTtlHistory,
    TtlPeriod,
    find_unread_generations,
    live_until_us,
    written_until_us,
)
from cdc_platform.metastore import (
    STATUS_LEFT,
    ExpiryMark,
    GenerationRemoval,
    cdc_local,
    cdc_tables,
    consumers,
    expiry_marks,
    generations,
    read_host_ids,
)
from cdc_platform.settings import Settings
from cdc_platform.tables import (
    EXPIRY_MARKS,
    GENERATION_DESCRIPTIONS,
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
    REMOVED_GENERATIONS,
    STREAM_FINGERPRINTS,
    STREAMS_DESCRIPTIONS,
    STREAMS_DESCRIPTIONS_V2,
    TIMESTAMP,
    TOPOLOGY_DESCRIPTIONS,
    UNORDERED_RANGES,
    Table,
)
from cdc_platform.timeline import Generation, StreamSources, Timeline

OPERATES = "operates"
STARTS_LATER = "starts later"
UNPUBLISHED = "not published"
UNKNOWN_TABLES = "no CDC-enabled table is known"
LATE_WRITES = "late writes"
# The last moment of the year 9999, the latest time that can be represented.
_LAST_US = Microseconds(253_402_300_799_999_999)


class ExpiryAction(StrEnum):
    """The action of the next run for a generation."""

    KEEP = "keep"
    MARK = "mark"
    """It has expired: a run marks it, and the grace time starts at the mark."""
    REMOVE = "remove"
    """An earlier run marked it, and the grace time is over."""


@dataclass(frozen=True)
class ExpiryAssumption:
    """An assumption about a table's log instead of an unknown fact, and the `remedy`: how to state the fact."""

    table: str
    message: str
    remedy: str


@dataclass(frozen=True)
class PlannedGeneration:
    """One generation in the plan. Times in ms.

    `expired_ms` is the time from which on no CDC log can hold rows of it, possibly in the future; None if that never
    happens or cannot be determined. `removable_ms` is the end of the grace time, which starts at the mark or, without a
    mark, at the earliest time at which a run can mark it. `marked_ms` is the value in `cdc_generation_timestamps`;
    `mark` is the mark itself, None if there is none or it belongs to an earlier expiry.

    `blocked_by` names what prevents the removal now, and `reasons` has the same in words. `rows` and `bytes` are what a
    removal would delete in all tables; bytes are those of the files. `assumptions` are those of the reasons that hold
    only while some fact is unknown.
    """

    id: str | None
    time_ms: Milliseconds
    expired_ms: Milliseconds | None
    removable_ms: Milliseconds | None
    marked_ms: Milliseconds | None
    mark: ExpiryMark | None
    blocked_by: tuple[str, ...]
    reasons: tuple[str, ...]
    rows: int
    bytes: int
    action: ExpiryAction
    listed: bool
    assumptions: tuple[ExpiryAssumption, ...] = ()


@dataclass(frozen=True)
class RowsAndBytes:
    """Rows and bytes of files."""

    rows: int = 0
    bytes: int = 0

    def __add__(self, other: RowsAndBytes) -> RowsAndBytes:
        return RowsAndBytes(self.rows + other.rows, self.bytes + other.bytes)


@dataclass(frozen=True)
class _ExpiryBlock:
    """Something that prevents the removal of generations: its name, and the reason in words for the one at an index.

    `until_us` is how long it does; `observed_us` is how long according to observed facts alone, and the rest is
    assumed.
    """

    name: str
    until_us: np.ndarray
    reason: str
    observed_us: np.ndarray | None = None
    assumption: ExpiryAssumption | None = None

    def assumption_for(self, index: int) -> ExpiryAssumption | None:
        """Return the assumption if it keeps the generation at an index longer than the observed facts do."""
        is_seen = self.observed_us is None or self.observed_us[index] == self.until_us[index]
        return None if is_seen else self.assumption

    def describe(self, index: int) -> str:
        assumption = self.assumption_for(index)
        if assumption is not None:
            return f"{self.reason}: {assumption.message}"
        until = Microseconds(self.until_us[index])
        when = "" if until == NEVER_US else f" until {format_us(until)}"
        return f"{self.reason}{when}"


def plan_expiry(
    lake: Lake, clock: Clock, settings: Settings, *, observed_only: bool = False
) -> list[PlannedGeneration]:
    """Plan the action for every known generation, oldest first.

    Only published generations end others, because a generation that nobody may read yet is not a successor. A recorded
    `expired` time never moves to an earlier one, even if tables change later; a later time replaces it. With
    `observed_only`, an unknown TTL is assumed to equal the next observed one; never remove anything by such a plan.
    """
    generations = Timeline.read(lake).generations
    published = [
        generation
        for generation in generations
        if generation.published or generation.is_removed or generation.published_v1
    ]
    times = np.array([us_from_ms(generation.time_ms) for generation in published], dtype=np.int64)
    blocks = _ExpiryBlocks(lake, times, settings, observed_only=observed_only)
    index = {generation.time_ms: number for number, generation in enumerate(published)}
    sizes, marks = read_generation_sizes(lake), expiry_marks.read_expiry_marks(lake)
    current = int(np.searchsorted(times, clock.now_us(), side="right")) - 1
    return [
        _planned_generation(
            generation,
            index.get(generation.time_ms),
            current,
            blocks,
            sizes,
            clock,
            settings,
            marks.get(generation.time_ms),
        )
        for generation in generations
        if not generation.is_removed
    ]


def read_generation_sizes(lake: Lake) -> Mapping[object, RowsAndBytes]:
    """Return rows and bytes of generations, by time (ms) in tables keyed by time and by UUID in those keyed by UUID."""
    sizes: dict[object, RowsAndBytes] = {}
    for table in (STREAMS_DESCRIPTIONS_V2, GENERATION_DESCRIPTIONS_V2, TOPOLOGY_DESCRIPTIONS):
        for part in lake.partitions(table):
            (value,) = part.key
            key = ms_from_datetime(value) if table is STREAMS_DESCRIPTIONS_V2 else value
            sizes[key] = sizes.get(key, RowsAndBytes()) + RowsAndBytes(part.rows, part.bytes)
    for table in (STREAMS_DESCRIPTIONS, GENERATION_DESCRIPTIONS):
        # These tables are not partitioned, so that each row gets an equal share of the files' bytes.
        times = _read_row_times(lake, table)
        share = sum(part.bytes for part in lake.partitions(table)) // max(len(times), 1)
        for time in times:
            sizes[time] = sizes.get(time, RowsAndBytes()) + RowsAndBytes(1, share)
    return sizes


def _generation_size(generation: Generation, sizes: Mapping[object, RowsAndBytes]) -> RowsAndBytes:
    """Return rows and bytes of one generation in all tables; of its timestamp row, only the row is counted."""
    own = sizes.get(generation.time_ms, RowsAndBytes())
    by_id = RowsAndBytes() if generation.id is None else sizes.get(generation.id, RowsAndBytes())
    return own + by_id + RowsAndBytes(int(generation.published), 0)


def plan_assumptions(plan: Iterable[PlannedGeneration]) -> list[ExpiryAssumption]:
    """Return the assumptions of a plan, each once."""
    return list(dict.fromkeys(assumption for generation in plan for assumption in generation.assumptions))


def read_generation_log_histories(lake: Lake) -> dict[str, LogTtlHistory]:
    """Return the logs that can hold rows of generations, by `keyspace.table`: those of all but tablet-based tables."""
    sources = StreamSources(lake)
    histories = cdc_tables.read_log_histories(lake)
    return {f"{name[0]}.{name[1]}": history for name, history in histories.items() if sources.of(*name).in_generations}


class _ExpiryBlocks:
    """Everything that blocks the removal of generations (int64[g] `times_us`, ascending), read once for all of them."""

    def __init__(self, lake: Lake, times_us: np.ndarray, settings: Settings, *, observed_only: bool) -> None:
        margins = ClockMargins.of(
            settings.policy, us_from_ms(settings.generation_leeway_ms), us_from_ms(settings.expiry_skew_margin_ms)
        )
        self.tables_known = cdc_tables.are_cdc_tables_known(lake)
        remedy = (
            "do so with: cdc-platform tables add KS.T --ttl SECONDS, or declare that there is none: cdc-platform "
            "tables declare-none"
        )
        self._tables_remedy = choose_remedy(
            lake, remedy, "none was seen in {cluster}; look again with: cdc-platform observe {cluster}"
        )
        self.expires_us = written_until_us(times_us, margins)
        self.tables: list[_ExpiryBlock] = []
        for name, history in read_generation_log_histories(lake).items():
            seen = live_until_us(times_us, history.observed(), margins)
            until = seen if observed_only else live_until_us(times_us, history, margins)
            self.tables.append(
                _ExpiryBlock(name, until, f"{name} can hold rows of it", seen, _log_assumption(name, history))
            )
            self.expires_us = np.maximum(self.expires_us, until)
        sources = StreamSources(lake)
        self.readers = [
            _ExpiryBlock(
                consumer.name,
                np.where(find_unread_generations(times_us, consumer.position_us), NEVER_US, 0),
                f"consumer {consumer.full_name} has read up to {format_us(consumer.position_us)}",
            )
            for consumer in consumers.read_consumers(lake)
            if sources.of(consumer.keyspace_name, consumer.table_name).in_generations
        ]
        self.nodes = _pointing_nodes(lake)

    def assumptions_at(self, index: int, now_us: Microseconds) -> Iterable[ExpiryAssumption]:
        """Return the assumptions that prevent the removal of the generation at `index`."""
        assumptions = (block.assumption_for(index) for block in self.tables if block.until_us[index] > now_us)
        return (assumption for assumption in assumptions if assumption is not None)

    def reasons_at(self, index: int, now_us: Microseconds) -> Iterable[tuple[str, str]]:
        """Yield the name and the reason of everything that prevents the removal of the generation at `index` now."""
        if not self.tables_known:
            yield (
                UNKNOWN_TABLES,
                f"no CDC-enabled table was ever registered; {self._tables_remedy}",
            )
        blocking = [block for block in self.tables if block.until_us[index] > now_us]
        for block in blocking:
            yield block.name, block.describe(index)
        if not blocking and self.expires_us[index] > now_us:
            yield (
                LATE_WRITES,
                f"clocks that are off may write into it until {format_us(Microseconds(self.expires_us[index]))}",
            )
        for block in self.readers:
            if block.until_us[index] > now_us:
                yield block.name, block.describe(index)


def _planned_generation(
    generation: Generation,
    index: int | None,
    current: int,
    holds: _ExpiryBlocks,
    sizes: Mapping[object, RowsAndBytes],
    clock: Clock,
    settings: Settings,
    mark: ExpiryMark | None,
) -> PlannedGeneration:
    now_us, grace_ms = clock.now_us(), settings.expiry_grace_ms
    is_known = index is not None and holds.tables_known
    expired = (
        _later_ms(_ms_unless_never(Microseconds(holds.expires_us[index])), generation.expired_ms) if is_known else None
    )
    if mark is not None and (expired is None or not _is_mark_current(mark, generation, expired)):
        mark = None
    removable = None if expired is None else max(expired, clock.now_ms()) + grace_ms
    if mark is not None:
        removable = mark.removable_ms(grace_ms)
    blocks = list(_blocking_reasons(generation, index, current, holds, now_us))
    if not blocks and expired is not None and us_from_ms(expired) > now_us:
        blocks.append((LATE_WRITES, f"it was noted that it expires at {format_ms(expired)}, and that stays"))
    action = ExpiryAction.KEEP
    if not blocks and expired is not None:
        action = ExpiryAction.REMOVE if mark is not None and mark.has_passed(clock, grace_ms) else ExpiryAction.MARK
    size = _generation_size(generation, sizes)
    return PlannedGeneration(
        generation.id,
        generation.time_ms,
        expired,
        removable,
        generation.expired_ms,
        mark,
        tuple(dict.fromkeys(name for name, _ in blocks)),
        tuple(reason for _, reason in blocks),
        size.rows,
        size.bytes,
        action,
        generation.published,
        tuple(holds.assumptions_at(index, now_us)) if index is not None and index < current else (),
    )


def _is_mark_current(mark: ExpiryMark, generation: Generation, expired: Milliseconds) -> bool:
    """Return True if a mark is of this expiry, and the timestamps agree if the generation is published."""
    return mark.expired_ms >= expired and (not generation.published or generation.expired_ms == expired)


def _blocking_reasons(
    generation: Generation, index: int | None, current: int, holds: _ExpiryBlocks, now_us: Microseconds
) -> Iterable[tuple[str, str]]:
    if index is None:
        yield UNPUBLISHED, "it is not published, so its join may be unfinished"
        return
    if index >= current:
        name = OPERATES if index == current else STARTS_LATER
        yield name, f"it {name}: only a generation that operates no more can expire"
        return
    yield from holds.reasons_at(index, now_us)
    for host in holds.nodes.get(generation.time_ms, ()):
        yield host, f"the cdc_local of node {host} still names it: that node has not learnt of a later generation"


def _log_assumption(name: str, history: LogTtlHistory) -> ExpiryAssumption | None:
    """Return the assumption about a log in words; None if all facts are known."""
    if not history.unknown:
        return None
    keyspace, table = split_full_name(name)
    facts = "since when its TTL is in force"
    command = f"cdc-platform tables alter {shlex.quote(f'{quote_name(keyspace)}.{quote_name(table)}')}"
    times = " and ".join(_period_text(period) for period in history.unknown)
    assumption = f"its TTL {times} is not known, so its rows are assumed never to expire"
    if history.created_us is None:
        assumption = (
            f"when its log was created is not known, nor its TTL {times}: it is assumed to have rows of any age"
        )
        facts, command = f"when its log was created, and {facts}", f"{command} --created-at TIME"
    return ExpiryAssumption(name, assumption, f"state {facts}, as far as you know: {command} --ttl-since TIME")


def _period_text(period: TtlPeriod) -> str:
    if period.from_us == BEGINNING_US:
        return f"before {format_us(period.until_us)}"
    return f"from {format_us(period.from_us)} to {format_us(period.until_us)}"


def _pointing_nodes(lake: Lake) -> dict[int, list[str]]:
    """Return the nodes whose `cdc_local` names a generation, by its time (ms), without nodes that have left."""
    former = set(read_host_ids(lake, STATUS_LEFT))
    hosts_by_time: dict[int, list[str]] = {}
    for host, stored_id in cdc_local.read_node_generation_ids(lake).items():
        if host not in former:
            hosts_by_time.setdefault(stored_id.time_ms, []).append(host)
    return {time: sorted(hosts) for time, hosts in hosts_by_time.items()}


def _read_row_times(lake: Lake, table: Table) -> list[Milliseconds]:
    """Return the times (ms) of a table's rows, ascending."""
    column = compute.unique(lake.read(table, ["time"])["time"])
    return np.sort(ms_from_us(np.asarray(column.cast(pa.int64()), dtype=np.int64))).tolist()


def _later_ms(one: Milliseconds | None, other: Milliseconds | None) -> Milliseconds | None:
    """Return the later of a computed and a recorded time; None, for never, if the computed one is None."""
    return one if one is None or other is None else max(one, other)


def _ms_unless_never(us: Microseconds) -> Milliseconds | None:
    """Convert µs to ms, rounded up; return None for a time that never comes."""
    return None if us > _LAST_US else ceil_ms_from_us(us)


@dataclass(frozen=True)
class PurgeStatements:
    """The statements that remove a generation from the cluster, in the order in which they must run."""

    generation: PlannedGeneration
    statements: tuple[str, ...]


def generate_purge_statements(lake: Lake, plan: Sequence[PlannedGeneration]) -> list[PurgeStatements]:
    """Return the statements for each generation that may be removed now, oldest first.

    Tables in which the home knows no row of the generation get no statement.
    """
    due = [generation for generation in plan if generation.action is ExpiryAction.REMOVE]
    if not due:
        return []
    by_time = {
        table: generations.read_row_times(lake, table)
        for table in (STREAMS_DESCRIPTIONS, STREAMS_DESCRIPTIONS_V2, GENERATION_DESCRIPTIONS)
    }
    by_id = {part.key[0] for part in lake.partitions(GENERATION_DESCRIPTIONS_V2)}
    return [
        PurgeStatements(generation, tuple(_generation_statements(generation, by_time, by_id))) for generation in due
    ]


def _generation_statements(
    generation: PlannedGeneration, by_time: dict[Table, set[Milliseconds]], by_id: Collection[object]
) -> Iterator[str]:
    """Yield the statement for the V1 clients' table, then that for the timestamp, then the rest.

    Other clients rely on the timestamp.
    """
    when = f"time = '{cql_timestamp_literal(generation.time_ms)}'"
    if generation.time_ms in by_time[STREAMS_DESCRIPTIONS]:
        yield _delete_statement(STREAMS_DESCRIPTIONS, when)
    if generation.listed:
        yield _delete_statement(GENERATION_TIMESTAMPS, f"key = 'timestamps' AND {when}")
    if generation.time_ms in by_time[STREAMS_DESCRIPTIONS_V2]:
        yield _delete_statement(STREAMS_DESCRIPTIONS_V2, when)
    if generation.time_ms in by_time[GENERATION_DESCRIPTIONS]:
        yield _delete_statement(GENERATION_DESCRIPTIONS, when)
    if generation.id in by_id:
        yield _delete_statement(GENERATION_DESCRIPTIONS_V2, f"id = {generation.id}")


def _delete_statement(table: Table, where: str) -> str:
    return f"DELETE FROM {table.full_name} WHERE {where};"


REMOVAL_TABLES = (
    STREAMS_DESCRIPTIONS,
    GENERATION_TIMESTAMPS,
    STREAMS_DESCRIPTIONS_V2,
    GENERATION_DESCRIPTIONS_V2,
    TOPOLOGY_DESCRIPTIONS,
    GENERATION_DESCRIPTIONS,
    UNORDERED_RANGES,
    STREAM_FINGERPRINTS,
    EXPIRY_MARKS,
)
"""The tables from which rows are removed, in this order; each is vacuumed afterwards."""
EXPIRY_STEP = "expire"
"""The name of a run in error messages."""
# The maximum number of generations that one commit removes, because the commit names all of their files.
_GENERATIONS_A_COMMIT = 1000
_T = TypeVar("_T")


@dataclass(frozen=True)
class ExpiryResult:
    """The result of a run: its plan, the number of generations that it marked, and those that it removed."""

    plan: tuple[PlannedGeneration, ...]
    marked: int
    removed: tuple[PlannedGeneration, ...]
    finished: int
    """The number of removals that an earlier run had begun."""
    vacuumed: int
    """The number of deleted files that no version of the last seven days needs."""


def expire_generations(lake: Lake, clock: Clock, settings: Settings) -> ExpiryResult:
    """Mark expired generations, remove those marked at least a grace time ago, and vacuum the tables.

    Raises:
        NotAsCommitted: a table on which the decision depends, or that loses rows, is not as committed.
        ClockRefused: the clock is ahead of the machine's by more than the grace time.
    """
    lake, plan = read_verified_plan(lake, clock, settings)
    unfinished = len(read_unfinished_removals(lake))
    marked = mark_expired(lake, clock, plan)
    removed = begin_removals(lake, clock, plan)
    for table in REMOVAL_TABLES:
        remove_generation_rows(lake, table, removed)
    files = sum(maintenance.vacuum_table(lake, table) for table in REMOVAL_TABLES)
    return ExpiryResult(tuple(plan), marked, tuple(removed), unfinished, files)


def read_verified_plan(lake: Lake, clock: Clock, settings: Settings) -> tuple[Lake, list[PlannedGeneration]]:
    """Return the plan of a removing run and the verified lake with which it must continue.

    Raises:
        NotAsCommitted: a table on which the decision depends, or that loses rows, is not as committed.
        ClockRefused: the clock is ahead of the machine's by more than the grace time.
    """
    clock.assert_not_ahead(settings.expiry_grace_ms, EXPIRY_STEP)
    lake = get_verified_lake(lake, EXPIRY_STEP)
    lake.verify(*REMOVAL_TABLES, REMOVED_GENERATIONS)
    return lake, plan_expiry(lake, clock, settings)


def mark_expired(lake: Lake, clock: Clock, plan: Sequence[PlannedGeneration]) -> int:
    """Mark expired generations; return the number of marks that are new or later.

    A mark never moves to an earlier time.

    If the plan computes a later time than a recorded one, the later time replaces it, even if it is in the future.
    """
    due = [generation for generation in plan if needs_mark(generation)]
    rows = [
        {"key": "timestamps", "time": _datetime(generation.time_ms), "expired": _datetime(generation.expired_ms)}
        for generation in due
        if generation.listed
    ]
    if rows:
        lake.raise_column(
            GENERATION_TIMESTAMPS, pa.Table.from_pylist(rows, schema=GENERATION_TIMESTAMPS.schema), "expired"
        )
        failpoints.kill_if_selected(failpoints.AFTER_EXPIRED_MARK)
    marked = (
        (generation.time_ms, generation.expired_ms) for generation in due if generation.action is not ExpiryAction.KEEP
    )
    expiry_marks.write_expiry_marks(
        lake, clock, [(time_ms, expiry_ms) for time_ms, expiry_ms in marked if expiry_ms is not None]
    )
    return len(due)


def needs_mark(generation: PlannedGeneration) -> bool:
    """Return True if an expired generation has no mark, or a recorded time is earlier than the computed one."""
    if generation.expired_ms is None:
        return False
    if generation.action is not ExpiryAction.KEEP:
        return generation.mark is None
    return generation.listed and generation.marked_ms is not None and generation.marked_ms < generation.expired_ms


def begin_removals(lake: Lake, clock: Clock, plan: Sequence[PlannedGeneration]) -> list[PlannedGeneration]:
    """Record the due removals in `platform.removed_generations` and return them.

    The record remains when the rows are gone, for queries about the generation, and so that no step restores it.
    """
    due = [generation for generation in plan if generation.action is ExpiryAction.REMOVE]
    rows = [
        {
            "time": _datetime(generation.time_ms),
            "generation_id": generation.id,
            "expired": _datetime(generation.expired_ms),
            "removed_at": datetime_from_us(clock.now_us()),
            "rows": generation.rows,
            "bytes": generation.bytes,
        }
        for generation in due
    ]
    if rows:
        lake.merge(REMOVED_GENERATIONS, pa.Table.from_pylist(rows, schema=REMOVED_GENERATIONS.schema), update=False)
        failpoints.kill_if_selected(failpoints.AFTER_REMOVAL_NOTE)
    return due


def read_due_removals(lake: Lake, clock: Clock, settings: Settings) -> list[PlannedGeneration]:
    """Return the removals that are recorded and still due by the current plan."""
    recorded = generations.read_removals(lake)
    plan = read_verified_plan(lake, clock, settings)[1] if recorded else []
    return [
        generation for generation in plan if generation.action is ExpiryAction.REMOVE and generation.time_ms in recorded
    ]


def remove_generation_rows(lake: Lake, table: Table, begun: Sequence[PlannedGeneration] = ()) -> int:
    """Remove the rows of generations without a timestamp from one of `REMOVAL_TABLES`; return the number of rows.

    For `begun` removals, the rows of V1 clients are removed before the timestamp, because otherwise a rewrite could
    publish them again. Removing the timestamp removes the generation for every reader. A generation that was marked
    again after the plan was made remains.

    Raises:
        NotAsCommitted: a table on which the decision depends, or this one, is not as committed.
    """
    lake = get_verified_lake(lake, EXPIRY_STEP)
    if table is GENERATION_TIMESTAMPS:
        removed = _remove_timestamps(lake, begun)
    else:
        decided: list[GenerationRemoval | PlannedGeneration] = [*generations.read_removed_generations(lake)]
        due = [*decided, *begun] if table is STREAMS_DESCRIPTIONS else decided
        column, values = _generation_values(table, due)
        present = _present_values(lake, table, column) if values else set()
        existing = [value for value in values if value in present]
        removed = sum(lake.delete(table, [(column, "in", chunk)]) for chunk in _chunks(existing))
    if removed and table.full_name in _FAILPOINTS:
        failpoints.kill_if_selected(_FAILPOINTS[table.full_name])
    return removed


def read_unfinished_removals(lake: Lake) -> list[GenerationRemoval]:
    """Return the generations without a timestamp that still have rows somewhere, because a run died."""
    decided = generations.read_removed_generations(lake)
    if not decided:
        return []
    tables = [table for table in REMOVAL_TABLES if table is not GENERATION_TIMESTAMPS]
    remaining = {table.full_name: _present_values(lake, table, _generation_values(table, [])[0]) for table in tables}
    return [
        removal
        for removal in decided
        if any(remaining[table.full_name].intersection(_generation_values(table, [removal])[1]) for table in tables)
    ]


_FAILPOINTS = {
    GENERATION_TIMESTAMPS.full_name: failpoints.AFTER_TIMESTAMP_REMOVAL,
    STREAMS_DESCRIPTIONS_V2.full_name: failpoints.AFTER_STREAMS_REMOVAL,
    GENERATION_DESCRIPTIONS_V2.full_name: failpoints.AFTER_DESCRIPTIONS_REMOVAL,
}


def _remove_timestamps(lake: Lake, begun: Sequence[PlannedGeneration]) -> int:
    removed = 0
    for chunk in _chunks([generation for generation in begun if generation.listed]):
        latest = max(generation.expired_ms for generation in chunk if generation.expired_ms is not None)
        times = [_datetime(generation.time_ms) for generation in chunk]
        where: list[Filter] = [("key", "=", "timestamps"), ("time", "in", times), ("expired", "<=", _datetime(latest))]
        removed += lake.delete(GENERATION_TIMESTAMPS, where)
    return removed


def _generation_values(
    table: Table, generations: Iterable[GenerationRemoval | PlannedGeneration]
) -> tuple[str, list[Any]]:
    """Return the column that assigns a table's rows to generations, and its values for these generations."""
    column = table.generation_column
    assert column is not None, f"{table.full_name} holds no rows of generations"
    if table is UNORDERED_RANGES:
        return column, [
            name
            for generation in generations
            for name in (generation.id, format_ms(generation.time_ms))
            if name is not None
        ]
    if table.schema.field(column).type == TIMESTAMP:
        return column, [_datetime(generation.time_ms) for generation in generations]
    return column, [generation.id for generation in generations if generation.id is not None]


def _present_values(lake: Lake, table: Table, column: str) -> set[Any]:
    """Return the values of that column in a table, from Delta's log if the table is partitioned by it."""
    if table.partition_by == (column,):
        values = [part.key[0] for part in lake.partitions(table)]
    else:
        values = lake.read(table, [column])[column].to_pylist()
    return {datetime_from_us(us_from_datetime(value)) if isinstance(value, datetime) else value for value in values}


def _datetime(ms: Milliseconds | None) -> datetime:
    assert ms is not None
    return datetime_from_ms(ms)


def _chunks(values: Sequence[_T]) -> Iterator[Sequence[_T]]:
    for start in range(0, len(values), _GENERATIONS_A_COMMIT):
        yield values[start : start + _GENERATIONS_A_COMMIT]
