"""Expiry: what can hold no row any more is marked, and a grace time after that removed so that no reader stumbles.

A run removes what an earlier run marked, and only by tables that it has verified (`lake.verified`): whatever a foreign
program or a damaged disk made of them, they do not decide here.

The order is: a note that the removal has begun, the rows of the first format that readers see, the timestamp, the
streams rows, the descriptions. Taking the timestamp is the decision: until then the plan can still change, after it
every run finishes what is left. Each step is idempotent and derives what it has to do from the tables, so that any
number of processes may run them, and one that dies leaves what the next one finishes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

import pyarrow as pa

from cdc_platform import failpoints
from cdc_platform.clock import Clock, Milliseconds, format_ms, from_datetime, ms_to_datetime, to_datetime
from cdc_platform.lake import housekeeping
from cdc_platform.lake.filters import Filter
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import (
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
from cdc_platform.lake.verified import verified
from cdc_platform.lifecycle.expiry import purge_plan
from cdc_platform.lifecycle.expiry.purge_plan import Action, PlannedGeneration
from cdc_platform.records import expiry_marks, removals
from cdc_platform.records.removals import Removal
from cdc_platform.settings import Settings

SHRINKING = (
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
STEP = "expire"
"""How refusals name a run."""
# One commit removes this many generations at most: their files are all named in it.
_AT_ONCE = 1000
_T = TypeVar("_T")


@dataclass(frozen=True)
class Expired:
    """What a run did: the plan it went by, how many generations it marked, and which it removed."""

    plan: tuple[PlannedGeneration, ...]
    marked: int
    removed: tuple[PlannedGeneration, ...]
    finished: int
    """Removals that an earlier run had begun."""
    vacuumed: int
    """Files that no version of the last seven days needs, deleted."""


def expire(lake: Lake, clock: Clock, settings: Settings) -> Expired:
    """Mark what has expired, remove what an earlier run marked a grace time ago, and vacuum the tables.

    Raises:
        NotAsCommitted: a table that decides, or that rows go from, is not as committed.
        ClockRefused: the clock is ahead of the machine's by more than the grace time.
    """
    lake, plan = verified_plan(lake, clock, settings)
    left = len(unfinished(lake))
    marked = mark(lake, clock, plan)
    removed = begin_removals(lake, clock, plan)
    for table in SHRINKING:
        remove_from(lake, table, removed)
    files = sum(housekeeping.vacuum(lake, table) for table in SHRINKING)
    return Expired(tuple(plan), marked, tuple(removed), left, files)


def verified_plan(lake: Lake, clock: Clock, settings: Settings) -> tuple[Lake, list[PlannedGeneration]]:
    """The plan of a run that removes, and the lake by which it has to go on: every table in both is verified.

    Raises:
        NotAsCommitted: a table that decides, or that rows go from, is not as committed.
        ClockRefused: the clock is ahead of the machine's by more than the grace time.
    """
    clock.assert_not_ahead(settings.expiry_grace_ms, STEP)
    lake = verified(lake, STEP)
    lake.verify(*SHRINKING, REMOVED_GENERATIONS)
    return lake, purge_plan.plan(lake, clock, settings)


def mark(lake: Lake, clock: Clock, plan: Sequence[PlannedGeneration]) -> int:
    """Mark what has expired; answers how many marks are new or later. None ever goes back.

    A noted time of which the plan says that it is too early is moved to the later one, whether that has come or not.
    """
    due = [each for each in plan if is_to_be_marked(each)]
    rows = [
        {"key": "timestamps", "time": _at(each.time_ms), "expired": _at(each.expired_ms)} for each in due if each.listed
    ]
    if rows:
        lake.raise_column(
            GENERATION_TIMESTAMPS, pa.Table.from_pylist(rows, schema=GENERATION_TIMESTAMPS.schema), "expired"
        )
        failpoints.reached(failpoints.AFTER_EXPIRED_MARK)
    marked = ((each.time_ms, each.expired_ms) for each in due if each.action is not Action.KEEP)
    expiry_marks.write(lake, clock, [(time_ms, each_ms) for time_ms, each_ms in marked if each_ms is not None])
    return len(due)


def is_to_be_marked(each: PlannedGeneration) -> bool:
    """Whether the mark of a generation is missing though it has expired, or is earlier than what is known now."""
    if each.expired_ms is None:
        return False
    if each.action is not Action.KEEP:
        return each.mark is None
    return each.listed and each.marked_ms is not None and each.marked_ms < each.expired_ms


def begin_removals(lake: Lake, clock: Clock, plan: Sequence[PlannedGeneration]) -> list[PlannedGeneration]:
    """Note in `platform.removed_generations` what is about to go; answers with it.

    What is noted stays known when its rows are gone: to those who ask for it, and so that no step brings it back.
    """
    due = [each for each in plan if each.action is Action.REMOVE]
    rows = [
        {
            "time": _at(each.time_ms),
            "generation_id": each.id,
            "expired": _at(each.expired_ms),
            "removed_at": to_datetime(clock.now_us()),
            "rows": each.rows,
            "bytes": each.bytes,
        }
        for each in due
    ]
    if rows:
        lake.merge(REMOVED_GENERATIONS, pa.Table.from_pylist(rows, schema=REMOVED_GENERATIONS.schema), update=False)
        failpoints.reached(failpoints.AFTER_REMOVAL_NOTE)
    return due


def begun(lake: Lake, clock: Clock, settings: Settings) -> list[PlannedGeneration]:
    """The removals that are noted and, by the plan as it is now, still due."""
    noted = removals.noted(lake)
    plan = verified_plan(lake, clock, settings)[1] if noted else []
    return [each for each in plan if each.action is Action.REMOVE and each.time_ms in noted]


def remove_from(lake: Lake, table: Table, begun: Sequence[PlannedGeneration] = ()) -> int:
    """Remove from one of `SHRINKING` what generations have there whose timestamps are gone; answers how many rows.

    Of the `begun` removals the rows of the first format go before the timestamp, else a rewrite could publish them
    again; with the timestamp they are gone for every reader. One that was marked anew since the plan was made stays.

    Raises:
        NotAsCommitted: a table that decides, or this one, is not as committed.
    """
    lake = verified(lake, STEP)
    if table is GENERATION_TIMESTAMPS:
        removed = _remove_timestamps(lake, begun)
    else:
        gone: list[Removal | PlannedGeneration] = [*removals.gone(lake)]
        due = [*gone, *begun] if table is STREAMS_DESCRIPTIONS else gone
        column, values = _values(table, due)
        present = _present(lake, table, column) if values else set()
        there = [value for value in values if value in present]
        removed = sum(lake.delete(table, [(column, "in", some)]) for some in _chunks(there))
    if removed and table.full_name in _KILLED_AFTER:
        failpoints.reached(_KILLED_AFTER[table.full_name])
    return removed


def unfinished(lake: Lake) -> list[Removal]:
    """The generations whose timestamps are gone and of which rows are left somewhere: a run that died left them."""
    gone = removals.gone(lake)
    if not gone:
        return []
    tables = [table for table in SHRINKING if table is not GENERATION_TIMESTAMPS]
    left = {table.full_name: _present(lake, table, _values(table, [])[0]) for table in tables}
    return [
        each for each in gone if any(left[table.full_name].intersection(_values(table, [each])[1]) for table in tables)
    ]


_KILLED_AFTER = {
    GENERATION_TIMESTAMPS.full_name: failpoints.AFTER_TIMESTAMP_REMOVAL,
    STREAMS_DESCRIPTIONS_V2.full_name: failpoints.AFTER_STREAMS_REMOVAL,
    GENERATION_DESCRIPTIONS_V2.full_name: failpoints.AFTER_DESCRIPTIONS_REMOVAL,
}


def _remove_timestamps(lake: Lake, begun: Sequence[PlannedGeneration]) -> int:
    removed = 0
    for some in _chunks([each for each in begun if each.listed]):
        latest = max(each.expired_ms for each in some if each.expired_ms is not None)
        times = [_at(each.time_ms) for each in some]
        where: list[Filter] = [("key", "=", "timestamps"), ("time", "in", times), ("expired", "<=", _at(latest))]
        removed += lake.delete(GENERATION_TIMESTAMPS, where)
    return removed


def _values(table: Table, generations: Iterable[Removal | PlannedGeneration]) -> tuple[str, list[Any]]:
    """The column by which a table's rows belong to generations, and what these have in it."""
    column = table.generation_column
    assert column is not None, f"{table.full_name} holds no rows of generations"
    if table is UNORDERED_RANGES:
        return column, [name for each in generations for name in (each.id, format_ms(each.time_ms)) if name is not None]
    if table.schema.field(column).type == TIMESTAMP:
        return column, [_at(each.time_ms) for each in generations]
    return column, [each.id for each in generations if each.id is not None]


def _present(lake: Lake, table: Table, column: str) -> set[Any]:
    """What a table has in that column: from Delta's log where it is partitioned by it."""
    if table.partition_by == (column,):
        values = [part.key[0] for part in lake.slices(table)]
    else:
        values = lake.read(table, [column])[column].to_pylist()
    return {to_datetime(from_datetime(value)) if isinstance(value, datetime) else value for value in values}


def _at(ms: Milliseconds | None) -> datetime:
    assert ms is not None
    return ms_to_datetime(ms)


def _chunks(values: Sequence[_T]) -> Iterator[Sequence[_T]]:
    for start in range(0, len(values), _AT_ONCE):
        yield values[start : start + _AT_ONCE]
