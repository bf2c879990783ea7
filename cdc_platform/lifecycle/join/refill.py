"""Rows of generations made anew where their files are damaged or gone: what was described can be made again.

The streams of a range follow from the generation's UUID, the range and its owner, inserted rows from the description,
published ones from the inserted. Made rows that are not those of the commits are not put in. No Spark is needed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cdc_platform.clock import ms_to_datetime
from cdc_platform.errors import PlatformError, StateError
from cdc_platform.generations import RingLayout
from cdc_platform.lake import digests, frames
from cdc_platform.lake.lake import Lake
from cdc_platform.lake.tables import (
    GENERATION_DESCRIPTIONS_V2,
    STREAMS_DESCRIPTIONS_V2,
    TOPOLOGY_DESCRIPTIONS,
    Table,
)
from cdc_platform.lake.verification import Verified, verify
from cdc_platform.lake.volume import TaskRows, Workers
from cdc_platform.lifecycle.join.description_rows import description_rows, v2_rows
from cdc_platform.lifecycle.join.publish import published_rows
from cdc_platform.records import descriptions, ledger, removals
from cdc_platform.records.ring import members
from cdc_platform.ring import Ring, range_starts

MADE = (TOPOLOGY_DESCRIPTIONS, GENERATION_DESCRIPTIONS_V2, STREAMS_DESCRIPTIONS_V2)
"""The tables whose slices can be made anew, each after what it is made of."""


@dataclass(frozen=True)
class Lacking:
    """A generation's slice that cannot be read, holds other rows than its commits say, or is gone with its table.

    `due`: the digest of the rows that commits put there; None where none says so.
    """

    table: Table
    entry: ledger.Entry
    due: int | None

    @property
    def where(self) -> dict[str, Any]:
        """The value of its partition column."""
        (column,) = self.table.partition_by
        in_streams = self.table is STREAMS_DESCRIPTIONS_V2
        return {column: ms_to_datetime(self.entry.time_ms) if in_streams else self.entry.generation_id}

    @property
    def slice(self) -> str:
        """Its name in commits."""
        return digests.slice_of(self.table.partition_by, self.where)


@dataclass(frozen=True)
class Damaged:
    """What is wrong in a lake: slices that can be made anew, in the order in which they are, and the rest in words."""

    lacking: list[Lacking]
    rest: list[str]


def damaged(lake: Lake) -> Damaged:
    """Read every byte of the tables, and say what is lacking.

    Raises:
        PlatformError: the ledger of generations cannot be read: nothing says what is to be there.
    """
    found = {each.name: each for each in verify(lake, deep=True)}
    entries = _entries(lake)
    lacking: list[Lacking] = []
    made = {table.full_name for table in MADE}
    rest = [line for each in found.values() if each.name not in made for line in (*each.damage, *each.strange)]
    for table in MADE:
        imported = [Lacking(table, entry, None).slice for entry in entries if _is_source(table, entry)]
        slices = [Lacking(table, entry, None) for entry in entries if not _is_source(table, entry)]
        seen = found.get(table.full_name)
        if seen is None:
            lacking += [
                each for each in slices if table is not STREAMS_DESCRIPTIONS_V2 or _is_published(lake, each.entry)
            ]
        elif seen.is_unreadable:
            way = f"bring the file back, or move {lake.path(table)} away and run it again"
            rest += [f"{line}; {way}" for line in seen.damage]
        else:
            broken = dict(seen.broken)
            lacking += [replace(each, due=broken.pop(each.slice)) for each in slices if each.slice in broken]
            rest += [_imported(seen, name) if name in imported else _strange(table, name) for name in broken]
    return Damaged(lacking, rest)


def _is_source(table: Table, entry: ledger.Entry) -> bool:
    """Whether nothing here has the rows of a generation but this table: only what clients read was brought of it."""
    return entry.is_imported and table is not STREAMS_DESCRIPTIONS_V2


def _imported(seen: Verified, name: str) -> str:
    """What is wrong with a slice that was imported, and what mends it."""
    wrong = [line for line in (*seen.damage, *seen.strange) if name in line]
    said = wrong[0] if wrong else f"{seen.name} where {name} is damaged"
    return f"{said}; it was imported: import --mend FILES makes it anew of the files that it came from"


def _strange(table: Table, name: str) -> str:
    return f"{table.full_name} where {name} is of no generation that was made here"


def mend(workers: Workers, lake: Lake, found: Damaged) -> tuple[list[tuple[Lacking, int]], list[str]]:
    """Make all that is lacking anew; answers with what was made, with its version, and with what is left, in words."""
    done: list[tuple[Lacking, int]] = []
    left = list(found.rest)
    for what in found.lacking:
        try:
            rows = _rows(lake, what, found)
            due = None if what.due is None else {what.slice: what.due}
            done.append((what, frames.replace_slice(workers, lake, what.table, rows, what.where, due)))
        except PlatformError as error:
            left.append(f"{what.table.full_name} where {what.slice} stays damaged: {error}")
    return done, left


def _rows(lake: Lake, what: Lacking, found: Damaged) -> TaskRows:
    entry = what.entry
    if what.table is TOPOLOGY_DESCRIPTIONS:
        return _described(lake, entry, Lacking(GENERATION_DESCRIPTIONS_V2, entry, None).slice, found)
    if what.table is GENERATION_DESCRIPTIONS_V2:
        return _inserted(lake, entry.generation_id)
    descriptions.complete_range_ends(lake, entry.generation_id)
    return published_rows(lake, entry.generation_id, entry.time_ms)


def _entries(lake: Lake) -> list[ledger.Entry]:
    gone = {each.time_ms for each in removals.gone(lake)}
    known = (entry for entry in ledger.entries(lake) if entry.format == "v2" and entry.time_ms not in gone)
    return sorted(known, key=lambda entry: entry.time_ms)


def _is_published(lake: Lake, entry: ledger.Entry) -> bool:
    return ledger.published_at_ms(lake, entry.generation_id) is not None


def _described(lake: Lake, entry: ledger.Entry, inserted: str, found: Damaged) -> TaskRows:
    """Rows of the topology description: of the ranges that the generation has elsewhere, and of their owners."""
    if any(each.slice == inserted for each in found.lacking):
        ring = _ring_of(lake, entry, descriptions.published_range_ends(lake, entry.time_ms))
        return description_rows(ring, entry.generation_id)
    made = descriptions.read_description(lake, entry.generation_id)
    ends = made.range_ends
    layout = RingLayout(ends, range_starts(ends), made.stream_counts, made.ignore_msbs)
    return description_rows(_ring_of(lake, entry, ends), entry.generation_id, layout)


def _ring_of(lake: Lake, entry: ledger.Entry, ends: np.ndarray) -> Ring:
    """The nodes that own these tokens, with them alone, whatever became of the nodes since."""
    wanted = set(ends.tolist())
    tokens = [(node, tuple(token for token in node.tokens if token in wanted)) for node in members(lake)]
    owned = sum(len(some) for _, some in tokens)
    if not wanted or owned != len(wanted):
        raise StateError(
            f"generation {entry.generation_id}: nothing tells any more who owned {len(wanted) - owned} of its "
            f"{len(wanted)} ranges; bring the files of {TOPOLOGY_DESCRIPTIONS.full_name} back from a copy"
        )
    return Ring.of(replace(node, tokens=some) for node, some in tokens if some)


def _inserted(lake: Lake, generation_id: str) -> TaskRows:
    where = {"generation_id": generation_id}
    ends = lake.read(TOPOLOGY_DESCRIPTIONS, ["range_end"], [("generation_id", "=", generation_id)])
    if not ends.num_rows:
        raise StateError(f"generation {generation_id} has no topology description; import it again")
    described = frames.slice_rows(lake, TOPOLOGY_DESCRIPTIONS, where, ["range_end", "ignore_msb", "streams"])
    return v2_rows(described, generation_id, ends.num_rows)
