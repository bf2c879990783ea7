"""The summary of an audit: one line an invariant, with how much was looked at, how much is wrong, and an example.

Knows the invariants' names and how partial results add up; whether a line is good enough is `judge`'s business.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

RING_COVERED_ONCE = "ring_covered_once"
REFINES_VNODES = "refines_vnodes"
VNODE_COLOCATION = "vnode_colocation"
SHARD_COLOCATION = "shard_colocation"
STREAM_FORMAT = "stream_format"
STREAMS_UNIQUE = "streams_unique"
STREAMS_UNIQUE_ACROSS_GENERATIONS = "streams_unique_across_generations"
ROW_COUNT = "row_count"
PUBLISHED_EQUALS_DESCRIPTION = "published_equals_description"
TIMESTAMP_COMPLETE = "timestamp_complete"

INVARIANTS = (
    RING_COVERED_ONCE,
    REFINES_VNODES,
    VNODE_COLOCATION,
    SHARD_COLOCATION,
    STREAM_FORMAT,
    STREAMS_UNIQUE,
    STREAMS_UNIQUE_ACROSS_GENERATIONS,
    ROW_COUNT,
    PUBLISHED_EQUALS_DESCRIPTION,
    TIMESTAMP_COMPLETE,
)
"""Every invariant, in the order in which summaries list them."""

LIVE_GENERATIONS_REWRITTEN = "live_generations_rewritten"
REWRITTEN_EQUALS_V1 = "rewritten_equals_v1"
V1_INVARIANTS = (LIVE_GENERATIONS_REWRITTEN, REWRITTEN_EQUALS_V1)
"""What is asked of V1 tables and of what was rewritten from them; only where there are any."""

TABLET_STREAM_FORMAT = "tablet_stream_format"
TABLET_STREAM_AT_END = "tablet_stream_at_end"
TABLET_RING_COVERED = "tablet_ring_covered"
TABLET_SETS_ADD_UP = "tablet_sets_add_up"
TABLET_CLOSED_IN_PREVIOUS = "tablet_closed_in_previous"
TABLET_TIMESTAMP_COMPLETE = "tablet_timestamp_complete"
TABLET_INVARIANTS = (
    TABLET_STREAM_FORMAT,
    TABLET_STREAM_AT_END,
    TABLET_RING_COVERED,
    TABLET_SETS_ADD_UP,
    TABLET_CLOSED_IN_PREVIOUS,
    TABLET_TIMESTAMP_COMPLETE,
)
"""What is asked of the stream sets of tablet-based tables; only where there are any."""

SWITCH_DECIDED_ONCE = "switch_decided_once"
SWITCH_TIME_AFTER_LEASES = "switch_time_after_leases"
SWITCH_PROMISES_KEPT = "switch_promises_kept"
SWITCH_HAS_ITS_GENERATION = "switch_has_its_generation"
SWITCH_INVARIANTS = (
    SWITCH_DECIDED_ONCE,
    SWITCH_TIME_AFTER_LEASES,
    SWITCH_PROMISES_KEPT,
    SWITCH_HAS_ITS_GENERATION,
)
"""What is asked of two-phase switches; only where there are any."""


EXPIRED_NOT_HELD = "expired_not_held"
NONE_HALF_REMOVED = "none_half_removed"
NODE_GENERATION_NOT_REMOVED = "node_generation_not_removed"
EXPIRY_INVARIANTS = (EXPIRED_NOT_HELD, NONE_HALF_REMOVED, NODE_GENERATION_NOT_REMOVED)
"""What is asked of generations that expire; of nodes only where one keeps a generation's ID."""

LOG_TIME_IN_BOUNDS = "log_time_in_bounds"
LOG_TIMESTAMP_IS_TIME = "log_timestamp_is_time"
LOG_STREAM_OPERATES = "log_stream_operates"
LOG_ROW_COLOCATED = "log_row_colocated"
LOG_BATCH_COMPLETE = "log_batch_complete"
LOG_BATCH_ENDED = "log_batch_ended"
LOG_INVARIANTS = (
    LOG_TIME_IN_BOUNDS,
    LOG_TIMESTAMP_IS_TIME,
    LOG_STREAM_OPERATES,
    LOG_ROW_COLOCATED,
    LOG_BATCH_COMPLETE,
    LOG_BATCH_ENDED,
)
"""What is asked of the rows of CDC logs; only where there are any."""

HOURS_HOLD_THE_LOG = "hours_hold_the_log"
HOURS_HOLD_ROWS_ONCE = "hours_hold_rows_once"
HOUR_INVARIANTS = (HOURS_HOLD_THE_LOG, HOURS_HOLD_ROWS_ONCE)
"""What is asked of logs that are copied hour by hour; only where there are any."""


@dataclass(frozen=True)
class Finding:
    """One line of a summary.

    `population`: how many things were checked; `violations`: how many of them break the invariant; `sample`: the
    first that does, in words; or why nothing was checked.
    """

    invariant: str
    population: int
    violations: int
    sample: str = ""


@dataclass(frozen=True)
class Tally:
    """A part of a finding: what one slice of the rows has to say. `place` orders samples: the lowest is kept."""

    invariant: str
    population: int
    violations: int
    place: int = 0
    sample: str = ""


def add_up(tallies: Iterable[Tally]) -> dict[str, Tally]:
    """The tallies of one generation's slices, added up by invariant; of the samples the one first on the ring."""
    totals: dict[str, Tally] = {}
    for part in tallies:
        so_far = totals.get(part.invariant)
        totals[part.invariant] = part if so_far is None else _sum(so_far, part)
    return totals


def _sum(one: Tally, other: Tally) -> Tally:
    told = [tally for tally in (one, other) if tally.sample]
    first = min(told, key=lambda tally: tally.place) if told else one
    return Tally(
        one.invariant,
        one.population + other.population,
        one.violations + other.violations,
        first.place,
        first.sample,
    )


def finding(invariant: str, parts: Iterable[tuple[str, Tally]], nothing: str) -> Finding:
    """One invariant's line over several generations: `parts` are (the generation's name, its tally).

    `nothing` says why nothing was checked, where that is so.
    """
    population = violations = 0
    sample = ""
    for name, tally in parts:
        population += tally.population
        violations += tally.violations
        if tally.violations and not sample:
            sample = f"generation {name}: {tally.sample}" if name else tally.sample
    if not population and not sample:
        sample = f"nothing was checked: {nothing}"
    return Finding(invariant, population, violations, sample)
