"""What a rehearsal starts from: a ring, its newest generation, the generations that are kept, the logs with their TTLs.

Read from the lake, or of a ring alone; how the steps change it is `rehearse`'s.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cdc_platform.clock import Microseconds, Milliseconds, us_of_seconds
from cdc_platform.generations import GenerationId, RingLayout, layout_of
from cdc_platform.generations.cluster_feature import nodes_without_v2
from cdc_platform.generations.colocation import Streams
from cdc_platform.generations.expiry import Change, LogHistory, log_history
from cdc_platform.generations.sizes import cell_bytes, rows_bytes
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import (
    GENERATION_DESCRIPTIONS,
    GENERATION_DESCRIPTIONS_V2,
    STREAMS_DESCRIPTIONS_V2,
)
from cdc_platform.lifecycle.expiry import purge_plan
from cdc_platform.records import cdc_tables, generation_data
from cdc_platform.records.ring import current_ring
from cdc_platform.ring import Ring
from cdc_platform.timeline import Timeline
from cdc_platform.timeline.generation_sizes import generation_sizes

REHEARSALS = uuid.UUID("b51d2c3e-0c36-5a6e-9d67-6f1f6b7d1c02")
"""The namespace of the UUIDs that a rehearsal draws, so that it comes out the same again."""

TABLES = (GENERATION_DESCRIPTIONS_V2.full_name, GENERATION_DESCRIPTIONS.full_name, STREAMS_DESCRIPTIONS_V2.full_name)
"""The tables whose sizes are told: V2 and V1 descriptions, and the streams that readers get."""


@dataclass(frozen=True, eq=False)
class Operating:
    """The newest generation of a rehearsal, the layout that its streams were made from, and the streams."""

    id: GenerationId
    layout: RingLayout
    streams: Streams


@dataclass(frozen=True)
class KeptGeneration:
    """A generation whose rows are in the tables: when it starts (ms), its size, whether it is of the first format."""

    time_ms: Milliseconds
    num_ranges: int
    num_streams: int
    is_v1: bool

    def in_table(self, table: str) -> int:
        """The bytes that it takes in a table."""
        if table == STREAMS_DESCRIPTIONS_V2.full_name:
            return rows_bytes(self.num_ranges, self.num_streams)
        if self.is_v1:
            return cell_bytes(self.num_ranges, self.num_streams) if table == GENERATION_DESCRIPTIONS.full_name else 0
        return rows_bytes(self.num_ranges, self.num_streams) if table == GENERATION_DESCRIPTIONS_V2.full_name else 0


@dataclass(frozen=True)
class Start:
    """What a rehearsal starts from. `operating` None: no generation; `now_ms` is the clock of the first step.

    `logs` can hold rows of old generations; None where nothing is known of TTLs, so that everything stays.
    """

    ring: Ring
    operating: Operating | None
    kept: tuple[KeptGeneration, ...]
    now_ms: Milliseconds
    logs: tuple[LogHistory, ...] | None = None


def from_lake(lake: Lake, now_ms: Milliseconds) -> Start:
    """The ring as it stands, its newest generation, all that are kept, and the logs with their TTLs.

    Raises:
        NotFound, StateError: the newest generation cannot be read; `repair` tells more.
    """
    timeline = Timeline.read(lake)
    operating = None
    if timeline.newest is not None:
        newest = timeline.newest.gossiped
        made = generation_data.description_of(lake, newest)
        layout = RingLayout(made.range_ends, made.range_starts, made.stream_counts, made.ignore_msbs)
        operating = Operating(newest, layout, made)
    kept = tuple(
        KeptGeneration(each.time_ms, each.num_ranges, each.num_streams, each.is_v1) for each in generation_sizes(lake)
    )
    logs = tuple(purge_plan.table_histories(lake).values()) if cdc_tables.changes(lake) else None
    return Start(current_ring(lake), operating, kept, now_ms, logs)


def with_ttls(start: Start, ttl_seconds: Sequence[int]) -> Start:
    """The same start with other logs: one for each TTL, as old as time; 0: its rows never expire."""
    logs = (
        log_history([Change(Microseconds(0), Microseconds(0), enabled=True, ttl_us=us_of_seconds(ttl))])
        for ttl in ttl_seconds
    )
    return replace(start, logs=tuple(log for log in logs if log is not None))


def from_ring(ring: Ring, now_ms: Milliseconds) -> Start:
    """A start of which only the ring is known: its generation is taken to be the one that it would get now."""
    if not ring.has_tokens:
        return Start(ring, None, (), now_ms)
    is_v1 = bool(nodes_without_v2(ring.nodes))
    layout, event_id = layout_of(ring, v1=is_v1), uuid.uuid5(REHEARSALS, "the generation at the start")
    id = GenerationId(now_ms, None if is_v1 else event_id)
    kept = KeptGeneration(now_ms, len(layout), layout.stream_total, is_v1)
    return Start(ring, Operating(id, layout, event_id), (kept,), now_ms)
