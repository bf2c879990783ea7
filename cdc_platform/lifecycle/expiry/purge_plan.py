"""The purge plan: for each generation when no log can hold a row of it, what keeps it, and what would go with it.

Reads names, times and Delta's own log, never a stream, so that 10,000 generations take a moment. The rule is
`generations.expiry`'s. Where a generation stays because of what is not known of a log, the plan names that assumption.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pyarrow as pa

from cdc_platform.clock import (
    Clock,
    Microseconds,
    Milliseconds,
    format_ms,
    format_us,
    ms_from_datetime,
    ms_not_before,
    ms_of,
    us_of,
)
from cdc_platform.cql.names import quoted
from cdc_platform.generations.expiry import (
    ALWAYS,
    NEVER,
    LogHistory,
    Margins,
    TtlPeriod,
    held_until_us,
    unread,
    written_until_us,
)
from cdc_platform.lake.arrow import compute
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.mirrors import mend
from cdc_platform.lake.tables import (
    GENERATION_DESCRIPTIONS,
    GENERATION_DESCRIPTIONS_V2,
    STREAMS_DESCRIPTIONS,
    STREAMS_DESCRIPTIONS_V2,
    TOPOLOGY_DESCRIPTIONS,
    Table,
)
from cdc_platform.records import cdc_local, cdc_tables, consumers, expiry_marks, no_tables
from cdc_platform.records.expiry_marks import Mark
from cdc_platform.records.ring import LEFT, host_ids
from cdc_platform.settings import Settings
from cdc_platform.timeline import Generation, StreamSources, Timeline

OPERATES = "operates"
STARTS_LATER = "starts later"
UNPUBLISHED = "not published"
UNKNOWN_TABLES = "no CDC-enabled table is known"
MARGIN = "late writes"
# The last moment of the year 9999, beyond which no time can be written down.
_LAST_US = Microseconds(253_402_300_799_999_999)


class Action(StrEnum):
    """What the next run does with a generation."""

    KEEP = "keep"
    MARK = "mark"
    """It has expired: a run marks that, and the grace time runs from the mark on."""
    REMOVE = "remove"
    """An earlier run marked it, and the grace time is over."""


@dataclass(frozen=True)
class Assumption:
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
    mark: Mark | None
    blocked_by: tuple[str, ...]
    reasons: tuple[str, ...]
    rows: int
    bytes: int
    action: Action
    listed: bool
    assumptions: tuple[Assumption, ...] = ()


@dataclass(frozen=True)
class Size:
    """Rows and bytes of files."""

    rows: int = 0
    bytes: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(self.rows + other.rows, self.bytes + other.bytes)


@dataclass(frozen=True)
class _Hold:
    """One thing that keeps some of the generations: its name, and in words why it keeps the one at an index.

    `seen_us`: until when it would keep them by what was seen; the rest is assumed.
    """

    name: str
    until_us: np.ndarray
    reason: str
    seen_us: np.ndarray | None = None
    assumption: Assumption | None = None

    def assumed(self, index: int) -> Assumption | None:
        """What is assumed where it keeps the generation at an index for longer than by what was seen."""
        is_seen = self.seen_us is None or self.seen_us[index] == self.until_us[index]
        return None if is_seen else self.assumption

    def says(self, index: int) -> str:
        assumed = self.assumed(index)
        if assumed is not None:
            return f"{self.reason}: {assumed.said}"
        until = Microseconds(self.until_us[index])
        when = "" if until == NEVER else f" until {format_us(until)}"
        return f"{self.reason}{when}"


def plan(lake: Lake, clock: Clock, settings: Settings, *, as_seen: bool = False) -> list[PlannedGeneration]:
    """What is to become of every known generation, oldest first.

    Only published generations end others: what nobody may read yet is no successor. A time that has been noted as
    `expired` never moves to an earlier one, whatever is said of tables since; a later one is taken. With
    `as_seen` a TTL that is not known is guessed to be the one that was seen next: never remove anything by such a plan.
    """
    generations = Timeline.read(lake).generations
    published = [each for each in generations if each.published or each.is_removed or each.published_v1]
    times = np.array([us_of(each.time_ms) for each in published], dtype=np.int64)
    holds = _Holds(lake, times, settings, as_seen=as_seen)
    index = {each.time_ms: number for number, each in enumerate(published)}
    sizes, marks = held_sizes(lake), expiry_marks.marks(lake)
    current = int(np.searchsorted(times, clock.now_us(), side="right")) - 1
    return [
        _planned(each, index.get(each.time_ms), current, holds, sizes, clock, settings, marks.get(each.time_ms))
        for each in generations
        if not each.is_removed
    ]


def held_sizes(lake: Lake) -> Mapping[object, Size]:
    """Rows and bytes of generations: by time (ms) in the tables that go by time, by UUID in those that go by UUID."""
    sizes: dict[object, Size] = {}
    for table in (STREAMS_DESCRIPTIONS_V2, GENERATION_DESCRIPTIONS_V2, TOPOLOGY_DESCRIPTIONS):
        for part in lake.slices(table):
            (value,) = part.key
            key = ms_from_datetime(value) if table is STREAMS_DESCRIPTIONS_V2 else value
            sizes[key] = sizes.get(key, Size()) + Size(part.rows, part.bytes)
    for table in (STREAMS_DESCRIPTIONS, GENERATION_DESCRIPTIONS):
        # These are not partitioned: of a file's bytes each row has its share.
        times = _times(lake, table)
        share = sum(part.bytes for part in lake.slices(table)) // max(len(times), 1)
        for time in times:
            sizes[time] = sizes.get(time, Size()) + Size(1, share)
    return sizes


def size_of(generation: Generation, sizes: Mapping[object, Size]) -> Size:
    """Rows and bytes of one generation in all tables; its row among the timestamps counts, its few bytes do not."""
    own = sizes.get(generation.time_ms, Size())
    by_id = Size() if generation.id is None else sizes.get(generation.id, Size())
    return own + by_id + Size(int(generation.published), 0)


def assumptions(plan: Iterable[PlannedGeneration]) -> list[Assumption]:
    """What a plan assumes, each once."""
    return list(dict.fromkeys(assumption for each in plan for assumption in each.assumptions))


def table_histories(lake: Lake) -> dict[str, LogHistory]:
    """The logs that rows of generations can be in, by `keyspace.table`: those of all tables but tablet-based ones."""
    sources = StreamSources(lake)
    found = cdc_tables.histories(lake)
    return {f"{name[0]}.{name[1]}": history for name, history in found.items() if sources.of(*name).in_generations}


class _Holds:
    """Everything that keeps generations (int64[g] `times_us`, ascending), looked up once for all of them."""

    def __init__(self, lake: Lake, times_us: np.ndarray, settings: Settings, *, as_seen: bool) -> None:
        margins = Margins.of(
            settings.policy, us_of(settings.generation_leeway_ms), us_of(settings.expiry_skew_margin_ms)
        )
        self.tables_known = no_tables.are_told(lake)
        told = "do so with: cdc-platform tables add KS.T --ttl SECONDS, or that there is none: cdc-platform tables none"
        self._telling = mend(lake, told, "none was seen in {cluster}; look again with: cdc-platform observe {cluster}")
        self.expires_us = written_until_us(times_us, margins)
        self.tables: list[_Hold] = []
        for name, history in table_histories(lake).items():
            seen = held_until_us(times_us, history.as_seen(), margins)
            until = seen if as_seen else held_until_us(times_us, history, margins)
            self.tables.append(_Hold(name, until, f"{name} can hold rows of it", seen, _assumption(name, history)))
            self.expires_us = np.maximum(self.expires_us, until)
        sources = StreamSources(lake)
        self.readers = [
            _Hold(
                consumer.name,
                np.where(unread(times_us, consumer.position_us), NEVER, 0),
                f"consumer {consumer.full_name} has read up to {format_us(consumer.position_us)}",
            )
            for consumer in consumers.consumers(lake)
            if sources.of(consumer.keyspace_name, consumer.table_name).in_generations
        ]
        self.nodes = _pointing_nodes(lake)

    def assumed(self, index: int, now_us: Microseconds) -> Iterable[Assumption]:
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
                MARGIN,
                f"clocks that are off may write into it until {format_us(Microseconds(self.expires_us[index]))}",
            )
        for hold in self.readers:
            if hold.until_us[index] > now_us:
                yield hold.name, hold.says(index)


def _planned(
    generation: Generation,
    index: int | None,
    current: int,
    holds: _Holds,
    sizes: Mapping[object, Size],
    clock: Clock,
    settings: Settings,
    mark: Mark | None,
) -> PlannedGeneration:
    now_us, grace_ms = clock.now_us(), settings.expiry_grace_ms
    told = index is not None and holds.tables_known
    expired = _later(_ms_unless_never(Microseconds(holds.expires_us[index])), generation.expired_ms) if told else None
    if mark is not None and (expired is None or not _is_of(mark, generation, expired)):
        mark = None
    removable = None if expired is None else max(expired, clock.now_ms()) + grace_ms
    if mark is not None:
        removable = mark.removable_ms(grace_ms)
    blocks = list(_blocks(generation, index, current, holds, now_us))
    if not blocks and expired is not None and us_of(expired) > now_us:
        blocks.append((MARGIN, f"it was noted that it expires at {format_ms(expired)}, and that stays"))
    action = Action.KEEP
    if not blocks and expired is not None:
        action = Action.REMOVE if mark is not None and mark.has_passed(clock, grace_ms) else Action.MARK
    size = size_of(generation, sizes)
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


def _is_of(mark: Mark, generation: Generation, expired: Milliseconds) -> bool:
    """Whether a mark is of this expiry, and stands in the timestamps as well, where the generation has one there."""
    return mark.expired_ms >= expired and (not generation.published or generation.expired_ms == expired)


def _blocks(
    generation: Generation, index: int | None, current: int, holds: _Holds, now_us: Microseconds
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


def _assumption(name: str, history: LogHistory) -> Assumption | None:
    """What is assumed of a log, in words; None where all of it is known."""
    if not history.unknown:
        return None
    keyspace, _, table = name.partition(".")
    facts = "since when its TTL is in force"
    command = f"cdc-platform tables alter {shlex.quote(f'{quoted(keyspace)}.{quoted(table)}')}"
    times = " and ".join(_when(period) for period in history.unknown)
    said = f"its TTL {times} is not known, so its rows are taken to never expire"
    if history.created_us is None:
        said = f"when its log was created is not known, nor its TTL {times}: rows of any age are taken to be in it"
        facts, command = f"when its log was created, and {facts}", f"{command} --created-at TIME"
    return Assumption(name, said, f"state {facts}, as far as you know: {command} --ttl-since TIME")


def _when(period: TtlPeriod) -> str:
    if period.from_us == ALWAYS:
        return f"before {format_us(period.until_us)}"
    return f"from {format_us(period.from_us)} to {format_us(period.until_us)}"


def _pointing_nodes(lake: Lake) -> dict[int, list[str]]:
    """The nodes whose `cdc_local` names a generation, by its time (ms); those that have left ask for nothing."""
    left = set(host_ids(lake, LEFT))
    found: dict[int, list[str]] = {}
    for host, kept in cdc_local.kept_ids(lake).items():
        if host not in left:
            found.setdefault(kept.time_ms, []).append(host)
    return {time: sorted(hosts) for time, hosts in found.items()}


def _times(lake: Lake, table: Table) -> list[Milliseconds]:
    """The times (ms) of a table's rows, ascending."""
    column = compute.unique(lake.read(table, ["time"])["time"])
    return np.sort(ms_of(np.asarray(column.cast(pa.int64()), dtype=np.int64))).tolist()


def _later(one: Milliseconds | None, other: Milliseconds | None) -> Milliseconds | None:
    """The later of a computed and a noted time; where the computed one never comes, it never does."""
    return one if one is None or other is None else max(one, other)


def _ms_unless_never(us: Microseconds) -> Milliseconds | None:
    """µs as ms, rounded up; None for a time that never comes."""
    return None if us > _LAST_US else ms_not_before(us)
