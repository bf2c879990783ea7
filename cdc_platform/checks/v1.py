"""Audits of V1 generations, whose data is one cell, by the same rules as V2 and without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import pyarrow as pa

from cdc_platform.checks.invariants import (
    PUBLISHED_EQUALS_DESCRIPTION,
    RING_COVERED_ONCE,
    ROW_COUNT,
    Finding,
    InvariantTally,
    finding_from_tallies,
    sum_tallies,
)
from cdc_platform.checks.inventory import InventoryGeneration
from cdc_platform.checks.ranges import check_ring_coverage, check_row_count
from cdc_platform.checks.scan import GenerationRanges, GenerationRowBatch, audit_generation_rows
from cdc_platform.clock import Milliseconds, datetime_from_ms
from cdc_platform.delta import Lake, flatten_stream_lists
from cdc_platform.errors import InputError, NotFound, StateError
from cdc_platform.generations import GenerationId, TopologyDescription
from cdc_platform.metastore import generations
from cdc_platform.ring import Int64s, UInt8s
from cdc_platform.tables import STREAMS_DESCRIPTIONS_V2, TOPOLOGY_DESCRIPTIONS


def audit_inserted_v1(lake: Lake, generation_id: str, invariants: tuple[str, ...]) -> list[Finding]:
    """Audit a V1 cell as `audit_inserted` does V2 rows, comparing it with the topology description."""
    id_ = generations.read_generation_id(lake, generation_id)
    try:
        if id_ is None:
            raise NotFound(f"generation {generation_id} has no timestamp")
        description = generations.read_generation_description(lake, id_)
    except (NotFound, StateError) as error:
        return [finding_from_tallies(name, [], str(error)) for name in invariants]
    rows = lake.read(
        TOPOLOGY_DESCRIPTIONS, ["range_end", "streams", "ignore_msb"], [("generation_id", "=", generation_id)]
    )
    totals = _row_tallies(description)
    totals[ROW_COUNT] = check_row_count(len(description), [rows.num_rows], "the topology description")
    totals[PUBLISHED_EQUALS_DESCRIPTION] = _compare_with_v1(description, rows, "its topology description")
    return [finding_from_tallies(name, [("", totals[name])], "") for name in invariants]


def audit_published_v1(lake: Lake, generation_id: str, invariants: tuple[str, ...]) -> list[Finding]:
    """Audit the rows that were published from a V1 cell, as `audit_published` does."""
    id_ = generations.read_generation_id(lake, generation_id)
    if id_ is None:
        return [finding_from_tallies(name, [], f"generation {generation_id} has no timestamp") for name in invariants]
    return [finding_from_tallies(name, [("", compare_v1_with_published(lake, id_.time_ms))], "") for name in invariants]


def audit_against_v1(
    lake: Lake, inventory: Sequence[InventoryGeneration]
) -> list[tuple[str, dict[str, InvariantTally]]]:
    """Return, for each published generation with a V1 cell, tallies of its row count and rows against the cell."""
    described = set(generations.read_v1_times(lake).tolist())
    parts = []
    for generation in inventory:
        if (
            generation.time_ms is None
            or generation.time_ms not in described
            or generation.published is None
            or generation.inserted is not None
        ):
            continue
        totals: dict[str, InvariantTally] = {
            PUBLISHED_EQUALS_DESCRIPTION: compare_v1_with_published(lake, generation.time_ms)
        }
        with suppress(StateError):
            ranges = len(generations.read_generation_range_ends(lake, GenerationId(generation.time_ms)))
            totals[ROW_COUNT] = check_row_count(len(generation.published.range_ends), [ranges], "its V1 description")
        parts.append((generation.name, totals))
    return parts


def compare_v1_with_published(lake: Lake, time_ms: Milliseconds) -> InvariantTally:
    """Check that the published rows of a time equal its V1 description, stream by stream in shard order."""
    rows = lake.read(STREAMS_DESCRIPTIONS_V2, ["range_end", "streams"], [("time", "=", datetime_from_ms(time_ms))])
    try:
        description = generations.read_generation_description(lake, GenerationId(time_ms))
    except (NotFound, StateError) as error:
        return InvariantTally(PUBLISHED_EQUALS_DESCRIPTION, 1, 1, time_ms, str(error))
    return _compare_with_v1(description, rows, "cdc_streams_descriptions_v2")


def _compare_with_v1(description: TopologyDescription, rows: pa.Table, where: str) -> InvariantTally:
    """Check that `rows` (range_end, streams, perhaps ignore_msb) equal the entries of a V1 description by bytes."""
    rows = rows.sort_by("range_end").combine_chunks()
    ends = np.asarray(rows["range_end"], dtype=np.int64)
    total = len(np.union1d(ends, description.range_ends))
    if not np.array_equal(ends, description.range_ends):
        odd = np.setxor1d(ends, description.range_ends)
        mismatch = f"range end {odd[0]}" if len(odd) else "a range end twice"
        return InvariantTally(
            PUBLISHED_EQUALS_DESCRIPTION, total, max(1, len(odd)), 0, f"{mismatch} is in one of V1 and {where}"
        )
    differs = np.zeros(len(ends), dtype=bool)
    if "ignore_msb" in rows.schema.names:
        differs |= np.asarray(rows["ignore_msb"]).astype(np.int64) != description.ignore_msbs
    try:
        differs |= _differing_ranges(description, *flatten_stream_lists(rows["streams"]))
    except InputError as error:
        return InvariantTally(PUBLISHED_EQUALS_DESCRIPTION, total, 1, 0, f"{where}: {error}")
    wrong = np.flatnonzero(differs)
    sample = f"range end {ends[wrong[0]]} is not the same in V1 and {where}" if len(wrong) else ""
    return InvariantTally(PUBLISHED_EQUALS_DESCRIPTION, total, len(wrong), 0, sample)


def _differing_ranges(description: TopologyDescription, counts: Int64s, streams: UInt8s) -> np.ndarray:
    """Return the ranges (bool[n]) whose streams differ from the description's."""
    if np.array_equal(counts, description.stream_counts):
        unequal = (streams != description.streams).any(axis=1)
        rows = np.repeat(np.arange(len(counts)), counts)
        return np.bincount(rows[unequal], minlength=len(counts)) > 0
    offsets = np.concatenate([[0], np.cumsum(counts)])
    return np.array(
        [
            not np.array_equal(streams[offsets[row] : offsets[row + 1]], description.entry(row).streams)
            for row in range(len(counts))
        ]
    )


def _row_tallies(description: TopologyDescription) -> dict[str, InvariantTally]:
    known = np.ones(len(description), dtype=bool)
    rows = GenerationRowBatch(
        description.range_ends, description.ignore_msbs, description.stream_counts, description.streams, known
    )
    totals = sum_tallies(audit_generation_rows(rows, GenerationRanges(description.range_ends)))
    return totals | {RING_COVERED_ONCE: check_ring_coverage(description.range_ends)}
