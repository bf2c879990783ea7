"""Expiry of generations: the purge plan, the removal from the lake, and CQL that removes them from a cluster.

The plan reads names, times and Delta's log, never a stream: 10,000 generations take a moment. A run removes only what
an earlier run marked, and only by verified tables. Removing the timestamp is the decision: later runs finish what is
left. ScyllaDB itself never removes a generation from its tables (scylladb#7300).
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
from cdc_platform.cql import quote_name
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
# The last moment of the year 9999, beyond which no time can be written down.
_LAST_US = Microseconds(253_402_300_799_999_999)


class ExpiryAction(StrEnum):
    """What the next run does with a generation."""

    KEEP = "keep"
    MARK = "mark"
    """It has expired: a run marks that, and the grace time runs from the mark on."""
    REMOVE = "remove"
    """An earlier run marked it, and the grace time is over."""


@dataclass(frozen=True)
class ExpiryAssumption:
    """What is assumed of a table's log because it is not known (`said`), and how to state it (`do`)."""

    table: str
    said: str
    do: str


@dataclass(frozen=True)
class PlannedGeneration:
    """One generation in the plan. Times in ms.

    `expired_ms`: from when on no CDC log can hold rows of it, also while that lies ahead; None where it never comes
    or cannot be told. `removable_ms`: when the grace time is over that counts from its mark, or of one without a mark
    from the earliest moment at which a run can mark it. `marked_ms`: what `cdc_generation_timestamps` says; `mark`:
    when that was written, None where it was not, or of an earlier expiry.
    `blocked_by`: what keeps it now, by name; `reasons`: the same in words. `rows` and `bytes`: what would go, in all
    tables; bytes are those of the files. `assumptions`: those among the reasons that only hold as long as something is
    not known.
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
    """One thing that keeps some of the generations: its name, and in words why it keeps the one at an index.

    `seen_us`: until when it would keep them by what was seen; the rest is assumed.
    """

    name: str
    until_us: np.ndarray
    reason: str
    seen_us: np.ndarray | None = None
    assumption: ExpiryAssumption | None = None

    def assumed(self, index: int) -> ExpiryAssumption | None:
        """What is assumed where it keeps the generation at an index for longer than by what was seen."""
        is_seen = self.seen_us is None or self.seen_us[index] == self.until_us[index]
        return None if is_seen else self.assumption

    def says(self, index: int) -> str:
        assumed = self.assumed(index)
        if assumed is not None:
            return f"{self.reason}: {assumed.said}"
        until = Microseconds(self.until_us[index])
        when = "" if until == NEVER_US else f" until {format_us(until)}"
        return f"{self.reason}{when}"


def plan_expiry(lake: Lake, clock: Clock, settings: Settings, *, as_seen: bool = False) -> list[PlannedGeneration]:
    """What is to become of every known generation, oldest first.

    Only published generations end others: what nobody may read yet is no successor. A time that has been noted as
    `expired` never moves to an earlier one, whatever is said of tables since; a later one is taken. With
    `as_seen` a TTL that is not known is guessed to be the one that was seen next: never remove anything by such a plan.
    """
    generations = Timeline.read(lake).generations
    published = [each for each in generations if each.published or each.is_removed or each.published_v1]
    times = np.array([us_from_ms(each.time_ms) for each in published], dtype=np.int64)
    holds = _ExpiryBlocks(lake, times, settings, as_seen=as_seen)
    index = {each.time_ms: number for number, each in enumerate(published)}
    sizes, marks = read_generation_sizes(lake), expiry_marks.read_expiry_marks(lake)
    current = int(np.searchsorted(times, clock.now_us(), side="right")) - 1
    return [
        _planned_generation(
            each, index.get(each.time_ms), current, holds, sizes, clock, settings, marks.get(each.time_ms)
        )
        for each in generations
        if not each.is_removed
    ]


def read_generation_sizes(lake: Lake) -> Mapping[object, RowsAndBytes]:
    """Rows and bytes of generations: by time (ms) in the tables that go by time, by UUID in those that go by UUID."""
    sizes: dict[object, RowsAndBytes] = {}
    for table in (STREAMS_DESCRIPTIONS_V2, GENERATION_DESCRIPTIONS_V2, TOPOLOGY_DESCRIPTIONS):
        for part in lake.slices(table):
            (value,) = part.key
            key = ms_from_datetime(value) if table is STREAMS_DESCRIPTIONS_V2 else value
            sizes[key] = sizes.get(key, RowsAndBytes()) + RowsAndBytes(part.rows, part.bytes)
    for table in (STREAMS_DESCRIPTIONS, GENERATION_DESCRIPTIONS):
        # These are not partitioned: of a file's bytes each row has its share.
        times = _read_row_times(lake, table)
        share = sum(part.bytes for part in lake.slices(table)) // max(len(times), 1)
        for time in times:
            sizes[time] = sizes.get(time, RowsAndBytes()) + RowsAndBytes(1, share)
    return sizes


def _generation_size(generation: Generation, sizes: Mapping[object, RowsAndBytes]) -> RowsAndBytes:
    """Rows and bytes of one generation in all tables; its row among the timestamps counts, its few bytes do not."""
    own = sizes.get(generation.time_ms, RowsAndBytes())
    by_id = RowsAndBytes() if generation.id is None else sizes.get(generation.id, RowsAndBytes())
    return own + by_id + RowsAndBytes(int(generation.published), 0)


def plan_assumptions(plan: Iterable[PlannedGeneration]) -> list[ExpiryAssumption]:
    """What a plan assumes, each once."""
    return list(dict.fromkeys(assumption for each in plan for assumption in each.assumptions))


def read_generation_log_histories(lake: Lake) -> dict[str, LogTtlHistory]:
    """The logs that rows of generations can be in, by `keyspace.table`: those of all tables but tablet-based ones."""
    sources = StreamSources(lake)
    found = cdc_tables.read_log_histories(lake)
    return {f"{name[0]}.{name[1]}": history for name, history in found.items() if sources.of(*name).in_generations}


class _ExpiryBlocks:
    """Everything that keeps generations (int64[g] `times_us`, ascending), looked up once for all of them."""

    def __init__(self, lake: Lake, times_us: np.ndarray, settings: Settings, *, as_seen: bool) -> None:
        margins = ClockMargins.of(
            settings.policy, us_from_ms(settings.generation_leeway_ms), us_from_ms(settings.expiry_skew_margin_ms)
        )
        self.tables_known = cdc_tables.are_cdc_tables_known(lake)
        told = "do so with: cdc-platform tables add KS.T --ttl SECONDS, or that there is none: cdc-platform tables none"
        self._telling = choose_remedy(
            lake, told, "none was seen in {cluster}; look again with: cdc-platform observe {cluster}"
        )
        self.expires_us = written_until_us(times_us, margins)
        self.tables: list[_ExpiryBlock] = []
        for name, history in read_generation_log_histories(lake).items():
            seen = live_until_us(times_us, history.as_seen(), margins)
            until = seen if as_seen else live_until_us(times_us, history, margins)
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

    def assumed(self, index: int, now_us: Microseconds) -> Iterable[ExpiryAssumption]:
        """What is assumed for the generation at `index`, which is kept for that reason."""
        found = (hold.assumed(index) for hold in self.tables if hold.until_us[index] > now_us)
        return (assumption for assumption in found if assumption is not None)

    def on(self, index: int, now_us: Microseconds) -> Iterable[tuple[str, str]]:
        """What keeps the generation at `index` now: names, and why."""
        if not self.tables_known:
            yield (
                UNKNOWN_TABLES,
                f"no CDC-enabled table was ever told of; {self._telling}",
            )
        held = [hold for hold in self.tables if hold.until_us[index] > now_us]
        for hold in held:
            yield hold.name, hold.says(index)
        if not held and self.expires_us[index] > now_us:
            yield (
                LATE_WRITES,
                f"clocks that are off may write into it until {format_us(Microseconds(self.expires_us[index]))}",
            )
        for hold in self.readers:
            if hold.until_us[index] > now_us:
                yield hold.name, hold.says(index)


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
    told = index is not None and holds.tables_known
    expired = (
        _later_ms(_ms_unless_never(Microseconds(holds.expires_us[index])), generation.expired_ms) if told else None
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
        tuple(holds.assumed(index, now_us)) if index is not None and index < current else (),
    )


def _is_mark_current(mark: ExpiryMark, generation: Generation, expired: Milliseconds) -> bool:
    """Whether a mark is of this expiry, and stands in the timestamps as well, where the generation has one there."""
    return mark.expired_ms >= expired and (not generation.published or generation.expired_ms == expired)


def _blocking_reasons(
    generation: Generation, index: int | None, current: int, holds: _ExpiryBlocks, now_us: Microseconds
) -> Iterable[tuple[str, str]]:
    if index is None:
        yield UNPUBLISHED, "it is not published, so that its join may still be going on"
        return
    if index >= current:
        name = OPERATES if index == current else STARTS_LATER
        yield name, f"it {name}: only a generation that operates no more can expire"
        return
    yield from holds.on(index, now_us)
    for host in holds.nodes.get(generation.time_ms, ()):
        yield host, f"the cdc_local of node {host} still names it: that node has not learnt of a later generation"


def _log_assumption(name: str, history: LogTtlHistory) -> ExpiryAssumption | None:
    """What is assumed of a log, in words; None where all of it is known."""
    if not history.unknown:
        return None
    keyspace, _, table = name.partition(".")
    facts = "since when its TTL is in force"
    command = f"cdc-platform tables alter {shlex.quote(f'{quote_name(keyspace)}.{quote_name(table)}')}"
    times = " and ".join(_period_text(period) for period in history.unknown)
    said = f"its TTL {times} is not known, so its rows are taken to never expire"
    if history.created_us is None:
        said = f"when its log was created is not known, nor its TTL {times}: rows of any age are taken to be in it"
        facts, command = f"when its log was created, and {facts}", f"{command} --created-at TIME"
    return ExpiryAssumption(name, said, f"state {facts}, as far as you know: {command} --ttl-since TIME")


def _period_text(period: TtlPeriod) -> str:
    if period.from_us == BEGINNING_US:
        return f"before {format_us(period.until_us)}"
    return f"from {format_us(period.from_us)} to {format_us(period.until_us)}"


def _pointing_nodes(lake: Lake) -> dict[int, list[str]]:
    """The nodes whose `cdc_local` names a generation, by its time (ms); those that have left ask for nothing."""
    left = set(read_host_ids(lake, STATUS_LEFT))
    found: dict[int, list[str]] = {}
    for host, kept in cdc_local.read_node_generation_ids(lake).items():
        if host not in left:
            found.setdefault(kept.time_ms, []).append(host)
    return {time: sorted(hosts) for time, hosts in found.items()}


def _read_row_times(lake: Lake, table: Table) -> list[Milliseconds]:
    """The times (ms) of a table's rows, ascending."""
    column = compute.unique(lake.read(table, ["time"])["time"])
    return np.sort(ms_from_us(np.asarray(column.cast(pa.int64()), dtype=np.int64))).tolist()


def _later_ms(one: Milliseconds | None, other: Milliseconds | None) -> Milliseconds | None:
    """The later of a computed and a noted time; where the computed one never comes, it never does."""
    return one if one is None or other is None else max(one, other)


def _ms_unless_never(us: Microseconds) -> Milliseconds | None:
    """µs as ms, rounded up; None for a time that never comes."""
    return None if us > _LAST_US else ceil_ms_from_us(us)


@dataclass(frozen=True)
class PurgeStatements:
    """The statements that remove a generation from the cluster, to be run in this order, and those of nodes' tables."""

    generation: PlannedGeneration
    statements: tuple[str, ...]


def generate_purge_statements(lake: Lake, plan: Sequence[PlannedGeneration]) -> list[PurgeStatements]:
    """Of each generation that may be removed now, oldest first; of tables in which the home knows no row of it none."""
    gone = [each for each in plan if each.action is ExpiryAction.REMOVE]
    if not gone:
        return []
    by_time = {
        table: generations.read_row_times(lake, table)
        for table in (STREAMS_DESCRIPTIONS, STREAMS_DESCRIPTIONS_V2, GENERATION_DESCRIPTIONS)
    }
    by_id = {part.key[0] for part in lake.slices(GENERATION_DESCRIPTIONS_V2)}
    return [PurgeStatements(each, tuple(_generation_statements(each, by_time, by_id))) for each in gone]


def _generation_statements(
    generation: PlannedGeneration, by_time: dict[Table, set[Milliseconds]], by_id: Collection[object]
) -> Iterator[str]:
    """First what clients of the first format read, then the timestamp, by which others go, then the rest."""
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
"""The tables that rows are removed from, in that order; each is vacuumed afterwards."""
EXPIRY_STEP = "expire"
"""How refusals name a run."""
# One commit removes this many generations at most: their files are all named in it.
_GENERATIONS_A_COMMIT = 1000
_T = TypeVar("_T")


@dataclass(frozen=True)
class ExpiryResult:
    """What a run did: the plan it went by, how many generations it marked, and which it removed."""

    plan: tuple[PlannedGeneration, ...]
    marked: int
    removed: tuple[PlannedGeneration, ...]
    finished: int
    """Removals that an earlier run had begun."""
    vacuumed: int
    """Files that no version of the last seven days needs, deleted."""


def expire_generations(lake: Lake, clock: Clock, settings: Settings) -> ExpiryResult:
    """Mark what has expired, remove what an earlier run marked a grace time ago, and vacuum the tables.

    Raises:
        NotAsCommitted: a table that decides, or that rows go from, is not as committed.
        ClockRefused: the clock is ahead of the machine's by more than the grace time.
    """
    lake, plan = read_verified_plan(lake, clock, settings)
    left = len(read_unfinished_removals(lake))
    marked = mark_expired(lake, clock, plan)
    removed = begin_removals(lake, clock, plan)
    for table in REMOVAL_TABLES:
        remove_generation_rows(lake, table, removed)
    files = sum(maintenance.vacuum_table(lake, table) for table in REMOVAL_TABLES)
    return ExpiryResult(tuple(plan), marked, tuple(removed), left, files)


def read_verified_plan(lake: Lake, clock: Clock, settings: Settings) -> tuple[Lake, list[PlannedGeneration]]:
    """The plan of a run that removes, and the lake by which it has to go on: every table in both is verified.

    Raises:
        NotAsCommitted: a table that decides, or that rows go from, is not as committed.
        ClockRefused: the clock is ahead of the machine's by more than the grace time.
    """
    clock.assert_not_ahead(settings.expiry_grace_ms, EXPIRY_STEP)
    lake = get_verified_lake(lake, EXPIRY_STEP)
    lake.verify(*REMOVAL_TABLES, REMOVED_GENERATIONS)
    return lake, plan_expiry(lake, clock, settings)


def mark_expired(lake: Lake, clock: Clock, plan: Sequence[PlannedGeneration]) -> int:
    """Mark what has expired; answers how many marks are new or later. None ever goes back.

    A noted time of which the plan says that it is too early is moved to the later one, whether that has come or not.
    """
    due = [each for each in plan if needs_mark(each)]
    rows = [
        {"key": "timestamps", "time": _datetime(each.time_ms), "expired": _datetime(each.expired_ms)}
        for each in due
        if each.listed
    ]
    if rows:
        lake.raise_column(
            GENERATION_TIMESTAMPS, pa.Table.from_pylist(rows, schema=GENERATION_TIMESTAMPS.schema), "expired"
        )
        failpoints.kill_if_selected(failpoints.AFTER_EXPIRED_MARK)
    marked = ((each.time_ms, each.expired_ms) for each in due if each.action is not ExpiryAction.KEEP)
    expiry_marks.write_expiry_marks(
        lake, clock, [(time_ms, each_ms) for time_ms, each_ms in marked if each_ms is not None]
    )
    return len(due)


def needs_mark(each: PlannedGeneration) -> bool:
    """Whether the mark of a generation is missing though it has expired, or is earlier than what is known now."""
    if each.expired_ms is None:
        return False
    if each.action is not ExpiryAction.KEEP:
        return each.mark is None
    return each.listed and each.marked_ms is not None and each.marked_ms < each.expired_ms


def begin_removals(lake: Lake, clock: Clock, plan: Sequence[PlannedGeneration]) -> list[PlannedGeneration]:
    """Note in `platform.removed_generations` what is about to go; answers with it.

    What is noted stays known when its rows are gone: to those who ask for it, and so that no step brings it back.
    """
    due = [each for each in plan if each.action is ExpiryAction.REMOVE]
    rows = [
        {
            "time": _datetime(each.time_ms),
            "generation_id": each.id,
            "expired": _datetime(each.expired_ms),
            "removed_at": datetime_from_us(clock.now_us()),
            "rows": each.rows,
            "bytes": each.bytes,
        }
        for each in due
    ]
    if rows:
        lake.merge(REMOVED_GENERATIONS, pa.Table.from_pylist(rows, schema=REMOVED_GENERATIONS.schema), update=False)
        failpoints.kill_if_selected(failpoints.AFTER_REMOVAL_NOTE)
    return due


def read_due_removals(lake: Lake, clock: Clock, settings: Settings) -> list[PlannedGeneration]:
    """The removals that are noted and, by the plan as it is now, still due."""
    noted = generations.read_removals(lake)
    plan = read_verified_plan(lake, clock, settings)[1] if noted else []
    return [each for each in plan if each.action is ExpiryAction.REMOVE and each.time_ms in noted]


def remove_generation_rows(lake: Lake, table: Table, begun: Sequence[PlannedGeneration] = ()) -> int:
    """Remove from one of `REMOVAL_TABLES` what generations have there whose timestamps are gone; answers how many rows.

    Of the `begun` removals the rows of the first format go before the timestamp, else a rewrite could publish them
    again; with the timestamp they are gone for every reader. One that was marked anew since the plan was made stays.

    Raises:
        NotAsCommitted: a table that decides, or this one, is not as committed.
    """
    lake = get_verified_lake(lake, EXPIRY_STEP)
    if table is GENERATION_TIMESTAMPS:
        removed = _remove_timestamps(lake, begun)
    else:
        gone: list[GenerationRemoval | PlannedGeneration] = [*generations.read_removed_generations(lake)]
        due = [*gone, *begun] if table is STREAMS_DESCRIPTIONS else gone
        column, values = _generation_values(table, due)
        present = _present_values(lake, table, column) if values else set()
        there = [value for value in values if value in present]
        removed = sum(lake.delete(table, [(column, "in", some)]) for some in _chunks(there))
    if removed and table.full_name in _FAILPOINTS:
        failpoints.kill_if_selected(_FAILPOINTS[table.full_name])
    return removed


def read_unfinished_removals(lake: Lake) -> list[GenerationRemoval]:
    """The generations whose timestamps are gone and of which rows are left somewhere: a run that died left them."""
    gone = generations.read_removed_generations(lake)
    if not gone:
        return []
    tables = [table for table in REMOVAL_TABLES if table is not GENERATION_TIMESTAMPS]
    left = {table.full_name: _present_values(lake, table, _generation_values(table, [])[0]) for table in tables}
    return [
        each
        for each in gone
        if any(left[table.full_name].intersection(_generation_values(table, [each])[1]) for table in tables)
    ]


_FAILPOINTS = {
    GENERATION_TIMESTAMPS.full_name: failpoints.AFTER_TIMESTAMP_REMOVAL,
    STREAMS_DESCRIPTIONS_V2.full_name: failpoints.AFTER_STREAMS_REMOVAL,
    GENERATION_DESCRIPTIONS_V2.full_name: failpoints.AFTER_DESCRIPTIONS_REMOVAL,
}


def _remove_timestamps(lake: Lake, begun: Sequence[PlannedGeneration]) -> int:
    removed = 0
    for some in _chunks([each for each in begun if each.listed]):
        latest = max(each.expired_ms for each in some if each.expired_ms is not None)
        times = [_datetime(each.time_ms) for each in some]
        where: list[Filter] = [("key", "=", "timestamps"), ("time", "in", times), ("expired", "<=", _datetime(latest))]
        removed += lake.delete(GENERATION_TIMESTAMPS, where)
    return removed


def _generation_values(
    table: Table, generations: Iterable[GenerationRemoval | PlannedGeneration]
) -> tuple[str, list[Any]]:
    """The column by which a table's rows belong to generations, and what these have in it."""
    column = table.generation_column
    assert column is not None, f"{table.full_name} holds no rows of generations"
    if table is UNORDERED_RANGES:
        return column, [name for each in generations for name in (each.id, format_ms(each.time_ms)) if name is not None]
    if table.schema.field(column).type == TIMESTAMP:
        return column, [_datetime(each.time_ms) for each in generations]
    return column, [each.id for each in generations if each.id is not None]


def _present_values(lake: Lake, table: Table, column: str) -> set[Any]:
    """What a table has in that column: from Delta's log where it is partitioned by it."""
    if table.partition_by == (column,):
        values = [part.key[0] for part in lake.slices(table)]
    else:
        values = lake.read(table, [column])[column].to_pylist()
    return {datetime_from_us(us_from_datetime(value)) if isinstance(value, datetime) else value for value in values}


def _datetime(ms: Milliseconds | None) -> datetime:
    assert ms is not None
    return datetime_from_ms(ms)


def _chunks(values: Sequence[_T]) -> Iterator[Sequence[_T]]:
    for start in range(0, len(values), _GENERATIONS_A_COMMIT):
        yield values[start : start + _GENERATIONS_A_COMMIT]
