"""The audits of generations of the first format, whose data is one cell: without Spark, by the same rules.

Which rows are judged in Spark, and all invariants of rows, ranges and their comparison, are in `audit`, `rows` and
`ranges`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import pyarrow as pa

from cdc_platform.clock import Milliseconds, ms_to_datetime
from cdc_platform.errors import InputError, NotFound, StateError
from cdc_platform.generations import GenerationId, TopologyDescription
from cdc_platform.invariants.findings import (
    PUBLISHED_EQUALS_DESCRIPTION,
    RING_COVERED_ONCE,
    ROW_COUNT,
    Finding,
    Tally,
    add_up,
    finding,
)
from cdc_platform.invariants.inventory import HeldGeneration
from cdc_platform.invariants.ranges import covered_once, row_count
from cdc_platform.invariants.rows import RangeEnds, Rows, audit_rows
from cdc_platform.lake.arrow import flat_streams
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import STREAMS_DESCRIPTIONS_V2, TOPOLOGY_DESCRIPTIONS
from cdc_platform.records import generation_data, ledger
from cdc_platform.ring.tokens import Int64s, UInt8s


def audit_inserted_v1(lake: Lake, generation_id: str, invariants: tuple[str, ...]) -> list[Finding]:
    """What `audit.audit_inserted` answers, of a V1 cell: it is compared with the topology description."""
    id_ = ledger.introduced_id(lake, generation_id)
    try:
        if id_ is None:
            raise NotFound(f"generation {generation_id} has no timestamp")
        description = generation_data.description_of(lake, id_)
    except (NotFound, StateError) as error:
        return [finding(name, [], str(error)) for name in invariants]
    rows = lake.read(
        TOPOLOGY_DESCRIPTIONS, ["range_end", "streams", "ignore_msb"], [("generation_id", "=", generation_id)]
    )
    totals = _judged(description)
    totals[ROW_COUNT] = row_count(len(description), [rows.num_rows], "the topology description")
    totals[PUBLISHED_EQUALS_DESCRIPTION] = compared(description, rows, "its topology description")
    return [finding(name, [("", totals[name])], "") for name in invariants]


def audit_published_v1(lake: Lake, generation_id: str, invariants: tuple[str, ...]) -> list[Finding]:
    """What `audit.audit_published` answers, of a V1 cell and the rows that were published from it."""
    id_ = ledger.introduced_id(lake, generation_id)
    if id_ is None:
        return [finding(name, [], f"generation {generation_id} has no timestamp") for name in invariants]
    return [finding(name, [("", compared_with_published(lake, id_.time_ms))], "") for name in invariants]


def against_v1(lake: Lake, held: Sequence[HeldGeneration]) -> list[tuple[str, dict[str, Tally]]]:
    """Of each published generation whose data is a V1 cell: whether its rows are as many, and those, of the cell."""
    described = set(generation_data.described_times(lake).tolist())
    parts = []
    for each in held:
        if each.time_ms is None or each.time_ms not in described or each.published is None or each.inserted is not None:
            continue
        totals: dict[str, Tally] = {PUBLISHED_EQUALS_DESCRIPTION: compared_with_published(lake, each.time_ms)}
        with suppress(StateError):
            ranges = len(generation_data.complete_range_ends(lake, GenerationId(each.time_ms)))
            totals[ROW_COUNT] = row_count(len(each.published.range_ends), [ranges], "its V1 description")
        parts.append((each.name, totals))
    return parts


def compared_with_published(lake: Lake, time_ms: Milliseconds) -> Tally:
    """Whether the published rows of a time are those of its V1 description, stream by stream in shard order."""
    rows = lake.read(STREAMS_DESCRIPTIONS_V2, ["range_end", "streams"], [("time", "=", ms_to_datetime(time_ms))])
    try:
        description = generation_data.description_of(lake, GenerationId(time_ms))
    except (NotFound, StateError) as error:
        return Tally(PUBLISHED_EQUALS_DESCRIPTION, 1, 1, time_ms, str(error))
    return compared(description, rows, "cdc_streams_descriptions_v2")


def compared(description: TopologyDescription, rows: pa.Table, where: str) -> Tally:
    """Whether `rows` (range_end, streams and perhaps ignore_msb) are the entries of a V1 description, byte for byte."""
    rows = rows.sort_by("range_end").combine_chunks()
    ends = np.asarray(rows["range_end"], dtype=np.int64)
    total = len(np.union1d(ends, description.range_ends))
    if not np.array_equal(ends, description.range_ends):
        odd = np.setxor1d(ends, description.range_ends)
        shown = f"range end {odd[0]}" if len(odd) else "a range end twice"
        return Tally(PUBLISHED_EQUALS_DESCRIPTION, total, max(1, len(odd)), 0, f"{shown} is in one of V1 and {where}")
    differs = np.zeros(len(ends), dtype=bool)
    if "ignore_msb" in rows.schema.names:
        differs |= np.asarray(rows["ignore_msb"]).astype(np.int64) != description.ignore_msbs
    try:
        differs |= _differing(description, *flat_streams(rows["streams"]))
    except InputError as error:
        return Tally(PUBLISHED_EQUALS_DESCRIPTION, total, 1, 0, f"{where}: {error}")
    wrong = np.flatnonzero(differs)
    sample = f"range end {ends[wrong[0]]} is not the same in V1 and {where}" if len(wrong) else ""
    return Tally(PUBLISHED_EQUALS_DESCRIPTION, total, len(wrong), 0, sample)


def _differing(description: TopologyDescription, counts: Int64s, streams: UInt8s) -> np.ndarray:
    """The ranges (bool[n]) whose streams differ from the description's."""
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


def _judged(description: TopologyDescription) -> dict[str, Tally]:
    known = np.ones(len(description), dtype=bool)
    rows = Rows(description.range_ends, description.ignore_msbs, description.stream_counts, description.streams, known)
    totals = add_up(audit_rows(rows, RangeEnds(description.range_ends)))
    return totals | {RING_COVERED_ONCE: covered_once(description.range_ends)}
