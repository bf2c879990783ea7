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
