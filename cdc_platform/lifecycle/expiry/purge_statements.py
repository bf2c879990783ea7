"""The purge plan as CQL for the cluster itself, which never removes a generation from its tables (scylladb#7300).

The order is that of `removal`: who reads in between sees a generation that is whole, or none. Nothing is removed here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from cdc_platform.clock import Milliseconds, cql_time
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import (
    GENERATION_DESCRIPTIONS,
    GENERATION_DESCRIPTIONS_V2,
    GENERATION_TIMESTAMPS,
    STREAMS_DESCRIPTIONS,
    STREAMS_DESCRIPTIONS_V2,
    Table,
)
from cdc_platform.lifecycle.expiry.purge_plan import Action, PlannedGeneration
from cdc_platform.records import descriptions


@dataclass(frozen=True)
class Purge:
    """The statements that remove a generation from the cluster, to be run in this order, and those of nodes' tables."""

    generation: PlannedGeneration
    statements: tuple[str, ...]


def purges(lake: Lake, plan: Sequence[PlannedGeneration]) -> list[Purge]:
    """Of each generation that may be removed now, oldest first; of tables in which the home knows no row of it none."""
    gone = [each for each in plan if each.action is Action.REMOVE]
    if not gone:
        return []
    by_time = {
        table: descriptions.row_times(lake, table)
        for table in (STREAMS_DESCRIPTIONS, STREAMS_DESCRIPTIONS_V2, GENERATION_DESCRIPTIONS)
    }
    by_id = {part.key[0] for part in lake.slices(GENERATION_DESCRIPTIONS_V2)}
    return [Purge(each, tuple(_statements(each, by_time, by_id))) for each in gone]


def _statements(
    generation: PlannedGeneration, by_time: dict[Table, set[Milliseconds]], by_id: Collection[object]
) -> Iterator[str]:
    """First what clients of the first format read, then the timestamp, by which others go, then the rest."""
    when = f"time = '{cql_time(generation.time_ms)}'"
    if generation.time_ms in by_time[STREAMS_DESCRIPTIONS]:
        yield _delete(STREAMS_DESCRIPTIONS, when)
    if generation.listed:
        yield _delete(GENERATION_TIMESTAMPS, f"key = 'timestamps' AND {when}")
    if generation.time_ms in by_time[STREAMS_DESCRIPTIONS_V2]:
        yield _delete(STREAMS_DESCRIPTIONS_V2, when)
    if generation.time_ms in by_time[GENERATION_DESCRIPTIONS]:
        yield _delete(GENERATION_DESCRIPTIONS, when)
    if generation.id in by_id:
        yield _delete(GENERATION_DESCRIPTIONS_V2, f"id = {generation.id}")


def _delete(table: Table, where: str) -> str:
    return f"DELETE FROM {table.full_name} WHERE {where};"
